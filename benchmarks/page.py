"""What the written reports share: where they go, what they were measured with, tables."""

from __future__ import annotations

import datetime
import platform
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent


def use_zoo() -> None:
    """Make the test zoo importable as `support.zoo`."""
    if str(ROOT / "tests") not in sys.path:
        sys.path.insert(0, str(ROOT / "tests"))


def today() -> str:
    """Return the date as a report states it."""
    return datetime.date.today().isoformat()


def describe_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of these packages."""
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int | None = None) -> str:
    """Render a Markdown table, numbers aligned to the right: the columns after `texts`, by default those of numbers."""
    numeric = [all(row[column][:1].isdigit() or row[column] == "-" for row in rows) for column in range(len(header))]
    if texts is not None:
        numeric = [column >= texts for column in range(len(header))]
    rule = ["---:" if right else "---" for right in numeric]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])
