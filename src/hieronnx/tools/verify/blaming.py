"""Who is to blame: the innermost calls that explain all errors which rounding does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.verify.result import Culprit
from hieronnx.tools.verify.sampling import CallErrors, SampleErrors, SegmentError


def find_culprits(hierarchy: Hierarchy, errors: SampleErrors) -> tuple[Culprit, ...]:
    """Find the innermost calls that explain all errors, the worst first."""
    tree = hierarchy.tree
    blamed: dict[CallId, list[SegmentError]] = {}
    explained: set[Node] = set()
    suspects = [(_find_suspect(hierarchy, segment, errors), segment) for segment in errors.segments.values()]
    # Where the same nodes lead to several tensors that are wrong, the smallest part that explains them is to blame. Of
    # work that is done once for several calls, that is the first of them: it is where the nodes are kept.
    order = {call.id: place for place, call in enumerate(hierarchy.calls)}
    for call, segment in sorted(suspects, key=lambda item: (-tree.depth(item[0]), order[item[0]])):
        if explained.isdisjoint(segment.working):
            blamed.setdefault(call, []).append(segment)
        explained.update(segment.working)
    wrong = [call for call, found in errors.calls.items() if found.introduced.excess > 1]
    for call in sorted(wrong, key=tree.depth, reverse=True):
        nodes = errors.calls[call].nodes
        if explained.isdisjoint(nodes):  # no single step explains it: it adds up inside
            blamed.setdefault(call, [])
            explained.update(nodes)
    ranked = sorted(blamed, key=lambda call: _rank(call, blamed[call], errors), reverse=True)
    return tuple(_describe(hierarchy, call, blamed[call], errors) for call in ranked)


def _find_suspect(hierarchy: Hierarchy, segment: SegmentError, errors: SampleErrors) -> CallId:
    """Return the call that a wrong tensor is blamed on: the lowest that has all the nodes, compared itself or not.

    Where a call below it makes the tensor, and is wrong on the reference's own inputs, it is that one.
    """
    tree, owner = hierarchy.tree, segment.owner
    below = (call for call in tree.below(owner) if call in errors.calls and call != owner)
    wrong = [call for call in below if _makes_wrong(errors.calls[call], segment)]
    return max(wrong, key=tree.depth, default=owner)


def _makes_wrong(call: CallErrors, segment: SegmentError) -> bool:
    return call.introduced.excess > 1 and bool(segment.nodes) and segment.nodes[-1] in call.nodes


def _rank(call: CallId, segments: Sequence[SegmentError], errors: SampleErrors) -> tuple[float, float]:
    found = [segment.error for segment in segments] or [errors.calls[call].introduced]
    worst = max(found, key=lambda error: error.deviation.severity)
    return worst.deviation.severity, worst.excess


def _describe(hierarchy: Hierarchy, call_id: CallId, segments: Sequence[SegmentError], errors: SampleErrors) -> Culprit:
    call = hierarchy.call_by_id[call_id]
    # Where it could not be compared itself, nor any call above it, what its nodes lead to speaks for it.
    found = errors.calls.get(call_id) or max(segments, key=lambda segment: segment.error.rank)
    introduced = found.introduced if isinstance(found, CallErrors) else found.error
    worst = max([*(segment.error for segment in segments), introduced], key=lambda error: error.rank)
    nodes = tuple(dict.fromkeys(node for segment in segments for node in segment.nodes))
    if not nodes:
        below = set(hierarchy.tree.below(call_id))
        nodes = tuple(node for node in hierarchy.nodes if node.scope in below)
    return Culprit(
        module=call_id.module,
        call=call_id.number,
        tag=call.tag,
        class_name=hierarchy.modules[call_id.module].class_name,
        introduced=introduced.deviation,
        accumulated=found.accumulated,
        noise=worst.relative_noise,
        excess=worst.excess,
        nodes=nodes,
        operators=dict(Counter(node.op_type for node in nodes)),
        worst=worst.deviation,
        fused_with=_find_fused(hierarchy, call_id, nodes),
        cause=introduced.cause,
    )


def _find_fused(hierarchy: Hierarchy, call: CallId, nodes: Sequence[Node]) -> tuple[CallId, ...]:
    """Return the calls beside this one whose work some of the nodes do."""
    near = {*hierarchy.tree.below(call), *hierarchy.tree.ancestors(call)}
    origins = dict.fromkeys(origin for node in nodes for origin in node.origins)
    return tuple(origin for origin in origins if origin not in near)
