"""The result of `validate`: all findings of one model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hieronnx.files.findings import Finding

SEVERITIES = ("error", "warning", "note")
"""From what makes a check fail to what is only worth knowing."""


@dataclass(frozen=True, slots=True)
class ValidateResult:
    """All that was found in one model, sorted by severity, check and place.

    Attributes:
        model: the file's path as it was given; `model` for a model in memory.
        items: the findings.
        strict: whether warnings count as failures.
        fixed: what was written before the checks, where that was asked for.
    """

    model: str
    items: tuple[Finding, ...]
    strict: bool = False
    fixed: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def count(self, severity: str) -> int:
        """Return how many findings are of a severity."""
        return sum(item.severity == severity for item in self.items)

    @property
    def passed(self) -> bool:
        """Whether nothing was found that counts as a failure."""
        return not self.count("error") and not (self.strict and self.count("warning"))


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, check and place, each once."""
    return tuple(
        sorted(set(findings), key=lambda item: (SEVERITIES.index(item.severity), item.check, item.place, item.message))
    )
