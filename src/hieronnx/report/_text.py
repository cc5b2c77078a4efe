"""Tables and text as strings, at their natural width."""

from __future__ import annotations

from io import StringIO

from rich.console import Console, RenderableType
from rich.table import Table

__all__ = ["count", "make_table", "to_text"]

# Rows are never wrapped or cut, for they are also read by programs: the widest is as wide as it needs to be.
_WIDTH = 100_000


def make_table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """Return an empty table without lines; the columns named in `numbers` are aligned to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    return table


def to_text(*parts: RenderableType, colour: bool = False) -> str:
    """Render parts one below the other, with ANSI colours if asked."""
    console = Console(
        file=StringIO(),
        width=_WIDTH,
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        for part in parts:
            console.print(part, soft_wrap=isinstance(part, str))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def count(number: int, noun: str) -> str:
    """Write a number of things: `1 node`, `1,024 nodes`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
