"""The private parts of torch that capture uses, all in one file.

torch.onnx.export offers no view of what it does between the model and the file. Each `observe_…` function here wraps
one function of torch for as long as its context lasts; none changes what passes by. Where a torch version moves such a
function, this is the file to fix.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType, ModuleType
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
from torch.onnx._internal.exporter import _core as dynamo_core
from torch.onnx._internal.exporter import _ir_passes as dynamo_passes
from torch.onnx._internal.torchscript_exporter import onnx_proto_utils
from torch.onnx._internal.torchscript_exporter import utils as torchscript_utils
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes

from hieronnx.capture.torchscript.graphs import all_values, output_numbers
from hieronnx.errors import ExportError

if TYPE_CHECKING:
    import onnx_ir as ir

disable_dispatch_modes = _disable_current_modes
pytree = _pytree
EXCLUSIVE: AbstractContextManager[Any] = threading.RLock()
"""Lets one export at a time observe torch: what is wrapped is the same for the whole process."""

_Context: TypeAlias = AbstractContextManager[None]


@contextmanager
def _wrapped(owner: ModuleType | type, name: str, run: Callable[..., Any]) -> Iterator[None]:
    """Let `run(original, *args, **kwargs)` take the place of a function of torch while the context lasts."""
    original = getattr(owner, name, None)
    if original is None:
        raise ExportError(
            f"torch {torch.__version__} has no {owner.__name__}.{name}, which hieronnx observes; "
            "install the torch version that hieronnx's constraints name"
        )

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(original, *args, **kwargs)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _before(owner: ModuleType | type, name: str, observe: Callable[..., None]) -> _Context:
    """Call `observe(*args, **kwargs)` before each run of a function of torch."""

    def run(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        observe(*args, **kwargs)
        return original(*args, **kwargs)

    return _wrapped(owner, name, run)


def _after(owner: ModuleType | type, name: str, observe: Callable[..., None]) -> _Context:
    """Call `observe(result, *args, **kwargs)` after each run of a function of torch."""

    def run(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        observe(result, *args, **kwargs)
        return result

    return _wrapped(owner, name, run)


# -- the dynamo exporter --------------------------------------------------------------------------------


def observe_translation(observer: Callable[[ir.Model, Any], None]) -> _Context:
    """Call the observer with each raw ONNX model and its ExportedProgram, before torch converts or optimizes it."""
    name = "_exported_program_to_onnx_program"
    return _after(dynamo_core, name, lambda result, program, **_options: observer(result.model, program))


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
    enter: Callable[[TracedCall], Any], returned: Callable[[Any, Any], None], leave: Callable[[Any], None]
) -> _Context:
    """Call `enter(call)`, `returned(token, result)` and `leave(token)` for each module call that is traced."""

    def call_module(original: Any, tracer: Any, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        proxied = isinstance(module, proxy_tensor._AttrProxy)
        path = tracer.proxy_paths.get(module) if proxied else tracer.submodule_paths.get(module)
        base = tracer.proxy_modules[module] if proxied else module
        number, path = tracer.num_calls.get(path, 0), path and strip_root(path)
        key = f"L__self__{path}@{number}" if number else f"L__self__{path}"  # as it is once the tracing is done
        token = enter(TracedCall(base, path, key, tracer, args, kwargs))
        try:
            result = original(tracer, module, forward, args, kwargs)
            returned(token, result)
            return result
        finally:
            leave(token)

    return _wrapped(proxy_tensor._ModuleStackTracer, "call_module", call_module)


def observe_fx_nodes(observer: Callable[[torch.fx.Node], None]) -> _Context:
    """Call the observer with each FX node that torch.export creates while it traces modules."""
    return _after(proxy_tensor._ModuleStackTracer, "create_node", lambda node, *_args, **_kwargs: observer(node))


def observe_traced_tensors(observer: Callable[[torch.Tensor, torch.fx.Node], None]) -> _Context:
    """Call the observer with each tensor that torch traces, and the FX node that now stands for it."""

    def traced(_result: None, value: Any, _tracer: Any, proxy: Any) -> None:
        if isinstance(value, torch.Tensor):
            observer(value, proxy.proxy.node)

    return _after(proxy_tensor, "set_proxy_slot", traced)


def observe_retraced_nodes(observer: Callable[[torch.fx.Node, torch.fx.Node], None]) -> _Context:
    """Call the observer with each FX node that torch runs to trace it again, and the node that now stands for it."""

    def run(result: Any, _interpreter: Any, node: torch.fx.Node) -> None:
        mode = proxy_tensor.get_proxy_mode() if isinstance(result, torch.Tensor) else None
        new = None if mode is None else traced_node(result, mode.tracer)
        if new is not None:
            observer(node, new)

    return _after(torch.fx.Interpreter, "run_node", run)


def traced_node(tensor: torch.Tensor, tracer: Any) -> torch.fx.Node | None:
    """Return the FX node that stands for a tensor while it is traced; None where none does."""
    if isinstance(tensor, FunctionalTensor):
        # As it is now: to bring it up to date would add nodes to the graph.
        tensor = torch._from_functional_tensor(tensor.elem)
    slot = proxy_tensor.get_proxy_slot(tensor, tracer, None)
    return None if slot is None else slot.proxy.node


def observe_translated_graphs(observer: Callable[[torch.fx.Graph, Mapping[str, Any]], None]) -> _Context:
    """Call the observer with each FX graph that was translated to ONNX, and what each node's name became."""
    return _after(dynamo_core, "_translate_fx_graph", lambda values, graph, *_args, **_kwargs: observer(graph, values))


@contextmanager
def observe_renaming(inputs: Callable[[ir.Model], None], outputs: Callable[[ir.Model], None]) -> Iterator[None]:
    """Call the observers with the finished model, before torch gives its inputs and its outputs the names asked for."""
    with (
        _before(dynamo_passes, "rename_inputs", lambda model, _names: inputs(model)),
        _before(dynamo_passes, "rename_outputs", lambda model, _names: outputs(model)),
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
def observe_lowering(observer: _LoweringObserver) -> Iterator[None]:
    """Tell the observer of each step from the traced graph to the finished graph of ONNX operators."""
    parameters = 0

    def optimize(original: Any, graph: torch.Graph, *args: Any, **kwargs: Any) -> Any:
        nonlocal parameters
        parameters = len(kwargs.get("params_dict") or ())
        result = original(graph, *args, **kwargs)
        observer.exported(result)
        return result

    def lower(original: Any, graph: torch.Graph, *args: Any) -> Any:
        observer.simplified(graph)
        result = original(graph, *args)
        observer.inputs_lowered(_numbers(graph.inputs()), _numbers(result.inputs()))
        return result

    def lower_node(
        original: Any, graph: Any, block: Any, node: Any, inputs: Any, env: Any, values: Any, new_nodes: Any, *args: Any
    ) -> Any:
        count = len(new_nodes)
        result = original(graph, block, node, inputs, env, values, new_nodes, *args)
        observer.lowered(node, new_nodes[count:], result)
        return result

    def canonicalize(original: Any, graph: torch.Graph, *args: Any) -> Any:
        before = _numbers(all_values(graph))
        result = original(graph, *args)
        observer.renumbered(before, _numbers(all_values(result)))
        return result

    with (
        _before(torch._C, "_jit_pass_onnx_function_substitution", observer.traced),
        _wrapped(torchscript_utils, "_optimize_graph", optimize),
        _after(torch._C, "_jit_pass_inline", lambda _result, graph: observer.inlined(graph, parameters)),
        _wrapped(torch._C, "_jit_pass_onnx", lower),
        _wrapped(torchscript_utils, "_run_symbolic_function", lower_node),
        _wrapped(torch._C, "_jit_pass_canonicalize", canonicalize),
        _before(torchscript_utils, "_set_input_and_output_names", lambda graph, *_names: observer.renaming(graph)),
        _before(torchscript_utils, "_apply_friendly_debug_names", lambda graph, *_args: observer.folded(graph)),
        _before(torch._C, "_jit_pass_onnx_assign_scoped_names_for_node_and_value", observer.finished),
    ):
        yield


def _numbers(values: Iterable[torch.Value]) -> list[int]:
    return [value.unique() for value in values]


@contextmanager
def without_graph_log() -> Iterator[None]:
    """Keep torch from printing the whole graph on standard output when it cannot export it."""
    enabled = torch._C._jit_is_onnx_log_enabled()
    try:
        with _wrapped(torch._C, "_jit_onnx_log", lambda _original, *_args: None):
            yield
    finally:
        torch._C._jit_set_onnx_log_enabled(enabled)  # torch forgets to


def replace_file_writer(write: Callable[[bytes], None]) -> _Context:
    """Let `write(model_bytes)` take the model instead of torch writing it."""
    return _wrapped(
        onnx_proto_utils, "_export_file", lambda _original, model_bytes, _file, _export_map: write(model_bytes)
    )
