"""Names and messages made safe to show in a terminal and in Markdown: anything can be in a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hieronnx.hierarchy.records import Call, CallId

_LONGEST_NAME = 1000
_LONGEST_LINE = 4000
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&])")


def clean_name(text: str) -> str:
    """Return a name with its control characters written as escapes, and without its middle if it has no end."""
    return _escape(_shorten(text, _LONGEST_NAME))


def clean_line(text: str) -> str:
    """Return a message as one line."""
    return _escape(_shorten(" ".join(text.split()), _LONGEST_LINE))


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}…({len(text):,} characters)…{text[-half:]}"


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def name_call(call: CallId) -> str:
    """Return a call's path; the root's is empty, so that it is called root."""
    return str(call) or "(root)"


def name_module(call: Call) -> str:
    """Return the path of a call's module, and the attribute path that it was called through where that is another."""
    path = call.id.module
    return path if call.via in ("", path) else f"{path} (as {call.via})"


def escape_markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, in one line."""
    return _MARKUP.sub(r"\\\1", clean_name(text))


def make_markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> str:
    """Return a table; the columns named in `numbers` are aligned to the right."""
    rules = ["---:" if column in numbers else "---" for column in columns]
    heading, *body = ([escape_markdown(cell) for cell in row] for row in (columns, *rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rules, *body))
