"""The private parts of torch that capture looks through, all in one file.

torch.onnx.export offers no view of what it does between the model and the file. Each function here puts an
observer at one point of that way and takes it away again; none changes what passes by. Where a torch version
moves such a point, this is the file to mend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.fx.experimental import proxy_tensor
from torch.nn.modules import module as module_hooks
from torch.onnx._internal.exporter import _core as dynamo_core
from torch.onnx._internal.torchscript_exporter import onnx_proto_utils
from torch.onnx._internal.torchscript_exporter import utils as torchscript_utils

from hieronnx.errors import ExportError

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "TORCH_ROOT_PREFIX",
    "LoweringObserver",
    "exclusive",
    "generated_source_node",
    "has_hooks",
    "node_blocks",
    "node_inputs",
    "node_outputs",
    "observe_finished_graph",
    "observe_fx_nodes",
    "observe_lowering",
    "observe_module_calls",
    "observe_translation",
    "replace_file_writer",
    "trace_scope_names",
    "traced_kinds",
    "without_graph_log",
]

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


@contextmanager
def observe_module_calls(
    enter: Callable[[torch.nn.Module, str | None, str, Any], Any], leave: Callable[[Any], None]
) -> Iterator[None]:
    """Call `enter(module, path, key, tracer)` and `leave(token)` around each module call that torch.export traces.

    The key is that of the call in torch's own record, `nn_module_stack`.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_module(tracer: Any, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
            proxied = isinstance(module, proxy_tensor._AttrProxy)
            path = tracer.proxy_paths.get(module) if proxied else tracer.submodule_paths.get(module)
            base = tracer.proxy_modules[module] if proxied else module
            token = enter(base, _strip_root(path), _stack_key(tracer, path), tracer)
            try:
                return original(tracer, module, forward, args, kwargs)
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


class LoweringObserver(Protocol):
    """What is told of the way from a traced graph to one of ONNX operators; it may look, not touch."""

    def traced(self, graph: torch.Graph) -> None:
        """Take the graph as traced, before functions are inlined."""

    def inlined(self, graph: torch.Graph, parameters: int) -> None:
        """Take the graph with functions inlined, its last inputs being parameters, before torch simplifies it."""

    def simplified(self, graph: torch.Graph) -> None:
        """Take the graph right before its nodes are turned into ONNX ones."""

    def lowered(self, node: torch.Node, made: Sequence[torch.Node]) -> None:
        """Take one node of it and the ONNX nodes that it became."""

    def renumbered(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Take the numbers of all values in order, before and after torch gave them new ones."""

    def finished(self, graph: torch.Graph) -> None:
        """Take the graph of ONNX operators, before torch folds and fuses."""


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
            return original(graph, *args)

        return lower_graph

    def symbolic(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_symbolic(
            graph: Any, block: Any, node: Any, inputs: Any, env: Any, values: Any, new_nodes: Any, *args: Any
        ) -> Any:
            known = len(new_nodes)
            made = original(graph, block, node, inputs, env, values, new_nodes, *args)
            observer.lowered(node, new_nodes[known:])
            return made

        return run_symbolic

    def canonicalize(original: Callable[..., Any]) -> Callable[..., Any]:
        def canonicalize_graph(graph: torch.Graph, *args: Any) -> Any:
            before = list(_all_uniques(graph))
            result = original(graph, *args)
            observer.renumbered(before, list(_all_uniques(result)))
            return result

        return canonicalize_graph

    with (
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


def _all_uniques(graph: Any) -> Iterator[int]:
    """Yield the numbers of all values of a graph or block, in order."""
    for value in graph.inputs():
        yield value.unique()
    for node in graph.nodes():
        for value in node_outputs(node):
            yield value.unique()
        for block in node_blocks(node):
            yield from _all_uniques(block)


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
