"""The findings of validate as a table."""

from __future__ import annotations

from itertools import groupby

from rich.text import Text

from hieronnx.report.text import count, make_table, to_text
from hieronnx.tools.validate.validating import ValidateResult

_SHOWN = 5
"""So many of a kind are listed; the rest are counted."""
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def render_findings(result: ValidateResult, *, colour: bool = False) -> str:
    """Render findings as a table, many of a kind by the first few; and what they come to."""
    parts = [f"fixed: {what}" for what in result.fixed]
    if result.findings:
        table = make_table("severity", "check", "place", "what is wrong", "what to do")
        for (severity, check), group in groupby(result, key=lambda item: (item.severity, item.check)):
            items = list(group)
            for item in items[:_SHOWN]:
                table.add_row(Text(severity, _STYLES[severity]), check, item.place, item.message, item.remedy)
            if len(items) > _SHOWN:
                table.add_row("", check, f"… and {len(items) - _SHOWN:,} more; --json lists them all")
        parts.append(to_text(table, colour=colour))
    return "\n\n".join([*parts, _sum_up(result)])


def _sum_up(result: ValidateResult) -> str:
    if not result.findings:
        return "nothing wrong"
    counts = ", ".join(count(number, severity) for severity, number in result.counts.items() if number)
    return f"{counts}: {'passed' if result.passed else 'failed'}"
