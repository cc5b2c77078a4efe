"""The picture of each call: its children as boxes, its own nodes, what comes in and goes out at the border.

A tensor crosses calls from its producer up to the lowest call above both ends, and down to its reader::

    producer in a.b, reader in a.c.d      in the picture of a:     box b ─→ box c
                                          in the picture of a.b:   producer ─→ (border)
                                          in the picture of a.c:   (border) ─→ box d;  of a.c.d: (border) ─→ reader
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import NamedTuple

from hieronnx.hierarchy.records import CallId
from hieronnx.tools.extract.source import Source

FOLDED = 4
"""So many calls of one class in a row are drawn as one."""


class Element(NamedTuple):
    """What is drawn: a `call`, a `node`, a border (`in`, `out`) or a `fold` of calls; `ref` says which.

    `ref` is the number of the call, the node or the tensor; of a fold the number of its first call.
    """

    kind: str
    ref: int


@dataclass(slots=True)
class Scene:
    """The picture of a call before it is laid out.

    Attributes:
        elements: what is drawn, in the order of execution.
        edges: the tensors of each edge.
        folds: the calls of each fold, by its first.
    """

    elements: list[Element] = field(default_factory=list)
    edges: dict[tuple[Element, Element], dict[int, None]] = field(default_factory=dict)
    folds: dict[int, list[int]] = field(default_factory=dict)


def build_scenes(source: Source) -> list[Scene]:
    """Build the picture of each call, in the order of the calls."""
    numbers = {call.id: number for number, call in enumerate(source.hierarchy.calls)}
    ways = _find_ways(source, numbers)
    scenes = [Scene() for _ in numbers]
    first: list[dict[Element, int]] = [{} for _ in numbers]
    """For each picture its inner elements, with the first node that each has."""
    hidden = source.view.literals
    for index in source.view.file_order:
        if index not in hidden:
            way = ways[source.attributions[index].scope]
            for depth, call in enumerate(way):
                first[call].setdefault(_element(way, depth + 1, index), index)
    for tensor, producer, reader in _list_uses(source):
        _add_use(scenes, ways, source, (tensor, producer, reader))
    for scene, inner in zip(scenes, first, strict=True):
        borders = dict.fromkeys(e for edge in scene.edges for e in edge if e.kind in ("in", "out"))
        scene.elements = [e for e in borders if e.kind == "in"] + list(inner) + [e for e in borders if e.kind == "out"]
    return scenes


def _find_ways(source: Source, numbers: Mapping[CallId, int]) -> dict[CallId, tuple[int, ...]]:
    """Return for each call the numbers of the calls from the root down to it."""
    ways: dict[CallId, tuple[int, ...]] = {}
    for call in source.hierarchy.calls:  # each after the one above it
        ways[call.id] = (*(() if call.parent is None else ways[call.parent]), numbers[call.id])
    return ways


def _element(way: Sequence[int], depth: int, node: int) -> Element:
    return Element("call", way[depth]) if depth < len(way) else Element("node", node)


def _list_uses(source: Source) -> Iterator[tuple[int, int | None, int | None]]:
    """Yield each tensor that is drawn with its producer and a reader; None where it comes or goes outside.

    What a body gives, the node that has the body reads. Parameters and constants are not drawn.
    """
    view = source.view
    for tensor, readers in enumerate(view.consumers):
        producer = view.producers[tensor]
        if tensor in view.constants or producer in view.literals:
            continue
        for reader in dict.fromkeys(readers):
            yield tensor, producer, reader
        for graph in source.returned_by.get(tensor, ()):
            yield tensor, producer, view.graphs[graph].owner


def _add_use(
    scenes: Sequence[Scene],
    ways: Mapping[CallId, tuple[int, ...]],
    source: Source,
    use: tuple[int, int | None, int | None],
) -> None:
    """Add what one reading of a tensor draws, in all pictures that it crosses."""
    tensor, producer, reader = use
    up = () if producer is None else ways[source.attributions[producer].scope]
    down = () if reader is None else ways[source.attributions[reader].scope]
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(up, down, strict=False)))
    if producer is not None and reader is not None:
        ends = _element(up, shared, producer), _element(down, shared, reader)
        if ends[0] != ends[1]:
            scenes[up[shared - 1]].edges.setdefault(ends, {})[tensor] = None
    if producer is not None:
        for depth in range(shared, len(up)):
            edge = _element(up, depth + 1, producer), Element("out", tensor)
            scenes[up[depth]].edges.setdefault(edge, {})[tensor] = None
    if reader is not None:
        for depth in range(shared, len(down)):
            edge = Element("in", tensor), _element(down, depth + 1, reader)
            scenes[down[depth]].edges.setdefault(edge, {})[tensor] = None


def fold_repeats(scene: Scene, classes: Sequence[str]) -> Scene | None:
    """Return the picture with long rows of calls of one class drawn as one; None where there are none.

    Args:
        scene: The picture.
        classes: The class of each call, by its number.
    """
    calls = [element.ref for element in scene.elements if element.kind == "call"]
    runs = [list(run) for _, run in groupby(calls, key=classes.__getitem__)]
    folds = {run[0]: run for run in runs if len(run) >= FOLDED}
    if not folds:
        return None
    instead = {Element("call", call): Element("fold", first) for first, run in folds.items() for call in run}
    edges: dict[tuple[Element, Element], dict[int, None]] = defaultdict(dict)
    for (start, end), tensors in scene.edges.items():
        ends = instead.get(start, start), instead.get(end, end)
        if ends[0] != ends[1]:
            edges[ends] |= tensors
    elements = list(dict.fromkeys(instead.get(element, element) for element in scene.elements))
    return Scene(elements, dict(edges), folds)
