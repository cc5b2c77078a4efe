"""How good a strategy is: what it makes of a file without names, beside what the exporter itself recorded."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hieronnx.hierarchy.categories import CATEGORIES, category_of
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Node

if TYPE_CHECKING:
    from torch import nn

OUTCOMES: Mapping[str, str] = {
    "exact": "the same call",
    "origin": "another of the calls that the node stands for",
    "coarse": "a call above it",
    "wrong": "any other call",
    "none": "nothing found",
}
"""What a strategy can have made of a node, the best first."""


@dataclass(frozen=True, slots=True)
class Score:
    """The nodes that a strategy attributed, counted by what it made of them.

    Attributes:
        strategy: Its name.
        seconds: How long it took.
        counts: The number of nodes for each category, confidence and outcome.
    """

    strategy: str
    seconds: float
    counts: Mapping[tuple[str, str, str], int]

    @property
    def total(self) -> Mapping[str, int]:
        """The number of nodes for each outcome."""
        return _tally((outcome, count) for (_, _, outcome), count in self.counts.items())

    @property
    def by_category(self) -> Mapping[str, Mapping[str, int]]:
        """For each category that there is the number of nodes for each outcome."""
        return self._group(CATEGORIES, 0)

    @property
    def by_confidence(self) -> Mapping[str, Mapping[str, int]]:
        """For each confidence that there is the number of nodes for each outcome."""
        return self._group(("high", "medium", "low"), 1)

    def _group(self, names: Iterable[str], place: int) -> dict[str, Mapping[str, int]]:
        found = {
            name: _tally((key[2], count) for key, count in self.counts.items() if key[place] == name) for name in names
        }
        return {name: tally for name, tally in found.items() if sum(tally.values())}


def _tally(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    tally = dict.fromkeys(OUTCOMES, 0)
    for outcome, count in counts:
        tally[outcome] += count
    return tally


@dataclass(frozen=True, slots=True)
class StrategyScores:
    """All strategies on one model."""

    exporter: str
    nodes: int
    scores: tuple[Score, ...]


def is_known(right: Node) -> bool:
    """Say whether the truth knows anything of a node."""
    return right.evidence != "root"


def is_carried(right: Node) -> bool:
    """Say whether carry can tell whose a node is: not of a group that it cannot divide, nor of what serves one."""
    return is_known(right) and (right.evidence != "dataflow" or bool(right.rule and right.scope.module))


def score(
    strategy: str,
    truth: Hierarchy,
    found: Hierarchy,
    seconds: float = 0.0,
    *,
    counts_as_known: Callable[[Node], bool] = is_known,
) -> Score:
    """Count what a strategy made of each node; both hierarchies have the nodes of one file in one order.

    A node of which the truth knows nothing is left out.
    """
    counts = Counter(
        (category_of(right.op_type, right.domain), given.confidence, judge(truth, right, given))
        for right, given in zip(truth.nodes, found.nodes, strict=True)
        if counts_as_known(right)
    )
    return Score(strategy, seconds, dict(sorted(counts.items())))


def judge(truth: Hierarchy, right: Node, given: Node) -> str:
    """Return what was made of one node: one of `OUTCOMES`."""
    if given.evidence == "root":
        return "none"
    if given.scope == right.scope:
        return "exact"
    if given.scope in right.origins:
        return "origin"
    return "coarse" if given.scope in truth.tree.ancestors(right.scope) else "wrong"


def measure_strategies(
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    strategies: Iterable[str] = (),
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> StrategyScores:
    """Export a model, take all names from the file, and attribute it by each strategy.

    Args:
        model: The model.
        args: Example inputs by position.
        kwargs: Example inputs by keyword.
        strategies: Their names; all by default.
        progress: Called with the name of each stage as it begins.
        **options: Options of `hieronnx.export`.

    Raises:
        HieronnxError: If the model cannot be exported or run.
    """
    from hieronnx.tools.export import export

    report = progress or (lambda _stage: None)
    given = args if isinstance(args, tuple) else (args,)
    with tempfile.TemporaryDirectory(prefix="hieronnx-") as folder:
        result = export(model, given, Path(folder) / "model.onnx", kwargs, progress=report, **options)
        scores = score_file(result.path, result.hierarchy, model, given, kwargs, strategies=strategies, progress=report)
    return StrategyScores(result.exporter, len(result.hierarchy.nodes), scores)


def score_file(
    path: Path,
    truth: Hierarchy,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    *,
    strategies: Iterable[str] = (),
    progress: Callable[[str], None] = lambda _stage: None,
    counts_as_known: Callable[[Node], bool] = is_known,
) -> tuple[Score, ...]:
    """Take all names from a copy of a file, and attribute it by each strategy."""
    from benchmarks.anonymize import anonymize_file
    from hieronnx.attribute.file import STRATEGIES, attribute_file
    from hieronnx.attribute.request import Request
    from hieronnx.files.opening import open_model
    from hieronnx.hierarchy.tags import TagPolicy

    scores = []
    with tempfile.TemporaryDirectory(prefix="hieronnx-") as folder:
        bare = Path(folder) / "bare.onnx"
        anonymize_file(path, bare)
        for strategy in strategies or STRATEGIES:
            progress(f"attributing by {strategy}")
            start = time.perf_counter()
            request = Request(open_model(bare), model, args, dict(kwargs or {}))
            found = attribute_file(request, strategy=strategy, policy=TagPolicy())
            seconds = time.perf_counter() - start
            scores.append(score(strategy, truth, found.hierarchy, seconds, counts_as_known=counts_as_known))
    return tuple(scores)
