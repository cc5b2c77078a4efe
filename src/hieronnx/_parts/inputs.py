"""What a part reads from outside: what its module received, constants, and sizes.

A size is computed outside, once for all who need it. The part takes it of an input of its own where it can: of the same
tensor, or of one that has an axis of the same name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from hieronnx._parts.source import CONSTANT, DATA, SIZE, Source

__all__ = ["Inputs", "find_inputs"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a region reads from outside.

    Attributes:
        received: the tensors that are made of the values of what is fed.
        hoisted: the sizes that none of these has.
        brought: the nodes of constants and sizes that come along.
        retaken: those of them that take the size of another tensor than in the whole model: of which, and which axis.
    """

    received: tuple[int, ...]
    hoisted: tuple[int, ...]
    brought: tuple[int, ...]
    retaken: Mapping[int, tuple[int, int]]


def find_inputs(source: Source, region: Sequence[int]) -> Inputs:
    """Find what a region reads from outside."""
    view, kinds = source.view, source.kinds
    made = {tensor for index in region for tensor in view.nodes[index].outputs}
    read = dict.fromkeys(t for index in region for t in view.reads(index) if t not in made)
    received = tuple(t for t in read if kinds[t] == DATA)
    known, axes = made.union(received), _name_axes(source, received)
    hoisted, brought, retaken = list[int](), set[int](), dict[int, tuple[int, int]]()
    for tensor in sorted(t for t in read if kinds[t] == SIZE):
        derived = _derive(source, tensor, known, axes)
        if derived is None:
            hoisted.append(tensor)
            known.add(tensor)
        else:
            brought |= derived.keys()
            retaken |= {node: axis for node, axis in derived.items() if axis is not None}
    for tensor in read:
        if kinds[tensor] == CONSTANT:
            brought |= (_derive(source, tensor, known, {}) or {}).keys()
    return Inputs(received, tuple(hoisted), tuple(sorted(brought)), retaken)


def _derive(
    source: Source, tensor: int, known: Collection[int], axes: Mapping[str, tuple[int, int]]
) -> dict[int, tuple[int, int] | None] | None:
    """Return the nodes that make a tensor of constants and known tensors; None where more would be needed.

    A node that takes a size of an unknown tensor has an axis of that name by its side, from which it can be taken.
    """
    view, cone, pending = source.view, dict[int, tuple[int, int] | None](), [tensor]
    while pending:
        current = pending.pop()
        producer = view.producers[current]
        if current in known or current in view.constants or producer in cone:
            continue
        if producer is None or source.kinds[current] == DATA:
            return None
        reads = view.reads(producer)
        cone[producer] = None if all(t in known for t in reads) else axes.get(_size_taken(source, producer))
        if cone[producer] is None:
            pending += reads
    return cone


def _name_axes(source: Source, tensors: Iterable[int]) -> dict[str, tuple[int, int]]:
    """Return for each name of an axis the first tensor that has it, and where."""
    found: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        for axis, name in enumerate(_axis_names(source.values.get(tensor))):
            if name:
                found.setdefault(name, (tensor, axis))
    return found


def _axis_names(value: ir.Value | None) -> list[str]:
    if value is None or value.shape is None:
        return []
    return ["" if isinstance(size, int) else size.value or "" for size in value.shape]


def _size_taken(source: Source, index: int) -> str:
    """Return the name of the one axis whose size a node takes; nothing where it is another kind of node."""
    node = source.nodes[index]
    if source.view.nodes[index].op != "Shape":
        return ""
    names = _axis_names(node.inputs[0])
    start, end = (node.attributes.get_int(key, default) for key, default in (("start", 0), ("end", len(names))))
    taken = names[start:end]
    return taken[0] if len(taken) == 1 else ""
