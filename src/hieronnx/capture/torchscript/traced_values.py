"""Following the tensors that calls receive and return through torch.jit.trace: from the trace to the finished graph."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hieronnx.capture.calls import CallIO, IORecorder
from hieronnx.capture.private_torch import TraceProbe, was_written_since
from hieronnx.capture.torchscript.graphs import TorchView, all_values, first_number, node_outputs, output_numbers
from hieronnx.hierarchy.records import CallId

_MARK = "hieronnx"
# Nodes that torch replaces by others, as it does those that work in place, or leaves out: a sum with 0, say.
_SCRIPTED = "prim::CallFunction"
_NUMBER = "prim::NumToTensor"
_NEUTRAL = ("aten::add", "aten::div", "aten::mul", "aten::sub")
_REPLACED = frozenset({_SCRIPTED, "prim::ListUnpack", "prim::TupleUnpack", *_NEUTRAL})
# Where torch fuses this, it puts another value in the place of the output, and gives that its name.
_FUSED = "BatchNormalization"


class TracedValues:
    """Marks the nodes whose values calls exchange, then follows the values.

    The marks are for the end of the trace, when torch copies all nodes. They are gone before torch looks at the nodes;
    from there on values are known by torch's numbers for them. Where torch replaces a value by another one, what reads
    it and its name tell which.
    """

    def __init__(self) -> None:
        self.recorder = IORecorder(self._number_tensors)
        self._probe: TraceProbe | None = None
        self._versions: dict[int, int] = {}
        """How often memory had been written to before the run, by its address."""
        self._current: dict[int, int] = {}
        """How often it had been when a value was seen in it, by torch's number for the value."""
        self._marks = 0
        self._positions: dict[tuple[int | None, int], int] = {}
        """The values that calls exchange: of a marked node or, without mark, of the graph's inputs; and the index."""
        self._uniques: dict[int, int] = {}
        """Torch's number for each of them, once functions are inlined."""
        self._inlined: dict[int, int] = {}
        """The tensor for each of them in the view of that graph."""
        self._tensors: dict[int, int] = {}
        """The tensors of the view of the current stage, by torch's numbers."""
        self._lowering: dict[int, int] = {}
        """Torch's numbers for values of the lowered graph, by those of the values that they stand for."""
        self._readers: dict[int, list[tuple[int, int]]] = {}
        """Who reads values that torch will replace by others: by the number of its value, and the index."""
        self._names: dict[str, int] = {}
        """Values by the names that were given to them."""
        self._replaced: dict[int, int] = {}
        """What torch replaced while it folded and fused, both by torch's numbers."""

    def begin(self, model: nn.Module, args: Iterable[Any]) -> None:
        """Begin again: the model is about to run."""
        self.recorder.calls.clear()
        self._positions.clear()
        self._current.clear()
        self._probe = TraceProbe()
        given = [value for value in args if isinstance(value, torch.Tensor)]
        tensors = (*given, *model.parameters(), *model.buffers())
        self._versions = {_memory(tensor): tensor._version for tensor in tensors if _version(tensor)}

    # While torch.jit traces --------------------------------------------------------------------------------

    def _number_tensors(self, tensors: Sequence[torch.Tensor]) -> Iterator[int | None]:
        assert self._probe is not None
        return map(self._number_value, self._probe.values(tensors), tensors)

    def _is_written(self, tensor: torch.Tensor, value: torch.Value) -> bool:
        """Say whether memory was written to since a value was made; as far as known, for others are written, too."""
        version = _version(tensor)
        if version in (0, self._versions.get(_memory(tensor), 0), self._current.get(value.unique())):
            return False
        return was_written_since(value)

    def _number_value(self, value: torch.Value | None, tensor: torch.Tensor) -> int | None:
        if value is None or self._is_written(tensor, value):
            return None
        self._current[value.unique()] = _version(tensor)
        node = value.node()
        if node.kind() == "prim::Param":
            mark = None
        elif node.hasAttribute(_MARK):
            mark = node.i(_MARK)
        else:
            mark, self._marks = self._marks, self._marks + 1
            node.i_(_MARK, mark)
        return self._positions.setdefault((mark, value.offset()), len(self._positions))

    # On the way to the file --------------------------------------------------------------------------------

    def traced(self, graph: torch.Graph) -> None:
        """Take the marks away, and keep the numbers of the values."""
        values: dict[tuple[int | None, int], torch.Value] = {(None, n): value for n, value in enumerate(graph.inputs())}
        for node in graph.nodes():
            if node.hasAttribute(_MARK):
                mark = node.i(_MARK)
                node.removeAttribute(_MARK)
                values.update(((mark, index), value) for index, value in enumerate(node_outputs(node)))
        exchanged = {n: _see_through_number(values[index]) for index, n in self._positions.items() if index in values}
        self._uniques = {number: value.unique() for number, value in exchanged.items()}
        computed = {number: value for number, value in exchanged.items() if value.node().kind() != "prim::Param"}
        kinds = {number: value.node().kind() for number, value in computed.items()}
        replaced = [n for n, kind in kinds.items() if kind in _REPLACED or kind.endswith("_")]
        writers = sorted(first_number(n) for n in graph.nodes() if n.kind().endswith("_")) if replaced else []
        self._readers = {number: list(_find_readers(computed[number], writers)) for number in replaced}
        # What a function that was scripted returns keeps the name that it has inside the function.
        self._give_names({number: value for number, value in computed.items() if kinds[number] != _SCRIPTED})

    def _give_names(self, values: Mapping[int, torch.Value]) -> None:
        """Name values: where a pass replaces a value by another one, it gives that its name."""
        self._names = {}
        for number, value in values.items():
            if value.debugName().isdecimal():  # torch's number of a value that has no name
                value.setDebugName(f"{_MARK}_{number}")
            self._names[value.debugName()] = number

    def _take_names(self, values: Iterable[torch.Value]) -> dict[int, int]:
        """Return torch's numbers of the values that have the names now, and take away those that were given."""
        named = {}
        for value in values:
            name = value.debugName()
            if name in self._names:
                named[self._names[name]] = value.unique()
            if name.startswith(f"{_MARK}_"):
                value.setDebugName("")
        return named

    def inlined(self, graph: torch.Graph, seen: TorchView) -> None:
        """Find the values once functions are inlined: a function's own values have replaced those of the call."""
        self._uniques |= self._find_read(graph)
        tensors = self._tensors = seen.tensors
        self._inlined = {number: tensors[unique] for number, unique in self._uniques.items() if unique in tensors}

    def passed(self) -> dict[CallId, CallIO]:
        """Return what each call received and returned, by the tensors of the graph with functions inlined."""
        return {call: tensors.renumber(self._inlined.get) for call, tensors in self.recorder.calls.items()}

    def _find_read(self, graph: torch.Graph) -> dict[int, int]:
        """Return what the readers of values that torch replaces read now."""
        if not self._readers:
            return {}
        nodes = {first_number(node): node for node in (*graph.nodes(), graph.return_node())}
        return {
            number: nodes[user].inputsAt(index).unique()
            for number, readers in self._readers.items()
            for user, index in readers
            if user in nodes
        }

    def simplified(self, graph: torch.Graph, seen: TorchView) -> dict[int, int]:
        """Return what tensors of the inlined graph are once torch simplified that."""
        self._lowering = {}
        replaced = self._find_read(graph) | self._take_names(seen.values)
        return self._follow(seen, {self._uniques[number]: unique for number, unique in replaced.items()})

    def lowered(self, node: torch.Node, result: Any) -> None:
        """Note the ONNX values that stand for a node's outputs."""
        values = [result] if isinstance(result, torch.Value) else result
        numbers = output_numbers(node)
        if isinstance(values, list | tuple) and len(values) == len(numbers):
            pairs = zip(numbers, values, strict=True)
            self._lowering.update((old, new.unique()) for old, new in pairs if isinstance(new, torch.Value))

    def inputs_lowered(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Follow the graph's inputs."""
        self._lowering.update(zip(before, after, strict=False))

    def renumbered(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Follow torch's new numbers."""
        renumbered = dict(zip(before, after, strict=True))
        self._lowering = {old: renumbered[new] for old, new in self._lowering.items() if new in renumbered}

    def exported(self, seen: TorchView) -> dict[int, int]:
        """Return what stands for the tensors of the simplified graph; name what torch may replace as it fuses."""
        outputs = {t for node in seen.view.nodes if node.op == _FUSED for t in node.makes}
        self._give_names({seen.values[tensor].unique(): seen.values[tensor] for tensor in outputs})
        return self._move_to(seen, self._lowering)

    def folded(self, graph: torch.Graph) -> None:
        """Find the values that have the names now, and take these away before torch names all that have none."""
        self._replaced = self._take_names(all_values(graph)) if self._names else {}

    def finished(self, seen: TorchView) -> dict[int, int]:
        """Return what tensors of the exported graph are once torch folded and fused."""
        return self._follow(seen, self._replaced)

    def _follow(self, seen: TorchView, replaced: Mapping[int, int]) -> dict[int, int]:
        """Begin the next stage of one graph, in which a value keeps its number unless torch replaced it."""
        kept = self._tensors.keys() & seen.tensors.keys()
        return self._move_to(seen, {**replaced, **{number: number for number in kept}})

    def _move_to(self, seen: TorchView, numbers: Mapping[int, int]) -> dict[int, int]:
        """Begin the next stage; turn torch's numbers into tensors of the stage before and of this one."""
        before, self._tensors = self._tensors, seen.tensors
        return {
            before[old]: self._tensors[new] for old, new in numbers.items() if old in before and new in self._tensors
        }


def _see_through_number(value: torch.Value) -> torch.Value:
    """Return for a size as a tensor the size itself: torch makes all numbers tensors, and leaves this one out."""
    node = value.node()
    return node.input() if node.kind() == _NUMBER else value


def _find_readers(value: torch.Value, writers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield who reads a value, and in which place; only up to the next of the nodes that may write to its memory."""
    index = bisect_right(writers, value.unique())
    for use in value.uses():
        reader = first_number(use.user)
        if index == len(writers) or 0 <= reader <= writers[index]:
            yield reader, use.offset


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
