"""What parameters say: a node that reads one does the work of a call that read it in the run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from hieronnx.attribute.by_value.trace import Trace
from hieronnx.attribute.projected import Contradiction, HeldParameter
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import Attribution, CallId


def add_parameters(
    view: View,
    nodes: list[Attribution | None],
    held: Mapping[int, HeldParameter],
    readers: Mapping[str, Collection[CallId]],
    tree: CallTree,
    seen: Collection[int],
) -> tuple[Contradiction, ...]:
    """Attribute by their parameters the nodes that no values tell of; return where something else says otherwise.

    Args:
        view: The file.
        nodes: What is known of its nodes; completed in place.
        held: The parameters that its constants hold.
        readers: The calls that read each parameter.
        tree: The calls.
        seen: The tensors that the file computed: a node that did not run is of no call of the run.
    """
    contradictions = []
    for index, node in enumerate(view.nodes):
        if not any(tensor in seen for tensor in node.outputs):
            continue
        calls = _calls_of(node.reads_values, held, readers)
        known = nodes[index]
        if not calls:
            continue
        if len(calls) == 1 and (known is None or (_is_bounded(known) and calls[0] not in known.origins)):
            nodes[index] = Attribution(calls[0], (calls[0],), "parameter", "parameter")
        if known is not None and not any(_agree(known, call, tree) for call in calls):
            says = ((known.evidence, known.scope), ("parameter", calls[0]))
            contradictions.append(Contradiction(index, says if nodes[index] is known else says[::-1]))
    return tuple(contradictions)


def _calls_of(
    tensors: Sequence[int], held: Mapping[int, HeldParameter], readers: Mapping[str, Collection[CallId]]
) -> list[CallId]:
    names = (name for tensor in tensors if tensor in held for name in held[tensor].parameters)
    return list(dict.fromkeys(call for name in names for call in readers.get(name, ())))


def _is_bounded(known: Attribution) -> bool:
    """Say whether an attribution tells only between what a node lies, and not even in one call."""
    return bool(known.rule) and known.evidence != "value"


def _agree(known: Attribution, call: CallId, tree: CallTree) -> bool:
    """Say whether an attribution may be to a call: it has it among its origins, or is to a call above it."""
    return call in known.origins or tree.lowest_above((known.scope, call)) == known.scope


def find_readers(trace: Trace, names: Mapping[str, str]) -> dict[str, list[CallId]]:
    """Return for each parameter, under all its names, the calls that read it, as it is or through views.

    Args:
        trace: The run.
        names: For every name of a parameter its first name.
    """
    shows = dict(trace.parameters)
    found: dict[str, dict[CallId, None]] = defaultdict(dict)
    for op in trace.ops:
        read = {shows[value] for value in op.reads if value in shows}
        if op.views and len(read) == 1:
            shows.update(dict.fromkeys(op.gives, *read))
        else:
            for name in read:
                found[name][op.scope] = None
    return {name: list(found[first]) for name, first in names.items() if first in found}
