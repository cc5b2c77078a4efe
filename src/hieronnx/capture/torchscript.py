"""The TorchScript route: torch.jit.trace, lowered to ONNX; each node's scope holds the call that made it.

torch pushes a scope for every module call that it traces, and keeps the scope on every node to the end. A
scope's name has two parts, class and variable; only the variable gets into the names of nodes. hieronnx puts
the number of the call where the class would be, and reads it back from the finished graph.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from hieronnx.attribute.carried import Carried, Folded, carry_scopes
from hieronnx.capture import private_torch
from hieronnx.capture.calls import CallRecorder, module_calls_through
from hieronnx.capture.captured import Annotate, Captured, ExportRequest
from hieronnx.capture.passing import Exchange
from hieronnx.capture.positional import by_position, torchscript_options
from hieronnx.capture.private_torch import node_blocks, node_outputs
from hieronnx.capture.torch_view import TorchView, view_torch_graph
from hieronnx.capture.traced_values import TracedValues
from hieronnx.errors import writing
from hieronnx.files.splice import write_annotated
from hieronnx.files.wire import read_node_names
from hieronnx.graph.view import NO_TENSOR, View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import Attribution, CallId

_SCOPE = re.compile(r"hieronnx#(\d+)::")


def export_torchscript(request: ExportRequest, annotate: Annotate) -> None:
    """Export through `torch.onnx.export(dynamo=False)`, the nodes annotated while the file is written."""
    watcher = _Watcher(request.model)

    def write(model_bytes: bytes, file: Any) -> None:
        embedding = annotate(watcher.captured(read_node_names(model_bytes)))
        with writing(request.destination), open(file, "wb") as stream:
            write_annotated(stream, model_bytes, embedding.nodes, embedding.model)

    options = torchscript_options(request)
    with watcher.watching(), private_torch.replace_file_writer(write), by_position(request) as args, _quiet():
        torch.onnx.export(request.model, args, str(request.output), dynamo=False, **options)


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out that the exporter is deprecated, which whoever comes here knows, and the graphs that it prints."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*legacy TorchScript.*")
        with private_torch.without_graph_log():
            yield


@dataclass(frozen=True, slots=True)
class _HookNodes:
    """What a module's own hooks did, between two points of its caller's nodes."""

    caller: CallId
    call: CallId
    start: int
    kinds: tuple[str, ...]
    """The caller's own nodes up to the end of the call."""


class _Watcher:
    """Watches one export: numbers the calls in torch's scopes, and follows every node on its way to the file.

    A node's call is read from its scope. Where torch gives a node none (functions that were scripted) or only
    the caller's (a module's own hooks), the call is noted for the node itself, by the number of its value.
    """

    def __init__(self, model: nn.Module) -> None:
        self._recorder = CallRecorder(model)
        self._passed = TracedValues()
        self._exchanges: Mapping[CallId, Exchange] = {}
        self._calls: list[CallId] = []
        self._original_names: dict[nn.Module, str] = {}
        self._scope_calls: dict[str, CallId | None] = {}
        self._hooks: list[_HookNodes] = []
        self._lowering: dict[int, Attribution] = {}
        self._noted: dict[int, Attribution] = {}
        """What is known of nodes beside their scopes, by the number of their first value in the current graph."""
        self._traced: list[tuple[int, Attribution | None]] = []
        self._inlined: tuple[View, list[Attribution | None]] | None = None
        self._lowered: tuple[View, list[Attribution | None]] | None = None
        self._user_inputs: set[int] = set()
        self._parameter_names: dict[str, str] = {}
        self._finished: TorchView | None = None
        self._carried: Carried | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe torch while the context lasts."""
        with (
            private_torch.exclusive(),
            module_calls_through(self._run_call),
            private_torch.observe_lowering(self),
            private_torch.observe_finished_graph(self._carry_to_finished),
        ):
            yield

    def captured(self, names: Mapping[tuple[str, str], str]) -> Captured:
        """Return what was seen, once the graph is finished; some nodes get their names only in the file."""
        assert self._finished is not None
        assert self._carried is not None
        self._recorder.check_complete()
        view = self._finished.with_final_names()
        view.nodes = [replace(node, name=names[view.node_key(index)]) for index, node in enumerate(view.nodes)]
        return Captured(tuple(self._recorder.sites), view, self._carried, self._exchanges)

    # While torch.jit traces --------------------------------------------------------------------------------

    def _run_call(
        self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        caller = self._recorder.current
        call = self._recorder.enter(module)
        if call is None:
            return original(module, *args, **kwargs)
        hooked = caller is not None and private_torch.has_hooks(module)
        start = len(private_torch.traced_kinds()) if hooked else 0
        if caller is None:
            self._passed.begin(module, args)
        self._passed.recorder.note_received(call, module, args, kwargs)
        try:
            self._name_scope(module, call)
            result = original(module, *args, **kwargs)
            self._passed.recorder.note_returned(call, result)
            return result
        finally:
            if caller is not None and hooked:
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
            for node in nodes[hooks.start :]:
                for value in node_outputs(node):
                    self._noted[value.unique()] = Attribution(hooks.call, (hooks.call,), "captured")

    def _scope_of(self, node: torch.Node) -> CallId | None:
        name = node.scopeName()
        if name not in self._scope_calls:
            found = _SCOPE.findall(name)
            self._scope_calls[name] = self._calls[int(found[-1])] if found else None
        return self._scope_calls[name]

    def _attribute(self, node: torch.Node) -> Attribution | None:
        noted = next((self._noted[v.unique()] for v in node_outputs(node) if v.unique() in self._noted), None)
        if noted is not None:
            return noted
        call = self._scope_of(node)
        return None if call is None else Attribution(call, (call,), "captured")

    def _prefer_exact(self, nodes: Sequence[torch.Node], carried: Carried) -> list[Attribution | None]:
        """Choose for each node between what was carried to it and the scope that torch keeps on it, as says more."""
        return [
            found if found is not None and found.evidence in ("captured", "carried") else self._attribute(node) or found
            for node, found in zip(nodes, carried.nodes, strict=True)
        ]

    def _tree(self) -> CallTree:
        return CallTree({site.id: site.parent for site in self._recorder.sites})

    # From the traced graph to ONNX operators -----------------------------------------------------------------

    def traced(self, graph: torch.Graph) -> None:
        """Keep the order of the traced nodes."""
        self._passed.traced(graph)
        self._note_hooks(graph)
        self._traced = [(_first_number(node), self._attribute(node)) for node in graph.nodes()]

    def inlined(self, graph: torch.Graph, parameters: int) -> None:
        """Give the nodes of inlined functions the call of the node that they replaced, which stood in their place."""
        self._passed.inlined(graph)
        inputs = list(graph.inputs())
        self._user_inputs = {value.unique() for value in inputs[: len(inputs) - parameters]}
        places = {number: place for place, (number, _) in enumerate(self._traced)}
        pending: list[torch.Node] = []
        expected = 0
        for node in [*graph.nodes(), None]:
            place = len(self._traced) if node is None else places.get(_first_number(node))
            if place is None:
                assert node is not None
                pending.append(node)
                continue
            replaced = [scope for _, scope in self._traced[expected:place] if scope is not None]
            if replaced and pending:
                # Between two calls with nothing in between, which node is whose is not known.
                joined = self._tree().join(replaced, "captured" if len(replaced) == 1 else "dataflow")
                for new in pending:
                    self._note_all(new, joined)
            pending, expected = [], place + 1
        seen = view_torch_graph(graph, self._user_inputs)
        self._inlined = seen.view, [self._attribute(node) for node in seen.nodes]

    def _note_all(self, node: torch.Node, attribution: Attribution) -> None:
        if self._scope_of(node) is None:
            for value in node_outputs(node):
                self._noted[value.unique()] = attribution
        for block in node_blocks(node):
            for inner in block.nodes():
                self._note_all(inner, attribution)

    def simplified(self, graph: torch.Graph) -> None:
        """Carry what is known through torch's passes over the traced graph, onto the nodes that will be lowered."""
        assert self._inlined is not None
        seen = view_torch_graph(graph, self._user_inputs)
        carried = carry_scopes(*self._inlined, seen.view, self._tree())
        self._passed.simplified(self._inlined[0], carried, seen, graph)
        attributions = self._prefer_exact(seen.nodes, carried)
        self._noted = {
            value.unique(): found
            for node, found in zip(seen.nodes, attributions, strict=True)
            if found is not None
            for value in node_outputs(node)
        }
        self._lowering = {}

    def lowered(self, node: torch.Node, made: Sequence[torch.Node], result: Any) -> None:
        """Hand what is known of a node on to the ONNX nodes that it became."""
        self._passed.lowered(node, result)
        attribution = self._attribute(node)
        if attribution is not None:
            for new in made:
                for value in node_outputs(new):
                    self._lowering.setdefault(value.unique(), attribution)

    def inputs_lowered(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Follow the graph's inputs."""
        self._passed.inputs_lowered(before, after)

    def renumbered(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Follow torch's new numbers for the values of the lowered graph."""
        self._passed.renumbered(before, after)
        self._noted = {
            new: self._lowering[old] for old, new in zip(before, after, strict=True) if old in self._lowering
        }

    def finished(self, graph: torch.Graph) -> None:
        """Keep the structure of the graph of ONNX operators, before torch folds and fuses."""
        inputs = list(graph.inputs())
        users = len(self._user_inputs)
        self._user_inputs = {value.unique() for value in inputs[:users]}
        self._parameter_names = {str(value.unique()): value.debugName() for value in inputs[users:]}
        seen = view_torch_graph(graph, self._user_inputs)
        self._lowered = seen.view, self._attribute_lowered(seen)
        self._passed.finished(seen)

    def _attribute_lowered(self, seen: TorchView) -> list[Attribution | None]:
        """Attribute the lowered nodes; what torch put in for one, such as a cast of what it reads, does its work."""
        found = [self._attribute(node) for node in seen.nodes]
        lowered = [any(value.unique() in self._noted for value in node_outputs(node)) for node in seen.nodes]
        if all(lowered):
            return found
        readers = seen.view.consumers
        for index in reversed(range(len(found))):
            made = (tensor for tensor in seen.view.nodes[index].outputs if tensor != NO_TENSOR)
            served = {found[reader] for tensor in made for reader in readers[tensor]}
            only = served.pop() if len(served) == 1 else None
            own = found[index]
            if not lowered[index] and only is not None and own is not None and only.scope == own.scope:
                found[index] = only
        return found

    def folded(self, graph: torch.Graph) -> None:
        """Find the values that torch put in the stead of others."""
        self._passed.folded(graph)

    # From there to the file ----------------------------------------------------------------------------------

    def _carry_to_finished(self, graph: torch.Graph) -> None:
        assert self._lowered is not None
        self._finished = view_torch_graph(graph, self._user_inputs)
        carried = carry_scopes(*self._lowered, self._finished.view, self._tree())
        attributions = self._prefer_exact(self._finished.nodes, carried)
        initializers = {
            tensor: Folded(folded.origins, tuple(self._parameter_names.get(s, s) for s in folded.sources))
            for tensor, folded in carried.initializers.items()
        }
        self._carried = Carried(attributions, initializers, carried.tensors)
        self._exchanges = self._passed.carry(self._lowered[0], carried, self._finished)


def _first_number(node: torch.Node) -> int:
    return next((int(value.unique()) for value in node_outputs(node)), -1)
