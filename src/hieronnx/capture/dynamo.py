"""The dynamo route: torch.export, translated to ONNX; each raw node leads back to the call that made it.

While torch.export traces, every FX node is marked with the call that is running. torch keeps such marks
through its decompositions, so that each node of the raw ONNX graph has one. torch's version converter and
optimizer then rewrite that graph in place: the raw graph and the finished one are the two stages of this route.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import InlinePass
from torch import nn

from hieronnx.capture import private_torch
from hieronnx.capture.calls import CallIO, CallRecorder, IORecorder
from hieronnx.capture.captured import Captured, ExportRequest, NodeMetadata, Stage
from hieronnx.capture.dynamo_names import DynamoNames
from hieronnx.capture.fx_copies import FxView, find_original, find_view
from hieronnx.capture.guard import Guard
from hieronnx.capture.onnx_values import find_values, forget_repeated_names, view_values, walk_values
from hieronnx.capture.torchscript.scripted import refine_by_parameters
from hieronnx.errors import writing
from hieronnx.graph.walks import first_output, walk_nodes
from hieronnx.hierarchy.records import ROOT, Attribution, CallId
from hieronnx.hierarchy.tags import CallSite

_MARK = "hieronnx.call"
_NUMBER_KEY = "hieronnx.value"
_SAVE_OPTIONS = {"export_params": "include_initializers", "keep_initializers_as_inputs": "keep_initializers_as_inputs"}


def capture_dynamo(request: ExportRequest) -> Captured:
    """Export through `torch.onnx.export(dynamo=True)`, up to the finished model in memory."""
    watcher, guard, names = _Watcher(request.model), Guard(), DynamoNames(request)

    def returned(token: Any, result: Any) -> None:
        watcher.returned(token, result)
        if token == ROOT:
            names.note_returned(result)

    with (
        private_torch.observe_module_calls(guard, watcher.enter, returned, watcher.leave),
        private_torch.observe_translation(guard, names.translated),
        private_torch.observe_renaming(guard, names.rename_inputs, names.rename_outputs),
        private_torch.observe_fx_nodes(guard, watcher.mark),
        private_torch.observe_translation(guard, watcher.keep_raw),
        private_torch.observe_traced_tensors(guard, watcher.values.note_version),
        private_torch.observe_retraced_nodes(guard, watcher.values.follow),
        private_torch.observe_translated_graphs(guard, watcher.values.keep_values),
        guard.running_torch(),
    ):
        program, write = export_program(request)
    sites, raw, passed = watcher.finish()
    view, values = view_values(program.model)
    unknown = [None] * len(view.nodes)
    tensors = watcher.find_kept(values)
    return Captured(sites, (raw, Stage(view, unknown, unknown, tensors)), view, passed, write)


def export_program(request: ExportRequest) -> tuple[torch.onnx.ONNXProgram, Callable[..., None]]:
    """Run torch's exporter; return the program, and what writes it with metadata."""
    options = dict(request.options)
    saving = {ours: options.pop(name) for name, ours in _SAVE_OPTIONS.items() if name in options}
    saving["external_data"] = options.pop("external_data", True)
    program = torch.onnx.export(
        request.model, request.args, None, kwargs=dict(request.kwargs), dynamo=True, verbose=False, **options
    )
    assert program is not None  # it is None only for dynamo=False

    def write(nodes: NodeMetadata, about: Mapping[str, str]) -> None:
        program.model.metadata_props.update(about)
        for graph, node in walk_nodes(program.model):
            if request.strip_torch_metadata:
                for key in [k for k in node.metadata_props if k.startswith("pkg.torch.") or k == "namespace"]:
                    del node.metadata_props[key]
            for key, value in nodes.get((graph, first_output(node)), {}).items():
                node.metadata_props.setdefault(key, value)
        with Guard().running_torch(), writing(request.destination):
            program.save(request.output, **saving)

    return program, write


class _Watcher:
    """Watches one export: marks FX nodes with their call, and keeps the raw ONNX graph's structure."""

    def __init__(self, model: nn.Module) -> None:
        self._recorder = CallRecorder(model)
        self.values = _FxValues()
        self._bodies: list[torch.fx.GraphModule] = []
        """Modules that Dynamo made of control flow, being traced: the outermost first."""
        self._branches: list[torch.fx.GraphModule] = []
        """Those of them that are a body, traced by a tracer of its own."""
        self._owners: dict[nn.Module, nn.Module] = {}
        """The body around each that is part of another."""
        self._main_tracer: Any = None
        self._stack_calls: dict[str, CallId] = {}
        """The calls by their keys in torch's own record, which it keeps where it traces again."""
        self._raw: Stage | None = None
        self._values: dict[ir.Value, int] = {}
        """The tensors of the raw graph by torch's values: names are no sure sign, torch gives values new ones."""
        self._sites: tuple[CallSite, ...] = ()
        self._final: Mapping[CallId, CallId] = {}
        self._model = model
        self._evidence = "captured"

    def finish(self) -> tuple[tuple[CallSite, ...], Stage, dict[CallId, CallIO]]:
        """Return the calls, the raw graph, and what each call received and returned, by the tensors of that graph."""
        assert self._raw is not None
        sites = self._sites or (CallSite(ROOT, None, ""),)  # where nothing could be recorded
        recorded = {call: io for call, io in self.values.recorder.calls.items() if call in self._final}
        passed = {self._final[call]: io.renumber(self.values.find_tensor) for call, io in recorded.items()}
        return sites, self._raw, passed

    # While torch.export traces -----------------------------------------------------------------------------

    def enter(self, traced: private_torch.TracedCall) -> Any:
        module, tracer = traced.module, traced.tracer
        if isinstance(module, torch.fx.GraphModule) and self._recorder.path_of(id(module)) is None:
            self._bodies.append(module)
            if tracer is not self._main_tracer:
                self._branches.append(module)
                self._owners.update(dict.fromkeys((m for m in module.modules() if m is not module), module))
                self._recorder.begin_region(module)
            return module
        call = self._recorder.enter(module, traced.path)
        if call == ROOT:
            self._main_tracer = tracer
            self._stack_calls.clear()
            self.values.begin(tracer)
        if call is not None and tracer is self._main_tracer:
            self._stack_calls[traced.key] = call
            self.values.recorder.note_received(call, module, traced.args, traced.kwargs)
        return call

    def returned(self, token: Any, result: Any) -> None:
        if isinstance(token, CallId) and token in self.values.recorder.calls:
            self.values.recorder.note_returned(token, result)

    def leave(self, token: Any) -> None:
        if isinstance(token, torch.fx.GraphModule):
            self._bodies.pop()
            if self._branches and self._branches[-1] is token:
                self._branches.pop()
        else:
            self._recorder.leave(token)

    def mark(self, node: torch.fx.Node) -> None:
        """Write the running call into an FX node, unless the node was made from one that has it."""
        if node.op in ("placeholder", "output"):
            return
        custom = node.meta.get("custom") or {}
        # torch traces a body again, more than once, from the code that it generated for it, and gives its nodes what is
        # known of the operator that has the body; the line that is being run leads to the node that they come from.
        source = private_torch.generated_source_node(sys._getframe(), self._bodies) if self._bodies else None
        if source is not None:
            self.values.follow_line(source, node)
        call = None if source is None else _read_mark(source)
        if call is None and _MARK not in custom:
            call = self._running_call(node, source)
        if call is not None:
            node.meta["custom"] = {**custom, _MARK: tuple(call)}

    def _running_call(self, node: torch.fx.Node, source: torch.fx.Node | None) -> CallId | None:
        """Return the call that is running; inside a body that Dynamo traced, the one that Dynamo recorded there."""
        call = self._recorder.current
        if call is None or not self._branches:
            return call
        stack = node.meta.get("nn_module_stack") or (source.meta.get("nn_module_stack") if source is not None else None)
        paths = [((key, name), self._path_of_stack_key(str(key))) for key, (name, _) in (stack or {}).items()]
        named = [(key, path) for key, path in paths if path is not None]
        return self._recorder.enter_recorded(self._branches[-1], named) if named else call

    def _outermost(self, body: nn.Module) -> nn.Module:
        while body in self._owners:
            body = self._owners[body]
        return body

    def _path_of_stack_key(self, key: str) -> str | None:
        """Return the path of the module whose id a stack's key has; shared modules have stand-ins in torch.export."""
        number = key.partition("@")[0]
        if not number.isdecimal():
            return None
        stand_ins = self._main_tracer.proxy_modules.items() if self._main_tracer is not None else ()
        base = next((id(base) for proxy, base in stand_ins if id(proxy) == int(number)), int(number))
        return self._recorder.path_of(base)

    # When the raw graph is there ---------------------------------------------------------------------------

    def keep_raw(self, model: ir.Model, program: torch.export.ExportedProgram) -> None:
        """Keep the structure of the raw graph, functions inlined as torch's optimizer will do it first."""
        graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
        nodes = [node for graph in graphs for node in graph.nodes if node.op == "call_function"]
        if nodes and not any(map(_read_mark, nodes)):
            self._mark_from_stacks(nodes)
        self._final = self._recorder.settle(self._outermost)
        values = {value: value for value in walk_values(model)}
        if model.functions:
            model = model.clone()
            values = dict(zip(values, walk_values(model), strict=True))
            for _, node in walk_nodes(model):
                call = self._call_of(node)
                if call is not None:
                    # The nodes of an inlined function get the metadata of the node that called it.
                    node.metadata_props[_MARK] = json.dumps(call)
            InlinePass()(model)
        scopes: list[Attribution | None] = []
        view, tensors = view_values(model, lambda node: scopes.append(self._attribute(node)))
        self._values = find_values(values, tensors)
        self.values.keep_raw(self._values)
        forget_repeated_names(view)
        refined, self._sites = refine_by_parameters(self._model, view, scopes, self._recorder.sites)
        self._raw = Stage(view, refined)

    def find_kept(self, values: Mapping[ir.Value, int]) -> dict[int, int]:
        """Return for tensors of the raw graph those of the finished one that are the same value of torch's."""
        return {self._values[value]: tensor for value, tensor in values.items() if value in self._values}

    def _attribute(self, node: ir.Node) -> Attribution | None:
        inlined = node.metadata_props.get(_MARK)
        marked = CallId(*json.loads(inlined)) if inlined is not None else self._call_of(node)
        call = None if marked is None else self._final[marked]
        return None if call is None else Attribution(call, (call,), self._evidence)

    def _call_of(self, node: ir.Node) -> CallId | None:
        """Return the call that an ONNX node's FX node was marked with, or that torch's own record has for it."""
        source = node.meta.get("node")
        if source is None:
            return None
        keys = list(source.meta.get("nn_module_stack") or ())
        return _read_mark(source) or (self._stack_calls.get(str(keys[-1])) if keys else None)

    def _mark_from_stacks(self, nodes: Sequence[torch.fx.Node]) -> None:
        """Mark the nodes from torch's own record of modules: where torch.export could only trace strictly, by Dynamo.

        Dynamo does not run the modules, so that calls without an operation are not seen; and what torch set apart
        (no_grad, autocast) has the record of the operator around it. So this is no more than names.
        """
        self.values.recorder.calls.clear()  # that was of an attempt that failed
        root = self._recorder.enter(self._model)
        modules = self._model.named_modules(remove_duplicate=False)
        aliases = {alias: self._recorder.path_of(id(module)) for alias, module in modules}
        for node in nodes:
            stack = (node.meta.get("nn_module_stack") or {}).items()
            names = [(key, private_torch.strip_root(name)) for key, (name, _) in stack]
            paths = [(item, self._path_of_stack_key(str(item[0])) or aliases.get(item[1])) for item in names]
            named = [(item, path) for item, path in paths if path]
            call = self._recorder.enter_recorded("strict", named) if stack else None
            if call is not None:
                node.meta["custom"] = {**(node.meta.get("custom") or {}), _MARK: tuple(call)}
        self._recorder.leave(root)
        self._evidence = "name"


def _read_mark(node: torch.fx.Node) -> CallId | None:
    mark = (node.meta.get("custom") or {}).get(_MARK)
    return None if mark is None else CallId(*mark)


class _FxValues:
    """Follows the tensors that calls receive and return from the trace to the raw ONNX graph.

    Their FX nodes get numbers, in metadata that copies of a graph keep, and are followed where torch traces again.
    """

    def __init__(self) -> None:
        self.recorder = IORecorder(partial(map, self._number_tensor))
        self._tracer: Any = None
        self._versions: dict[torch.fx.Node, int] = {}
        """How often the memory of a node's tensor had been written to when the node was made."""
        self._nodes: list[torch.fx.Node] = []
        """The nodes by their numbers."""
        self._retraced: dict[int, int] = {}
        """For each number the one of the node that stands for its tensor since torch traced it again."""
        self._originals: dict[int, int] = {}
        """For the number of a node since then that of an earlier one with the same values."""
        self._views: dict[FxView, list[tuple[FxView, int]]] = defaultdict(list)
        """The numbers of nodes since then that show a part of another node's tensor, or all in another form."""
        self._same_views: dict[int, list[tuple[bool, int]]] = defaultdict(list)
        """For such a number those of the nodes that show the same, for torch makes views again when it needs them.

        Each with whether it was made by other operations.
        """
        self._line: torch.fx.Node | None = None
        """The node whose line of generated code made the latest node."""
        self._values: dict[int, Any] = {}
        """The value of the raw ONNX graph for each number, right after torch translated it."""
        self._tensors: dict[int, int] = {}
        """The tensor of the raw graph's view for each number."""

    def begin(self, tracer: Any) -> None:
        """Begin again with a tracer that runs the model."""
        self._tracer = tracer
        self.recorder.calls.clear()
        self._retraced.clear()
        self._originals.clear()
        self._views.clear()
        self._same_views.clear()

    def note_version(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        if not tensor.is_inference():
            self._versions[node] = tensor._version

    def _number_tensor(self, tensor: torch.Tensor) -> int | None:
        node = private_torch.traced_node(tensor, self._tracer)
        # A node has the value of its tensor at that time; others may have written to its memory since.
        if node is None or tensor.is_inference() or self._versions.get(node) != tensor._version:
            return None
        return self._number_of(node)

    def _number_of(self, node: torch.fx.Node) -> int:
        number: int | None = node.meta.get(_NUMBER_KEY)
        if number is None:
            number = node.meta[_NUMBER_KEY] = len(self._nodes)
            self._nodes.append(node)
        return number

    def follow(self, old: torch.fx.Node, new: torch.fx.Node) -> None:
        number = old.meta.get(_NUMBER_KEY)
        if number is not None and old is not new:
            self._retraced[number] = self._number_of(new)
            if (original := find_original(new)) is not None:
                self._originals[self._number_of(new)] = self._number_of(original)
            if (view := find_view(new)) is not None:
                self._views[view].append((view, self._number_of(new)))

    def follow_line(self, old: torch.fx.Node, new: torch.fx.Node) -> None:
        """Follow a node whose line of generated code is being run to the node that this makes, if it is the only one.

        torch runs the code of a region that it set apart, such as one without gradients, where it traces it again.
        """
        if old is self._line:  # it became more than one
            self._retraced.pop(old.meta.get(_NUMBER_KEY, -1), None)
        elif str(old.target).replace("_.", ".") == str(new.target).replace("_.", "."):  # none works in place any more
            self.follow(old, new)
        self._line = old

    def keep_values(self, graph: torch.fx.Graph, values: Mapping[str, Any]) -> None:
        self._values = {}  # the main graph comes last
        writes, written = dict[torch.fx.Node, int](), 0
        for node in graph.nodes:
            writes[node] = written
            self._note_view(node, writes)
            written += private_torch.works_in_place(node)
            number = node.meta.get(_NUMBER_KEY)
            # Nodes that torch adds may have the metadata of others; parameters get theirs back after a new trace.
            if number is not None and node.name in values and (node is self._nodes[number] or node.op == "placeholder"):
                self._values[number] = values[node.name]

    def _note_view(self, node: torch.fx.Node, writes: Mapping[torch.fx.Node, int]) -> None:
        """Number a node that shows what one that is followed shows: that one may be left out, and this one not.

        `writes` says of each node up to this one how many before it work in place: they may have written to the memory.
        """
        view = find_view(node) if self._views else None
        if view is None or view not in self._views or writes[node] > writes[view.base]:
            return
        if self._nodes[self._number_of(node)] is not node:  # it has the metadata of another
            del node.meta[_NUMBER_KEY]
        for followed, number in self._views[view]:
            self._same_views[number].append((followed.operations != view.operations, self._number_of(node)))

    def keep_raw(self, tensors: Mapping[ir.Value, int]) -> None:
        """Find the values in the raw graph, whose tensors these are."""
        values = ((number, value) for number, value in self._values.items() if isinstance(value, ir.Value))
        self._tensors = {number: tensors[value] for number, value in values if value in tensors}
        self._values.clear()

    def find_tensor(self, number: int) -> int | None:
        """Return the tensor of the raw graph for a number: of the latest node that stands for it and is there.

        Where none is, torch left it out, but may have kept what it was made from.
        """
        tensor = self._tensors.get(number)
        while number in self._retraced:
            number = self._retraced[number]
            tensor = self._tensors.get(number, tensor)
        if tensor is None:
            same = (self._tensors.get(other) for _, other in sorted(self._same_views.get(number, ())))
            tensor = next((other for other in same if other is not None), None)
        return self.find_tensor(self._originals[number]) if tensor is None and number in self._originals else tensor
