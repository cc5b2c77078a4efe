"""The claims of a sidecar or of metadata in a model, checked one by one: a wrong one does not hide the others.

Both readers make a `Claim` of what they read. `check_claim` makes a hierarchy of what holds together and says in
findings what does not: `validate` reports them, all others raise the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CONFIDENCE, ROOT, Call, CallId, Initializer, Module, Node
from hieronnx.hierarchy.tags import TagPolicy

if TYPE_CHECKING:
    from hieronnx.files.document import CallEntry, Document

# Python itself gives up at about this depth of modules; reports that follow the tree need not go deeper.
DEEPEST_CALL = 300
RESTORE = "export the model again, or restore the file"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a file or its hierarchy.

    Attributes:
        check: the name of the check.
        severity: error, warning or note.
        place: where: the node, call, module, initializer or file.
        message: what is wrong.
        remedy: what to do about it.
        details: all that the message counts and does not name.
    """

    check: str
    severity: str
    place: str
    message: str
    remedy: str
    details: tuple[str, ...] = ()


def node_place(graph: str, output: str, name: str = "") -> str:
    """Name a node as a place: by its name, or by its first output where it has none."""
    return f"node '{name or output}'" + (f" in '{graph}'" if graph else "")


def call_place(call: object) -> str:
    """Name a call as a place; the root's path is empty, so that it is called root."""
    return f"call '{call}'" if str(call) else "root call"


@dataclass(frozen=True, slots=True)
class Claim:
    """One form of a hierarchy as it was read, before anything in it is believed.

    Attributes:
        source: `sidecar` or `metadata`.
        tags: the tag that is written on each node; None where none is.
        model: about the file; empty where the form does not say.
        policy: which modules have tags; None where the form does not say.
        strategy: how the nodes were attributed; None where the form does not say.
        document: the whole sidecar.
    """

    source: str
    modules: Mapping[str, Module]
    calls: tuple[CallEntry, ...]
    nodes: tuple[Node, ...]
    tags: tuple[str | None, ...]
    initializers: tuple[Initializer, ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    policy: TagPolicy | None = None
    strategy: str | None = None
    document: Document | None = None

    def error(self, check: str, what: str, reason: str) -> Finding:
        """Report something in this form that cannot be believed."""
        return Finding(check, "error", f"{self.source}: {what}", reason, RESTORE)


def check_claim(claim: Claim) -> tuple[Hierarchy | None, list[Finding]]:
    """Check that a hierarchy holds together; return what of it does, and what does not.

    Calls that are in no tree are left out, and so are the nodes that refer to them. None if there is no root.
    """
    calls, findings = _check_calls(claim)
    if not calls:
        return None, findings
    ids = {call.id for call in calls}

    def explain(references: Iterable[CallId]) -> list[str]:
        missing = (call for call in dict.fromkeys(references) if call not in ids)
        return [f"it refers to call '{call}', which is not among the calls" for call in missing]

    nodes, initializers = [], []
    for node in claim.nodes:
        reasons = explain((node.scope, *node.origins))
        if node.evidence not in CONFIDENCE:
            reasons.append(f"its evidence '{node.evidence}' is not one of {', '.join(CONFIDENCE)}")
        findings += (claim.error("references", node_place(*node.key, node.name), reason) for reason in reasons)
        nodes += [node] * (not reasons)
    for item in claim.initializers:
        reasons = explain(item.origins)
        findings += (claim.error("references", f"initializer '{item.name}'", reason) for reason in reasons)
        initializers += [item] * (not reasons)
    policy = _infer_policy(claim.modules, calls) if claim.policy is None else claim.policy
    about = (claim.model, policy, claim.strategy)
    return Hierarchy(claim.modules, tuple(calls), tuple(nodes), tuple(initializers), *about), findings


def _check_calls(claim: Claim) -> tuple[list[Call], list[Finding]]:
    sound: dict[int, Call] = {}
    depths: dict[CallId, int] = {}
    tags: set[str] = set()
    findings = []
    for position, entry in enumerate(claim.calls):
        call = CallId(entry.module, entry.call)
        if reason := _explain_call(claim, position, sound, depths):
            findings.append(claim.error("calls", call_place(call), reason))
            continue
        parent = None if entry.parent is None else sound[entry.parent].id
        depths[call] = 0 if parent is None else depths[parent] + 1
        own = entry.tag not in tags
        sound[position] = Call(call, parent, entry.via, entry.tag, own, entry.inputs, entry.outputs)
        tags.add(entry.tag)
    if not claim.calls:
        findings.append(claim.error("calls", "calls", "there are no calls"))
    return list(sound.values()), findings


def _explain_call(claim: Claim, position: int, sound: Mapping[int, Call], depths: Mapping[CallId, int]) -> str:
    """Say why a call cannot be believed; nothing if it can."""
    entry = claim.calls[position]
    if entry.call < 0:
        return f"a module cannot have a call {entry.call}"
    if (entry.module, entry.call) in depths:
        return "the call is there twice"
    if entry.module not in claim.modules:
        return "its module is not in the module table"
    if position == 0:
        is_root = entry.parent is None and (entry.module, entry.call) == ROOT
        return "" if is_root else "the first call is not that of the root module"
    if entry.parent is None:
        return "it has no caller; only the first call has none"
    if entry.parent not in sound:
        return f"it has no caller: at position {entry.parent} is no call before it that can be believed"
    too_deep = depths[sound[entry.parent].id] >= DEEPEST_CALL
    return f"it has more than {DEEPEST_CALL} calls above it" * too_deep


def _infer_policy(modules: Mapping[str, Module], calls: Iterable[Call]) -> TagPolicy:
    """Infer the policy of a file that does not name it: the classes of torch.nn whose calls have tags of their own."""
    others = TagPolicy(frozenset())
    classes = (modules[call.id.module].qualified_class for call in calls if call.tagged and call.parent is not None)
    return TagPolicy(frozenset(name.rpartition(".")[2] for name in classes if not others.belongs(name)))
