"""Precision as text: how sensitive modules are, and what a search for a target tried."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rich.text import Text

from hieronnx.errors import count, list_some
from hieronnx.report.names import clean_line
from hieronnx.report.text import format_size, join_blocks, render_table
from hieronnx.report.verification import format_error

if TYPE_CHECKING:
    from hieronnx.tools.precision.result import SensitivityResult, TargetSearch

_MODULES = ("module", "class", "introduced", "SNR, dB", "multiply-adds", "bytes")
_TRIALS = ("in float", "multiply-adds in 8 bits", "bytes in 8 bits", "measured", "")
_NAMED = 3
"""So many modules are named in a row; the last line names all of those that were chosen."""


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
    whole = "" if result.output.snr_db is None else f", SNR {result.output.snr_db:.1f} dB"
    return join_blocks(
        render_table(_MODULES, rows, numbers=_MODULES[2:], colour=colour),
        f"and {count(more, 'module')} more" if more else "",
        f"all in 8 bits ({result.tool}): the outputs are {format_error(result.output)} of their size apart{whole}, "
        f"on {count(result.samples, 'sample')}",
    )


def render_search(search: TargetSearch, *, colour: bool = False) -> str:
    """Render what a search tried, the frontier marked, and the options that make the same file again."""
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
    kept = () if search.chosen is None else search.chosen.kept
    options = " ".join(f"--exclude {shlex.quote(path)}" for path in kept)
    met = f"{search.target} is met" if search.met else f"{search.target} is not met"
    return join_blocks(
        render_table(_TRIALS, rows, numbers=_TRIALS[1:4], colour=colour),
        f"{met}, on {count(search.samples, 'sample')} that the ranges were {'not ' * search.held_back}found on",
        clean_line(f"the same again: --with … {options}") if options else "",
    )
