"""What torch itself records of modules, where it cannot be observed: names in the file, and nothing of calls.

The dynamo exporter writes the path of the module into each node's metadata. The TorchScript exporter names nodes after
modules: `/encoder/layer.0/dense/MatMul`. A step is an attribute, for an item of a list with that of the list
(`layer.0`), for an item of a Sequential after that (`/head/head.0`); later calls have a number at the end of one of the
steps. What is no module, or may be two, ends the path there: the node ran in that module, or below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

import onnx_ir as ir
from torch import nn

from hieronnx.capture.baseline import export_baseline
from hieronnx.capture.captured import Captured, ExportRequest, NodeMetadata, Stage
from hieronnx.capture.dynamo import export_program
from hieronnx.capture.guard import Guard
from hieronnx.errors import writing
from hieronnx.files.splice import write_annotated
from hieronnx.files.torch_scopes import read_torch_scopes
from hieronnx.graph.building import view_model
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import ROOT, Attribution, CallId
from hieronnx.hierarchy.tags import CallSite

_LATER = re.compile(r"_\d+$")


def capture_recorded(request: ExportRequest, exporter: str) -> Captured:
    """Export with nothing observed, and read what torch wrote of modules; inputs and outputs get the names of torch."""
    request.names.fill_inputs(())
    request.names.fill_outputs(())
    if exporter == "dynamo":
        with Guard().running_torch():
            program, write = export_program(request)
        read = read_torch_scopes(program.model)
        named = {node.key: node.scope.module for node in (read.nodes if read else ()) if node.evidence == "name"}
        view = view_model(program.model)
        paths = [named.get(view.node_key(index)) for index in range(len(view.nodes))]
        return _capture(request.model, view, paths, write)
    with Guard().running_torch():
        export_baseline(request, exporter)
    model_bytes = request.output.read_bytes()

    def write_bytes(nodes: NodeMetadata, about: Mapping[str, str]) -> None:
        with writing(request.destination), request.output.open("wb") as stream:
            write_annotated(stream, model_bytes, nodes, about)

    aliases = {alias for alias, _ in request.model.named_modules(remove_duplicate=False)}
    view = view_model(ir.load(request.output))
    return _capture(request.model, view, [_read_name(node.name, aliases) for node in view.nodes], write_bytes)


def _capture(
    model: nn.Module,
    view: View,
    paths: Sequence[str | None],
    write: Callable[[NodeMetadata, Mapping[str, str]], None],
) -> Captured:
    """Make calls of the modules that nodes name, one for each module."""
    modules = dict(model.named_modules())
    first = {id(module): path for path, module in modules.items()}
    canonical = {alias: first[id(module)] for alias, module in model.named_modules(remove_duplicate=False)}
    calls = {"": CallSite(ROOT, None, "")}
    scopes = [_add_calls(calls, canonical[path], modules) if path in canonical else None for path in paths]
    attributed = [None if scope is None else Attribution(scope, (scope,), "name") for scope in scopes]
    return Captured(tuple(calls.values()), (Stage(view, attributed),), view, {}, write)


def _add_calls(calls: dict[str, CallSite], path: str, modules: Mapping[str, nn.Module]) -> CallId:
    """Return the call of a module, one for each; those above it that can be called are its callers."""
    if path not in calls:
        parent = path.rpartition(".")[0]
        while parent and isinstance(modules[parent], nn.ModuleList | nn.ModuleDict):
            parent = parent.rpartition(".")[0]
        calls[path] = CallSite(CallId(path, 0), _add_calls(calls, parent, modules), path)
    return calls[path].id


def _read_name(name: str, paths: Collection[str]) -> str | None:
    """Return the path of the module that a node is named after by the TorchScript exporter."""
    if not name.startswith("/"):
        return None
    path = ""
    for step in name.split("/")[1:-1]:
        above = path.rpartition(".")[0] if step.startswith(f"{path.rpartition('.')[2]}.") else path
        places = (f"{above}.{last}".lstrip(".") for last in {step, _LATER.sub("", step)})
        found = [place for place in places if place in paths]
        if len(found) != 1:
            break
        path = found[0]
    return path
