"""Whether literals are with those who read them: judged from the file itself, with nothing of the package's graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import onnx

from hieronnx import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from support.onnxdata import first_output, walk


def misplaced_literals(path: Path, hierarchy: Hierarchy) -> list[str]:
    """Return the literals whose calls are not those of all readers, or whose scope is not the lowest above these."""
    misplaced = []
    for node, readers in _read_literals(path, hierarchy):
        calls = {call for reader in readers for call in reader.origins}
        if set(node.origins) != calls or not _is_lowest(hierarchy, node.scope, readers):
            misplaced.append(f"'{node.output}' in '{node.scope}', read in {sorted(map(str, calls))}")
    return misplaced


def stray_literals(path: Path, hierarchy: Hierarchy) -> list[str]:
    """Return what is computed from literals alone in a call that did not return it, and that no reader belongs to."""
    returned = {item.tensor for call in hierarchy.calls for item in call.returned or ()}
    return [
        f"{node.op_type} '{node.output}' in '{node.scope}', read in {[str(reader.scope) for reader in readers]}"
        for node, readers in _read_by_known(path, hierarchy, _find_literal_names(path))
        if node.output not in returned
        and not any(_is_related(hierarchy, node.scope, call) for reader in readers for call in reader.origins)
    ]


def _read_literals(path: Path, hierarchy: Hierarchy) -> Iterator[tuple[Node, list[Node]]]:
    constants = {first_output(node) for _, node in walk(_load(path)) if node.op_type == "Constant"}
    return _read_by_known(path, hierarchy, constants)


def _find_literal_names(path: Path) -> set[str]:
    """Return the tensors that depend on no input."""
    model = _load(path)
    names = {"", *(tensor.name for tensor in model.graph.initializer)}
    for _, node in walk(model):
        if names.issuperset(node.input) and not any(attribute.HasField("g") for attribute in node.attribute):
            names.update(node.output)
    return names


def _read_by_known(path: Path, hierarchy: Hierarchy, names: set[str]) -> Iterator[tuple[Node, list[Node]]]:
    """Yield the nodes that make these tensors and are read by nodes alone, only by such whose calls are known."""
    model = _load(path)
    readers: dict[str, list[tuple[str, Node]]] = defaultdict(list)
    keys = [(graph, first_output(node)) for graph, node in walk(model)]
    for (graph, output), (_, node) in zip(keys, walk(model), strict=True):
        for name in filter(None, node.input):
            readers[name].append((graph, hierarchy.node_by_key[graph, output]))
    returned = _outputs(model)
    for graph, output in keys:
        inner = [reader for key, reader in readers[output] if key.startswith(graph)]
        unknown = any(reader.evidence == "root" for reader in inner)
        if output in names - returned and inner and not unknown:
            yield hierarchy.node_by_key[graph, output], inner


def _load(path: Path) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=False)


def _is_related(hierarchy: Hierarchy, a: CallId, b: CallId) -> bool:
    return a in hierarchy.tree.ancestors(b) or b in hierarchy.tree.ancestors(a)


def _outputs(model: onnx.ModelProto) -> set[str]:
    """Return all that graphs return; those of a body are read by the node that has it."""
    bodies = [attribute.g for _, node in walk(model) for attribute in node.attribute if attribute.HasField("g")]
    return {value.name for graph in (model.graph, *bodies) for value in graph.output}


def _is_lowest(hierarchy: Hierarchy, scope: CallId, readers: list[Node]) -> bool:
    """Say whether a call is the lowest one above all readers."""
    ways = [[*hierarchy.tree.ancestors(reader.scope)] for reader in readers]
    return scope == next(call for call in ways[0] if all(call in way for way in ways))
