"""How good the strategies are on a model: by outcome, by category and by confidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.scores import OUTCOMES, Score, StrategyScores
from hieronnx.errors import count
from hieronnx.report.text import make_table, to_text

_NUMBERS = ("nodes", *OUTCOMES)


def render_scores(scores: StrategyScores, *, colour: bool = False) -> str:
    """Render the shares of each outcome, in all and for each strategy by category and by confidence."""
    heading = (
        f"{count(scores.nodes, 'node')}, exported with {scores.exporter}, all names taken away; "
        "what each strategy made of them beside what the exporter recorded, in percent"
    )
    table = make_table("strategy", *_NUMBERS, "seconds", numbers=(*_NUMBERS, "seconds"))
    for score in scores.scores:
        table.add_row(score.strategy, *_row(score.total), f"{score.seconds:.1f}")
    meanings = make_table("", "the node was given")
    for outcome, meaning in OUTCOMES.items():
        meanings.add_row(outcome, meaning)
    blocks = [heading, to_text(table, colour=colour), to_text(meanings, colour=colour)]
    return "\n\n".join([*blocks, *(_render_score(score, colour) for score in scores.scores)])


def _render_score(score: Score, colour: bool) -> str:
    tables = []
    for kind, groups in (("category", score.by_category), ("confidence", score.by_confidence)):
        table = make_table(f"{score.strategy}, by {kind}", *_NUMBERS, numbers=_NUMBERS)
        for name, tally in groups.items():
            table.add_row(name, *_row(tally))
        tables.append(to_text(table, colour=colour))
    return "\n\n".join(tables)


def _row(tally: Mapping[str, int]) -> list[str]:
    total = sum(tally.values())
    return [f"{total:,}", *(f"{100 * nodes / total:.1f}" if total else "-" for nodes in tally.values())]


def scores_to_json(scores: StrategyScores) -> dict[str, Any]:
    """Return the scores as JSON values: numbers of nodes."""
    return {
        "exporter": scores.exporter,
        "nodes": scores.nodes,
        "strategies": {
            score.strategy: {
                "seconds": round(score.seconds, 3),
                "total": dict(score.total),
                "by_category": {name: dict(tally) for name, tally in score.by_category.items()},
                "by_confidence": {name: dict(tally) for name, tally in score.by_confidence.items()},
            }
            for score in scores.scores
        },
    }
