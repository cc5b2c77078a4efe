"""The private parts of torch that capture looks through, all in one file.

torch.onnx.export offers no view of what it does between the model and the file. Each function here puts an
observer at one point of that way and takes it away again; none changes what passes by. Where a torch version
moves such a point, this is the file to mend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental import proxy_tensor
from torch.onnx._internal.exporter import _core as dynamo_core
from torch.onnx._internal.torchscript_exporter import onnx_proto_utils
from torch.onnx._internal.torchscript_exporter import utils as torchscript_utils

from hieronnx.errors import ExportError

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "TORCH_ROOT_PREFIX",
    "exclusive",
    "generated_source_node",
    "observe_fx_nodes",
    "observe_module_calls",
    "observe_named_graph",
    "observe_onnx_graph",
    "observe_translation",
    "replace_file_writer",
    "trace_scope_names",
]

TORCH_ROOT_PREFIX = "_export_root"
"""What torch.export puts before the paths of the model's own modules while it traces."""

_LOCK = threading.RLock()


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
    enter: Callable[[torch.nn.Module, str | None, Any], Any], leave: Callable[[Any], None]
) -> Iterator[None]:
    """Call `enter(module, path, tracer)` and `leave(token)` around each module call that torch.export traces."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_module(tracer: Any, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
            proxied = isinstance(module, proxy_tensor._AttrProxy)
            path = tracer.proxy_paths.get(module) if proxied else None
            base = tracer.proxy_modules[module] if proxied else module
            token = enter(base, _strip_root(path), tracer)
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


@contextmanager
def observe_onnx_graph(observer: Callable[[torch.Graph, int], None]) -> Iterator[None]:
    """Call the observer with the traced graph once it is of ONNX operators, before torch folds and fuses.

    The observer is also told how many of the graph's last inputs are parameters.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def optimize_graph(*args: Any, **kwargs: Any) -> Any:
            graph = original(*args, **kwargs)
            observer(graph, len(kwargs.get("params_dict") or ()))
            return graph

        return optimize_graph

    with _wrapped(torchscript_utils, "_optimize_graph", make):
        yield


@contextmanager
def observe_named_graph(
    before: Callable[[torch.Graph], None], after: Callable[[torch.Graph], None]
) -> Iterator[None]:
    """Call the observers with the finished graph, before and after torch gives it its names."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def assign_names(graph: torch.Graph) -> None:
            before(graph)
            original(graph)
            after(graph)

        return assign_names

    with _wrapped(torch._C, "_jit_pass_onnx_assign_scoped_names_for_node_and_value", make):
        yield


@contextmanager
def replace_file_writer(write: Callable[[bytes, Any], None]) -> Iterator[None]:
    """Let `write(model_bytes, file)` write the model instead of torch."""

    def make(_original: Callable[..., Any]) -> Callable[..., Any]:
        def export_file(model_bytes: bytes, file: Any, _export_map: Any) -> None:
            write(model_bytes, file)

        return export_file

    with _wrapped(onnx_proto_utils, "_export_file", make):
        yield
