"""The result of `validate`: all findings of one model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from hieronnx.files.findings import Finding
from hieronnx.tools.results import Result

SEVERITIES = ("error", "warning", "note")
"""From what makes a check fail to what is only worth knowing."""


@dataclass(frozen=True, slots=True)
class ValidateResult(Result):
    """All that was found in one model, sorted by severity, check and place.

    Attributes:
        model: the file's path as it was given; `model` for a model in memory.
        findings: all of them.
        strict: whether warnings count as failures.
        fixed: what was written to fix the file before it was checked.
    """

    _derived: ClassVar[tuple[str, ...]] = ("passed", "counts")

    model: str
    findings: tuple[Finding, ...]
    strict: bool = False
    fixed: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def count(self, severity: str) -> int:
        """Return how many findings are of a severity."""
        return sum(item.severity == severity for item in self.findings)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many findings there are of each severity."""
        return {severity: self.count(severity) for severity in SEVERITIES}

    @property
    def passed(self) -> bool:
        """Whether nothing was found that counts as a failure."""
        return not self.count("error") and not (self.strict and self.count("warning"))

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {severity}s" for severity, number in self.counts.items())
        return f"ValidateResult({self.model!r}: {'passed' if self.passed else 'failed'}, {counts})"


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, check and place, each once."""
    return tuple(
        sorted(set(findings), key=lambda item: (SEVERITIES.index(item.severity), item.check, item.place, item.message))
    )
