"""What a part reads from outside: what its module received, constants, and sizes.

Where it is recorded what the call received, the part begins with that: also where others only moved or cast it on its
way. A size is computed outside, once for all who need it. The part takes it of an input of its own where it can: of the
same tensor, or of one that has an axis of the same name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from hieronnx.graph.operators import VIEW_OPS
from hieronnx.tools.extract.source import CONSTANT, DATA, SIZE, Source


@dataclass(slots=True)
class Inputs:
    """What a region reads from outside.

    Attributes:
        data: the tensors that are made of the values of what is fed, and all that the call received.
        sizes: the sizes that none of these has.
        brought: the nodes of constants and sizes that come along, and those that change the form of what was received.
        retaken: those of them that take the size of another tensor than in the whole model: of which, and which axis.
    """

    data: dict[int, None] = field(default_factory=dict)
    sizes: dict[int, None] = field(default_factory=dict)
    brought: set[int] = field(default_factory=set)
    retaken: dict[int, tuple[int, int]] = field(default_factory=dict)


def find_inputs(source: Source, region: Sequence[int], received: Iterable[int]) -> Inputs:
    """Find what a region reads from outside.

    Args:
        source: The whole model.
        region: The nodes.
        received: The tensors that their call received, as far as it is known.
    """
    view, kinds = source.view, source.kinds
    made = {tensor for index in region for tensor in view.nodes[index].outputs}
    read = dict.fromkeys(t for index in region for t in view.nodes[index].reads if t not in made)
    given = {t for t in received if t not in made and not source.is_literal(t)}
    # What is made of sizes and literals alone comes along where it can: who calls the module may leave it out.
    cut = {t for t in given if kinds[t] == DATA or t in source.weighted}
    inputs = Inputs()
    for tensor in read:
        if tensor in cut or kinds[tensor] == DATA:
            _take_data(source, tensor, made, cut, inputs)
    _take_sizes(source, sorted(t for t in read if kinds[t] == SIZE and t not in cut), made, given, inputs)
    for tensor in read:
        if kinds[tensor] == CONSTANT and tensor not in cut:
            inputs.brought |= (_derive(source, tensor, made, {}) or {}).keys()
    inputs.brought = _keep_needed(source, read, inputs)
    return inputs


def _keep_needed(source: Source, read: Iterable[int], inputs: Inputs) -> set[int]:
    """Return what must come along: not what makes an input, which one of several ways to another tensor may cross."""
    view, needed = source.view, set[int]()
    pending = list(read)
    while pending:
        tensor = pending.pop()
        producer = view.producers[tensor]
        entered = tensor in inputs.data or tensor in inputs.sizes
        if producer in inputs.brought and producer not in needed and not entered:
            assert producer is not None  # it is a node that comes along
            needed.add(producer)
            pending += () if producer in inputs.retaken else view.nodes[producer].reads
    return needed


def _take_data(source: Source, tensor: int, made: Collection[int], cut: Collection[int], inputs: Inputs) -> None:
    """Take a tensor that was received; or what was received and is only moved or cast to it; or else the tensor."""
    begin, views = _look_through(source, tensor, made, cut) if cut else (tensor, set[int]())
    inputs.brought |= views
    if begin not in made:
        inputs.data[begin] = None


def _look_through(source: Source, tensor: int, made: Collection[int], cut: Collection[int]) -> tuple[int, set[int]]:
    """Return the made or received tensor that a tensor is only another form of, and the nodes that give it that form.

    If it is none, the tensor itself.
    """
    view, current, found = source.view, tensor, set[int]()
    while current not in cut and current not in made:
        producer = view.producers[current]
        if producer is None or view.nodes[producer].op not in VIEW_OPS:
            return tensor, set()
        current, *others = view.nodes[producer].reads
        derived = [_derive(source, other, made, {}) for other in others]
        if None in derived:
            return tensor, set()
        found.update((producer,), *(nodes for nodes in derived if nodes is not None))
    return current, found


def _take_sizes(
    source: Source, sizes: Iterable[int], made: Collection[int], cut: Collection[int], inputs: Inputs
) -> None:
    known, axes = {*made, *inputs.data}, _name_axes(source, inputs.data)
    for tensor in sizes:
        derived = _derive(source, tensor, known, axes)
        if derived is None:
            derived = _derive(source, tensor, known.union(cut), axes)
            read = (t for index in derived or () for t in source.view.nodes[index].reads)
            inputs.data |= dict.fromkeys(t for t in read if t in cut)
        if derived is None:
            inputs.sizes[tensor] = None
            known.add(tensor)
        else:
            inputs.brought |= derived.keys()
            inputs.retaken |= {node: axis for node, axis in derived.items() if axis is not None}


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
        reads = view.nodes[producer].reads
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
