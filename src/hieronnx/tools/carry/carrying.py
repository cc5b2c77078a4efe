"""The carry of files: open both, carry, count what the tool did to nodes and calls, write."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from hieronnx.attribute.blocks import find_usual
from hieronnx.attribute.carried import Carried, carry_scopes, read_scopes
from hieronnx.attribute.fill import fill_gaps, make_nodes
from hieronnx.attribute.folded import Folded
from hieronnx.attribute.same_model import ViewedFile, check_related, is_renamed
from hieronnx.attribute.weights import hold_same, pair_weights
from hieronnx.errors import InputError, check_known
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import OpenedModel, find_beside, load
from hieronnx.files.torch_scopes import note_torch_scopes
from hieronnx.files.writing import check_output, list_own_files, write
from hieronnx.graph.view import ModelLike, View
from hieronnx.hierarchy.hierarchy import Hierarchy, add_consumers
from hieronnx.hierarchy.records import CONFIDENCE, LEVELS, BoundTensor, Call, CallId, Initializer, Node
from hieronnx.match.align.sequences import group
from hieronnx.match.renamed import pair_renamed, pair_results
from hieronnx.tools.carry.pair import Pair, open_pair, run_pair
from hieronnx.tools.carry.result import CarryResult, LostCall, RewrittenNodes
from hieronnx.tools.precision.result import PrecisionReport

_WEAK = frozenset({"name", "dataflow", "root"})
_MANY = 0.1
_UNTOUCHED, _REWRITTEN, _INSERTED = "untouched", "rewritten", "inserted"


@reads_files
def carry(
    original: ModelLike,
    transformed: ModelLike,
    *,
    output: str | os.PathLike[str] | None = None,
    by_value: bool = False,
    inputs: Mapping[str, Any] | None = None,
    embed: bool = True,
    sidecar: bool = True,
    min_confidence: str = "low",
) -> CarryResult:
    """Carry the hierarchy of a model onto what a tool made of it.

    Nodes are matched by structure and names, and by what they compute if both are run. The graph of the transformed
    file is not changed, nor its weights: it gets metadata, and a sidecar beside it.

    Args:
        original: The model as it was, with its hierarchy.
        transformed: What was made of it.
        output: Where to write the transformed model with the hierarchy; it may be the transformed file itself. None:
            nothing is written.
        by_value: Whether to run both in ONNX Runtime on the same inputs, to find tensors that hold the same: for tools
            that rename them.
        inputs: An array for each input of the original, to run both on; None: random ones.
        embed: Whether to write the hierarchy into the file.
        sidecar: Whether to write it beside the file as JSON.
        min_confidence: The least confidence, high, medium or low, with which a node counts as attributed in the result.

    Raises:
        HieronnxError: If the original has no hierarchy, or the two have nothing to do with each other.

    Example:
        >>> hieronnx.carry("model.onnx", "optimized.onnx", output="carried.onnx").hierarchy.coverage()
        1.0
    """
    if inputs is not None and not by_value:
        raise InputError("inputs are for carrying by value; set by_value, too")
    check_known("level of confidence", min_confidence, LEVELS)
    pair = open_pair(original, transformed)
    if by_value:
        pair = run_pair(pair, inputs)
    if output is not None:
        check_output(Path(output), list_own_files(original))
    moved = transfer(pair)
    before, after = ViewedFile(pair.before, pair.a), ViewedFile(pair.after, pair.b)
    check_related(before, after, moved.carried.tensors, pair.fixed)
    result = _account(pair, moved)
    result = replace(result, notes=(*result.notes, *_note_names(pair, moved)))
    if output is not None:
        result = _write(result, transformed, Path(output), pair.b, embed=embed, sidecar=sidecar, temporary=False)
    return replace(result, hierarchy=result.hierarchy.require_confidence(min_confidence))


def _note_names(pair: Pair, moved: Transfer) -> Iterator[str]:
    """Say so if a tool renamed everything and nothing else told enough."""
    nodes = moved.hierarchy.nodes
    weak = sum(node.evidence in _WEAK for node in nodes)
    if pair.fixed is None and weak > _MANY * len(nodes) and is_renamed(pair.a, pair.b):
        yield (
            f"the tool renamed the tensors; weights and structure leave {weak} of {len(nodes)} nodes to be guessed; "
            "--by-value (by_value=True) runs both models and finds more"
        )


def carry_temporary(
    original: OpenedModel, made: Path, output: Path, *, embed: bool, sidecar: bool, examine: Examine | None = None
) -> CarryResult:
    """Carry a hierarchy onto a temporary file that a tool just made of the model, and write that to its place.

    Raises:
        HieronnxError: If a file cannot be read or written.
    """
    pair = open_pair(original, made)
    moved = transfer(pair)
    result = _account(pair, moved)
    if examine is not None:
        result = replace(result, precision=examine(pair, moved))
    return _write(result, made, output, pair.b, embed=embed, sidecar=sidecar, temporary=True)


def _write(
    result: CarryResult, model: ModelLike, output: Path, view: View, *, embed: bool, sidecar: bool, temporary: bool
) -> CarryResult:
    hierarchy = write(model, result.hierarchy, output, embed=embed, sidecar=sidecar, temporary=temporary, view=view)
    if embed or sidecar:
        hierarchy = load(output)
    return replace(result, hierarchy=hierarchy, path=output, sidecar=find_beside(output) if sidecar else None)


# -- the hierarchy of the transformed graph ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transfer:
    """What carry found, and the hierarchy that was made of it."""

    carried: Carried
    hierarchy: Hierarchy


Examine: TypeAlias = Callable[[Pair, Transfer], PrecisionReport]
"""Takes what was carried, and says what a quantizer did."""


def transfer(pair: Pair) -> Transfer:
    """Carry the scopes over, fill what is left open, and make the hierarchy of graph B."""
    before = pair.hierarchy
    carried = carry_scopes(pair.a, read_scopes(pair.a, before), pair.b, before.tree, *_find_known(pair))
    nodes = make_nodes(pair.b, fill_gaps(pair.b, carried.nodes, before.tree))
    calls, initializers = _carry_calls(pair, carried), tuple(_carry_initializers(pair, carried))
    hierarchy = replace(before, calls=calls, nodes=nodes, initializers=initializers, strategy="carried")
    return Transfer(carried, add_consumers(hierarchy, pair.b.find_readers()))


def _find_known(pair: Pair) -> tuple[Mapping[int, int] | None, ...]:
    """Find what is known of the tensors of graph B besides names: fixed ones, altered weights, likely ones.

    Weights are read only where names are gone.
    """
    if pair.fixed is not None or not is_renamed(pair.a, pair.b):
        return (pair.fixed,)
    files = (pair.before, pair.a, pair.after, pair.b)
    fixed = pair_renamed(pair.a, pair.b)
    if fixed is not None and hold_same(*files, fixed):
        return (fixed,)
    same, altered = pair_weights(*files)
    return same, altered, pair_results(pair.a, pair.b, same)


def _carry_initializers(pair: Pair, carried: Carried) -> Iterator[Initializer]:
    """Yield the initializers: what they hold, and whose work, that of earlier tools included."""
    initializers = {initializer.name: initializer for initializer in pair.hierarchy.initializers}
    for tensor in pair.b.constants:
        folded = carried.initializers.get(tensor, Folded((), ()))
        sources = [initializers[name] for name in folded.sources if name in initializers]
        parameters = {source.parameter for source in sources if source.parameter is not None}
        origins = dict.fromkeys((*folded.origins, *(origin for source in sources for origin in source.origins)))
        yield Initializer(pair.b.names[tensor], parameters.pop() if len(parameters) == 1 else None, tuple(origins))


def _carry_calls(pair: Pair, carried: Carried) -> tuple[Call, ...]:
    """Return the calls, with the tensors that they received and returned by their names in graph B."""
    usual = find_usual(pair.b)

    def move(bound: BoundTensor) -> BoundTensor:
        of_a = pair.a.find_tensor(bound.graph, bound.tensor)
        of_b = None if of_a is None else carried.tensors[of_a]
        of_b = of_b if of_b is None else usual.get(of_b, of_b)  # in blocks, it is not what a call exchanged
        graph, name = ("", None) if of_b is None else pair.b.tensor_key(of_b)
        return BoundTensor(bound.name, name, graph)

    def move_all(bound: Sequence[BoundTensor] | None) -> tuple[BoundTensor, ...] | None:
        return None if bound is None else tuple(map(move, bound))

    calls = pair.hierarchy.calls
    return tuple(replace(c, received=move_all(c.received), returned=move_all(c.returned)) for c in calls)


# -- what the tool did ------------------------------------------------------------------------------------


def _account(pair: Pair, moved: Transfer) -> CarryResult:
    nodes = moved.hierarchy.nodes
    verdicts = list(_judge_nodes(pair, moved))
    counts, evidence = Counter(verdicts), Counter(node.evidence for node in nodes)
    rewritten = (node for node, verdict in zip(nodes, verdicts, strict=True) if verdict == _REWRITTEN)
    return CarryResult(
        hierarchy=moved.hierarchy,
        path=None,
        sidecar=None,
        nodes_before=len(pair.hierarchy.nodes),
        untouched=counts[_UNTOUCHED],
        rewritten=counts[_REWRITTEN],
        inserted=counts[_INSERTED],
        rewritten_by_call=_group_rewritten(rewritten),
        lost=_find_lost(pair, moved),
        by_evidence={name: evidence[name] for name in CONFIDENCE},
        notes=tuple(note_torch_scopes(pair.before.name, pair.hierarchy.strategy)),
    )


def _judge_nodes(pair: Pair, moved: Transfer) -> Iterator[str]:
    """Say of each node of graph B, in file order, what happened to it."""
    makers: dict[int, set[str]] = defaultdict(set)
    """For each tensor of B the operators that made its value in A."""
    for of_a, of_b in enumerate(moved.carried.tensors):
        producer = pair.a.producers[of_a]
        if of_b is not None and producer is not None:
            makers[of_b].add(pair.a.nodes[producer].op)
    for index in pair.b.file_order:
        node, attribution = pair.b.nodes[index], moved.carried.nodes[index]
        if any(node.op in makers.get(t, ()) for t in node.outputs):
            yield _UNTOUCHED
        else:
            yield _INSERTED if attribution is None or attribution.evidence == "dataflow" else _REWRITTEN


def _group_rewritten(nodes: Iterable[Node]) -> tuple[RewrittenNodes, ...]:
    """Group the rewritten nodes by call and operator, those that do the work of most calls first."""
    groups = group(nodes, lambda node: (node.scope, node.op_type))
    rewritten = [
        RewrittenNodes(scope, op_type, len(members), tuple(dict.fromkeys(o for node in members for o in node.origins)))
        for (scope, op_type), members in groups.items()
    ]
    return tuple(sorted(rewritten, key=lambda item: (-len(item.origins), -item.nodes)))


def _find_lost(pair: Pair, moved: Transfer) -> tuple[LostCall, ...]:
    """Find the calls that had nodes and have none any more, and the initializers that hold their work."""
    before, after = (
        {call for node in nodes if node.evidence != "root" for call in (node.scope, *node.origins)}
        for nodes in (pair.hierarchy.nodes, moved.hierarchy.nodes)
    )
    folded: dict[CallId, list[str]] = defaultdict(list)
    for initializer in moved.hierarchy.initializers:
        for origin in initializer.origins:
            folded[origin].append(initializer.name)
    gone = (call.id for call in pair.hierarchy.calls if call.id in before and call.id not in after)
    return tuple(LostCall(call, tuple(folded[call])) for call in gone)
