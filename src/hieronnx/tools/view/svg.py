"""The picture of one call as an SVG file, for documents: valid XML, with its style inside, for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from xml.sax.saxutils import escape

from hieronnx.hierarchy.categories import category_of
from hieronnx.hierarchy.shown import write_seen
from hieronnx.tools.view.data import Pictures
from hieronnx.tools.view.drawing import Drawing
from hieronnx.tools.view.scenes import Element, Scene

_STYLE = """
svg { --ink: #1b1f24; --dim: #5c6570; --back: #ffffff; --box: #eef3fb; --edge: #7d9cc9; --node: #f2f4f6;
  --work: #d6e9fb }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e4e7eb; --dim: #9aa4b0; --back: #15171b; --box: #222c3b; --edge: #5f82b5; --node: #2a2f36;
    --work: #173a5c }
}
text { font: 12px system-ui, sans-serif; fill: var(--ink); text-anchor: middle }
.call .first, .fold .first { font-weight: 600 }
.second { font-size: 11px; fill: var(--dim) }
.label { font-size: 10px; fill: var(--dim); text-anchor: start;
  paint-order: stroke; stroke: var(--back); stroke-width: 3px }
rect { fill: var(--node); stroke: var(--dim) }
.call rect, .fold rect { fill: var(--box); stroke: var(--edge) }
.work rect { fill: var(--work); stroke: var(--edge) }
.in rect, .out rect { fill: var(--back); stroke-dasharray: 4 3 }
.line { fill: none; stroke: var(--dim); stroke-width: 1.2 }
"""
_WORK = ("mathematical", "neural_network_layers")


def make_svg(pictures: Pictures, call: int, *, folded: bool = True) -> str:
    """Draw the picture of a call, by its number."""
    drawing = pictures.draw(call, folded=folded)
    size = f'width="{drawing.width}" height="{drawing.height}" viewBox="0 0 {drawing.width} {drawing.height}"'
    item = pictures.source.hierarchy.calls[call]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{_write(item.tag, 300)}</title>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" style="fill:var(--dim)"/></marker></defs>',
        *(_draw_edge(points) for _, _, _, points in drawing.edges),
        *_draw_labels(pictures, drawing),
        *(_draw_element(pictures, call, drawing, position) for position in range(len(drawing.elements))),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _write(text: str, most: int) -> str:
    return escape(write_seen(text, most))


def _draw_edge(points: tuple[tuple[int, int], ...]) -> str:
    path = [f"M{points[0][0]} {points[0][1]}"]
    for (x, y), (to_x, to_y) in pairwise(points):
        middle = (y + to_y) / 2
        path.append(f"C{x} {middle:g} {to_x} {middle:g} {to_x} {to_y}")
    return f'<path class="line" d="{" ".join(path)}" marker-end="url(#arrow)"/>'


def _draw_labels(pictures: Pictures, drawing: Drawing) -> Iterator[str]:
    """Yield the names and shapes of what elements give, once for each element."""
    given: dict[int, dict[int, None]] = {}
    for start, _, carried, _ in drawing.edges:
        given.setdefault(start, {}).update(dict.fromkeys(carried))
    for start, tensors in given.items():
        element, x, y, width, height = drawing.elements[start]
        tensor = next(iter(tensors))
        name = "" if element.kind == "in" else pictures.source.view.names[tensor]
        lines = [name, pictures.write_shape(tensor)] if len(tensors) == 1 else [f"{len(tensors)} tensors"]
        for number, line in enumerate(filter(None, lines)):
            place = f'x="{x + width // 2 + 6}" y="{y + height + 12 + 11 * number}"'
            yield f'<text class="label" {place}>{_write(line, (width // 2 + 22) * 10 // 56)}</text>'


def _draw_element(pictures: Pictures, call: int, drawing: Drawing, position: int) -> str:
    element, x, y, width, height = drawing.elements[position]
    lines = pictures.words(call, element, Scene(folds=drawing.folds))
    middle, fits = x + width // 2, (width - 14) * 10 // 66
    first = y + height // 2 + (4 if len(lines) == 1 else -3)
    texts = (
        f'<text class="{"second" if number else "first"}" x="{middle}" y="{first + 15 * number}">'
        f"{_write(line, fits)}</text>"
        for number, line in enumerate(lines)
    )
    round_ = height // 2 if element.kind in ("in", "out") else 6
    rect = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{round_}"/>'
    return f'<g class="{_name_class(pictures, element)}">{rect}{"".join(texts)}</g>'


def _name_class(pictures: Pictures, element: Element) -> str:
    if element.kind != "node":
        return element.kind
    node = pictures.source.nodes[element.ref]
    return "node work" if category_of(node.op_type, node.domain) in _WORK else "node"
