"""What names and messages must go through before a terminal sees them: anything can be in a file."""

from __future__ import annotations

_LONGEST_NAME = 1000
_LONGEST_LINE = 4000


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
