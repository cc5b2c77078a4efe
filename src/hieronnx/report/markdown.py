"""Markdown that shows names as they are, whatever is in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hieronnx.report.clean import clean_name

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def escape_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, in one line."""
    return _MARKUP.sub(r"\\\1", clean_name(text))


def make_markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> str:
    """Return a table; the columns named in `numbers` are aligned to the right."""
    rules = ["---:" if column in numbers else "---" for column in columns]
    heading, *body = ([escape_markdown(cell) for cell in row] for row in (columns, *rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rules, *body))
