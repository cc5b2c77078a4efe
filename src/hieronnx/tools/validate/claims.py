"""What the sidecar and the metadata claim, read piece by piece, so that one wrong piece does not hide the rest."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from hieronnx.files.document import DEEPEST_CALL, Document
from hieronnx.hierarchy.hierarchy import CallTree, Hierarchy
from hieronnx.hierarchy.records import CONFIDENCE, ROOT, BoundTensor, Call, CallId, Initializer, Module, Node
from hieronnx.tools.validate.findings import Finding, call_place, node_place

_IN_BOTH = ("scope", "origins", "evidence")
_ANEW = "export the model anew, or restore the file"
_WRITE_ANEW = "write it anew with 'hieronnx validate --fix'"
_FIX = "take one of them for true: 'hieronnx validate --fix-from sidecar' or '--fix-from embedded'"


@dataclass(frozen=True, slots=True)
class CallClaim:
    """A call as it is kept: the caller is a position in the list, and may be anything."""

    id: CallId
    parent: int | None
    via: str
    tag: str
    received: tuple[BoundTensor, ...] | None = None
    returned: tuple[BoundTensor, ...] | None = None


@dataclass(frozen=True, slots=True)
class NodeClaim:
    """A node, and the tag that is written on it; None where none is."""

    node: Node
    tag: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """One form of a hierarchy as it was found, before anything in it is believed.

    Attributes:
        source: `sidecar` or `metadata`.
        modules: those of the module table.
        calls: in their order.
        nodes: in their order.
        initializers: with the parameters that they hold.
        model: about the file; empty where the form does not tell.
        document: the whole sidecar.
    """

    source: str
    modules: Mapping[str, Module]
    calls: tuple[CallClaim, ...]
    nodes: tuple[NodeClaim, ...]
    initializers: tuple[Initializer, ...] = ()
    model: Mapping[str, object] = field(default_factory=dict)
    document: Document | None = None

    def place(self, what: str) -> str:
        """Name a place in this form."""
        return f"{self.source}: {what}"


def check_claim(claim: Claim) -> tuple[Hierarchy | None, list[Finding]]:
    """Check that a hierarchy holds together; return what of it does, and what does not.

    Calls that are in no tree are left out, and so are the nodes that speak of them. None if there is no root.
    """
    calls, found = _check_calls(claim)
    if not calls:
        return None, found
    known = {call.id: call for call in calls}
    nodes = []
    for item in claim.nodes:
        wrong = _check_node(claim, item, known)
        found += wrong
        if not any(finding.check == "references" for finding in wrong):
            nodes.append(item.node)
    found += _check_initializers(claim, known)
    held = tuple(i for i in claim.initializers if all(origin in known for origin in i.origins))
    return Hierarchy(claim.modules, tuple(calls), tuple(nodes), held, claim.model), found


def _check_calls(claim: Claim) -> tuple[list[Call], list[Finding]]:
    sound: dict[int, Call] = {}
    parents: dict[CallId, CallId | None] = {}
    tree = CallTree(parents)
    tags: set[str] = set()
    found = []
    for position, call in enumerate(claim.calls):
        if reason := _why_no_call(claim, position, call, sound, parents, tree):
            place = claim.place(call_place(call.id))
            found.append(Finding("calls", "error", place, reason, _ANEW))
            continue
        parent = parents[call.id] = None if call.parent is None else sound[call.parent].id
        own = call.tag not in tags
        sound[position] = Call(call.id, parent, call.via, call.tag, own, call.received, call.returned)
        tags.add(call.tag)
    if not claim.calls:
        found.append(Finding("calls", "error", claim.place("calls"), "there are no calls", _ANEW))
    return list(sound.values()), found


def _why_no_call(
    claim: Claim,
    position: int,
    call: CallClaim,
    sound: Mapping[int, Call],
    known: Container[CallId],
    tree: CallTree,
) -> str:
    """Say why a call cannot be believed; nothing if it can."""
    if call.id.number < 0:
        return f"a call cannot have the number {call.id.number}"
    if call.id in known:
        return "the call is there twice"
    if call.id.module not in claim.modules:
        return "its module is not in the module table"
    if position == 0:
        return "" if call.parent is None and call.id == ROOT else "the first call is not that of the root module"
    if call.parent is None:
        return "it has no parent call; only the first has none"
    if call.parent not in sound:
        return f"its parent, at position {call.parent}, is no call before it that can be believed"
    too_deep = tree.depth(sound[call.parent].id) >= DEEPEST_CALL
    return f"it has more than {DEEPEST_CALL} calls above it" * too_deep


def _check_node(claim: Claim, item: NodeClaim, known: Mapping[CallId, Call]) -> list[Finding]:
    node = item.node
    reasons = [f"it speaks of call '{call}', which is not among the calls" for call in _unknown(node, known)]
    if node.evidence not in CONFIDENCE:
        reasons.append(f"its evidence '{node.evidence}' is not one of {', '.join(CONFIDENCE)}")
    if reasons:
        place = claim.place(node_place(node.graph, node.output, node.name))
        return [Finding("references", "error", place, reason, _ANEW) for reason in reasons]
    expected = known[node.scope].tag
    if item.tag in (None, expected):
        return []
    place = claim.place(node_place(node.graph, node.output, node.name))
    message = f"its tag is '{item.tag}', that of its call '{node.scope}' is '{expected}'"
    return [Finding(f"{claim.source}-derived", "error", place, message, _WRITE_ANEW)]


def _unknown(node: Node, known: Mapping[CallId, Call]) -> list[CallId]:
    return [call for call in dict.fromkeys((node.scope, *node.origins)) if call not in known]


def _check_initializers(claim: Claim, known: Mapping[CallId, Call]) -> list[Finding]:
    return [
        Finding(
            "references",
            "error",
            claim.place(f"initializer '{held.name}'"),
            f"it speaks of call '{origin}', which is not among the calls",
            _ANEW,
        )
        for held in claim.initializers
        for origin in held.origins
        if origin not in known
    ]


# -- two forms --------------------------------------------------------------------------------------------


def compare_claims(sidecar: Claim, embedded: Claim) -> list[Finding]:
    """Check that both forms say the same: the same call tree, and the same of every node that both have."""
    found = _compare_calls(sidecar, embedded)
    by_key = {(item.node.graph, item.node.output): item for item in embedded.nodes}
    for item in sidecar.nodes:
        other = by_key.get((item.node.graph, item.node.output))
        if other is not None and (differing := _differing(item, other)):
            place = node_place(item.node.graph, item.node.output, item.node.name)
            found.append(Finding("agreement", "error", place, differing, _FIX))
    return found


def _compare_calls(sidecar: Claim, embedded: Claim) -> list[Finding]:
    ours, theirs = ({call.id: call for call in claim.calls} for claim in (sidecar, embedded))
    found = []
    for call in dict.fromkeys((*ours, *theirs)):
        if call not in ours or call not in theirs:
            message = f"the call is only in the {'sidecar' if call in ours else 'metadata'}"
        elif ours[call] != theirs[call] and _describe(ours[call]) == _describe(theirs[call]):
            message = "what it received or returned is another in the sidecar than in the metadata"
        elif ours[call] != theirs[call]:
            message = f"the sidecar has {_describe(ours[call])}, the metadata {_describe(theirs[call])}"
        elif _class_of(sidecar, call) != _class_of(embedded, call):
            message = f"its class is '{_class_of(sidecar, call)}' in the sidecar, '{_class_of(embedded, call)}' inside"
        else:
            continue
        found.append(Finding("agreement", "error", call_place(call), message, _FIX))
    if not found and list(ours) != list(theirs):
        found.append(Finding("agreement", "error", "calls", "the calls are in another order", _FIX))
    return found


def _describe(call: CallClaim) -> str:
    return f"parent {call.parent}, via '{call.via}', tag '{call.tag}'"


def _class_of(claim: Claim, call: CallId) -> str:
    module = claim.modules.get(call.module)
    return module.qualified_class if module else ""


def _differing(ours: NodeClaim, theirs: NodeClaim) -> str:
    """Say in what two claims about one node differ; nothing if in nothing that both forms keep."""
    parts = [
        f"{name} {_plain(getattr(ours.node, name))} in the sidecar, {_plain(getattr(theirs.node, name))} inside"
        for name in _IN_BOTH
        if getattr(ours.node, name) != getattr(theirs.node, name)
    ]
    return "; ".join(parts)


def _plain(value: object) -> str:
    if isinstance(value, tuple) and not isinstance(value, CallId):
        return "[" + ", ".join(f"'{item}'" for item in value) + "]"
    return f"'{value}'"
