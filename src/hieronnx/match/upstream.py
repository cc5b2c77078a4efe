"""Work that went into the node before, the output of which kept its name: the tensor of that name has another value.

A: x ─ Conv ─ c ─ BatchNormalization ─ n ─ Relu ─ y          B: x ─ Conv ─ c ─ Relu ─ y
                                                                   {Conv, BatchNormalization}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hieronnx.graph.operators import AFFINE_INPUTS, PRODUCT_OPS, SCALING_OPS
from hieronnx.graph.view import NO_TENSOR, View, ViewNode
from hieronnx.match.kinds import is_related
from hieronnx.match.regions import find_region
from hieronnx.match.renamed import read_content, read_numbers, reads_other

if TYPE_CHECKING:
    from hieronnx.match.structure import Matcher


def pass_upstream(matcher: Matcher, node: ViewNode, same: ViewNode) -> None:
    """Give the work that A does before a node, and B nowhere, to the altered node of B that feeds the same node.

    A node that is as it was did not take over other work. If what it reads is now made from further back than in A, the
    node that makes it did: one that seems as it was, too, if its weights hold other numbers.
    """
    number = matcher.values.number
    for of_b, of_a in zip(node.inputs, same.inputs, strict=True):
        if NO_TENSOR in (of_b, of_a) or matcher.a.flow.constant[of_a]:
            continue
        named, feeder = matcher.tensor_in_a[of_b], matcher.b.producers[of_b]
        match = None if feeder is None else matcher.matches.get(feeder)
        if feeder is None or match is None or named is None or number[named] == number[of_a]:
            continue
        region = find_region(matcher.a, matcher.values, [of_a], matcher.gather_group(feeder)[1])
        if region is None:
            continue
        took = match.altered or took_over(matcher, feeder, match.region, region)
        if took is not False:
            longer = replace(match.with_region(region, match.proven and took is True), altered=True)
            matcher.add_match(feeder, longer, [(of_b, of_a)])


def pass_constants_upstream(
    matcher: Matcher, index: int, producer: int, region: tuple[int, ...]
) -> tuple[tuple[int, ...], bool]:
    """Return the region of an altered node without what the product before it took over, and whether that is sure.

    A: Conv ─ c ─ BatchNormalization ─ n ─ Conv ─ d          B: Conv ─ c ─ Conv ─ d, both with other weights

    Either may have taken over what is between them. Where nothing tells which did, it is taken to be the first, as most
    tools do, and both are guesses.
    """
    sure = True
    for tensor in matcher.b.nodes[index].inputs:
        feeder = None if tensor == NO_TENSOR else matcher.b.producers[tensor]
        match = None if feeder is None else matcher.matches.get(feeder)
        named = None if tensor == NO_TENSOR else matcher.tensor_in_a[tensor]
        if feeder is None or match is None or named is None:
            continue
        taken = _find_folded(matcher, feeder, named, region, producer)
        took = bool(taken) and (match.altered or has_other_weights(matcher, feeder))
        if took is False or _reads_constants_of(matcher, index, taken):
            continue
        first = _is_first_certain(matcher, feeder, named, taken) or not _may_do(matcher, index, producer, taken)
        sure = sure and first
        longer = match.with_region((*match.region, *taken), match.proven and first and took is True)
        matcher.add_match(feeder, replace(longer, altered=True), [(tensor, matcher.a.nodes[taken[-1]].outputs[0])])
        region = tuple(n for n in region if n not in taken)
    return region, sure


def _find_folded(matcher: Matcher, feeder: int, tensor: int, region: Sequence[int], last: int) -> list[int]:
    """Find the nodes of a region, in order, that may have been folded into the product of B that makes a tensor of A.

    They compute with the tensor and constants alone, and nothing else reads it.
    """
    a, found = matcher.a, list[int]()
    maker = a.producers[tensor]
    if maker is None or not _is_product(matcher.b.nodes[feeder].op):
        return found
    if not _is_product(a.nodes[maker].op) and a.nodes[maker].op not in AFFINE_INPUTS:
        return found  # an activation, say, that was fused with a product
    adds = _has_new_offset(matcher, feeder, maker) is not False
    while len(readers := a.consumers[tensor]) == 1 and tensor not in a.handed_out:
        reader, node = readers[0], a.nodes[readers[0]]
        if reader not in region or reader == last or matcher.is_in_b(reader) or len(node.makes) > 1:
            break
        if find_scaled(a, reader) != tensor or not (adds or node.op in SCALING_OPS):
            break
        found.append(reader)
        tensor = node.outputs[0]
    return found if found and has_new_numbers(matcher, feeder) else []


def find_scaled(view: View, index: int) -> int | None:
    """Return the tensor that a node scales or shifts by constants; None where it does something else."""
    node = view.nodes[index]
    computed = [place for place, t in enumerate(node.inputs) if t != NO_TENSOR and not view.flow.literal[t]]
    is_affine = len(computed) == 1 and computed[0] in AFFINE_INPUTS.get(node.op, ())
    return node.inputs[computed[0]] if is_affine else None


def _is_first_certain(matcher: Matcher, feeder: int, tensor: int, taken: Sequence[int]) -> bool:
    """Say whether all that follows a tensor of A is certain to be in the product of B that makes it.

    It is, if that reads constants of the last, or adds something new that only the last explains.
    """
    if _reads_constants_of(matcher, feeder, taken[-1:]):
        return True
    match, maker = matcher.matches[feeder], matcher.a.producers[tensor]
    computed = [n for n in match.region if not all(matcher.a.flow.constant[t] for t in matcher.a.nodes[n].makes)]
    if not match.proven or maker is None or computed != [maker] or matcher.a.nodes[taken[-1]].op in SCALING_OPS:
        return False
    # What scales adds nothing, but changes what was added before.
    added = len(matcher.a.nodes[maker].inputs) > 2
    explaining = [n for n in taken if added or matcher.a.nodes[n].op not in SCALING_OPS]
    return len(explaining) == 1 and _has_new_offset(matcher, feeder, maker) is True


def _may_do(matcher: Matcher, index: int, producer: int, taken: Sequence[int]) -> bool:
    """Say whether a node of B may do the work of nodes that come before one of A, as well as that one's."""
    node, other = matcher.b.nodes[index], matcher.a.nodes[producer]
    scales = matcher.a.nodes[taken[-1]].op in SCALING_OPS
    if not has_new_numbers(matcher, index):
        return scales and node.attributes != other.attributes
    if scales:
        return True
    # At the borders a zero is read in place of what was added.
    return not _pads(node) and _has_new_offset(matcher, index, producer) is not False


def _is_product(op: str) -> bool:
    return any(is_related(op, product) for product in PRODUCT_OPS)


def _pads(node: ViewNode) -> bool:
    """Say whether a node is a convolution that reads zeros around its input."""
    sizes, automatic = node.attribute("pads"), node.attribute("auto_pad")
    pads_itself = automatic not in (None, ("STRING", "NOTSET"), ("STRING", "VALID"))
    return is_related(node.op, "Conv") and (pads_itself or (isinstance(sizes, tuple) and any(sizes)))


def has_new_numbers(matcher: Matcher, index: int) -> bool:
    """Say whether a node of B reads constants that A does not have, or that may hold something else there."""
    a, b, in_a = matcher.a, matcher.b, matcher.tensor_in_a
    pairs = [(t, in_a[t]) for t in b.nodes[index].reads if b.flow.constant[t]]
    if any(same is None or read_content(b, t) != read_content(a, same) for t, same in pairs):
        return True
    return has_other_weights(matcher, index) is not False


def has_other_weights(matcher: Matcher, index: int) -> bool | None:
    """Say whether a node of B has weights that hold other numbers than those of A that they are; None if not known."""
    a, b, in_a = matcher.a, matcher.b, matcher.tensor_in_a
    pairs = [(t, same) for t in b.nodes[index].reads if b.flow.constant[t] and (same := in_a[t]) is not None]
    found = [reads_other(a, same, b, t) for t, same in pairs]
    return True if any(found) else None if None in found else False


def took_over(matcher: Matcher, index: int, own: Sequence[int], region: Sequence[int]) -> bool | None:
    """Say whether a node of B that seems to be as it was took over more of A than its `own` work; None if not known.

    That goes into its weights, which keep their names, and are read if that is all that is done there.
    """
    a, op = matcher.a, matcher.b.nodes[index].op
    more = [n for n in region if n not in own and not all(a.flow.constant[t] for t in a.nodes[n].makes)]
    if not more or not (_is_product(op) or op in AFFINE_INPUTS) or any(find_scaled(a, n) is None for n in more):
        return False
    return has_other_weights(matcher, index)


def _has_new_offset(matcher: Matcher, index: int, of_a: int) -> bool | None:
    """Say whether a product of B adds something else than one of A; None where that is not known."""
    products = (matcher.b, matcher.b.nodes[index]), (matcher.a, matcher.a.nodes[of_a])
    if any(product.op not in PRODUCT_OPS for _, product in products):
        return None
    after, before = (product.inputs[2] if len(product.inputs) > 2 else NO_TENSOR for _, product in products)
    if after == NO_TENSOR:
        return False if before == NO_TENSOR else None
    new, old = (read_numbers(view, t) for (view, _), t in zip(products, (after, before), strict=True))
    if new is not None and not any(new[2]):
        return None  # zeros may stand for nothing, and stay zeros however they are scaled
    if before == NO_TENSOR:
        return True
    if new is None or old is None or new[:2] != old[:2]:
        return None
    return new != old


def _reads_constants_of(matcher: Matcher, index: int, nodes: Sequence[int]) -> bool:
    """Say whether a node of B reads constants that some nodes of A read, and no others."""
    a = matcher.a
    read = {t for n in nodes for t in a.nodes[n].reads if a.flow.constant[t] and set(a.consumers[t]) <= set(nodes)}
    return any(matcher.tensor_in_a[t] in read for t in matcher.b.nodes[index].reads)
