"""How much shape inference may come to know of each tensor, found before it runs: a small file may ask for a lot.

Inference keeps every axis of every tensor, and every number of a list that may be a shape, at a hundred bytes each.
Most operators give as many as they are given. A few give the sum, and thirty of these in a row a billion:

    a = Concat(s, s)   b = Concat(a, a)   c = Concat(b, b)   …
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy.typing as npt
import onnx

from hieronnx.errors import HieronnxError
from hieronnx.graph.walks import first_name, proto_bodies

MOST_NUMBERS = 4_000_000
"""How many numbers of lists inference may follow in all, some 100 bytes each."""
MOST_AXES = 256
"""How many axes a tensor may have, to have its shape inferred: numpy takes 64."""
LONGEST_SHAPE = 1 << 18
"""A longer list of numbers is hidden from inference: it is none of sizes."""
_RANKED_BY_LENGTH_OPS = frozenset({"ConstantOfShape", "Reshape"})
_RANKED_BY_LENGTH_TOO_OPS = frozenset(
    {"AffineGrid", "CenterCropPad", "Col2Im", "Expand", "MaxUnpool", "Resize", "Upsample"}
)
"""The length of a list that they read is the number of axes of what they make; of these, unless the data has more."""
_SIZED_BY_VALUE_OPS = frozenset({"ConstantOfShape", "Expand", "Range", "Tile"})
"""They make lists as long as the numbers that they read say."""

_FOLLOWED_OPS = frozenset({"Add", "Cast", "Concat", "Gather", "Mul", "Size", "Slice", "Squeeze", "Sub", "Unsqueeze"})
"""Inference follows each number of the lists that they read, known or not."""
_KEEP_AXES_OPS = frozenset({"Add", "Cast", "Concat", "Div", "Equal", "Identity", "Mul", "Neg", "Slice", "Sub", "Where"})
"""What they make has as many axes as what they read."""
_Literals: TypeAlias = Mapping[str, npt.NDArray[Any]]
_Function: TypeAlias = tuple[str, str, str]


class _Known(NamedTuple):
    """How many axes a tensor has at most, and how many numbers of it may be known."""

    axes: int = 0
    numbers: int = 0
    exact: bool = False
    """Whether it has just so many axes."""


_NOTHING = _Known()


def check_growth(model: onnx.ModelProto, literals: _Literals) -> bool:
    """Make sure that inference can be run on a model; say whether it may also follow the numbers of lists.

    Args:
        model: The model.
        literals: The small constants of its main graph, by name.

    Raises:
        HieronnxError: If a tensor gets, or may get, more axes than any has.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    growth = _Growth(functions, literals)
    growth.walk_graph(model.graph, {})
    return growth.followed <= MOST_NUMBERS


class _Growth:
    """Follows how much is known of tensors through nodes, bodies and functions."""

    def __init__(self, functions: Mapping[_Function, onnx.FunctionProto], literals: _Literals) -> None:
        self._functions, self._literals = functions, literals
        self._called: dict[tuple[_Function, tuple[_Known, ...]], _Known] = {}
        self.followed = 0
        """How many numbers of lists inference would follow."""

    def walk_graph(self, graph: onnx.GraphProto, outer: Mapping[str, _Known]) -> _Known:
        """Follow a graph; return the most that is known of what it returns."""
        declared: dict[str, _Known] = {}
        for info in (*graph.value_info, *graph.output, *graph.input):
            kind = info.type.tensor_type
            if kind.HasField("shape"):
                declared[info.name] = _measure([dim.dim_value for dim in kind.shape.dim])
        declared.update((tensor.name, _measure(tensor.dims)) for tensor in graph.initializer)
        known = {**outer, **declared}
        self._walk(graph.node, known, declared)
        return _largest(known.get(info.name, _NOTHING) for info in graph.output)

    def _walk(self, nodes: Iterable[onnx.NodeProto], known: dict[str, _Known], declared: Mapping[str, _Known]) -> None:
        for node in nodes:
            made = self._follow(node, known)
            if made.axes > MOST_AXES:
                raise HieronnxError(
                    f"the shapes that the file lacks are not inferred: '{first_name(node.output)}' may have more than "
                    f"{MOST_AXES} axes"
                )
            self._count(node, known)
            for name in node.output:
                told = declared.get(name, made)
                known[name] = told._replace(numbers=told.numbers or made.numbers)

    def _count(self, node: onnx.NodeProto, known: Mapping[str, _Known]) -> None:
        read = [known.get(name, _NOTHING) for name in node.input] if node.op_type in _FOLLOWED_OPS else []
        self.followed += sum(item.numbers for item in read if not (item.exact and item.axes > 1))

    def _follow(self, node: onnx.NodeProto, known: Mapping[str, _Known]) -> _Known:
        read = [known.get(name, _NOTHING) for name in node.input]
        inner = _largest(self.walk_graph(body, known) for _, body in proto_bodies(node))
        if inner.axes:  # a loop puts what its body makes behind one another
            read.append(_Known(inner.axes + 1, inner.numbers))
        function = (node.domain, node.op_type, node.overload)
        if function in self._functions:
            return self._call(function, tuple(read))
        return _follow_operator(node, read, self._literals)

    def _call(self, name: _Function, read: tuple[_Known, ...]) -> _Known:
        if (name, read) not in self._called:
            function = self._functions[name]
            known = dict(zip(function.input, read, strict=False))
            self._walk(function.node, known, {})
            self._called[name, read] = _largest(known.get(output, _NOTHING) for output in function.output)
        return self._called[name, read]


def _largest(items: Iterable[_Known]) -> _Known:
    axes, numbers, _ = zip(_NOTHING, *items, strict=True)
    return _Known(max(axes), max(numbers))


def _measure(sizes: Sequence[int]) -> _Known:
    return _Known(len(sizes), max(1, *sizes, 1), exact=True)


def _follow_operator(node: onnx.NodeProto, read: Sequence[_Known], literals: _Literals) -> _Known:
    """Say how much may be known of what a node makes."""
    op, first, others = node.op_type, read[0] if read else _NOTHING, _largest(read[1:])
    axes, numbers, _ = _largest(read)
    values = [literals[name] for name in node.input if name in literals]
    listed = max((len(attribute.ints) for attribute in node.attribute), default=0)
    if op == "Shape":
        return _Known(1, axes)
    if op == "Constant":
        sizes = [attribute.t.dims for attribute in node.attribute if attribute.HasField("t")]
        return _Known(
            max(map(len, sizes), default=1), max((dims[0] for dims in sizes if len(dims) == 1), default=listed)
        )
    if op in ("Gather", "GatherND"):
        return _Known(max(first.axes + others.axes - 1, 0), max(others.numbers, 1))
    if op == "Unsqueeze":
        return _Known(first.axes + max(others.numbers, listed), numbers)
    if op == "Squeeze":
        taken = values[-1].size if len(read) > 1 and values else listed
        return _Known(max(first.axes - taken, 0), numbers)
    if op == "Concat":
        return _Known(axes, sum(item.numbers for item in read), all(item.exact for item in read))
    if op == "OneHot":
        return _Known(first.axes + 1, numbers)
    if op in _SIZED_BY_VALUE_OPS:
        numbers = max([numbers, *(int(value.max(initial=0)) for value in values)])
    if op in _RANKED_BY_LENGTH_OPS:
        return _Known(max(read[-1].numbers if read else 0, listed), numbers)
    if op in _RANKED_BY_LENGTH_TOO_OPS:
        return _Known(max(axes, others.numbers), numbers)
    return _Known(axes, numbers, op in _KEEP_AXES_OPS and all(item.exact for item in read))
