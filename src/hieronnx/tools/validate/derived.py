"""What a sidecar repeats for its readers' sake must be what follows from its nodes and its file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from hieronnx.files.document import Document, NodeEntry
from hieronnx.files.encoding import describe_file, make_document
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.tools.validate.findings import Finding

_REMEDY = "write it anew with 'hieronnx validate --fix'"
_OF_THE_FILE = ("opset", "inputs", "outputs", "dynamic_axes")


def check_derived(document: Document, hierarchy: Hierarchy, view: View, path: Path) -> Iterator[Finding]:
    """Check a sidecar that is otherwise whole and of this file."""
    expected = make_document(hierarchy, view)
    described = describe_file(path, document.model.class_name, document.model.exporter)
    model = msgspec.to_builtins(document.model)
    wrong = [f"$.model.{key}" for key in _OF_THE_FILE if model[key] != described[key]]
    wrong += [f"$.{key}" for key in ("hierarchy", "summary") if getattr(document, key) != getattr(expected, key)]
    if _tensors(document) != _tensors(expected):
        wrong.append("$.tensors")
    pairs = list(zip(document.nodes, expected.nodes, strict=True))
    wrong += [
        f"$.nodes[].{key}"
        for key in ("tags", "confidence")
        if any(getattr(a, key) != getattr(b, key) for a, b in pairs)
    ]
    if any(entry.tag != expected.modules[path].tag for path, entry in document.modules.items()):
        wrong.append("$.modules[].tag")
    yield from _check_names(document.nodes, view)
    for place in wrong:
        message = "it is not what follows from the nodes and the model"
        yield Finding("sidecar-derived", "warning", f"sidecar: {place}", message, _REMEDY)


def _check_names(nodes: Sequence[NodeEntry], view: View) -> Iterator[Finding]:
    """Check that the nodes have the names that they have in the model."""
    names = {view.node_key(index): node.name for index, node in enumerate(view.nodes)}
    wrong = [
        f"'{node.name}' is '{names[node.graph, node.output]}' in the model"
        for node in nodes
        if node.name != names[node.graph, node.output]
    ]
    if wrong:
        message = f"{len(wrong):,} of {len(nodes):,} names are not those of the nodes in the model: {wrong[0]}"
        yield Finding("sidecar-derived", "warning", "sidecar: $.nodes[].name", message, _REMEDY, tuple(wrong))


def _tensors(document: Document) -> dict[tuple[str, str], tuple[str | None, list[str]]]:
    return {(item.graph, item.name): (item.producer, item.consumers) for item in document.tensors}
