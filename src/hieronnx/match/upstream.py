"""Work that went into the node before, the output of which kept its name: the tensor of that name has another value.

A: x ─ Conv ─ c ─ BatchNormalization ─ n ─ Relu ─ y          B: x ─ Conv ─ c ─ Relu ─ y
                                                                   {Conv, BatchNormalization}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hieronnx.graph.operators import AFFINE_OPS
from hieronnx.graph.view import NO_TENSOR, ViewNode
from hieronnx.match.regions import find_region

if TYPE_CHECKING:
    from hieronnx.match.structure import Matcher


def pass_upstream(matcher: Matcher, node: ViewNode, same: ViewNode) -> None:
    """Give the work that A does before a node, and B nowhere, to the altered node of B that feeds the same node.

    A node that is as it was did not take over other work. If what it reads is now made from further back than in A, the
    node that makes it did.
    """
    number = matcher.values.number
    for of_b, of_a in zip(node.inputs, same.inputs, strict=True):
        if NO_TENSOR in (of_b, of_a) or matcher.a.flow.constant[of_a]:
            continue
        named, feeder = matcher.tensor_in_a[of_b], matcher.b.producers[of_b]
        match = None if feeder is None else matcher.matches.get(feeder)
        if feeder is None or match is None or not match.altered or named is None or number[named] == number[of_a]:
            continue
        region = find_region(matcher.a, matcher.values, [of_a], matcher.gather_group(feeder)[1])
        if region is not None:
            matcher.matches[feeder] = match.extend(region, match.proven)
            matcher.tensor_in_a[of_b] = of_a


def pass_constants_upstream(
    matcher: Matcher, node: ViewNode, producer: int, region: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the region of an altered node without what the altered node before it does with constants of A.

    A: Conv ─ c ─ BatchNormalization ─ n ─ Conv ─ d          B: Conv ─ c ─ Conv ─ d, both with other weights

    Either may have taken over what is between them. Tools fold it into the weights of the node before: that is what is
    taken for likely, unless one of the two reads the constants.
    """
    for tensor in node.inputs:
        feeder = None if tensor == NO_TENSOR else matcher.b.producers[tensor]
        match = None if feeder is None else matcher.matches.get(feeder)
        named = None if tensor == NO_TENSOR else matcher.tensor_in_a[tensor]
        if feeder is None or match is None or named is None or not match.altered or match.group:
            continue
        taken = _find_folded(matcher, named, region, producer)
        if taken and _has_new_weights(matcher, feeder) and not _reads_constants_of(matcher, node, taken):
            matcher.matches[feeder] = match.extend((*match.region, *taken), False)
            matcher.tensor_in_a[tensor] = matcher.a.nodes[taken[-1]].outputs[0]
            region = tuple(n for n in region if n not in taken)
    return region


def _find_folded(matcher: Matcher, tensor: int, region: Sequence[int], last: int) -> list[int]:
    """Find the nodes of a region that compute with a tensor and constants alone, and nothing else reads, in order."""
    a, found = matcher.a, list[int]()
    while len(readers := a.consumers[tensor]) == 1 and readers[0] in region and readers[0] != last:
        node = a.nodes[readers[0]]
        others = [t for t in node.reads if t != tensor]
        if node.op not in AFFINE_OPS or not others or not all(a.flow.literal[t] for t in others):
            break
        found.append(readers[0])
        tensor = node.outputs[0]
    return found


def _has_new_weights(matcher: Matcher, index: int) -> bool:
    """Say whether a node of B reads constants that A does not have."""
    constant = matcher.b.flow.constant
    return any(constant[t] and matcher.tensor_in_a[t] is None for t in matcher.b.nodes[index].reads)


def _reads_constants_of(matcher: Matcher, node: ViewNode, nodes: Sequence[int]) -> bool:
    """Say whether a node of B reads constants that some nodes of A read."""
    read = {t for n in nodes for t in matcher.a.nodes[n].reads if matcher.a.flow.constant[t]}
    return any(matcher.tensor_in_a[t] in read for t in node.reads)
