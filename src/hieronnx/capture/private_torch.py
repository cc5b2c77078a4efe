"""The private parts of torch that capture looks through, all in one file.

torch.onnx.export offers no view of what it does between the model and the file. Each function here puts an
observer at one point of that way and takes it away again; none changes what passes by. Where a torch version
moves such a point, this is the file to mend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental import proxy_tensor
from torch.nn.modules import module as module_hooks
from torch.onnx._internal.exporter import _core as dynamo_core
from torch.onnx._internal.torchscript_exporter import onnx_proto_utils
from torch.onnx._internal.torchscript_exporter import utils as torchscript_utils

from hieronnx.errors import ExportError

if TYPE_CHECKING:
    import onnx_ir as ir

TORCH_ROOT_PREFIX = "_export_root"
"""What torch.export puts before the paths of the model's own modules while it traces."""

_LOCK = threading.RLock()
_WITH_BLOCKS = frozenset({"onnx::If", "onnx::Loop", "onnx::Scan", "onnx::SequenceMap"})
_WITHOUT_BLOCKS = frozenset({"prim::Constant", "prim::ListConstruct", "prim::ListUnpack", "prim::TupleConstruct"})


@contextmanager
def exclusive() -> Iterator[None]:
    """Let one export at a time look through torch: the observers are process-wide."""
    with _LOCK:
        yield


@contextmanager
def _wrapped(owner: ModuleType | type, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(owner, name, None)
    if original is None:
        raise ExportError(
            f"torch {torch.__version__} has no {owner.__name__}.{name}, which hieronnx observes; "
            "install the torch version that hieronnx's constraints name"
        )
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


# -- the dynamo exporter --------------------------------------------------------------------------------


@contextmanager
def observe_translation(observer: Callable[[ir.Model, Any], None]) -> Iterator[None]:
    """Call the observer with each raw ONNX model and its ExportedProgram, before torch converts or optimizes it."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def translate(program: Any, **options: Any) -> Any:
            onnx_program = original(program, **options)
            observer(onnx_program.model, program)
            return onnx_program

        return translate

    with _wrapped(dynamo_core, "_exported_program_to_onnx_program", make):
        yield


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One module call that torch.export traces.

    Attributes:
        module: the module.
        path: the attribute path through which it was reached.
        key: the key of the call in torch's own record, `nn_module_stack`.
        tracer: what traces it.
        args: what it was given by position.
        kwargs: what it was given by keyword.
    """

    module: torch.nn.Module
    path: str | None
    key: str
    tracer: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@contextmanager
def observe_module_calls(
    enter: Callable[[TracedCall], Any], returned: Callable[[Any, Any], None], leave: Callable[[Any], None]
) -> Iterator[None]:
    """Call `enter(call)`, `returned(token, result)` and `leave(token)` for each module call that is traced."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_module(tracer: Any, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
            proxied = isinstance(module, proxy_tensor._AttrProxy)
            path = tracer.proxy_paths.get(module) if proxied else tracer.submodule_paths.get(module)
            base = tracer.proxy_modules[module] if proxied else module
            token = enter(TracedCall(base, _strip_root(path), _stack_key(tracer, path), tracer, args, kwargs))
            try:
                result = original(tracer, module, forward, args, kwargs)
                returned(token, result)
                return result
            finally:
                leave(token)

        return call_module

    with _wrapped(proxy_tensor._ModuleStackTracer, "call_module", make):
        yield


@contextmanager
def observe_fx_nodes(observer: Callable[[torch.fx.Node], None]) -> Iterator[None]:
    """Call the observer with each FX node that torch.export creates while it traces modules."""

    def make(original: Callable[..., torch.fx.Node]) -> Callable[..., torch.fx.Node]:
        def create_node(tracer: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
            node = original(tracer, *args, **kwargs)
            observer(node)
            return node

        return create_node

    with _wrapped(proxy_tensor._ModuleStackTracer, "create_node", make):
        yield


@contextmanager
def observe_traced_tensors(observer: Callable[[torch.Tensor, torch.fx.Node], None]) -> Iterator[None]:
    """Call the observer with each tensor that torch traces, and the FX node that now stands for it."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def set_proxy_slot(traced: Any, tracer: Any, proxy: Any) -> None:
            original(traced, tracer, proxy)
            if isinstance(traced, torch.Tensor):
                observer(traced, proxy.proxy.node)

        return set_proxy_slot

    with _wrapped(proxy_tensor, "set_proxy_slot", make):
        yield


@contextmanager
def observe_retraced_nodes(observer: Callable[[torch.fx.Node, torch.fx.Node], None]) -> Iterator[None]:
    """Call the observer with each FX node that torch runs to trace it anew, and the node that now stands for it."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_node(interpreter: Any, node: torch.fx.Node) -> Any:
            result = original(interpreter, node)
            if isinstance(result, torch.Tensor):
                mode = proxy_tensor.get_proxy_mode()
                new = None if mode is None else traced_node(result, mode.tracer)
                if new is not None:
                    observer(node, new)
            return result

        return run_node

    with _wrapped(torch.fx.Interpreter, "run_node", make):
        yield


def traced_node(tensor: torch.Tensor, tracer: Any) -> torch.fx.Node | None:
    """Return the FX node that stands for a tensor while it is traced; None where none does."""
    if isinstance(tensor, FunctionalTensor):
        # As it is now: to bring it up to date would add nodes to the graph.
        tensor = torch._from_functional_tensor(tensor.elem)
    found = proxy_tensor.get_proxy_slot(tensor, tracer, None)
    return None if found is None else found.proxy.node


@contextmanager
def observe_translated_graphs(observer: Callable[[torch.fx.Graph, Mapping[str, Any]], None]) -> Iterator[None]:
    """Call the observer with each FX graph that was translated to ONNX, and what each node's name became."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def translate_graph(graph: torch.fx.Graph, *args: Any, **options: Any) -> Any:
            values = original(graph, *args, **options)
            observer(graph, values)
            return values

        return translate_graph

    with _wrapped(dynamo_core, "_translate_fx_graph", make):
        yield


def _stack_key(tracer: Any, path: str | None) -> str:
    """Return the key that torch will give the call, as it has it once the tracing is done."""
    number = tracer.num_calls.get(path, 0)
    return f"L__self__{_strip_root(path)}" + (f"@{number}" if number else "")


def _strip_root(path: str | None) -> str | None:
    return None if path is None else path.removeprefix(TORCH_ROOT_PREFIX).removeprefix(".")


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
    found: dict[torch.nn.Module, str] | None = torch.jit._trace._trace_module_map
    return found


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
    """Tells which value stands for a tensor while torch.jit traces, and leaves the trace as it is.

    torch makes a constant of a tensor that it does not know, where it happens to be asked. A graph into which
    nothing can be inserted, put in the trace's place while it is asked, keeps it from that.
    """

    def __init__(self) -> None:
        self._closed = torch._C.Graph()
        place = self._closed.insertNode(self._closed.create("prim::Constant", [], 0))
        self._closed.setInsertPoint(place)
        try:
            place.moveBefore(self._closed.create("prim::Constant", [], 0))  # that takes it out, and finds no place
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
            return [_value_of(tensors, place) for place in range(len(tensors))]
        finally:
            state.set_graph(graph)


def _value_of(tensors: Sequence[torch.Tensor], place: int) -> torch.Value | None:
    # torch names a value after the variable that holds its tensor in the frames around this: none may hold it here.
    if is_functorch_wrapped_tensor(tensors[place]):  # inside vmap a tensor stands for one of many
        return None
    try:
        value: torch.Value = next(map(torch._C._get_value_trace, tensors[place : place + 1]))  # type: ignore[attr-defined]
        return value
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
        elif any(made.unique() <= value.unique() for made in node_outputs(node)):
            return False
        elif node.kind().endswith("_"):
            return True
        else:
            node = node.prev()
    return False


class LoweringObserver(Protocol):
    """What is told of the way from a traced graph to one of ONNX operators; it may look, not touch."""

    def traced(self, graph: torch.Graph) -> None:
        """Take the graph as traced, before functions are inlined."""

    def inlined(self, graph: torch.Graph, parameters: int) -> None:
        """Take the graph with functions inlined, its last inputs being parameters, before torch simplifies it."""

    def simplified(self, graph: torch.Graph) -> None:
        """Take the graph right before its nodes are turned into ONNX ones."""

    def lowered(self, node: torch.Node, made: Sequence[torch.Node], result: Any) -> None:
        """Take one node of it, the ONNX nodes that it became, and the values that stand for its outputs."""

    def inputs_lowered(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Take the numbers of the graph's inputs, before and after that."""

    def renumbered(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Take the numbers of all values in order, before and after torch gave them new ones."""

    def finished(self, graph: torch.Graph) -> None:
        """Take the graph of ONNX operators, before torch folds and fuses."""

    def folded(self, graph: torch.Graph) -> None:
        """Take the graph after that, before torch names the values that have no name."""


@contextmanager
def observe_lowering(observer: LoweringObserver) -> Iterator[None]:
    """Tell the observer of each step from the traced graph to the graph of ONNX operators."""
    parameters = 0

    def substitute(original: Callable[..., Any]) -> Callable[..., Any]:
        def substitute_functions(graph: torch.Graph) -> None:
            observer.traced(graph)
            original(graph)

        return substitute_functions

    def optimize(original: Callable[..., Any]) -> Callable[..., Any]:
        def optimize_graph(graph: torch.Graph, *args: Any, **kwargs: Any) -> Any:
            nonlocal parameters
            parameters = len(kwargs.get("params_dict") or ())
            result = original(graph, *args, **kwargs)
            observer.finished(result)
            return result

        return optimize_graph

    def inline(original: Callable[..., Any]) -> Callable[..., Any]:
        def inline_graph(graph: torch.Graph) -> None:
            original(graph)
            observer.inlined(graph, parameters)

        return inline_graph

    def lower(original: Callable[..., Any]) -> Callable[..., Any]:
        def lower_graph(graph: torch.Graph, *args: Any) -> Any:
            observer.simplified(graph)
            result = original(graph, *args)
            observer.inputs_lowered(*([value.unique() for value in held.inputs()] for held in (graph, result)))
            return result

        return lower_graph

    def symbolic(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_symbolic(
            graph: Any, block: Any, node: Any, inputs: Any, env: Any, values: Any, new_nodes: Any, *args: Any
        ) -> Any:
            known = len(new_nodes)
            made = original(graph, block, node, inputs, env, values, new_nodes, *args)
            observer.lowered(node, new_nodes[known:], made)
            return made

        return run_symbolic

    def canonicalize(original: Callable[..., Any]) -> Callable[..., Any]:
        def canonicalize_graph(graph: torch.Graph, *args: Any) -> Any:
            before = [value.unique() for value in all_values(graph)]
            result = original(graph, *args)
            observer.renumbered(before, [value.unique() for value in all_values(result)])
            return result

        return canonicalize_graph

    def name(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply_names(graph: torch.Graph, *args: Any) -> Any:
            observer.folded(graph)
            return original(graph, *args)

        return apply_names

    with (
        _wrapped(torchscript_utils, "_apply_friendly_debug_names", name),
        _wrapped(torch._C, "_jit_pass_onnx_function_substitution", substitute),
        _wrapped(torchscript_utils, "_optimize_graph", optimize),
        _wrapped(torch._C, "_jit_pass_inline", inline),
        _wrapped(torch._C, "_jit_pass_onnx", lower),
        _wrapped(torchscript_utils, "_run_symbolic_function", symbolic),
        _wrapped(torch._C, "_jit_pass_canonicalize", canonicalize),
    ):
        yield


def node_outputs(node: torch.Node) -> list[torch.Value]:
    """Return a node's outputs; torch's own iterator over them takes thirty times as long."""
    return [node.outputsAt(index) for index in range(node.outputsSize())]


def node_inputs(node: torch.Node) -> list[torch.Value]:
    """Return a node's inputs, as fast as `node_outputs`."""
    return [node.inputsAt(index) for index in range(node.inputsSize())]


def node_blocks(node: torch.Node) -> list[Any]:
    """Return a node's blocks, without asking those kinds that have none: asking takes long."""
    kind = node.kind()
    plain = kind.startswith("aten::") or kind in _WITHOUT_BLOCKS
    return [] if plain or (kind.startswith("onnx::") and kind not in _WITH_BLOCKS) else list(node.blocks())


def all_values(graph: Any) -> Iterator[torch.Value]:
    """Yield the values of a graph or block, in order."""
    yield from graph.inputs()
    for node in graph.nodes():
        yield from node_outputs(node)
        for block in node_blocks(node):
            yield from all_values(block)


@contextmanager
def observe_finished_graph(observer: Callable[[torch.Graph], None]) -> Iterator[None]:
    """Call the observer with the finished graph, before torch gives it the names that go into the file."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def assign_names(graph: torch.Graph) -> None:
            observer(graph)
            original(graph)

        return assign_names

    with _wrapped(torch._C, "_jit_pass_onnx_assign_scoped_names_for_node_and_value", make):
        yield


@contextmanager
def without_graph_log() -> Iterator[None]:
    """Keep torch from printing the whole graph on standard output when it cannot export it."""
    enabled = torch._C._jit_is_onnx_log_enabled()
    try:
        with _wrapped(torch._C, "_jit_onnx_log", lambda _original: lambda *_args: None):
            yield
    finally:
        torch._C._jit_set_onnx_log_enabled(enabled)  # torch forgets to


@contextmanager
def replace_file_writer(write: Callable[[bytes, Any], None]) -> Iterator[None]:
    """Let `write(model_bytes, file)` write the model instead of torch."""

    def make(_original: Callable[..., Any]) -> Callable[..., Any]:
        def export_file(model_bytes: bytes, file: Any, _export_map: Any) -> None:
            write(model_bytes, file)

        return export_file

    with _wrapped(onnx_proto_utils, "_export_file", make):
        yield
