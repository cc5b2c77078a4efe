"""Tables and text as strings, at their natural width, with nothing in them that a terminal would obey."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from hieronnx.report.names import clean_name

# Rows are never wrapped or cut, for they are also read by programs: the widest is as wide as it needs to be.
_LONGEST_NUMBER = 40
_WIDTH = 100_000


class _CleanTable(Table):
    """A table that cleans what is put into it: names come from files, and anything can be in a file."""

    def add_row(self, *cells: RenderableType | None, **options: object) -> None:
        super().add_row(*map(_clean_cell, cells), **options)  # type: ignore[arg-type]  # rich's own options


def make_table(*columns: str, numbers: Sequence[str] = ()) -> Table:
    """Return an empty table without lines; the columns named in `numbers` are aligned to the right."""
    table = _CleanTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(clean_name(column), justify="right" if column in numbers else "left", no_wrap=True)
    return table


def _clean_cell(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, str):
        return clean_name(cell)
    if isinstance(cell, Text) and (cleaned := clean_name(cell.plain)) != cell.plain:
        return Text(cleaned)  # its parts' styles would no longer be where the parts are
    return cell


def render_table(
    columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, numbers: Sequence[str] = (), colour: bool = False
) -> str:
    """Render rows as a table; nothing where there are none. A column of numbers that has long texts is one of texts."""
    listed = list(rows)
    longest = {name: max((len(row[n]) for row in listed), default=0) for n, name in enumerate(columns)}
    table = make_table(*columns, numbers=[name for name in numbers if longest.get(name, 0) <= _LONGEST_NUMBER])
    for row in listed:
        table.add_row(*row)
    return to_text(table, colour=colour) if table.rows else ""


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


def join_blocks(*blocks: str) -> str:
    """Join blocks of text with an empty line between them; those that are empty are left out."""
    return "\n\n".join(filter(None, blocks))


def align_rows(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> str:
    """Render a table as `make_table` does but plain: what takes rich minutes, for a row per node, takes seconds."""
    cells = [tuple(columns), *(tuple(map(clean_name, row)) for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    right = [column in numbers for column in columns]
    return "\n".join("  ".join(map(_pad, row, widths, right)).rstrip() for row in cells)


def _pad(cell: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if right else cell + space


def format_size(size: int) -> str:
    """Write a number of bytes: `512 B`, `1.5 kB`."""
    if size < 1000:
        return f"{size} B"
    scaled, units = size / 1000, ["kB", "MB", "GB", "TB"]
    while scaled >= 999.95 and len(units) > 1:
        scaled, units = scaled / 1000, units[1:]
    return f"{scaled:,.1f} {units[0]}"
