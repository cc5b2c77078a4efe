"""A placement as text: what each rule placed, what ONNX Runtime made of it, and the session's options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hieronnx.errors import count
from hieronnx.report.names import clean_name
from hieronnx.report.text import join_blocks, render_table

if TYPE_CHECKING:
    from hieronnx.tools.place import PlacedNodes, PlaceResult


def render_placement(result: PlaceResult, *, colour: bool = False) -> str:
    """Render what was placed, and the code that runs it so."""
    rows = [
        (
            rule.device,
            rule.pattern,
            f"{rule.nodes:,}",
            ", ".join(_list_given(rule)),
        )
        for rule in result.rules
    ]
    table = render_table(("device", "calls", "nodes", "given here"), rows, numbers=("nodes",), colour=colour)
    left = f"{count(result.unplaced, 'node')} as ONNX Runtime chooses" if result.unplaced else ""
    lines = ["options = onnxruntime.SessionOptions()"]
    for key, value in result.session_options.items():
        lines.append(f"options.add_session_config_entry({key!r}, {clean_name(value)!r})")
    return join_blocks(table, left, "\n".join(lines), f"wrote {result.path}")


def _list_given(rule: PlacedNodes) -> Iterator[str]:
    """Yield what the nodes of a rule were given; constants and the like are in the session, and run nowhere."""
    for name, number in rule.providers.items():
        yield f"{name.removesuffix('ExecutionProvider')} {number:,}"
    left = rule.nodes - sum(rule.providers.values())
    if rule.providers and left:
        yield f"not run {left:,}"
