"""The private parts of torch that capture uses, all in one file.

torch.onnx.export offers no view of what it does between the model and the file. Each `observe_…` function here wraps
one function of torch for as long as its context lasts; none changes what passes by. Where a torch version moves such a
function, this is the file to fix: from torch 2.10 to 2.15 all of it is the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch._C._functorch import is_functorch_wrapped_tensor as is_functorch_wrapped_tensor
from torch._decomp import decomposition_table as decomposition_table
from torch._dynamo import exc as dynamo_errors
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental import proxy_tensor, symbolic_shapes
from torch.nn.modules import module as module_hooks
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes

from hieronnx.capture.guard import Guard, around, wrapped
from hieronnx.capture.torchscript.graphs import all_values, output_numbers

if TYPE_CHECKING:
    import onnx_ir as ir

disable_dispatch_modes = _disable_current_modes
pytree = _pytree
DYNAMO = "torch.onnx._internal.exporter._core"
DYNAMO_PASSES = "torch.onnx._internal.exporter._ir_passes"
TORCHSCRIPT = "torch.onnx._internal.torchscript_exporter"
TRACER = "torch.fx.experimental.proxy_tensor:_ModuleStackTracer"
PASSES = "torch:_C"
_ATEN = torch.ops.aten
_MAY_COPY = frozenset(
    {
        _ATEN.contiguous,
        _ATEN.flatten,
        _ATEN.ravel,
        _ATEN.reshape,
        _ATEN.reshape_as,
        _ATEN.resolve_conj,
        _ATEN.resolve_neg,
        _ATEN.to,
    }
)
"""They give what they read, or a view of it, only where its memory and its type are as they must be."""

_Context: TypeAlias = AbstractContextManager[None]


# -- the dynamo exporter --------------------------------------------------------------------------------


def observe_translation(guard: Guard, observer: Callable[[ir.Model, Any], None]) -> _Context:
    """Call the observer with each raw ONNX model and its ExportedProgram, before torch converts or optimizes it."""

    def translated(_token: None, result: Any, program: Any, **_options: Any) -> None:
        observer(result.model, program)

    return around(guard, DYNAMO, "_exported_program_to_onnx_program", after=translated)


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One module call that torch.export traces."""

    module: torch.nn.Module
    path: str | None
    """The attribute path through which the module was reached."""
    key: str
    """The key of the call in torch's own record, `nn_module_stack`."""
    tracer: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def observe_module_calls(
    guard: Guard, enter: Callable[[TracedCall], Any], returned: Callable[[Any, Any], None], leave: Callable[[Any], None]
) -> _Context:
    """Call `enter(call)`, `returned(token, result)` and `leave(token)` for each module call that is traced."""

    def call_module(tracer: Any, module: Any, _forward: Any, args: Any, kwargs: Any) -> Any:
        proxied = isinstance(module, proxy_tensor._AttrProxy)
        path = tracer.proxy_paths.get(module) if proxied else tracer.submodule_paths.get(module)
        base = tracer.proxy_modules[module] if proxied else module
        number, path = tracer.num_calls.get(path, 0), path and strip_root(path)
        key = f"L__self__{path}@{number}" if number else f"L__self__{path}"  # as it is once the tracing is done
        return enter(TracedCall(base, path, key, tracer, args, kwargs))

    def after(token: Any, result: Any, *_args: Any) -> None:
        returned(token, result)

    return around(guard, TRACER, "call_module", call_module, after, leave)


def observe_fx_nodes(guard: Guard, observer: Callable[[torch.fx.Node], None]) -> _Context:
    """Call the observer with each FX node that torch.export creates while it traces modules."""
    return around(guard, TRACER, "create_node", after=lambda _token, node, *_args, **_kwargs: observer(node))


def observe_traced_tensors(guard: Guard, observer: Callable[[torch.Tensor, torch.fx.Node], None]) -> _Context:
    """Call the observer with each tensor that torch traces, and the FX node that now stands for it."""

    def traced(_token: None, _result: None, value: Any, _tracer: Any, proxy: Any) -> None:
        if isinstance(value, torch.Tensor):
            observer(value, proxy.proxy.node)

    return around(guard, proxy_tensor.__name__, "set_proxy_slot", after=traced)


def observe_retraced_nodes(guard: Guard, observer: Callable[[torch.fx.Node, torch.fx.Node], None]) -> _Context:
    """Call the observer with each FX node that torch runs to trace it again, and the node that now stands for it."""

    def run(_token: None, result: Any, _interpreter: Any, node: torch.fx.Node) -> None:
        mode = proxy_tensor.get_proxy_mode() if isinstance(result, torch.Tensor) else None
        new = None if mode is None else traced_node(result, mode.tracer)
        if new is not None:
            observer(node, new)

    return around(guard, "torch.fx:Interpreter", "run_node", after=run)


def traced_node(tensor: torch.Tensor, tracer: Any) -> torch.fx.Node | None:
    """Return the FX node that stands for a tensor while it is traced; None where none does."""
    if isinstance(tensor, FunctionalTensor):
        # As it is now: to bring it up to date would add nodes to the graph.
        tensor = torch._from_functional_tensor(tensor.elem)
    slot = proxy_tensor.get_proxy_slot(tensor, tracer, None)
    return None if slot is None else slot.proxy.node


def works_in_place(node: torch.fx.Node) -> bool:
    """Say whether an FX node writes to the memory of what it reads."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def is_view(node: torch.fx.Node) -> bool:
    """Say whether an FX node shows its first argument's memory in another form, or takes one of several such views.

    Schemas say that it may: what copies where that memory does not lie as it must is no view.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        source = node.args[0] if node.target is operator.getitem else None
        return isinstance(source, torch.fx.Node) and is_view(source)
    alias = schema.arguments[0].alias_info if schema.arguments else None
    if getattr(node.target, "overloadpacket", None) in _MAY_COPY:
        return False
    return alias is not None and not alias.is_write


def observe_translated_graphs(guard: Guard, observer: Callable[[torch.fx.Graph, Mapping[str, Any]], None]) -> _Context:
    """Call the observer with each FX graph that was translated to ONNX, and what each node's name became."""

    def translated(_token: None, values: Any, graph: torch.fx.Graph, *_args: Any, **_kwargs: Any) -> None:
        observer(graph, values)

    return around(guard, DYNAMO, "_translate_fx_graph", after=translated)


@contextmanager
def observe_renaming(
    guard: Guard, inputs: Callable[[ir.Model], None], outputs: Callable[[ir.Model], None]
) -> Iterator[None]:
    """Call the observers with the finished model, before torch gives its inputs and its outputs the names asked for."""
    with (
        around(guard, DYNAMO_PASSES, "rename_inputs", lambda model, _names: inputs(model)),
        around(guard, DYNAMO_PASSES, "rename_outputs", lambda model, _names: outputs(model)),
    ):
        yield


def is_about_dynamic_axes(error: BaseException) -> bool:
    """Say whether torch.export refused a model because an axis that was to be dynamic is not, or is another one."""
    conflict = "conflicts between user-specified ranges and inferred ranges" in str(error)
    return conflict or isinstance(error, dynamo_errors.UserError | symbolic_shapes.ConstraintViolationError)


def strip_root(path: str) -> str:
    """Leave out what torch.export puts before the paths of the model's own modules while it traces."""
    return path.removeprefix("_export_root").removeprefix(".")


def generated_source_node(frame: FrameType | None, modules: list[torch.fx.GraphModule]) -> torch.fx.Node | None:
    """Return the node of a generated module whose line is being run, looking from a frame outwards."""
    by_code = {type(module).forward.__code__: module for module in modules}
    while frame is not None:
        module = by_code.get(frame.f_code)
        if module is not None and module._lineno_map is not None:
            index = module._lineno_map.get(frame.f_lineno - module._prologue_start)
            return None if index is None else list(module.graph.nodes)[index]
        frame = frame.f_back
    return None


# -- the TorchScript exporter ---------------------------------------------------------------------------


def trace_scope_names() -> dict[torch.nn.Module, str] | None:
    """Return torch's map from module to scope name, `class::variable`, while it traces for ONNX; None otherwise.

    Only the variable part gets into the names of nodes and tensors; the class part is free.
    """
    return torch.jit._trace._trace_module_map


def has_hooks(module: torch.nn.Module) -> bool:
    """Say whether hooks run around a module's forward, its own or those of all modules."""
    everywhere = module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks
    return bool(module._forward_hooks or module._forward_pre_hooks or everywhere)


def traced_kinds() -> list[str]:
    """Return the kinds of the nodes that torch.jit.trace has recorded in the running call itself, so far."""
    state = torch._C._get_tracing_state()
    if state is None:
        return []
    nodes = state.graph().insertPoint().owningBlock().nodes()
    return [node.kind() for node in nodes if node.kind() != "prim::TracedModuleForward"]


class TraceProbe:
    """Finds the value that stands for a tensor while torch.jit traces, and leaves the trace as it is.

    torch makes a constant of a tensor that it does not know, where it happens to be asked. A graph into which
    nothing can be inserted, put in the trace's place while it is asked, keeps it from that.
    """

    def __init__(self) -> None:
        self._closed = torch._C.Graph()
        point = self._closed.insertNode(self._closed.create("prim::Constant", [], 0))
        self._closed.setInsertPoint(point)
        try:
            point.moveBefore(self._closed.create("prim::Constant", [], 0))  # that takes it out, and finds no place
        except RuntimeError as error:
            _check_refusal(error)

    def values(self, tensors: Sequence[torch.Tensor]) -> list[torch.Value | None]:
        """Return the value that stands for each tensor; None where none does, or others wrote to its memory since."""
        state = torch._C._get_tracing_state()
        if state is None:
            return [None] * len(tensors)
        graph = state.graph()
        state.set_graph(self._closed)
        try:
            return [_value_of(tensors, index) for index in range(len(tensors))]
        finally:
            state.set_graph(graph)


def _value_of(tensors: Sequence[torch.Tensor], index: int) -> torch.Value | None:
    # torch names a value after the variable that holds its tensor in the frames around this: none may hold it here.
    if is_functorch_wrapped_tensor(tensors[index]):  # inside vmap a tensor stands for one of many
        return None
    try:
        return next(map(torch._C._get_value_trace, tensors[index : index + 1]))  # type: ignore[attr-defined, no-any-return]
    except RuntimeError as error:
        _check_refusal(error)
        return None


def _check_refusal(error: RuntimeError) -> None:
    refused = ("inBlockList()", "Cannot insert a Tensor that requires grad as a constant")
    if not any(reason in str(error) for reason in refused):
        raise error


def was_written_since(value: torch.Value) -> bool:
    """Say whether torch.jit.trace has recorded an operation in place after the one that made a value."""
    state = torch._C._get_tracing_state()
    node = None if state is None else state.graph().insertPoint().prev()
    while node is not None:
        if node.kind() == "prim::Return":  # before the first of a block
            owner = node.owningBlock().owningNode()
            node = None if owner is None else owner.prev()
        elif node.kind() == "prim::TracedModuleForward":
            node = next(iter(node.blocks())).returnNode().prev()
        elif any(number <= value.unique() for number in output_numbers(node)):
            return False
        elif node.kind().endswith("_"):
            return True
        else:
            node = node.prev()
    return False


class _LoweringObserver(Protocol):
    """Observes the way from a traced graph to one of ONNX operators, in this order; it may look, not touch."""

    def traced(self, graph: torch.Graph) -> None: ...  # before functions are inlined
    def inlined(self, graph: torch.Graph, parameters: int) -> None: ...  # before torch simplifies it; so many are last
    def simplified(self, graph: torch.Graph) -> None: ...  # right before its nodes are turned into ONNX ones
    # One node of it, the ONNX nodes that it became, and the values that stand for its outputs.
    def lowered(self, node: torch.Node, new_nodes: Sequence[torch.Node], result: Any) -> None: ...
    # The numbers of the graph's inputs, before and after that.
    def inputs_lowered(self, before: Sequence[int], after: Sequence[int]) -> None: ...
    # The numbers of all values in order, before and after torch gave them new ones.
    def renumbered(self, before: Sequence[int], after: Sequence[int]) -> None: ...
    def exported(self, graph: torch.Graph) -> None: ...  # with ONNX operators, before torch folds and fuses
    def renaming(self, graph: torch.Graph) -> None: ...  # before inputs and outputs get the names asked for
    def folded(self, graph: torch.Graph) -> None: ...  # before torch names the values that have no name
    def finished(self, graph: torch.Graph) -> None: ...  # before torch gives it the names that go into the file


@contextmanager
def observe_lowering(guard: Guard, observer: _LoweringObserver) -> Iterator[None]:
    """Tell the observer of each step from the traced graph to the finished graph of ONNX operators."""
    parameters = 0

    def optimize(_graph: torch.Graph, *_args: Any, **kwargs: Any) -> None:
        nonlocal parameters
        parameters = len(kwargs.get("params_dict") or ())

    def lowered(_token: None, result: torch.Graph, graph: torch.Graph, *_args: Any) -> None:
        observer.inputs_lowered(_numbers(graph.inputs()), _numbers(result.inputs()))

    def lowered_node(count: int, result: Any, *args: Any) -> None:
        observer.lowered(args[2], args[6][count:], result)

    def renumbered(before: list[int], result: torch.Graph, *_args: Any) -> None:
        observer.renumbered(before, _numbers(all_values(result)))

    utils = f"{TORCHSCRIPT}.utils"
    with (
        around(guard, PASSES, "_jit_pass_onnx_function_substitution", observer.traced),
        around(guard, utils, "_optimize_graph", optimize, lambda _, result, *_a, **_k: observer.exported(result)),
        around(guard, PASSES, "_jit_pass_inline", after=lambda _, __, graph: observer.inlined(graph, parameters)),
        around(guard, PASSES, "_jit_pass_onnx", lambda graph, *_: observer.simplified(graph), lowered),
        around(guard, utils, "_run_symbolic_function", lambda *args: len(args[6]), lowered_node),
        around(guard, PASSES, "_jit_pass_canonicalize", lambda graph, *_: _numbers(all_values(graph)), renumbered),
        around(guard, utils, "_set_input_and_output_names", lambda graph, *_: observer.renaming(graph)),
        around(guard, utils, "_apply_friendly_debug_names", lambda graph, *_: observer.folded(graph)),
        around(guard, PASSES, "_jit_pass_onnx_assign_scoped_names_for_node_and_value", observer.finished),
    ):
        yield


def observe_calls(
    guard: Guard,
    enter: Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], Any],
    returned: Callable[[Any, Any], None],
    leave: Callable[[Any], None],
) -> _Context:
    """Call `enter(module, args, kwargs)`, `returned(token, result)` and `leave(token)` for each call of a module."""

    def before(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return enter(module, args, kwargs)

    def after(token: Any, result: Any, *_args: Any, **_kwargs: Any) -> None:
        returned(token, result)

    return around(guard, "torch.nn:Module", "__call__", before, after, leave)


def _numbers(values: Iterable[torch.Value]) -> list[int]:
    return [value.unique() for value in values]


@contextmanager
def without_graph_log() -> Iterator[None]:
    """Keep torch from printing the whole graph on standard output when it cannot export it."""
    enabled = torch._C._jit_is_onnx_log_enabled()
    try:
        with wrapped(PASSES, "_jit_onnx_log", lambda _original, *_args: None):
            yield
    finally:
        torch._C._jit_set_onnx_log_enabled(enabled)  # torch forgets to


def replace_file_writer(guard: Guard, write: Callable[[bytes], None]) -> _Context:
    """Let `write(model_bytes)` take the model instead of torch writing it."""
    keep = guard(write)
    owner = f"{TORCHSCRIPT}.onnx_proto_utils"
    return wrapped(owner, "_export_file", lambda _original, model_bytes, _file, _export_map: keep(model_bytes))
