"""Replacements as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hieronnx.errors import count, list_some
from hieronnx.report.names import clean_line, clean_name, name_call
from hieronnx.report.summary import render_files
from hieronnx.report.text import join_blocks, render_table, to_text

if TYPE_CHECKING:
    from hieronnx.tools.replace.result import ReplaceResult


def render_replacement(result: ReplaceResult, *, colour: bool = False) -> str:
    """Render a replacement: what was replaced, what the part's ends are, where the model is."""
    ends = [("input", name, list_some(tensors, 3)) for name, tensors in result.inputs.items()]
    ends += [("output", name, list_some(tensors, 3)) for name, tensors in result.outputs.items()]
    rows = [tuple(map(clean_name, row)) for row in ends]
    return join_blocks(
        to_text(*map(clean_line, _explain(result))),
        render_table(("of the part", "name", "in the model"), rows, colour=colour),
        render_files(result.files, colour=colour),
    )


def _explain(result: ReplaceResult) -> Iterator[str]:
    yield f"replaced {list_some([name_call(call) for call in result.targets], 8)}"
    yield f"{count(len(result.removed), 'node')} removed, {count(len(result.added), 'node')} added"
    kept = f", {len(result.kept_weights):,} kept" if result.kept_weights else ""
    yield f"weights: {len(result.removed_weights):,} removed, {len(result.added_weights):,} added{kept}"
    if result.renamed:
        yield f"renamed, for others have the names: {list_some(list(result.renamed), 3)}"
