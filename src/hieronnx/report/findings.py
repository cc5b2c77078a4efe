"""What validate found, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.text import Text

from hieronnx.files.findings import Finding
from hieronnx.report.text import count, make_table, to_text
from hieronnx.tools.validate.result import SEVERITIES, ValidateResult

_SHOWN = 5
"""So many of a kind are listed; the rest are counted."""
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def render_findings(findings: ValidateResult, *, fixed: Sequence[str] = (), colour: bool = False) -> str:
    """Render findings as a table, many of a kind by the first few; and what they come to."""
    parts = [f"fixed: {what}" for what in fixed]
    if findings.items:
        table = make_table("severity", "check", "place", "what is wrong", "what to do")
        for (severity, check), group in groupby(findings, key=lambda item: (item.severity, item.check)):
            items = list(group)
            for item in items[:_SHOWN]:
                table.add_row(Text(severity, _STYLES[severity]), check, item.place, item.message, item.remedy)
            if len(items) > _SHOWN:
                table.add_row("", check, f"… and {len(items) - _SHOWN:,} more; --json lists them all")
        parts.append(to_text(table, colour=colour))
    return "\n\n".join([*parts, _sum_up(findings)])


def _sum_up(findings: ValidateResult) -> str:
    if not findings.items:
        return "nothing wrong"
    counts = ", ".join(count(findings.count(s), s) for s in SEVERITIES if findings.count(s))
    return f"{counts}: {'passed' if findings.passed else 'failed'}"


def findings_to_json(findings: ValidateResult, *, fixed: Sequence[str] = ()) -> dict[str, Any]:
    """Return findings as JSON values, every one of them."""
    return {
        "model": findings.model,
        "passed": findings.passed,
        "strict": findings.strict,
        **{f"{severity}s": findings.count(severity) for severity in SEVERITIES},
        "fixed": list(fixed),
        "findings": [_to_json(item) for item in findings],
    }


def _to_json(item: Finding) -> dict[str, Any]:
    return {
        "check": item.check,
        "severity": item.severity,
        "place": item.place,
        "message": item.message,
        "remedy": item.remedy,
        "details": list(item.details),
    }
