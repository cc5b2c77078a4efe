"""What the page shows, as JSON values: calls, nodes, tensors and the pictures; texts that recur are written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from hieronnx.errors import count
from hieronnx.hierarchy.categories import CATEGORIES, category_of
from hieronnx.hierarchy.elsewhere import find_work_elsewhere
from hieronnx.hierarchy.records import CONFIDENCE, Call, Module
from hieronnx.hierarchy.tags import label_call
from hieronnx.tools.analyze.initializers import measure_initializer
from hieronnx.tools.analyze.result import AnalysisResult, Tally
from hieronnx.tools.extract.boundary import read_io
from hieronnx.tools.extract.source import Source
from hieronnx.tools.view.drawing import Drawing, draw
from hieronnx.tools.view.measured import Measured
from hieronnx.tools.view.scenes import Element, Scene, build_scenes, fold_repeats

FORMAT = 1
_KINDS = ("call", "node", "in", "out", "fold")
_LONGEST_VALUE = 400
"""Longer attributes and metadata are cut: the page is to look at, the file has them whole."""
_STACK = "stack_trace"


@dataclass(slots=True)
class Texts:
    """Texts by number, each kept once."""

    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> int:
        """Return the number of a text."""
        return self.numbers.setdefault(text, len(self.numbers))


@dataclass(frozen=True)
class Pictures:
    """The pictures of all calls of a model, and the words on them."""

    source: Source
    scenes: Sequence[Scene]
    folded: Sequence[Scene | None]
    arguments: Sequence[Mapping[int, tuple[str, ...]]]
    """For each call the names of the arguments that tensors are."""
    results: Sequence[Mapping[int, tuple[str, ...]]]

    def draw(self, call: int, *, folded: bool = True) -> Drawing:
        """Lay out the picture of a call, by its number; with long repeats folded, where there are any."""
        scene = (self.folded[call] if folded else None) or self.scenes[call]
        return draw(scene, lambda element: self.words(call, element, scene))

    def words(self, call: int, element: Element, scene: Scene) -> list[str]:
        """Return the lines on an element of the picture of a call."""
        calls, modules = self.source.hierarchy.calls, self.source.hierarchy.modules
        if element.kind == "node":
            return [self.source.view.nodes[element.ref].op.rpartition("::")[2]]  # the domain is among the details
        if element.kind in ("call", "fold"):
            item = calls[element.ref]
            name = modules[item.id.module].class_name
            if element.kind == "fold":
                run = scene.folds[element.ref]
                return [f"{len(run)} × {name}", f"{name_in(item)} … {name_in(calls[run[-1]])}"]
            return [name, f"{name_in(item)} · {count(self.source.hierarchy.node_counts[item.id], 'node')}"]
        names = (self.arguments if element.kind == "in" else self.results)[call].get(element.ref, ())
        return [", ".join(map(_name_result, filter(None, names))) or self.source.view.names[element.ref]]

    def write_shape(self, tensor: int) -> str:
        """Write the shape of a tensor; nothing where it is not known."""
        return write_shape(self.source.view.axes[tensor])


def _name_result(name: str) -> str:
    """Return what a result is called: one of a tuple has only its place."""
    return f"result {name}" if name.isdecimal() else name


def name_in(call: Call) -> str:
    """Return how a call is named below its parent: the rest of its path, with its number."""
    above = call.parent.module if call.parent is not None else ""
    path = call.id.module
    inner = path.removeprefix(f"{above}.") if above else path
    return f"{inner}@{call.id.number}" if call.id.number else inner


def make_pictures(source: Source) -> Pictures:
    """Build the pictures of all calls."""
    hierarchy = source.hierarchy
    scenes = build_scenes(source)
    classes = [hierarchy.modules[call.id.module].qualified_class for call in hierarchy.calls]
    bound = [read_io(source, [call.id]) for call in hierarchy.calls]
    return Pictures(
        source,
        scenes,
        [fold_repeats(scene, classes) for scene in scenes],
        [item.received for item in bound],
        [item.returned for item in bound],
    )


def collect(pictures: Pictures, analysis: AnalysisResult, measured: Measured) -> dict[str, Any]:
    """Collect what the page shows."""
    source, texts = pictures.source, Texts()
    hierarchy = source.hierarchy
    numbers = {call.id: number for number, call in enumerate(hierarchy.calls)}
    nodes = [_dump_node(source, index, numbers, texts) for index in range(len(source.nodes))]
    counts = {(item.graph, item.output): item for item in analysis.nodes}
    for index, entry in enumerate(nodes):
        counted = counts.get(source.view.node_key(index))
        if counted is not None and (counted.multiply_adds or counted.formula):
            entry["m"] = counted.multiply_adds if counted.formula is None else str(counted.formula)
    return {
        "format": FORMAT,
        "file": source.opened.path.name if source.opened.path is not None else "",
        "title": hierarchy.modules[""].class_name,
        "strategy": hierarchy.strategy,
        "coverage": hierarchy.coverage(),
        "exporter": hierarchy.model.get("exporter"),
        "evidence": [[name, level] for name, level in CONFIDENCE.items()],
        "categories": list(CATEGORIES),
        "calls": _dump_calls(pictures, analysis, numbers),
        "measured": measured.to_values(hierarchy.calls),
        "nodes": nodes,
        "tensors": _dump_tensors(source, texts),
        "scenes": [_dump_scenes(pictures, number) for number in range(len(hierarchy.calls))],
        "texts": list(texts.numbers),
    }


def _dump_calls(pictures: Pictures, analysis: AnalysisResult, numbers: Mapping[Any, int]) -> list[dict[str, Any]]:
    hierarchy = pictures.source.hierarchy
    lines = {line.call.id: line for line in analysis.modules}
    elsewhere = find_work_elsewhere(hierarchy)
    entries = []
    for number, call in enumerate(hierarchy.calls):
        line = lines[call.id]
        entry = {
            **_describe_call(call, hierarchy.modules[call.id.module], numbers),
            "nodes": line.total.nodes,
            "own": line.own.nodes,
            "parameters": line.parameters,
            "bytes": line.bytes,
            "work": _dump_work(line.total),
            "args": [[tensor, list(names)] for tensor, names in pictures.arguments[number].items()],
            "results": [[tensor, list(names)] for tensor, names in pictures.results[number].items()],
            "elsewhere": [
                [work.how, work.op_type, work.name, -1 if work.scope is None else numbers[work.scope]]
                for work in elsewhere.get(call.id, ())
            ],
        }
        entries.append({key: value for key, value in entry.items() if value not in (None, "", [])})
    return entries


def _describe_call(call: Call, module: Module, numbers: Mapping[Any, int]) -> dict[str, Any]:
    """Return what a call is called, and by whom it is made."""
    return {
        "path": str(call.id),
        "name": name_in(call),
        "class": module.class_name,
        "full": module.qualified_class,
        "label": label_call(call, module.class_name),
        "tag": call.tag,
        "tagged": call.tagged,
        "via": call.via,
        "parent": None if call.parent is None else numbers[call.parent],
    }


def _dump_work(tally: Tally) -> list[Any]:
    """Return the multiply-adds: for sorting and bars, as a text where they are a formula, and how many are unknown."""
    return [tally.weight, None if tally.formula is None else str(tally.formula), tally.uncounted]


def _dump_node(source: Source, index: int, numbers: Mapping[Any, int], texts: Texts) -> dict[str, Any]:
    viewed, node, known = source.view.nodes[index], source.nodes[index], source.attributions[index]
    entry: dict[str, Any] = {
        "o": texts.add(viewed.op),
        "n": viewed.name,
        "c": numbers[known.scope],
        "e": list(CONFIDENCE).index(known.evidence),
        "k": list(CATEGORIES).index(category_of(node.op_type, node.domain)),
        "i": list(viewed.inputs),
        "u": list(viewed.outputs),
        "a": [[texts.add(name), texts.add(write_attribute(item))] for name, item in node.attributes.items()],
        "p": [[texts.add(key), texts.add(_shorten(key, text))] for key, text in node.metadata_props.items()],
    }
    if set(known.origins) != {known.scope}:
        entry["s"] = [numbers[origin] for origin in known.origins]
    if known.rule:
        entry["r"] = texts.add(known.rule)
    if known.graph:
        entry["g"] = texts.add(known.graph)
    if index in source.view.literals:
        entry["l"] = 1
    return {key: value for key, value in entry.items() if value != []}


def write_attribute(attribute: ir.Attr) -> str:
    """Write an attribute in a line: small tensors whole, others by their type and shape."""
    if attribute.is_ref():  # given where the function is called
        return f"@{attribute.ref_attr_name}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return "graph"
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        shape = "×".join(map(str, tensor.shape)) or "scalar"
        small = tensor.size <= 16 and tensor.dtype != ir.DataType.STRING
        return f"{tensor.dtype} {shape}" + (f" {tensor.numpy().tolist()}" if small else "")
    return _cut(str(attribute.value))


def _shorten(key: str, text: str) -> str:
    """Shorten metadata; of a stack trace the innermost frame is kept, which is the line that says most."""
    if key.endswith(_STACK):
        frames = text.strip().split("File ")
        return _cut(f"File {frames[-1].strip()}")
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


def _dump_tensors(source: Source, texts: Texts) -> list[list[Any]]:
    """Return each tensor: name, data type, shape, producer; of an initializer its parameter and size, too."""
    view = source.view
    parameters = {item.name: item for item in source.hierarchy.initializers}
    tensors: list[list[Any]] = []
    for tensor, name in enumerate(view.names):
        known = view.types[tensor]
        producer = view.producers[tensor]
        entry = [
            name,
            texts.add("" if known is None else known.dtype),
            texts.add(write_shape(view.axes[tensor])),
            -1 if producer is None else producer,
        ]
        if tensor in view.constants:
            value, item = source.values.get(tensor), parameters.get(name)
            size = (0, 0) if value is None else measure_initializer(value)
            entry += [item.parameter if item is not None and item.parameter is not None else "", *size]
        tensors.append(entry)
    return tensors


def write_shape(axes: Sequence[int | str | None] | None) -> str:
    """Write a shape; nothing where it is not known."""
    if axes is None:
        return ""
    return "×".join("?" if axis is None else str(axis) for axis in axes) or "scalar"


def _dump_scenes(pictures: Pictures, call: int) -> list[Any]:
    """Return the picture of a call, and where repeats are folded in it the one without folds."""
    drawings = [pictures.draw(call)]
    if pictures.folded[call] is not None:
        drawings.append(pictures.draw(call, folded=False))
    return [_dump_drawing(pictures, call, drawing) for drawing in drawings]


def _dump_drawing(pictures: Pictures, call: int, drawing: Drawing) -> dict[str, Any]:
    scene = Scene(folds=drawing.folds)
    elements = [
        [_KINDS.index(element.kind), element.ref, x, y, width, height]
        + (pictures.words(call, element, scene) if element.kind in ("in", "out") else [])
        for element, x, y, width, height in drawing.elements
    ]
    edges = [
        [start, end, list(tensors), [number for point in points for number in point]]
        for start, end, tensors, points in drawing.edges
    ]
    dumped: dict[str, Any] = {"w": drawing.width, "h": drawing.height, "e": elements, "r": edges}
    if drawing.folds:
        dumped["f"] = [[first, run] for first, run in drawing.folds.items()]
    return dumped
