"""The record of a carry: the hierarchy on the transformed graph, and what the tool did to the calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.precision.result import PrecisionReport, TargetSearch
from hieronnx.tools.written import WritingResult


@dataclass(frozen=True, slots=True)
class RewrittenNodes:
    """Nodes of one operator in one call that do the work of other operators of the original.

    Attributes:
        scope: the call that they are in.
        op_type: their operator.
        nodes: how many.
        origins: all the calls whose work they do.
    """

    scope: CallId
    op_type: str
    nodes: int
    origins: tuple[CallId, ...]


@dataclass(frozen=True, slots=True)
class LostCall:
    """A call with nodes in the original of which the transformed file has none."""

    call: CallId
    folded_into: tuple[str, ...]
    """The initializers that hold its work; none: it is done by nobody any more."""


@dataclass(frozen=True, slots=True)
class CarryResult(WritingResult):
    """What was carried, read back from the files where any were written.

    Attributes:
        hierarchy: of the transformed file.
        path: the file that was written; None where nothing was asked for.
        sidecar: beside it.
        nodes_before: how many nodes the original has.
        untouched: how many nodes are as they were, whatever their names.
        rewritten: how many do the work of nodes that were others: fused, merged, converted or quantized ones.
        inserted: how many the original has no counterpart of.
        rewritten_by_call: those that were rewritten, by call and operator; those that do the work of most calls first.
        lost: the calls that have no nodes any more.
        by_evidence: how many nodes there are of each evidence.
        notes: what the user should know, a line each.
        search: of a quantization with a target, what was tried for it.
        precision: of a quantization, what is in fewer bits now, and why the rest is not.
    """

    _derived: ClassVar[tuple[str, ...]] = ("strategy", "files")
    strategy: ClassVar[str] = "carried"
    """How the nodes were attributed."""

    hierarchy: Hierarchy
    path: Path | None
    sidecar: Path | None
    nodes_before: int
    untouched: int
    rewritten: int
    inserted: int
    rewritten_by_call: tuple[RewrittenNodes, ...]
    lost: tuple[LostCall, ...]
    by_evidence: Mapping[str, int]
    notes: tuple[str, ...] = ()
    search: TargetSearch | None = None
    precision: PrecisionReport | None = None

    def __repr__(self) -> str:
        nodes = len(self.hierarchy.nodes)
        return f"CarryResult({self.nodes_before} nodes to {nodes}, coverage {self.hierarchy.coverage():.1%})"
