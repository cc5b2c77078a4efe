"""A finding: one thing that is wrong with a file or its hierarchy, with its place and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hieronnx.errors import HieronnxError


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


def node_place(graph: str, output: str, name: str = "") -> str:
    """Name a node as a place: by its name, or by its first output where it has none."""
    return f"node '{name or output}'" + (f" in '{graph}'" if graph else "")


def call_place(call: object) -> str:
    """Name a call as a place; the root's path is empty, so that it is called root."""
    return f"call '{call}'" if str(call) else "root call"


def raise_first(findings: Iterable[Finding], what: str) -> None:
    """Raise the first error among the findings of a reader, for those who need the whole hierarchy.

    Raises:
        HieronnxError: If there is one.
    """
    for finding in findings:
        if finding.severity == "error":
            place = finding.place.removeprefix("sidecar: ").removeprefix("metadata: ")
            raise HieronnxError(
                f"{what} is not a hierarchy that this version reads: {place}: {finding.message}; {finding.remedy}"
            )
