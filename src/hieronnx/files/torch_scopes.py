"""torch's own record of modules on the nodes of a file that its dynamo exporter wrote, read as a hierarchy.

Each node names the modules that it ran in, outermost first, and then the operation itself:

    pkg.torch.onnx.name_scopes       ['', 'encoder', 'encoder.layer.0', 'linear_3']
    pkg.torch.onnx.class_hierarchy   ['m.Model', 'm.Encoder', 'm.Layer', 'aten.linear.default']

Two runs of a module by one caller are one call there, and a shared module is one under each name that it is called by.
Merged and fused nodes name one module alone; nodes that torch's optimizer made, and those in bodies, name none.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from hieronnx.files.claims import DEEPEST_CALL
from hieronnx.files.metadata import make_module
from hieronnx.graph.walks import find_readers, first_output, walk_nodes
from hieronnx.hierarchy.hierarchy import Hierarchy, add_consumers
from hieronnx.hierarchy.records import ROOT, CallId, Node
from hieronnx.hierarchy.tags import CallSite, TagPolicy, build_calls

STRATEGY = "torch_scopes"
"""What a hierarchy that was read so says of how its nodes were attributed."""
_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"


def read_torch_scopes(model: ir.Model) -> Hierarchy | None:
    """Read torch's record of modules as a hierarchy, evidence `name`; None if no node has it.

    Nodes that name no module, or nothing that can be read, are at the root, evidence `root`.
    """
    scopes, nodes = _Scopes(), []
    for graph, node in walk_nodes(model):
        scope = scopes.find(node.metadata_props)
        identity = (graph, node.name or "", node.op_type, node.domain, first_output(node))
        nodes.append(Node(*identity, scope or ROOT, (scope or ROOT,), "root" if scope is None else "name"))
    if not scopes.calls:
        return None
    calls = build_calls(list(scopes.make_sites()), scopes.classes, TagPolicy())
    modules = {path: make_module(path, name) for path, name in scopes.classes.items()}
    return add_consumers(Hierarchy(modules, calls, tuple(nodes), strategy=STRATEGY), find_readers(model))


def note_torch_scopes(name: str, strategy: str | None) -> Iterator[str]:
    """Say so if the hierarchy of a model is torch's own record of modules, and what another one would add."""
    if strategy == STRATEGY:
        yield (
            f"the hierarchy of '{name}' is torch's own record of modules; 'hieronnx annotate' with the PyTorch model, "
            "or 'hieronnx export', adds what torch leaves out: calls of one module told apart, shared modules, all "
            "origins of fused nodes, nodes without a module, parameters"
        )


class _Scopes:
    """The calls that nodes name: each list of modules, from the root down, is one."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, ...], CallId] = {}
        self.classes: dict[str, str] = {}
        self._numbers = Counter[str]()
        self._known: dict[str, CallId | None] = {}
        """By what nodes say, without the name of the operation: most of them say the same."""

    def find(self, props: Mapping[str, str]) -> CallId | None:
        """Return the call that a node names; None if it names none."""
        modules, _, _ = props.get(_SCOPES, "").rpartition(", ")  # the operation's name has no comma
        if modules not in self._known:
            self._known[modules] = self._add(f"{modules}]", props.get(_CLASSES, "")) if modules else None
        return self._known[modules]

    def _add(self, modules: str, classes: str) -> CallId | None:
        paths, names = _read_names(modules), _read_names(classes)
        if not paths or paths[0] or "" in paths[1:] or len(names) <= len(paths) or len(paths) > DEEPEST_CALL:
            return None
        for depth, (path, name) in enumerate(zip(paths, names, strict=False), 1):
            if paths[:depth] not in self.calls:
                self.calls[paths[:depth]] = CallId(path, self._numbers[path])
                self._numbers[path] += 1
                self.classes.setdefault(path, name)
        return self.calls[paths]

    def make_sites(self) -> Iterator[CallSite]:
        """Yield the calls before they have tags, each after its parent."""
        for paths, call in self.calls.items():
            yield CallSite(call, self.calls.get(paths[:-1]), call.module)


def _read_names(text: str) -> tuple[str, ...]:
    """Read a list of names as Python writes it; nothing if it is none."""
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # what Python says of text that is no literal
        return ()
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()
