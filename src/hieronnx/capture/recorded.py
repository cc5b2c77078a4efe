"""What torch itself records of modules, where it cannot be observed: names in the file, and nothing of calls.

The dynamo exporter writes the path of the module into each node's metadata. The TorchScript exporter names nodes after
modules: `/encoder/layer.0/dense/MatMul`. A step is an attribute, for an item of a list with that of the list
(`layer.0`), for an item of a Sequential after that (`/head/head.0`); later calls have a number at the end of one of the
steps. What is no module, or may be two, ends the path there: the node ran in that module, or below it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

import onnx_ir as ir
from torch import nn

from hieronnx.capture.baseline import export_baseline
from hieronnx.capture.captured import Captured, ExportRequest, NodeMetadata, Stage
from hieronnx.capture.dynamo import export_program
from hieronnx.capture.guard import Guard
from hieronnx.errors import writing
from hieronnx.files.splice import write_annotated
from hieronnx.graph.building import view_model
from hieronnx.hierarchy.records import ROOT, Attribution, CallId
from hieronnx.hierarchy.tags import CallSite

_SCOPES = "pkg.torch.onnx.name_scopes"
_LATER = re.compile(r"_\d+$")


def capture_recorded(request: ExportRequest, exporter: str) -> Captured:
    """Export with nothing observed, and read what torch wrote of modules."""
    if exporter == "dynamo":
        with Guard().running_torch():
            program, write = export_program(request)
        return _capture(request.model, program.model, _read_scopes, write)
    with Guard().running_torch():
        export_baseline(request, exporter)
    model_bytes = request.output.read_bytes()

    def write_bytes(nodes: NodeMetadata, about: Mapping[str, str]) -> None:
        with writing(request.destination), request.output.open("wb") as stream:
            write_annotated(stream, model_bytes, nodes, about)

    return _capture(request.model, ir.load(request.output), _read_name, write_bytes)


def _capture(
    model: nn.Module,
    exported: ir.Model,
    read: Callable[[ir.Node, Mapping[str, str]], str | None],
    write: Callable[[NodeMetadata, Mapping[str, str]], None],
) -> Captured:
    modules = dict(model.named_modules())
    first = {id(module): path for path, module in modules.items()}
    paths = {alias: first[id(module)] for alias, module in model.named_modules(remove_duplicate=False)}
    calls = {"": CallSite(ROOT, None, "")}
    scopes: list[Attribution | None] = []

    def attribute(_graph: int, node: ir.Node) -> None:
        path = read(node, paths)
        scope = None if path is None else _add_calls(calls, path, modules)
        scopes.append(None if scope is None else Attribution(scope, (scope,), "name"))

    view = view_model(exported, attribute)
    return Captured(tuple(calls.values()), (Stage(view, scopes),), view, {}, write)


def _add_calls(calls: dict[str, CallSite], path: str, modules: Mapping[str, nn.Module]) -> CallId:
    """Return the call of a module, one for each; those above it that can be called are its callers."""
    if path not in calls:
        parent = path.rpartition(".")[0]
        while parent and isinstance(modules[parent], nn.ModuleList | nn.ModuleDict):
            parent = parent.rpartition(".")[0]
        calls[path] = CallSite(CallId(path, 0), _add_calls(calls, parent, modules), path)
    return calls[path].id


def _read_scopes(node: ir.Node, paths: Mapping[str, str]) -> str | None:
    """Return the path of the module that the dynamo exporter wrote: before the name of the operation, the last one."""
    scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
    return next((paths[scope] for scope in reversed(scopes[:-1]) if scope in paths), None)


def _read_name(node: ir.Node, paths: Mapping[str, str]) -> str | None:
    """Return the path of the module that a node is named after by the TorchScript exporter."""
    if not node.name or not node.name.startswith("/"):
        return None
    path = ""
    for step in node.name.split("/")[1:-1]:
        above = path.rpartition(".")[0] if step.startswith(f"{path.rpartition('.')[2]}.") else path
        places = (f"{above}.{name}".lstrip(".") for name in {step, _LATER.sub("", step)})
        found = [place for place in places if place in paths]
        if len(found) != 1:
            break
        path = found[0]
    return paths[path]
