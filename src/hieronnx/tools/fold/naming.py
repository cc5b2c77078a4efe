"""Names of functions for people: the class and its package, `forward`'s arguments, the parameters' own names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hieronnx.graph.walks import function_key
from hieronnx.tools.extract.source import Source
from hieronnx.tools.fold.classes import Equals, Instance, list_held
from hieronnx.tools.replace.graph import Names

_NO_PACKAGE = "local"


@dataclass(frozen=True)
class Function:
    """A function of the folded model.

    Attributes:
        equals: the calls that share it.
        domain: the package of their class.
        name: the class, with a number where others have that name.
        order: in which order it takes what its calls read: places in that.
        inputs: its names for these.
    """

    equals: Equals
    domain: str
    name: str
    order: tuple[int, ...]
    inputs: tuple[str, ...]

    @property
    def key(self) -> str:
        """The key of its graph."""
        return function_key(self.domain, self.name, "")

    @cached_property
    def formals(self) -> Mapping[int, str]:
        """Its names for what its calls read, by the places in that."""
        return dict(zip(self.order, self.inputs, strict=True))


def name_functions(source: Source, classes: Sequence[Equals]) -> tuple[Function, ...]:
    """Give each class of equal calls a function with its names."""
    taken = {(node.domain, node.op_type) for node in source.nodes}
    taken |= {(domain, name) for domain, name, _ in source.opened.model.functions}
    inputs = _InputNames(source)
    functions = []
    for equals in classes:
        qualified = source.hierarchy.modules[equals.first.call.module].qualified_class
        package, _, class_name = qualified.rpartition(".")
        domain, name = _clean(package.partition(".")[0]) or _NO_PACKAGE, _clean(class_name) or "Module"
        # Not by ONNX's own overloads: ONNX Runtime 1.31 takes one of them for the other.
        number, free = 1, name
        while (domain, free) in taken:
            number += 1
            free = f"{name}_{number}"
        taken.add((domain, free))
        functions.append(Function(equals, domain, free, *inputs.order(equals)))
    return tuple(functions)


def _clean(name: str) -> str:
    return re.sub(r"\W", "_", name)


class _InputNames:
    def __init__(self, source: Source) -> None:
        self._source, self._view = source, source.view
        held = ((source.view.find_tensor("", item.name), item.parameter) for item in source.hierarchy.initializers)
        self._parameters = {tensor: path for tensor, path in held if tensor is not None and path}

    def order(self, equals: Equals) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return what a function takes, in order, as places in what its calls read, and the names of these.

        Arguments come first, as `forward` has them, and parameters last.
        """
        view, nodes = self._view, equals.first.nodes
        made = {view.names[t] for node in nodes for t in view.nodes[node].makes}
        held = (t for node in nodes for body in view.nodes[node].bodies for t in list_held(self._source, body))
        taken = Names(made.union(view.names[t] for t in held))
        found = [self._describe(equals, place) for place in range(len(equals.inputs))]
        names = [taken.take(name) for _, name in found]
        order = sorted(range(len(found)), key=lambda place: (found[place][0], place))
        return tuple(order), tuple(names[place] for place in order)

    def _describe(self, equals: Equals, place: int) -> tuple[tuple[int, int], str]:
        """Return the rank of an input, and the name that it should have."""
        instance = _find_clearest(equals, place)
        tensor, below = equals.read(instance)[place], f"{instance.call.module}."
        received = self._source.hierarchy.call_by_id[instance.call].received or ()
        for rank, item in enumerate(received):
            if self._view.find_tensor(item.graph, item.tensor) == tensor:
                return (0, rank), item.name or self._view.names[tensor]
        if tensor in self._parameters:
            return (2, 0), self._parameters[tensor].removeprefix(below)
        return (1, 0), self._view.names[tensor].removeprefix(below)


def _find_clearest(equals: Equals, place: int) -> Instance:
    """Return the first call that gives a tensor as this input alone; the first of all where none does."""
    for instance in equals.instances:
        read = equals.read(instance)
        if Counter(read)[read[place]] == 1:
            return instance
    return equals.first
