"""Pictures of calls laid out: what is drawn where, with the words on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hieronnx.tools.view.layout import Box, lay_out
from hieronnx.tools.view.scenes import Element, Scene

_CHARACTER, _PADDING = 7, 30
_NARROWEST, _WIDEST = 84, 250
_HEIGHTS = {"call": 46, "fold": 54, "node": 30, "in": 26, "out": 26}


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture with its places: elements with their boxes, edges with their tensors and points."""

    elements: tuple[tuple[Element, int, int, int, int], ...]
    """Each with the x and y of its corner, its width and its height."""
    edges: tuple[tuple[int, int, tuple[int, ...], tuple[tuple[int, int], ...]], ...]
    """The positions of both ends among the elements, the tensors, the points."""
    folds: dict[int, list[int]]
    width: int
    height: int


def draw(scene: Scene, words: Callable[[Element], Sequence[str]]) -> Drawing:
    """Lay a picture out; `words` gives the lines of text on an element."""
    borders = {"in": "first", "out": "last"}
    boxes = [
        Box(_measure(words(element)), _HEIGHTS[element.kind], borders.get(element.kind, ""))
        for element in scene.elements
    ]
    position = {element: number for number, element in enumerate(scene.elements)}
    edges = [(position[start], position[end]) for start, end in scene.edges]
    layout = lay_out(boxes, edges)
    return Drawing(
        elements=tuple(
            (element, *corner, box.width, box.height)
            for element, corner, box in zip(scene.elements, layout.corners, boxes, strict=True)
        ),
        edges=tuple(
            (*ends, tuple(tensors), route)
            for ends, tensors, route in zip(edges, scene.edges.values(), layout.routes, strict=True)
        ),
        folds=scene.folds,
        width=layout.width,
        height=layout.height,
    )


def _measure(lines: Sequence[str]) -> int:
    """Return the width of a box for these lines, an even number."""
    longest = max(map(len, lines), default=0)
    return min(max(longest * _CHARACTER + _PADDING, _NARROWEST), _WIDEST) // 2 * 2
