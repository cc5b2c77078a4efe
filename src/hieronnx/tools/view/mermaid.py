"""The picture of one call as a Mermaid flowchart, which Markdown on GitHub and GitLab shows."""

from __future__ import annotations

from hieronnx.hierarchy.shown import write_seen
from hieronnx.tools.view.data import Pictures
from hieronnx.tools.view.scenes import Scene

_LONGEST = 60
_SHAPES = {"call": ("[", "]"), "fold": ("[[", "]]"), "node": ("(", ")"), "in": ("([", "])"), "out": ("([", "])")}
_SPECIAL = frozenset('"#&<>`\\;')


def make_mermaid(pictures: Pictures, call: int, *, folded: bool = True) -> str:
    """Write the picture of a call, by its number."""
    scene = (pictures.folded[call] if folded else None) or pictures.scenes[call]
    names = {element: f"e{number}" for number, element in enumerate(scene.elements)}
    lines = ["flowchart TD"]
    for element, name in names.items():
        before, after = _SHAPES[element.kind]
        words = pictures.words(call, element, Scene(folds=scene.folds))
        lines.append(f'    {name}{before}"{"<br>".join(map(_write, words))}"{after}')
    for (start, end), tensors in scene.edges.items():
        shape = pictures.write_shape(next(iter(tensors))) if len(tensors) == 1 else f"{len(tensors)} tensors"
        label = f'|"{_write(shape)}"|' if shape else ""
        lines.append(f"    {names[start]} -->{label} {names[end]}")
    return "\n".join(lines) + "\n"


def _write(text: str) -> str:
    """Write a text for a label: characters that mean something to Mermaid or to HTML by their numbers."""
    return "".join(f"#{ord(c)};" if c in _SPECIAL else c for c in write_seen(text, _LONGEST))
