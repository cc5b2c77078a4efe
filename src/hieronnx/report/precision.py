"""Precision as text: what is in fewer bits, how sensitive modules are, and what a search for a target tried."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from hieronnx.errors import count, list_some
from hieronnx.hierarchy.hierarchy import Hierarchy, TreeRows, draw_arms, select_rows
from hieronnx.hierarchy.records import CallId
from hieronnx.hierarchy.tags import label_call
from hieronnx.report.names import clean_line, name_module
from hieronnx.report.text import format_size, join_blocks, render_table
from hieronnx.report.verification import format_error

if TYPE_CHECKING:
    from hieronnx.tools.precision.result import CallPrecision, PrecisionReport, SensitivityResult, TargetSearch
    from hieronnx.tools.verify.deviation import Deviation

_MODULES = ("module", "class", "introduced", "SNR, dB", "multiply-adds", "bytes")
_TRIALS = ("in float", "multiply-adds in 8 bits", "bytes in 8 bits", "measured", "")
_NAMED = 3
"""So many modules are named in a row; the last line names all of those that were chosen."""


def render_precision(
    report: PrecisionReport, hierarchy: Hierarchy, *, depth: int = 1, limit: int = 10, colour: bool = False
) -> str:
    """Render what is in fewer bits by call, so many levels below the root; and what is not, by reason and operator."""
    rows = select_rows(hierarchy)
    lines, calls = _list_lines(rows, depth), {call.id: call for call in report.calls}
    arms, few = draw_arms(lines), f"in {report.bits} bits"
    cells: list[Sequence[str | Text]] = []
    for line in lines:
        call = hierarchy.call_by_id[line]
        label = Text.assemble((arms[line], "dim"), label_call(call, hierarchy.modules[line.module].class_name))
        cells.append((label, Text(name_module(call), "cyan"), *_count(calls[line])))
    columns = ("call", "module", few, "in float", "no floats", "bytes before", "after", "why in float")
    deeper = len(list(rows.walk(report.calls[0].id))) - len(lines)
    kept = [(group.reason, group.op_type, f"{group.nodes:,}") for group in report.kept[:limit]]
    more = len(report.kept) - len(kept)
    return join_blocks(
        render_table(columns, cells, numbers=columns[2:7], colour=colour)
        + (f"\n{count(deeper, 'call')} deeper: --depth shows them" if deeper else ""),
        render_table(("in float", "operator", "nodes"), kept, numbers=("nodes",), colour=colour)
        + (f"\nand {count(more, 'group')} more" if more else ""),
    )


def _list_lines(rows: TreeRows, depth: int) -> dict[CallId, CallId | None]:
    """List the calls of a tree from top to bottom, each with the one above it."""
    lines: dict[CallId, CallId | None] = {}
    waiting: list[tuple[CallId, CallId | None, int]] = [(rows.hierarchy.calls[0].id, None, 0)]
    while waiting:
        call, parent, level = waiting.pop()
        lines[call] = parent
        waiting += [(below, call, level + 1) for below in reversed(rows.below[call]) if level < depth]
    return lines


def _count(call: CallPrecision) -> tuple[str, ...]:
    sizes = ("?" if size is None else format_size(size) for size in (call.bytes_before, call.bytes_after))
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in call.reasons.items())
    return (*(f"{number:,}" for number in (call.quantized, call.in_float, call.other)), *sizes, reasons)


def render_sensitivity(result: SensitivityResult, *, top: int | None = None, colour: bool = False) -> str:
    """Render the ranking, the most sensitive first."""
    rows = [
        (
            Text(module.module or "(root)", "cyan"),
            module.class_name,
            format_error(module.introduced),
            "-" if module.introduced.snr_db is None else f"{module.introduced.snr_db:.1f}",
            f"{module.multiply_adds:,}",
            format_size(module.bytes),
        )
        for module in result.modules[:top]
    ]
    more = len(result.modules) - len(rows)
    return join_blocks(
        render_table(_MODULES, rows, numbers=_MODULES[2:], colour=colour),
        f"and {count(more, 'module')} more" if more else "",
        f"all quantized ({result.tool}): {_tell_output(result.output)}, on {count(result.samples, 'sample')}",
    )


def _tell_output(output: Deviation) -> str:
    """Say how far the outputs are from those in float, or why that cannot be said."""
    if not output.is_broken:
        ratio = "" if output.snr_db is None else f", SNR {output.snr_db:.1f} dB"
        return f"the outputs are {format_error(output)} of their size apart{ratio}"
    odd = f"{count(output.nans + output.infs, 'element')} NaN or infinite only in float, or only when quantized"
    name = clean_line(output.tensor)
    return f"the outputs cannot be compared ('{name}', sample {output.sample}: {output.mismatch or odd})"


def render_search(search: TargetSearch, *, colour: bool = False) -> str:
    """Render what a search tried, the frontier marked, and the command that leaves the same in float."""
    frontier = set(search.frontier)
    rows = [
        (
            list_some(trial.kept, _NAMED) or "nothing",
            f"{trial.multiply_adds:.1%}",
            f"{trial.bytes:.1%}",
            f"{trial.value:.4g}" + (" ✓" if trial.met else ""),
            "chosen" if trial == search.chosen else "frontier" if trial in frontier else "",
        )
        for trial in search.trials
    ]
    met = f"{search.target} is met" if search.met else f"{search.target} is not met"
    return join_blocks(
        render_table(_TRIALS, rows, numbers=_TRIALS[1:4], colour=colour),
        f"{met}, on {count(search.samples, 'sample')} that {_HELD_BACK if search.held_back else _NOT_HELD_BACK}",
        _BEST_OF_MANY.format(tried=len(search.trials)) if search.met and len(search.trials) > 1 else "",
        "" if search.ended else _advise_budget(len(search.trials)),
        clean_line(f"the same in float without a search: {shlex.join(search.command)}") if search.command else "",
    )


_HELD_BACK = "had no part in quantizing"
_BEST_OF_MANY = "the best of {tried} candidates on these: others may fall short of it, the fewer these are the more"
_NOT_HELD_BACK = "the ranges were found on; of three or more, some are held back: give each an axis of its own"


def _advise_budget(tried: int) -> str:
    return f"the search ended after {count(tried, 'candidate')}; --budget {2 * tried} may leave more in 8 bits"
