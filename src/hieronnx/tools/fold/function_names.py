"""A hierarchy from the functions of a file that has none: each call of a function is a call of a module.

The module is named by the node that calls the function, its class by the function. Nodes of the main graph have no
module; that is said of them, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import onnx

from hieronnx.errors import HieronnxError
from hieronnx.files.claims import DEEPEST_CALL
from hieronnx.files.metadata import make_module
from hieronnx.graph.walks import body_key, first_name, function_key, proto_bodies
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, CallId, Node
from hieronnx.hierarchy.tags import CallSite, TagPolicy, build_calls
from hieronnx.tools.fold.record import SCOPE_KEY
from hieronnx.tools.replace.graph import Names

STRATEGY = "function_names"
"""What a hierarchy that was read so says of how its nodes were attributed."""


def read_function_names(model: onnx.ModelProto) -> Hierarchy:
    """Read a hierarchy from the functions of a model, evidence `name`, and write relative scopes onto their nodes.

    Raises:
        HieronnxError: If functions lie too deep in one another.
    """
    reader = _Reader(model)
    sites = [CallSite(ROOT, None, ""), *reader.list_sites(model.graph.node, ROOT, 1)]
    modules = {path: make_module(path, name) for path, name in reader.classes.items()}
    calls = build_calls(sites, reader.classes, TagPolicy())
    return Hierarchy(modules, calls, tuple(reader.list_nodes(model)), strategy=STRATEGY)


class _Reader:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self.classes = {"": _clean(model.graph.name) or "Model"}
        self._name_calls(model.graph.node)
        for function in model.functions:
            self._name_calls(function.node)

    def _find(self, node: onnx.NodeProto) -> onnx.FunctionProto | None:
        return self._functions.get((node.domain, node.op_type, node.overload))

    def _name_calls(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Write onto each node of a graph, and of its bodies, which call below the graph's own it belongs to."""
        taken = Names(())
        for node in _walk(nodes):
            called = self._find(node) is not None
            step = taken.take(_clean(node.name) or node.op_type) if called else ""
            node.metadata_props.add(key=SCOPE_KEY, value=step)

    def list_sites(self, nodes: Iterable[onnx.NodeProto], caller: CallId, depth: int) -> Iterator[CallSite]:
        """Yield the calls that nodes make, each followed by those in its function."""
        if depth > DEEPEST_CALL:
            raise HieronnxError(f"functions lie more than {DEEPEST_CALL} deep in one another; that is not read")
        for node in _walk(nodes):
            function = self._find(node)
            if function is not None:
                path = f"{caller.module}.{_step(node)}".removeprefix(".")
                self.classes[path] = f"{function.domain or 'local'}.{_clean(function.name)}"
                yield CallSite(CallId(path, 0), caller, path)
                yield from self.list_sites(function.node, CallId(path, 0), depth + 1)

    def list_nodes(self, model: onnx.ModelProto) -> Iterator[Node]:
        """Yield the nodes of the file; those of functions get their calls where these are written out."""
        yield from self._describe(model.graph.node, "", in_function=False)
        for function in model.functions:
            key = function_key(function.domain, function.name, function.overload)
            yield from self._describe(function.node, key, in_function=True)

    def _describe(self, nodes: Iterable[onnx.NodeProto], key: str, *, in_function: bool) -> Iterator[Node]:
        for node in nodes:
            output = first_name(node.output)
            called = self._find(node) is not None and not in_function
            scope = CallId(_step(node), 0) if called else ROOT
            evidence = "name" if called or in_function else "root"
            yield Node(key, node.name, node.op_type, node.domain, output, scope, (scope,), evidence)
            for label, body in proto_bodies(node):
                yield from self._describe(body.node, body_key(key, output, label), in_function=in_function)


def _walk(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for _, body in proto_bodies(node):
            yield from _walk(body.node)


def _step(node: onnx.NodeProto) -> str:
    props: Mapping[str, str] = {entry.key: entry.value for entry in node.metadata_props}
    return props[SCOPE_KEY]


def _clean(name: str) -> str:
    """Return a name as a step of a module's path."""
    return re.sub(r"\W+", "_", name).strip("_")
