"""The matrix of carry: every model through every tool, and how much of its hierarchy comes out right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from hieronnx import load
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.tools.carry import carry
from support.carrycheck import Eager, Verdicts, judge
from support.exports import exported, shared_folder
from support.transformations import COLUMNS, ToolError, transform
from support.valuecheck import Attributed
from support.zoo import CASES


@dataclass(frozen=True, slots=True)
class Cell:
    """One model through one tool; or what the tool, or ONNX Runtime on what it made, said instead."""

    verdicts: Verdicts | None = None
    nodes: int = 0
    roots: int = 0
    origins: int = 0
    expected: float = 0.0
    """How many origins the nodes would have, had each as many as those of the original have."""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """A zoo model: its run in PyTorch, its export, the inputs of that, and the hierarchy."""

    name: str
    eager: Eager
    path: Path
    feeds: Mapping[str, np.ndarray]
    hierarchy: Hierarchy


@cache
def subject(name: str, exporter: str) -> Subject:
    """Export a zoo model and run it."""
    return make_subject(name, exporter, exported(name, exporter).result.path)


def make_subject(name: str, exporter: str, path: Path) -> Subject:
    """Run a zoo model that was exported to a file."""
    case = CASES[name]
    eager = Eager(case.build(), case.args(), case.kwargs())
    return Subject(f"{name}-{exporter}", eager, path, eager.feeds(path), load(path))


def transformed(of: Subject, *columns: str) -> Path:
    """Run tools on a zoo model, one after the other; return the file.

    Raises:
        ToolError: If a tool fails.
    """
    folder = Path(mkdtemp(prefix=f"{of.name}-{'-'.join(columns)}-", dir=shared_folder()))
    source = of.path
    for number, column in enumerate(columns):
        transform(column, source, folder / f"{number}.onnx", of.feeds)
        source = folder / f"{number}.onnx"
    return source


def measure(of: Subject, column: str) -> Cell:
    """Run one tool on one model, carry, and judge."""
    try:
        target = transformed(of, column)
    except ToolError as error:
        return Cell(failure=str(error))
    return measure_file(of, target, COLUMNS[column].precision)


def measure_file(of: Subject, target: Path, precision: str) -> Cell:
    """Carry the hierarchy of a zoo model onto a file that was made of it, and judge."""
    try:
        truths = of.eager.find_truth(target, of.feeds, precision)
    except Exception as error:  # ONNX Runtime refuses what the tool made
        return Cell(failure=f"{type(error).__name__}: {str(error).splitlines()[0]}")
    after = carry(of.path, target).hierarchy
    return _count(judge(truths, attributed(after)), of.hierarchy, after)


def measure_export(of: Subject) -> Cell:
    """Judge the export itself: what was carried through torch's own optimizer."""
    truths = of.eager.find_truth(of.path, of.feeds, "float")
    return _count(judge(truths, attributed(of.hierarchy)), of.hierarchy, of.hierarchy)


def _count(verdicts: Verdicts, before: Hierarchy, after: Hierarchy) -> Cell:
    nodes = after.nodes
    known = all(node.evidence != "root" for node in before.nodes)
    roots = sum(node.evidence == "root" for node in nodes) if known else 0  # what was not known cannot be carried
    expected = sum(len(node.origins) for node in before.nodes) / max(len(before.nodes), 1) * len(nodes)
    return Cell(verdicts, len(nodes), roots, sum(len(node.origins) for node in nodes), expected)


def attributed(hierarchy: Hierarchy) -> Attributed:
    """Return what each node is attributed to, in the value check's terms."""
    return {
        (node.graph, node.output): frozenset({tuple(node.scope), *map(tuple, node.origins)}) for node in hierarchy.nodes
    }


@dataclass(frozen=True, slots=True)
class Total:
    """What a column comes to over many models."""

    right: int
    wrong: tuple[str, ...]
    sibling: tuple[str, ...]
    nodes: int
    roots: int
    origins: int
    expected: float
    failures: Mapping[str, str]

    @property
    def share(self) -> float:
        judged = self.right + len(self.wrong)
        return self.right / judged if judged else 1.0

    @property
    def root_share(self) -> float:
        return self.roots / self.nodes if self.nodes else 0.0

    @property
    def origins_per_node(self) -> float:
        return self.origins / self.nodes if self.nodes else 1.0

    @property
    def looseness(self) -> float:
        """How many times as many origins a node has as in the original."""
        return self.origins / self.expected if self.expected else 1.0


def add_up(cells: Iterable[tuple[str, Cell]]) -> Total:
    """Add up the cells of a column, each with the name of its model."""
    found = list(cells)
    judged = [(name, cell, cell.verdicts) for name, cell in found if cell.verdicts is not None]
    return Total(
        right=sum(verdicts.right for _, _, verdicts in judged),
        wrong=tuple(f"{name}: {line}" for name, _, verdicts in judged for line in verdicts.wrong),
        sibling=tuple(f"{name}: {line}" for name, _, verdicts in judged for line in verdicts.sibling),
        nodes=sum(cell.nodes for _, cell, _ in judged),
        roots=sum(cell.roots for _, cell, _ in judged),
        origins=sum(cell.origins for _, cell, _ in judged),
        expected=sum(cell.expected for _, cell, _ in judged),
        failures={name: cell.failure for name, cell in found if cell.failure},
    )
