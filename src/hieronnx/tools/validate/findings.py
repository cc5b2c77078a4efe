"""What a check has to say, and the list of all that was said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
class ValidateResult:
    """All that was found in one model, sorted by severity, check and place.

    Attributes:
        model: the file's path as it was given; `model` for a model in memory.
        items: the findings.
        strict: whether warnings count as failures.
    """

    model: str
    items: tuple[Finding, ...]
    strict: bool = False

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
