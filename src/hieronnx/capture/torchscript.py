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
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from hieronnx.capture import _torch
from hieronnx.capture.calls import CallRecorder, module_calls_through
from hieronnx.capture.captured import Annotate, Captured, ExportRequest
from hieronnx.carry import Attribution, CallTree, Carried, Folded, carry_scopes, join_scopes
from hieronnx.errors import InputError
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

    options = _torchscript_options(request)
    with watcher.watching(), _torch.replace_file_writer(write), by_position(request) as args, _quiet():
        torch.onnx.export(request.model, args, str(request.output), dynamo=False, **options)


def _torchscript_options(request: ExportRequest) -> dict[str, Any]:
    """Return torch's options as this exporter takes them: dynamic shapes as dynamic axes of named inputs."""
    options = {key: value for key, value in request.options.items() if key not in _DYNAMO_OPTIONS}
    shapes = options.pop("dynamic_shapes", None)
    if not shapes or options.get("dynamic_axes"):
        return options
    inputs = _name_inputs(request)
    specs = shapes if isinstance(shapes, Mapping) else dict(zip((name for name, _ in inputs), shapes, strict=False))
    options.setdefault("input_names", [name for name, _ in _flatten_untraceable(inputs)[0]])
    options["dynamic_axes"] = {
        name: axes for name, value in inputs if (axes := _dynamic_axes(name, value, specs.get(name)))
    }
    return options


def _dynamic_axes(name: str, value: Any, spec: Any) -> dict[int, str]:
    """Name the dynamic axes of one input; those that torch.export would name by itself get the input's name."""
    if spec is None:
        return {}
    sizes = dict(enumerate(spec)) if isinstance(spec, list | tuple) else spec
    if not isinstance(value, torch.Tensor) or not isinstance(sizes, Mapping):
        raise InputError(
            f"the TorchScript exporter takes dynamic axes of tensors only, and input {name!r} is a "
            f"{type(value).__name__}; use exporter 'dynamo', or give dynamic_axes and input_names"
        )
    return {
        axis: size if isinstance(size, str) else getattr(size, "__name__", f"{name}_{axis}")
        for axis, size in sizes.items()
        if size is not None and not isinstance(size, int)
    }


@contextmanager
def by_position(request: ExportRequest) -> Iterator[tuple[Any, ...]]:
    """Let the model take its example inputs by position, those and no others; yield them.

    torch.jit.trace knows no keywords, and no structures but tuples, lists and dicts. torch.onnx.export would
    put every default of `forward` between the inputs, where a default that is a number becomes an input of the
    graph, and a `forward` that takes its defaults from elsewhere gets them twice. The model's `forward` is as it
    was afterwards.
    """
    if not request.kwargs and all(map(_is_traceable, request.args)):
        yield request.args
        return
    model = request.model
    own, forward = model.__dict__.get("forward"), model.forward
    inputs = _name_inputs(request)
    flat, unflatten = _flatten_untraceable(inputs)

    @functools.wraps(forward)
    def take_by_position(*given: Any) -> Any:
        values = unflatten(given)
        count = len(request.args)
        return _make_traceable(forward(*values[:count], **dict(zip(request.kwargs, values[count:], strict=True))))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name, _ in flat])
    take_by_position.__signature__ = signature  # type: ignore[attr-defined]
    model.forward = take_by_position
    try:
        yield tuple(value for _, value in flat)
    finally:
        del model.forward
        if own is not None:
            model.forward = own


def _name_inputs(request: ExportRequest) -> list[tuple[str, Any]]:
    """Return all example inputs with their names; those by position are named as `forward` names them."""
    names = list(inspect.signature(request.model.forward).parameters)
    names += [f"input_{n}" for n in range(len(names), len(request.args))]  # those that *args takes
    return [*zip(names, request.args, strict=False), *request.kwargs.items()]


def _flatten_untraceable(
    inputs: Sequence[tuple[str, Any]],
) -> tuple[list[tuple[str, Any]], Callable[[Sequence[Any]], list[Any]]]:
    """Replace inputs that torch.jit.trace refuses by their tensors; also return what puts them together again."""
    flat: list[tuple[str, Any]] = []
    makers: list[Callable[[Iterator[Any]], Any]] = []
    for name, value in inputs:
        if _is_traceable(value):
            flat.append((name, value))
            makers.append(next)
            continue
        leaves, spec = tree_flatten(value)
        flat += [(f"{name}_{n}", leaf) for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        makers.append(functools.partial(_put_together, leaves, spec))

    def unflatten(given: Sequence[Any]) -> list[Any]:
        values = iter(given)
        return [make(values) for make in makers]

    return flat, unflatten


def _put_together(leaves: Sequence[Any], spec: TreeSpec, values: Iterator[Any]) -> Any:
    return tree_unflatten([next(values) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)


def _is_traceable(value: object) -> bool:
    """Say whether torch.jit.trace takes a value as it is."""
    if isinstance(value, dict):
        return all(map(_is_traceable, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_traceable, value))
    return value is None or isinstance(value, torch.Tensor | bool | int | float | str)


def _make_traceable(output: Any) -> Any:
    """Return an output as it is, or its tensors where torch.jit.trace would refuse it."""
    if _is_traceable(output):
        return output
    return tuple(leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out that the exporter is deprecated, which whoever comes here knows, and the graphs that it prints."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="torch")
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*legacy TorchScript.*")
        logged = torch._C._jit_is_onnx_log_enabled()
        torch._C._jit_set_onnx_log_enabled(False)  # it prints whole graphs on standard output
        try:
            yield
        finally:
            torch._C._jit_set_onnx_log_enabled(logged)


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
        self._calls: list[CallId] = []
        self._original_names: dict[nn.Module, str] = {}
        self._hooks: list[_HookNodes] = []
        self._lowering: dict[int, Attribution] = {}
        self._noted: dict[int, Attribution] = {}
        """What is known of nodes beside their scopes, by the number of their first value in the current graph."""
        self._traced: list[tuple[int, Attribution | None]] = []
        self._inlined: tuple[View, list[Attribution | None]] | None = None
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
            module_calls_through(self._run_call),
            _torch.observe_lowering(self),
            _torch.observe_named_graph(self._carry_to_finished, self._rename_finished),
        ):
            yield

    def captured(self) -> Captured:
        """Return what was seen, once the graph is finished."""
        assert self._finished is not None
        assert self._carried is not None
        self._recorder.check_complete()
        return Captured(tuple(self._recorder.sites), self._finished, self._carried)

    # While torch.jit traces --------------------------------------------------------------------------------

    def _run_call(
        self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        caller = self._recorder.current
        call = self._recorder.enter(module)
        if call is None:
            return original(module, *args, **kwargs)
        hooked = caller is not None and bool(module._forward_hooks or module._forward_pre_hooks)
        start = len(_torch.traced_kinds()) if hooked else 0
        try:
            self._name_scope(module, call)
            return original(module, *args, **kwargs)
        finally:
            if caller is not None and hooked:
                self._hooks.append(_HookNodes(caller, call, start, tuple(_torch.traced_kinds())))
            self._recorder.leave(call)

    def _name_scope(self, module: nn.Module, call: CallId) -> None:
        """Put the call's number into the name of the scope that torch is about to push for it."""
        names = _torch.trace_scope_names()
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
                for value in node.outputs():
                    self._noted[value.unique()] = Attribution(hooks.call, (hooks.call,), "captured")

    def _scope_of(self, node: torch.Node) -> CallId | None:
        found = _SCOPE.findall(node.scopeName())
        return self._calls[int(found[-1])] if found else None

    def _attribute(self, node: torch.Node) -> Attribution | None:
        noted = next((self._noted[v.unique()] for v in node.outputs() if v.unique() in self._noted), None)
        if noted is not None:
            return noted
        call = self._scope_of(node)
        return None if call is None else Attribution(call, (call,), "captured")

    def _tree(self) -> CallTree:
        return CallTree({site.id: site.parent for site in self._recorder.sites})

    # From the traced graph to ONNX operators -----------------------------------------------------------------

    def traced(self, graph: torch.Graph) -> None:
        """Keep the order of the traced nodes."""
        self._note_hooks(graph)
        self._traced = [(_first_number(node), self._attribute(node)) for node in graph.nodes()]

    def inlined(self, graph: torch.Graph, parameters: int) -> None:
        """Give the nodes of inlined functions the call of the node that they replaced, which stood in their place."""
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
            if replaced:
                for new in pending:
                    self._note_all(new, join_scopes(replaced, self._tree(), "captured"))
            pending, expected = [], place + 1
        view, nodes = _view_torch_graph(graph, self._user_inputs)
        self._inlined = view, [self._attribute(node) for node in nodes]

    def _note_all(self, node: torch.Node, attribution: Attribution) -> None:
        if self._scope_of(node) is None:
            for value in node.outputs():
                self._noted[value.unique()] = attribution
        for block in node.blocks():
            for inner in block.nodes():
                self._note_all(inner, attribution)

    def simplified(self, graph: torch.Graph) -> None:
        """Carry what is known through torch's passes over the traced graph, onto the nodes that will be lowered."""
        assert self._inlined is not None
        view, nodes = _view_torch_graph(graph, self._user_inputs)
        carried = carry_scopes(*self._inlined, view, self._tree())
        self._noted = {
            value.unique(): found
            for node, found in zip(nodes, carried.nodes, strict=True)
            if found is not None
            for value in node.outputs()
        }
        self._lowering = {}

    def lowered(self, node: torch.Node, made: Sequence[torch.Node]) -> None:
        """Hand what is known of a node on to the ONNX nodes that it became."""
        attribution = self._attribute(node)
        if attribution is not None:
            for new in made:
                for value in new.outputs():
                    self._lowering.setdefault(value.unique(), attribution)

    def renumbered(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Follow torch's new numbers for the values of the lowered graph."""
        self._noted = {
            new: self._lowering[old] for old, new in zip(before, after, strict=True) if old in self._lowering
        }

    def finished(self, graph: torch.Graph) -> None:
        """Keep the structure of the graph of ONNX operators, before torch folds and fuses."""
        inputs = list(graph.inputs())
        users = len(self._user_inputs)
        self._user_inputs = {value.unique() for value in inputs[:users]}
        self._parameter_names = {str(value.unique()): value.debugName() for value in inputs[users:]}
        view, nodes = _view_torch_graph(graph, self._user_inputs)
        self._lowered = view, [self._attribute(node) for node in nodes]

    # From there to the file ----------------------------------------------------------------------------------

    def _carry_to_finished(self, graph: torch.Graph) -> None:
        assert self._lowered is not None
        view, _ = _view_torch_graph(graph, self._user_inputs)
        carried = carry_scopes(*self._lowered, view, self._tree())
        initializers = {
            tensor: Folded(folded.origins, tuple(self._parameter_names.get(s, s) for s in folded.sources))
            for tensor, folded in carried.initializers.items()
        }
        self._carried = Carried(carried.nodes, initializers)

    def _rename_finished(self, graph: torch.Graph) -> None:
        """Keep the finished graph under the names that go into the file."""
        self._finished, _ = _view_torch_graph(graph, self._user_inputs, final_names=True)


def _first_number(node: torch.Node) -> int:
    return next((int(value.unique()) for value in node.outputs()), -1)


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
        captures = dict.fromkeys(t for inner in view.nodes[start:] for t in inner.inputs if 0 <= t < known)
        op = node.kind().removeprefix("onnx::")
        attributes = () if bodies else _attribute_key(node)
        index = view.add_node(
            ViewNode(op, _onnx_name(node), graph, inputs, outputs, attributes, bodies, tuple(captures))
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


def _onnx_name(node: torch.Node) -> str:
    return str(node.s("onnx_name")) if node.hasAttribute("onnx_name") else ""


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
