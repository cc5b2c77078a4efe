"""What a check has to say, and the list of all that was said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from hieronnx.tools.results import Result

SEVERITIES = ("error", "warning", "note")
"""From what makes a check fail to what is only worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found.

    Attributes:
        check: the name of the check.
        severity: error, warning or note.
        place: where: the node, call, module, initializer or file.
        message: what is wrong.
        remedy: what to do about it.
        details: all that the message counts and does not name.
    """

    check: str
    severity: str
    place: str
    message: str
    remedy: str
    details: tuple[str, ...] = ()


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


def collect(model: str, items: Iterable[Finding], *, strict: bool) -> ValidateResult:
    """Sort what was found, each thing once."""
    ranks = {severity: rank for rank, severity in enumerate(SEVERITIES)}
    found = sorted(set(items), key=lambda item: (ranks[item.severity], item.check, item.place, item.message))
    return ValidateResult(model, tuple(found), strict)


def node_place(graph: str, output: str, name: str = "") -> str:
    """Name a node as a place: by its name, or by its first output where it has none."""
    return f"node '{name or output}'" + (f" in '{graph}'" if graph else "")


def call_place(call: object) -> str:
    """Name a call as a place; the root's path is empty, so that it is called root."""
    return f"call '{call}'" if str(call) else "root call"
