"""Capturing an export through TorchScript: each traced node's scope holds the call that made it.

torch pushes a scope for every module call that it traces, and keeps the scope on every node to the end. A
scope's name has two parts, class and variable; only the variable gets into the names of nodes. hieronnx puts
the number of the call where the class would be, and reads it back from the graphs that torch makes.

Four of these are the stages of this route: the trace with functions inlined; that trace simplified; its nodes
lowered to ONNX operators one by one; and the finished graph, folded and fused.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from hieronnx.capture import private_torch
from hieronnx.capture.calls import CallRecorder
from hieronnx.capture.captured import Captured, ExportRequest, NodeMetadata, Stage
from hieronnx.capture.guard import Guard, ObserverError
from hieronnx.capture.names import BoundaryNames, make_unique, name_results
from hieronnx.capture.torchscript.graphs import TorchView, first_number, node_blocks, output_numbers, view_torch_graph
from hieronnx.capture.torchscript.positional import by_position, name_traced_inputs, torchscript_options
from hieronnx.capture.torchscript.scripted import ScriptedCalls
from hieronnx.capture.torchscript.traced_values import TracedValues
from hieronnx.errors import writing
from hieronnx.files.splice import write_annotated
from hieronnx.files.wire import read_node_names
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import Attribution, CallId

_SCOPE = re.compile(r"hieronnx#(\d+)::")


def capture_torchscript(request: ExportRequest) -> Captured:
    """Export through `torch.onnx.export(dynamo=False)`, up to the bytes that torch would write."""
    scripted = isinstance(request.model, torch.jit.ScriptModule)
    watcher = (_ScriptedWatcher if scripted else _Watcher)(request.model, request.names)
    request.names.fill_inputs(name_traced_inputs(request))
    request.names.fill_outputs(())
    options, guard = torchscript_options(request), Guard()
    with (
        private_torch.observe_calls(guard, watcher.enter, watcher.returned, watcher.leave),
        private_torch.observe_lowering(guard, watcher),
        private_torch.replace_file_writer(guard, watcher.keep_file),
        by_position(request, guard) as args,
        warnings.catch_warnings(),
        private_torch.without_graph_log(),
        guard.running_torch(),
    ):
        # That the exporter is deprecated, whoever comes here knows.
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*legacy TorchScript.*")
        torch.onnx.export(request.model, args, str(request.output), dynamo=False, **options)

    def write(nodes: NodeMetadata, about: Mapping[str, str]) -> None:
        with writing(request.destination), request.output.open("wb") as stream:
            write_annotated(stream, watcher.model_bytes, nodes, about)

    return watcher.finish(write)


@dataclass(frozen=True, slots=True)
class _HookNodes:
    """What a module's own hooks did, between two points of its caller's nodes."""

    caller: CallId
    call: CallId
    start: int
    kinds: tuple[str, ...]
    """The caller's own nodes up to the end of the call."""


class _Running(NamedTuple):
    """A call that is running, its caller, and for one with hooks how many nodes its caller had before."""

    call: CallId
    caller: CallId | None
    start: int | None


class _Watcher:
    """Watches one export: numbers the calls in torch's scopes, and follows every node on its way to the file.

    A node's call is read from its scope. Where torch gives a node none (functions that were scripted) or only
    the caller's (a module's own hooks), the call is noted for the node itself, by the number of its value.
    """

    def __init__(self, model: nn.Module, names: BoundaryNames) -> None:
        self._names = names
        self.model_bytes = b""
        self._recorder = CallRecorder(model)
        self._values = TracedValues()
        self.inputs_lowered, self.folded = self._values.inputs_lowered, self._values.folded
        self._calls: list[CallId] = []
        self._original_names: dict[nn.Module, str] = {}
        self._scoped: dict[str, Attribution | None] = {}
        """What torch's scopes say, by their names."""
        self._hooks: list[_HookNodes] = []
        self._noted: dict[int, Attribution] = {}
        """What is known of nodes of the trace beside their scopes, by torch's number of their first value."""
        self._traced: list[tuple[int, Attribution | None]] = []
        self._user_inputs: set[int] = set()
        self._sources: dict[int, int] = {}
        """The node of the stage before that a node comes from, by torch's numbers of the node's values."""
        self._indices: dict[int, int] = {}
        """The nodes of the simplified graph, by torch's numbers of their values."""
        self._stages: list[Stage] = []
        self._finished: TorchView | None = None
        self._view = View()

    def finish(self, write: Callable[[NodeMetadata, Mapping[str, str]], None]) -> Captured:
        """Return what was captured, once torch is done.

        Raises:
            ObserverError: torch did not pass where it is observed.
        """
        if not self._recorder.sites or not self.model_bytes:
            raise ObserverError("torch exported the model another way than hieronnx observes")
        return Captured(tuple(self._recorder.sites), tuple(self._stages), self._view, self._values.passed(), write)

    # While torch.jit traces --------------------------------------------------------------------------------

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Running | None:
        caller = self._recorder.current
        call = self._recorder.enter(module)
        if call is None:
            return None
        hooked = caller is not None and private_torch.has_hooks(module)
        start = len(private_torch.traced_kinds()) if hooked else None
        if caller is None:
            self._values.begin(module, args)
        self._values.recorder.note_received(call, module, args, kwargs)
        self._name_scope(module, call)
        return _Running(call, caller, start)

    def returned(self, running: _Running | None, result: Any) -> None:
        if running is None:
            return
        self._values.recorder.note_returned(running.call, result)
        if running.caller is None:
            numbers = torch.Tensor | bool | int | float
            self._names.fill_outputs(name for name, leaf in name_results(result) if isinstance(leaf, numbers))

    def leave(self, running: _Running | None) -> None:
        if running is None:
            return
        call, caller, start = running
        if caller is not None and start is not None:
            self._hooks.append(_HookNodes(caller, call, start, tuple(private_torch.traced_kinds())))
        self._recorder.leave(call)

    def _name_scope(self, module: nn.Module, call: CallId) -> None:
        """Put the call's number into the name of the scope that torch is about to push for it."""
        names = private_torch.trace_scope_names()
        if names is None or module not in names:
            return
        original = self._original_names.setdefault(module, names[module])
        self._calls.append(call)
        names[module] = f"hieronnx#{len(self._calls) - 1}::{original.partition('::')[2]}"

    def _note_hooks(self, graph: torch.Graph) -> None:
        """Note the call for what its module's own hooks did: torch traces that in the scope of the caller."""
        own: dict[CallId | None, list[torch.Node]] = defaultdict(list)
        for node in graph.nodes():
            own[self._scope_of(node)].append(node)
        for hooks in self._hooks:
            nodes = own[hooks.caller][: len(hooks.kinds)]
            if tuple(node.kind() for node in nodes) != hooks.kinds:
                continue  # torch changed the caller's nodes: they stay with the caller, as torch has it
            noted = Attribution(hooks.call, (hooks.call,), "captured")
            self._noted.update((number, noted) for node in nodes[hooks.start :] for number in output_numbers(node))

    def _scope_of(self, node: torch.Node) -> CallId | None:
        scoped = self._read_scope(node)
        return None if scoped is None else scoped.scope

    def _read_scope(self, node: torch.Node) -> Attribution | None:
        name = node.scopeName()
        if name not in self._scoped:
            numbers = _SCOPE.findall(name)
            call = self._calls[int(numbers[-1])] if numbers else None
            self._scoped[name] = None if call is None else Attribution(call, (call,), "captured")
        return self._scoped[name]

    def _attribute(self, node: torch.Node) -> Attribution | None:
        numbers = output_numbers(node) if self._noted else ()
        noted = next((self._noted[number] for number in numbers if number in self._noted), None)
        return noted or self._read_scope(node)

    # From the traced graph to the file -----------------------------------------------------------------------

    def traced(self, graph: torch.Graph) -> None:
        """Keep the order of the traced nodes."""
        self._values.traced(graph)
        self._note_hooks(graph)
        self._traced = [(first_number(node), self._attribute(node)) for node in graph.nodes()]

    def inlined(self, graph: torch.Graph, parameters: int) -> None:
        """Begin the stages with the inlined graph."""
        self._note_inlined(graph)
        seen = self._begin_stages(graph, parameters)
        self._stages = [Stage(seen.view, [self._attribute(node) for node in seen.nodes])]
        self._values.inlined(graph, seen)

    def _begin_stages(self, graph: torch.Graph, parameters: int) -> TorchView:
        inputs = list(graph.inputs())
        self._user_inputs = {value.unique() for value in inputs[: len(inputs) - parameters]}
        return view_torch_graph(graph, self._user_inputs)

    def _note_inlined(self, graph: torch.Graph) -> None:
        """Note for the nodes of an inlined function the call of the node that they replaced, found by its position.

        Traced `a, f(), b`, inlined `a, x, y, b`: x and y lie between a and b, where f() was.
        """
        positions = {number: position for position, (number, _) in enumerate(self._traced)}
        tree = CallTree({site.id: site.parent for site in self._recorder.sites})
        pending: list[torch.Node] = []
        expected = 0
        for node in [*graph.nodes(), None]:
            position = len(self._traced) if node is None else positions.get(first_number(node))
            if position is None:
                assert node is not None
                pending.append(node)
                continue
            replaced = [scope for _, scope in self._traced[expected:position] if scope is not None]
            if replaced and pending:
                # Between two calls with nothing in between, which node is whose is not known.
                joined = tree.join(replaced, "captured" if len(replaced) == 1 else "dataflow")
                for new in pending:
                    self._note_all(new, joined)
            pending, expected = [], position + 1

    def _note_all(self, node: torch.Node, attribution: Attribution) -> None:
        if self._scope_of(node) is None:
            self._noted.update(dict.fromkeys(output_numbers(node), attribution))
        for block in node_blocks(node):
            for inner in block.nodes():
                self._note_all(inner, attribution)

    def simplified(self, graph: torch.Graph) -> None:
        """Keep the graph whose nodes will be lowered."""
        seen = view_torch_graph(graph, self._user_inputs)
        self._add_stage(seen, tensors=self._values.simplified(graph, seen))
        self._indices = seen.producers
        self._noted = {}  # from here on nodes have sources
        self._sources = {}

    def lowered(self, node: torch.Node, new_nodes: Sequence[torch.Node], result: Any) -> None:
        """Note which node the ONNX nodes come from."""
        self._values.lowered(node, result)
        source = self._indices.get(first_number(node))
        if source is not None:
            for number in (number for new in new_nodes for number in output_numbers(new)):
                self._sources.setdefault(number, source)

    def renumbered(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Follow torch's new numbers for the values of the lowered graph."""
        self._values.renumbered(before, after)
        pairs = zip(before, after, strict=True)
        self._sources = {new: self._sources[old] for old, new in pairs if old in self._sources}

    def exported(self, graph: torch.Graph) -> None:
        """Keep the graph of ONNX operators, before torch folds and fuses."""
        inputs = list(graph.inputs())
        users = len(self._user_inputs)
        self._user_inputs = {value.unique() for value in inputs[:users]}
        parameters = {str(value.unique()): value.debugName() for value in inputs[users:]}
        seen = view_torch_graph(graph, self._user_inputs)
        self._add_stage(seen, tensors=self._values.exported(seen), translated=True, parameters=parameters)
        indices = seen.producers
        self._sources = {number: indices[number] for number in self._sources if number in indices}

    def renaming(self, graph: torch.Graph) -> None:
        """Let no output have the name of an input or a parameter; where names do not fit, leave them to torch."""
        inputs, outputs = list(graph.inputs()), list(graph.outputs())
        if self._names.inputs and len(self._names.inputs) > len(self._user_inputs):
            self._names.fill_inputs(())
        if self._names.outputs:
            taken = {*(value.debugName() for value in inputs), *(self._names.inputs or ())}
            fit = len(self._names.outputs) == len(outputs)
            self._names.fill_outputs(make_unique(self._names.outputs, taken, "out") if fit else ())

    def finished(self, graph: torch.Graph) -> None:
        """Keep the finished graph, its values still under torch's numbers."""
        self._finished = view_torch_graph(graph, self._user_inputs)
        self._add_stage(self._finished, tensors=self._values.finished(self._finished))

    def _add_stage(self, seen: TorchView, **details: Any) -> None:
        sources = [next((self._sources[n] for n in numbers if n in self._sources), None) for numbers in seen.outputs]
        self._stages.append(Stage(seen.view, [self._attribute(node) for node in seen.nodes], sources, **details))

    def keep_file(self, model_bytes: bytes) -> None:
        """Keep what torch would write, and the names that the graph has in it: some nodes get theirs only there."""
        assert self._finished is not None
        self.model_bytes = model_bytes
        names = read_node_names(model_bytes)
        view = self._view = self._finished.with_final_names()
        view.nodes = [replace(node, name=names[view.node_key(index)]) for index, node in enumerate(view.nodes)]
        self._finished = None  # torch's graph is about to go


class _ScriptedWatcher(_Watcher):
    """Watches the export of a model that is TorchScript: it is not traced, and its calls are in the graph."""

    def __init__(self, model: nn.Module, names: BoundaryNames) -> None:
        super().__init__(model, names)
        self._scripted = ScriptedCalls(model)

    def finish(self, write: Callable[[NodeMetadata, Mapping[str, str]], None]) -> Captured:
        return Captured(tuple(self._scripted.sites), tuple(self._stages), self._view, {}, write)

    def traced(self, graph: torch.Graph) -> None:
        """Leave the graph alone: this one is the model's own, of which torch makes a copy."""

    def inlined(self, graph: torch.Graph, parameters: int) -> None:
        seen = self._begin_stages(graph, parameters)
        self._stages = [Stage(seen.view, self._scripted.attribute_all(seen.nodes))]
        self._values.inlined(graph, seen)

    def _attribute(self, node: torch.Node) -> Attribution | None:
        return self._scripted.attribute(node)
