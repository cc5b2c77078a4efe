"""Splits as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from hieronnx.errors import count, list_some
from hieronnx.report.names import clean_line, clean_name, name_call
from hieronnx.report.text import join_blocks, render_table, to_text

if TYPE_CHECKING:
    from hieronnx.tools.split.result import SplitResult


def render_split(split: SplitResult, *, colour: bool = False) -> str:
    """Render a split: its stages, what crosses each cut, what was checked."""
    unit = split.balance or "cost"
    rows = []
    for stage in split.stages:
        calls = Text(list_some([name_call(call) for call in stage.calls], 3), "cyan")
        cost = "-" if stage.cost is None else f"{stage.cost:,.0f}"
        counts = (f"{len(stage.nodes):,}", f"{len(stage.repeated):,}", f"{stage.weight_bytes:,}", cost)
        rows.append((stage.path.name, calls, *counts))
    crossing = [
        (
            f"{number} → {number + 1}",
            Text(name_call(cut.before), "cyan"),
            list_some([clean_name(item.name) for item in cut.tensors], 4),
            "unknown" if cut.bytes is None else f"{cut.bytes:,}",
        )
        for number, cut in enumerate(split.cuts)
    ]
    numbers = ("nodes", "repeated", "weight bytes", unit)
    return join_blocks(
        render_table(("stage", "calls", *numbers), rows, numbers=numbers, colour=colour),
        render_table(("cut", "before", "what crosses", "bytes"), crossing, numbers=("bytes",), colour=colour),
        to_text(*map(clean_line, _explain(split))),
    )


def _explain(split: SplitResult) -> Iterator[str]:
    if any(cut.bytes is None for cut in split.cuts):
        yield "the bytes that cross depend on dynamic axes; --dim NAME=SIZE gives their sizes"
    if split.shared_weights:
        names = list_some(list(split.shared_weights), 3)
        yield f"{count(len(split.shared_weights), 'weight')} in several stages: {names}"
    if split.check is not None:
        differing = ", ".join(f"'{name}' by {amount:g}" for name, amount in split.check.different.items())
        same = "the stages give what the whole model gives, bit for bit"
        yield f"the stages differ from the whole model: {differing}" if differing else same
    yield f"wrote {count(len(split.stages), 'stage')} and pipeline.json into {split.folder}"
