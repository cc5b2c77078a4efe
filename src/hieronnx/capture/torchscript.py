"""The TorchScript route: torch.jit.trace, lowered to ONNX; each node's scope holds the call that made it.

torch pushes a scope for every module call that it traces, and keeps the scope on every node to the end. A
scope's name has two parts, class and variable; only the variable gets into the names of nodes. hieronnx puts
the number of the call where the class would be, and reads it back from the finished graph.
"""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hieronnx.capture import _torch
from hieronnx.capture.calls import CallRecorder, watch_calls
from hieronnx.capture.captured import Annotate, Captured, ExportRequest
from hieronnx.carry import Attribution, CallTree, Carried, Folded, carry_scopes
from hieronnx.graph import NO_TENSOR, View, ViewGraph, ViewNode, body_key
from hieronnx.hierarchy import CallId
from hieronnx.wire import write_annotated

__all__ = ["export_torchscript"]

_SCOPE = re.compile(r"hieronnx#(\d+)::")
_SMALL_TENSOR_BYTES = 1024
_DYNAMO_OPTIONS = frozenset({"external_data", "optimize", "report", "verify", "profile", "artifacts_dir"})


def export_torchscript(request: ExportRequest, annotate: Annotate) -> None:
    """Export through `torch.onnx.export(dynamo=False)`, the nodes annotated while the file is written."""
    watcher = _Watcher(request.model)

    def write(model_bytes: bytes, file: Any) -> None:
        embedding = annotate(watcher.captured())
        with open(file, "wb") as stream:
            write_annotated(stream, model_bytes, embedding.nodes, embedding.model)

    options = {key: value for key, value in request.options.items() if key not in _DYNAMO_OPTIONS}
    with watcher.watching(), _torch.replace_file_writer(write), by_position(request) as args, _quiet():
        torch.onnx.export(request.model, args, str(request.output), dynamo=False, **options)


@contextmanager
def by_position(request: ExportRequest) -> Iterator[tuple[Any, ...]]:
    """Let the model take its example inputs by position, those and no others; yield them.

    torch.jit.trace knows no keywords. torch.onnx.export would put every default of `forward` between the
    inputs, where a default that is a number becomes an input of the graph, and a `forward` that takes its
    defaults from elsewhere gets them twice. The model's `forward` is as it was afterwards.
    """
    if not request.kwargs:
        yield request.args
        return
    model = request.model
    own = model.__dict__.get("forward")
    forward = model.forward
    names = [*list(inspect.signature(forward).parameters)[: len(request.args)], *request.kwargs]

    @functools.wraps(forward)
    def take_by_position(*given: Any) -> Any:
        positional = given[: len(request.args)]
        return forward(*positional, **dict(zip(request.kwargs, given[len(request.args) :], strict=True)))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    take_by_position.__signature__ = signature  # type: ignore[attr-defined]
    model.forward = take_by_position
    try:
        yield (*request.args, *request.kwargs.values())
    finally:
        del model.forward
        if own is not None:
            model.forward = own


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out that the exporter is deprecated: whoever comes here has asked for it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*legacy TorchScript.*")
        yield


class _Watcher:
    """Watches one export: numbers the calls in torch's scopes, and keeps the graph's structure on its way."""

    def __init__(self, model: nn.Module) -> None:
        self._recorder = CallRecorder(model)
        self._calls: list[CallId] = []
        self._original_names: dict[nn.Module, str] = {}
        self._lowered: tuple[View, list[Attribution | None]] | None = None
        self._user_inputs: set[int] = set()
        self._parameter_names: dict[str, str] = {}
        self._finished: View | None = None
        self._carried: Carried | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe torch while the context lasts."""
        with (
            _torch.exclusive(),
            watch_calls(self._recorder, self._name_scope),
            _torch.observe_onnx_graph(self._keep_lowered),
            _torch.observe_named_graph(self._carry_to_finished, self._rename_finished),
        ):
            yield

    def captured(self) -> Captured:
        """Return what was seen, once the graph is finished."""
        assert self._finished is not None
        assert self._carried is not None
        self._recorder.check_complete()
        return Captured(tuple(self._recorder.sites), self._finished, self._carried)

    def _name_scope(self, module: nn.Module, call: CallId) -> None:
        """Put the call's number into the name of the scope that torch is about to push for it."""
        names = _torch.trace_scope_names()
        if names is None or module not in names:
            return
        original = self._original_names.setdefault(module, names[module])
        self._calls.append(call)
        names[module] = f"hieronnx#{len(self._calls) - 1}::{original.partition('::')[2]}"

    def _keep_lowered(self, graph: torch.Graph, parameters: int) -> None:
        inputs = list(graph.inputs())
        self._user_inputs = {value.unique() for value in inputs[: len(inputs) - parameters]}
        self._parameter_names = {
            str(value.unique()): value.debugName() for value in inputs[len(inputs) - parameters :]
        }
        view, nodes = _view_torch_graph(graph, self._user_inputs)
        self._lowered = view, [self._attribute(node) for node in nodes]

    def _carry_to_finished(self, graph: torch.Graph) -> None:
        view, nodes = _view_torch_graph(graph, self._user_inputs)
        own = [self._attribute(node) for node in nodes]
        assert self._lowered is not None
        tree = CallTree({site.id: site.parent for site in self._recorder.sites})
        carried = carry_scopes(*self._lowered, view, tree)
        nodes_carried = [found or scope for found, scope in zip(carried.nodes, own, strict=True)]
        initializers = {
            tensor: Folded(folded.origins, tuple(self._parameter_names.get(s, s) for s in folded.sources))
            for tensor, folded in carried.initializers.items()
        }
        self._carried = Carried(nodes_carried, initializers)

    def _rename_finished(self, graph: torch.Graph) -> None:
        """Keep the finished graph under the names that go into the file."""
        self._finished, _ = _view_torch_graph(graph, self._user_inputs, final_names=True)

    def _attribute(self, node: torch.Node) -> Attribution | None:
        found = _SCOPE.findall(node.scopeName())
        if not found:
            return None
        call = self._calls[int(found[-1])]
        return Attribution(call, (call,), "captured")


# -- a torch graph as a view ------------------------------------------------------------------------------


def _view_torch_graph(
    graph: torch.Graph, user_inputs: set[int], *, final_names: bool = False
) -> tuple[View, list[torch.Node]]:
    """Build the view of a torch graph of ONNX operators, and return its nodes in the view's order.

    A tensor is named by torch's number for it, which stays the same through torch's passes; or, at the end,
    by the name that it gets in the file. Inputs of the graph that are not the user's are parameters.
    """
    builder = _TorchViewBuilder(user_inputs, final_names)
    builder.add_block(graph, "", "")
    return builder.view, builder.nodes


class _TorchViewBuilder:
    def __init__(self, user_inputs: set[int], final_names: bool) -> None:
        self.view = View()
        self.nodes: list[torch.Node] = []
        self._user_inputs = user_inputs
        self._final_names = final_names
        self._numbers: dict[int, int] = {}

    def add_block(self, block: Any, key: str, label: str) -> int:
        view = self.view
        number = len(view.graphs)
        view.graphs.append(ViewGraph(key, label, None, (), ()))
        inputs = [value for value in block.inputs() if key or value.unique() in self._user_inputs]
        for value in () if key else block.inputs():
            if value.unique() not in self._user_inputs:
                tensor = self._number(value, number)
                view.constants[tensor] = "named", view.names[tensor]
        for node in block.nodes():
            self._add_node(node, number, key)
        outputs = tuple(self._number(value, number) for value in block.outputs())
        numbers = tuple(self._number(value, number) for value in inputs)
        view.graphs[number] = ViewGraph(key, label, None, numbers, outputs)
        return number

    def _add_node(self, node: torch.Node, graph: int, key: str) -> None:
        view = self.view
        if node.mustBeNone():
            for value in node.outputs():
                self._numbers[value.unique()] = NO_TENSOR
            return
        inputs = tuple(self._number(value, graph) for value in node.inputs())
        outputs = tuple(self._number(value, graph) for value in node.outputs())
        start, known = len(view.nodes), len(view.names)
        first = next(iter(node.outputs()), None)
        labels = _body_labels(node)
        bodies = tuple(
            self.add_block(block, body_key(key, self._name(first), label), label)
            for label, block in zip(labels, node.blocks(), strict=True)
        )
        captures = dict.fromkeys(
            t for inner in view.nodes[start:] for t in inner.inputs if 0 <= t < known
        )
        op = node.kind().removeprefix("onnx::")
        attributes = () if bodies else _attribute_key(node)
        index = view.add_node(
            ViewNode(op, "", graph, inputs, outputs, attributes, bodies, tuple(captures))
        )
        for body in bodies:
            old = view.graphs[body]
            view.graphs[body] = ViewGraph(old.key, old.label, index, old.inputs, old.outputs)
        self.nodes.append(node)

    def _name(self, value: torch.Value | None) -> str:
        if value is None:
            return ""
        return str(value.debugName()) if self._final_names else str(value.unique())

    def _number(self, value: torch.Value, graph: int) -> int:
        unique = value.unique()
        if unique not in self._numbers:
            self._numbers[unique] = self.view.add_tensor(self._name(value), graph)
        return self._numbers[unique]


def _body_labels(node: torch.Node) -> list[str]:
    """Name a node's blocks as the ONNX attributes that they become."""
    count = len(list(node.blocks()))
    return ["then_branch", "else_branch"] if node.kind() == "onnx::If" else ["body"] * count


def _attribute_key(node: torch.Node) -> Hashable:
    return tuple((name, _attribute_value(node, name)) for name in sorted(node.attributeNames()))


def _attribute_value(node: torch.Node, name: str) -> Hashable:
    kind = node.kindOf(name)
    if kind == "t":
        tensor = node.t(name)
        if tensor.nbytes > _SMALL_TENSOR_BYTES:
            return "object", tensor.data_ptr(), tuple(tensor.shape)
        return str(tensor.dtype), tuple(tensor.shape), tensor.contiguous().view(-1).tolist().__repr__()
    value = getattr(node, kind)(name)
    return tuple(value) if isinstance(value, list) else value if isinstance(value, Hashable) else repr(value)
