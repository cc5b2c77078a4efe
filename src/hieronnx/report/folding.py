"""Folding and unfolding as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hieronnx.errors import count, list_some
from hieronnx.report.names import clean_line, clean_name, name_call
from hieronnx.report.summary import render_files
from hieronnx.report.text import format_size, join_blocks, render_table, to_text

if TYPE_CHECKING:
    from hieronnx.tools.fold.result import FoldResult, UnfoldResult


def render_fold(result: FoldResult, *, colour: bool = False) -> str:
    """Render what was folded: the functions, the calls that stayed as they are, sizes."""
    functions = [
        (
            f"{clean_name(item.domain)}::{clean_name(item.name)}",
            f"{len(item.calls):,}",
            f"{item.nodes:,}",
            Text(list_some([name_call(call) for call in item.calls], 3), "cyan"),
        )
        for item in result.functions
    ]
    inline = [(Text(name_call(item.call), "cyan"), clean_line(item.reason)) for item in result.inline]
    counts = f"{count(result.calls, 'call')} to {count(len(result.functions), 'function')}"
    nodes = f"{result.nodes_before:,} nodes to {result.nodes_after:,}, functions counted once"
    sizes = f"{format_size(result.bytes_before)} without weights to {format_size(result.bytes_after)}"
    taken = f"{count(len(result.taken_in), 'node')} of other calls taken in"
    return join_blocks(
        render_table(("function", "calls", "nodes", "of"), functions, numbers=("calls", "nodes"), colour=colour),
        render_table(("stays as it is", "for"), inline, colour=colour),
        to_text(f"{counts}; {nodes}; {sizes}", *([taken] if result.taken_in else [])),
        render_files(result.files, colour=colour),
    )


def render_unfold(result: UnfoldResult, *, colour: bool = False) -> str:
    """Render what was written out."""
    functions = [(clean_name(name), f"{times:,}") for name, times in result.functions.items()]
    return join_blocks(
        render_table(("function", "calls"), functions, numbers=("calls",), colour=colour),
        to_text(f"{result.nodes_before:,} nodes to {result.nodes_after:,}"),
        render_files(result.files, colour=colour),
    )
