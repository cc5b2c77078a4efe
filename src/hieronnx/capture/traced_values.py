"""Following the tensors that calls exchange through torch.jit.trace: from the trace to the graph of the file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hieronnx.attribute.carried import Carried
from hieronnx.capture.passing import Exchange, PassRecorder
from hieronnx.capture.private_torch import TraceProbe, all_values, node_outputs, was_written_since
from hieronnx.capture.torch_view import TorchView
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import CallId

_MARK = "hieronnx"
# Nodes that torch replaces by others, as it does those that work in place, or leaves out: a sum with 0, say.
_SCRIPTED = "prim::CallFunction"
_NEUTRAL = ("aten::add", "aten::div", "aten::mul", "aten::sub")
_REPLACED = frozenset({_SCRIPTED, "prim::ListUnpack", "prim::TupleUnpack", *_NEUTRAL})
# torch puts another value in the stead of what this makes, if it fuses it, and gives that its name.
_FUSED = "BatchNormalization"


class TracedValues:
    """Marks the nodes whose values calls exchange, for torch copies them when the trace ends; then follows the values.

    The marks are gone before torch looks at the nodes; from there on values are known by torch's numbers for them.
    """

    def __init__(self) -> None:
        self.recorder = PassRecorder(self._number_tensors)
        self._probe: TraceProbe | None = None
        self._versions: dict[int, int] = {}
        """How often memory had been written to before the run, by its address."""
        self._marks = 0
        self._places: dict[tuple[int | None, int], int] = {}
        """The values that calls exchange: of a marked node or, without mark, of the graph's inputs; and the place."""
        self._uniques: dict[int, int] = {}
        """Torch's number for each of them in the current graph."""
        self._lowering: dict[int, int] = {}
        self._readers: dict[int, list[tuple[int, int]]] = {}
        """Who reads values that torch will put others in the stead of: by the number of its value, and the place."""
        self._names: dict[str, int] = {}
        """Values by the names that were given to them."""
        self._replaced: dict[int, int] = {}
        """Torch's numbers of those that have the names in the end."""

    def begin(self, model: nn.Module, args: Iterable[Any]) -> None:
        """Begin anew: the model is about to run."""
        self.recorder.clear()
        self._places.clear()
        self._probe = TraceProbe()
        given = [value for value in args if isinstance(value, torch.Tensor)]
        held = (*given, *model.parameters(), *model.buffers())
        self._versions = {_memory(tensor): tensor._version for tensor in held if _version(tensor)}

    # While torch.jit traces --------------------------------------------------------------------------------

    def _number_tensors(self, tensors: Sequence[torch.Tensor]) -> Iterator[int | None]:
        assert self._probe is not None
        return map(self._number_value, self._probe.values(tensors), map(self._is_written, tensors))

    def _is_written(self, tensor: torch.Tensor) -> bool:
        version = _version(tensor)
        return version != 0 and version != self._versions.get(_memory(tensor), 0)

    def _number_value(self, value: torch.Value | None, written: bool) -> int | None:
        if value is None or (written and was_written_since(value)):
            return None
        node = value.node()
        if node.kind() == "prim::Param":
            mark = None
        elif node.hasAttribute(_MARK):
            mark = node.i(_MARK)
        else:
            mark, self._marks = self._marks, self._marks + 1
            node.i_(_MARK, mark)
        return self._places.setdefault((mark, value.offset()), len(self._places))

    # On the way to the file --------------------------------------------------------------------------------

    def traced(self, graph: torch.Graph) -> None:
        """Take the marks away, and keep the numbers of the values."""
        values: dict[tuple[int | None, int], torch.Value] = {}
        values.update(((None, place), value) for place, value in enumerate(graph.inputs()))
        for node in graph.nodes():
            if node.hasAttribute(_MARK):
                mark = node.i(_MARK)
                node.removeAttribute(_MARK)
                values.update(((mark, place), value) for place, value in enumerate(node_outputs(node)))
        found = {number: values[place] for place, number in self._places.items() if place in values}
        self._uniques = {number: value.unique() for number, value in found.items()}
        made = {number: value for number, value in found.items() if value.node().kind() != "prim::Param"}
        kinds = {number: value.node().kind() for number, value in made.items()}
        replaced = [n for n, kind in kinds.items() if kind in _REPLACED or kind.endswith("_")]
        writers = sorted(_first_number(n) for n in graph.nodes() if n.kind().endswith("_")) if replaced else []
        self._readers = {number: list(_find_readers(made[number], writers)) for number in replaced}
        # What a function that was scripted returns keeps the name that it has inside the function.
        self._give_names({number: value for number, value in made.items() if kinds[number] != _SCRIPTED})

    def _give_names(self, values: Mapping[int, torch.Value]) -> None:
        """Name values: where a pass puts another value in the stead of one, it gives that its name."""
        self._names = {}
        for number, value in values.items():
            if value.debugName().isdecimal():  # torch's number of a value that has no name
                value.setDebugName(f"{_MARK}_{number}")
            self._names[value.debugName()] = number

    def _take_names(self, values: Iterable[torch.Value]) -> dict[int, int]:
        """Return torch's numbers of the values that have the names now, and take away those that were given."""
        found = {}
        for value in values:
            name = value.debugName()
            if name in self._names:
                found[self._names[name]] = value.unique()
            if name.startswith(f"{_MARK}_"):
                value.setDebugName("")
        return found

    def inlined(self, graph: torch.Graph) -> None:
        """Find what functions return, now that their own values stand in the place of the calls' values."""
        if self._readers:
            self._uniques |= self._find_read(self._readers, graph)

    def _find_read(self, numbers: Iterable[int], graph: torch.Graph) -> dict[int, int]:
        """Return what the readers of values read in their place."""
        nodes = {_first_number(node): node for node in (*graph.nodes(), graph.return_node())}
        found: dict[int, int] = {}
        for number in numbers:
            read = (nodes[user].inputsAt(place) for user, place in self._readers[number] if user in nodes)
            found.update((number, value.unique()) for value in read)
        return found

    def simplified(self, before: View, carried: Carried, after: TorchView, graph: torch.Graph) -> None:
        """Follow the values through torch's passes over the traced graph."""
        held = {unique: after.values[tensor].unique() for unique, tensor in _index(before, carried).items()}
        known = {number: held[unique] for number, unique in self._uniques.items() if unique in held}
        lost = [number for number in self._readers if number not in known]
        read = self._find_read(lost, graph) if lost else {}
        self._uniques = read | self._take_names(after.values) | known
        self._lowering = {}

    def lowered(self, node: torch.Node, result: Any) -> None:
        """Note the ONNX values that stand for a node's outputs."""
        made = [result] if isinstance(result, torch.Value) else result
        outputs = node_outputs(node)
        if isinstance(made, list | tuple) and len(made) == len(outputs):
            for old, new in zip(outputs, made, strict=True):
                if isinstance(new, torch.Value):
                    self._lowering[old.unique()] = new.unique()

    def inputs_lowered(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Follow the values to the graph of ONNX operators, now that its inputs are known too."""
        self._lowering.update(zip(before, after, strict=False))
        self._follow(self._lowering)

    def renumbered(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Follow torch's new numbers."""
        self._follow(dict(zip(before, after, strict=True)))

    def _follow(self, moved: Mapping[int, int]) -> None:
        self._uniques = {number: moved[unique] for number, unique in self._uniques.items() if unique in moved}

    def finished(self, graph: TorchView) -> None:
        """Name the values that torch will put others in the stead of, before it folds and fuses."""
        outputs = {t for node in graph.view.nodes if node.op == _FUSED for t in node.outputs}
        fused = {graph.values[tensor].unique(): graph.values[tensor] for tensor in outputs}
        self._give_names({number: fused[unique] for number, unique in self._uniques.items() if unique in fused})

    def folded(self, graph: torch.Graph) -> None:
        """Find the values that have the names now, and take these away before torch names all that have none."""
        self._replaced = self._take_names(all_values(graph)) if self._names else {}

    def carry(self, before: View, carried: Carried, after: TorchView) -> dict[CallId, Exchange]:
        """Return what each call received and returned, by the tensors of the finished graph."""
        held = _index(before, carried)
        tensors = {value.unique(): tensor for tensor, value in enumerate(after.values)}
        found = {
            number: held.get(unique, tensors.get(self._replaced.get(number, -1)))
            for number, unique in self._uniques.items()
        }
        return {call: exchange.moved(found.get) for call, exchange in self.recorder.exchanges.items()}


def _index(before: View, carried: Carried) -> dict[int, int]:
    """Return by torch's numbers for the values of a graph the tensors of a later one that hold them."""
    found = zip(before.names, carried.tensors, strict=True)
    return {int(name): tensor for name, tensor in found if tensor is not None}


def _find_readers(value: torch.Value, writers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield who reads a value, and in which place; only up to the next of the nodes that may write to its memory."""
    place = bisect_right(writers, value.unique())
    for use in value.uses():
        reader = _first_number(use.user)
        if place == len(writers) or 0 <= reader <= writers[place]:
            yield reader, use.offset


def _first_number(node: torch.Node) -> int:
    return next((int(value.unique()) for value in node_outputs(node)), -1)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
