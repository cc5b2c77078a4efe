"""A copy of a model for tools that tell nodes by their names, and write beside what they read."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import onnx

from hieronnx.files.wire import find_locations
from hieronnx.graph.walks import body_key


class Copy(NamedTuple):
    """A copy of a model, the names of chosen nodes in it, and how many nodes got a name of their own for that."""

    path: Path
    chosen: list[str]
    named: int


def copy_for_tool(source: Path, folder: Path, chosen: Collection[tuple[str, str]]) -> Copy:
    """Copy a model into a folder; where nodes were chosen, each node of the copy has a name of its own.

    Declared types of initializers are left out: they are in the initializers, and quantizers forget to change them.

    Args:
        source: The model.
        folder: Where to put it and its data.
        chosen: Nodes, by their graphs' keys and their first outputs.
    """
    model = onnx.load(source, load_external_data=False)
    for location in sorted(find_locations(model)):
        target = folder / location
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.parent / location, target)  # onnx refuses links
    held = {tensor.name for tensor in model.graph.initializer}
    declared = [value for value in model.graph.value_info if value.name not in held]
    del model.graph.value_info[:]
    model.graph.value_info.extend(declared)
    nodes = list(_walk(model.graph, ""))
    named = _name_apart([node for _, node in nodes]) if chosen else 0
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return Copy(path, [node.name for key, node in nodes if key in chosen], named)


def _walk(graph: onnx.GraphProto, key: str) -> Iterator[tuple[tuple[str, str], onnx.NodeProto]]:
    """Yield the nodes of a graph and of the bodies in it, with what identifies them."""
    for node in graph.node:
        output = next((name for name in node.output if name), "")
        yield (key, output), node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _walk(attribute.g, body_key(key, output, attribute.name))
            for index, body in enumerate(attribute.graphs):
                yield from _walk(body, body_key(key, output, f"{attribute.name}.{index}"))


def _name_apart(nodes: list[onnx.NodeProto]) -> int:
    """Name the nodes that have no name, or one that others have, after what they make; return how many."""
    names = Counter(node.name for node in nodes)
    taken, named = set(names), 0
    for node in nodes:
        if node.name and names[node.name] == 1:
            continue
        stem = next((name for name in node.output if name), node.op_type)
        name, number = stem, 0
        while name in taken:
            number += 1
            name = f"{stem}_{number}"
        node.name = name
        taken.add(name)
        named += 1
    return named
