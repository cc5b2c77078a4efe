"""The findings of validate as text."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from hieronnx.errors import count
from hieronnx.report.summary import describe_below, render_categories
from hieronnx.report.text import join_blocks, make_table, to_text

if TYPE_CHECKING:
    from hieronnx.tools.validate.validating import ValidateResult

_MOST_ALIKE = 5
"""So many findings of a kind are listed; the rest are counted."""
_SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def render_findings(result: ValidateResult, *, colour: bool = False, quiet: bool = False) -> str:
    """Render findings as a table, many of a kind by the first few; every category; and what it all comes to."""
    counts = ", ".join(count(number, severity) for severity, number in result.counts.items() if number)
    verdict = f"{counts}: {'passed' if result.passed else 'failed'}" if counts else "nothing wrong"
    if quiet:
        return verdict
    parts = [f"fixed: {what}" for what in result.fixed]
    if result.findings:
        table = make_table("severity", "check", "place", "what is wrong", "what to do")
        for (severity, check), group in groupby(result, key=lambda item: (item.severity, item.check)):
            items = list(group)
            for item in items[:_MOST_ALIKE]:
                table.add_row(Text(severity, _SEVERITY_STYLES[severity]), check, item.place, item.message, item.remedy)
            if len(items) > _MOST_ALIKE:
                table.add_row("", check, f"… and {len(items) - _MOST_ALIKE:,} more; --json lists them all")
        parts.append(to_text(table, colour=colour))
    parts.append(render_categories(result.categories, colour=colour))
    if (below := describe_below(result.min_confidence, result.below)) and result.categories:
        attributed = sum(share.attributed or 0 for share in result.categories)
        nodes = sum(share.total for share in result.categories)
        parts.append(f"{attributed:,} of {count(nodes, 'node')} attributed{below}")
    return join_blocks(*parts, verdict)
