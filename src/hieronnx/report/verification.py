"""A verification as text and as Markdown: the tree with both errors, and those who are to blame."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from hieronnx.errors import count, list_some
from hieronnx.hierarchy.hierarchy import draw_arms, select_rows
from hieronnx.hierarchy.records import CallId
from hieronnx.hierarchy.tags import label_call
from hieronnx.report.names import clean_line, clean_name, make_markdown_table, name_call, name_module
from hieronnx.report.text import join_blocks, make_table, to_text

if TYPE_CHECKING:
    from hieronnx.tools.verify.deviation import Deviation
    from hieronnx.tools.verify.result import Culprit, VerifiedCall, VerifyResult

_COLUMNS = ("call", "module", "introduced", "accumulated", "noise", "")
_CULPRIT_COLUMNS = ("culprit", "class", "introduced", "max abs", "SNR", "accumulated", "times the noise")
_NUMBERS = ("introduced", "accumulated", "noise", "max abs", "SNR", "times the noise")
_CAUSES = {
    "saturation": "is lost by sums that ONNX Runtime clips on this processor, not by the file",
    "range": "is made by numbers outside of the range of a scale: the file was calibrated for others, or it is wrong",
}
_MARKS = {"right": ("✓", "green"), "noisy": ("~", "yellow"), "wrong": ("✗", "red")}
_FEW = 6
_ABSURD = 1e6
_MOST_REASONS = 5


def render_verification(
    result: VerifyResult,
    *,
    all_calls: bool = False,
    depth: int | None = None,
    top: int | None = None,
    quiet: bool = False,
    colour: bool = False,
) -> str:
    """Render a verification.

    Args:
        result: The verification.
        all_calls: Whether calls without a tag of their own are listed, too.
        depth: How many levels below the root to list.
        top: How many culprits to tell of.
        quiet: Whether to leave the tree out.
        colour: Whether to use ANSI colours.
    """
    tree = "" if quiet else _render_tree(result, all_calls, depth, colour)
    return join_blocks(
        tree,
        _render_culprits(result, top, colour),
        to_text(*_list_skipped(result)),
        to_text(_describe(result), colour=colour),
        to_text(*(f"note: {clean_line(note)}" for note in result.notes)),
    )


def _render_tree(result: VerifyResult, all_calls: bool, depth: int | None, colour: bool) -> str:
    table = make_table(*_COLUMNS, numbers=_NUMBERS)
    for arm, label, module, figures, verdict in _list_rows(result, all_calls, depth):
        mark, style = _MARKS.get(verdict, ("", ""))
        table.add_row(Text.assemble((arm, "dim"), (label, "bold")), Text(module, "cyan"), *figures, Text(mark, style))
    return to_text(table, colour=colour)


def _list_rows(
    result: VerifyResult, all_calls: bool, depth: int | None
) -> Iterator[tuple[str, str, str, tuple[str, str, str], str]]:
    """Yield the lines of the tree: what leads to each, its label and module, the figures, and the verdict."""
    hierarchy = result.hierarchy
    rows = select_rows(hierarchy, all_calls=all_calls)
    calls = {call.id: call for call in result.calls}
    blamed = {culprit.id for culprit in result.culprits}
    parents: dict[CallId, CallId | None] = {}
    waiting: list[tuple[CallId, CallId | None, int]] = [(hierarchy.calls[0].id, None, 0)]
    while waiting:
        line, parent, level = waiting.pop()
        parents[line] = parent
        if depth is None or level < depth:
            # Who is to blame is shown, tag or not.
            more = [c for c in hierarchy.tree.below(line) if c in blamed and c != line and rows.nearest[c] == line]
            below = [*rows.below[line], *(c for c in more if c not in rows.below[line])]
            waiting += [(child, line, level + 1) for child in reversed(below)]
    for line, arm in draw_arms(parents).items():
        call = hierarchy.call_by_id[line]
        label = label_call(call, hierarchy.modules[line.module].class_name)
        seen = calls.get(line)
        verdict = "" if seen is None else "wrong" if line in blamed else _soften(seen)
        yield arm, label, name_module(call), _format_call(seen), verdict


def _soften(call: VerifiedCall) -> str:
    """Return how a call that is not to blame is marked: what is wrong in it is told below it."""
    return "" if call.verdict == "wrong" else call.verdict


def _format_call(call: VerifiedCall | None) -> tuple[str, str, str]:
    if call is None:
        return "-", "-", "-"
    noise = "-" if call.noise is None else f"{call.noise:.1e}"
    return format_error(call.introduced), format_error(call.accumulated), noise


def format_error(deviation: Deviation) -> str:
    """Write an error: as a part of the tensor's size, or what makes it worse than any."""
    if deviation.mismatch:
        return "other shape"
    if deviation.nans or deviation.infs:
        return f"{deviation.nans + deviation.infs:,} not numbers"
    return f"{deviation.relative:.1e}" if deviation.max_abs else "0"


def _render_culprits(result: VerifyResult, top: int | None, colour: bool) -> str:
    blocks = []
    for number, culprit in enumerate(result.culprits[:top], 1):
        head = Text.assemble(
            (f"{number}. {name_call(culprit.id)}", "bold red"), f"  {culprit.class_name}  {culprit.tag}"
        )
        blocks.append(to_text(head, *(f"   {line}" for line in _describe_culprit(culprit)), colour=colour))
    more = len(result.culprits) - len(blocks)
    return join_blocks(*blocks, f"and {count(more, 'more culprit')}" if more else "")


def _describe_culprit(culprit: Culprit) -> Iterator[str]:
    error = culprit.worst
    yield f"introduced {_spell(culprit.introduced)}"
    yield f"accumulated {_spell(culprit.accumulated)}"
    excess = (
        "no rounding explains it" if culprit.excess > 1e6 else f"{culprit.excess:,.1f} times what rounding may make"
    )
    yield f"{excess}; look at '{clean_line(error.tensor)}', sample {error.sample}"
    if error.where:
        yield f"it differs most at [{error.where}]"
    if culprit.cause:
        yield f"most of the introduced error {_CAUSES[culprit.cause]}"
    operators = [f"{name} × {number}" if number > 1 else name for name, number in culprit.operators.items()]
    yield f"{count(len(culprit.nodes), 'node')}: {list_some(operators, _FEW)}"
    names = [f"'{clean_line(node.name or node.output)}'" for node in culprit.nodes if node.op_type != "Constant"]
    yield f"nodes {list_some(names, _FEW)}"
    if culprit.fused_with:
        others = list_some([name_call(call) for call in culprit.fused_with], _FEW)
        yield f"these nodes do work of {others} as well"


def _spell(error: Deviation) -> str:
    if error.is_broken:
        return error.mismatch or f"{error.nans:,} NaN and {error.infs:,} infinite where the reference has numbers"
    snr = "" if error.snr_db is None else f", SNR {error.snr_db:.1f} dB"
    cosine = "" if error.cosine is None else f", cosine {error.cosine:.6f}"
    return f"{error.relative:.2e} of the size, max abs {error.max_abs:.3g}{snr}{cosine}"


def _list_skipped(result: VerifyResult) -> Iterator[str]:
    """Yield why calls with nodes of their own were not compared."""
    calls: dict[str, list[str]] = defaultdict(list)
    for call in result.skipped:
        if call.live:
            calls[call.reason].append(name_call(CallId(call.module, call.call)))
    for reason, named in sorted(calls.items(), key=lambda item: -len(item[1]))[:_MOST_REASONS]:
        yield f"not compared: {list_some(named, _FEW)}: {clean_line(reason)}"


def _describe(result: VerifyResult) -> Text:
    compared = f"{len(result.calls):,} of {count(result.live, 'live call')} compared"
    samples = f" on {count(result.samples, 'sample')}"
    verdict = ("passed", "green") if result.passed else (_describe_failure(result), "red")
    return Text.assemble(verdict, f": {compared}{samples}, against {clean_name(result.reference)}")


def _describe_failure(result: VerifyResult) -> str:
    odd = next((output for output in result.outputs if output.mismatch), None)
    shape = "" if odd is None else f", output '{clean_name(odd.tensor)}': {odd.mismatch}"
    return count(len(result.culprits), "culprit") + shape


# -- Markdown -----------------------------------------------------------------------------------------------


def verification_to_markdown(result: VerifyResult, *, all_calls: bool = False, depth: int | None = None) -> str:
    """Return a report with the culprits and the tree as tables."""
    culprits = [
        (
            name_call(culprit.id),
            culprit.class_name,
            format_error(culprit.introduced),
            f"{culprit.introduced.max_abs:.3g}",
            "-" if culprit.introduced.snr_db is None else f"{culprit.introduced.snr_db:.1f} dB",
            format_error(culprit.accumulated),
            f"{culprit.excess:,.1f}",
        )
        for culprit in result.culprits
    ]
    lines = _list_rows(result, all_calls, depth)
    rows = [(arm + label, module, *figures, verdict) for arm, label, module, figures, verdict in lines]
    skipped = [(name_call(CallId(c.module, c.call)), c.reason) for c in result.skipped if c.live]
    return (
        join_blocks(
            f"# {clean_line(result.file)} against {clean_line(result.reference)}",
            _describe(result).plain,
            make_markdown_table(_CULPRIT_COLUMNS, culprits, _NUMBERS) if culprits else "",
            make_markdown_table((*_COLUMNS[:-1], "verdict"), rows, _NUMBERS),
            make_markdown_table(("not compared", "reason"), skipped) if skipped else "",
        )
        + "\n"
    )
