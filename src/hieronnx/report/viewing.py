"""The text of what `view` wrote."""

from __future__ import annotations

from hieronnx.errors import count
from hieronnx.report.names import clean_line
from hieronnx.report.text import format_size
from hieronnx.tools.view.viewing import ViewResult

_EXPLORER = "run model-explorer on the first, and load the others there as node data"


def render_view(result: ViewResult, *, colour: bool = False) -> str:
    """Say where the page is, and what it shows."""
    del colour  # nothing in it is coloured
    size = sum(file.bytes for file in result.files)
    if result.form == "model-explorer":
        names = " ".join(file.path.name for file in result.files)
        return clean_line(f"{result.path}: {names}; {_EXPLORER}")
    if result.form != "html":
        return clean_line(f"{result.path}: {format_size(size)}")
    shown = f"{count(result.calls, 'call')}, {count(result.nodes, 'node')}"
    return clean_line(f"{result.path}: {shown}, {format_size(size)}; open it in a browser")
