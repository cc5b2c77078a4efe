"""What names say: exporters of older times name a node after the modules around it, `/encoder/layer.0/dense/MatMul`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from hieronnx.attribute.projected import Contradiction
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import Attribution, CallId
from hieronnx.hierarchy.tags import CallSite


def add_names(
    view: View, nodes: list[Attribution | None], sites: Sequence[CallSite], tree: CallTree
) -> tuple[Contradiction, ...]:
    """Attribute by their names the nodes that only their neighbours tell of, or nothing; return who says otherwise.

    A module that was called more than once is left out: names number its calls in ways that cannot be told from a name.
    """
    calls: dict[str, list[CallId]] = defaultdict(list)
    for site in sites:
        calls[site.id.module].append(site.id)
    contradictions = []
    for index, node in enumerate(view.nodes):
        call, known = _find_call(node.name, calls), nodes[index]
        if call is None:
            continue
        if known is None or known.evidence == "dataflow":
            origins = known.origins if known is not None and call in known.origins else (call,)
            nodes[index] = Attribution(call, origins, "name", "name")
        elif known.evidence == "value" and not _agree(known, call, tree):
            contradictions.append(Contradiction(index, (("value", known.scope), ("name", call))))
    return tuple(contradictions)


def _find_call(name: str, calls: Mapping[str, Sequence[CallId]]) -> CallId | None:
    """Return the only call of the module that a name leads to."""
    if not name.startswith("/"):
        return None
    path: list[str] = []
    for step in name.split("/")[1:-1]:
        # A child of a sequential module is named with its parent's name before it.
        repeated = bool(path) and step.startswith(f"{path[-1]}.")
        path[-1 if repeated else len(path) :] = [step]
    found = calls.get(".".join(path), ())
    return found[0] if len(found) == 1 else None


def _agree(known: Attribution, call: CallId, tree: CallTree) -> bool:
    """Say whether a call is among the origins of an attribution, or above or below it."""
    return call in known.origins or tree.lowest_above((known.scope, call)) in (known.scope, call)
