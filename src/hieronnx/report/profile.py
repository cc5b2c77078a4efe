"""A profile as text, Markdown and CSV: the tree of calls with bars, or tables by time, operator or class."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from io import StringIO
from math import fsum
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hieronnx.errors import count
from hieronnx.hierarchy.hierarchy import TreeRows, draw_arms, select_rows
from hieronnx.hierarchy.tags import label_call
from hieronnx.report.names import clean_name, escape_markdown, make_markdown_table, name_call, name_module
from hieronnx.report.text import format_size, join_blocks, render_table
from hieronnx.tools.analyze.formulas import shorten

if TYPE_CHECKING:
    from hieronnx.hierarchy.records import CallId
    from hieronnx.tools.profile.changes import CallChange, ProfileComparison
    from hieronnx.tools.profile.result import CallTime, ProfileResult, TimeGroup

_BAR = 20
_BLOCKS = " ▏▎▍▌▋▊▉█"
_MOST_LINES = 500
_NUMBERS = frozenset(
    {"time", "±", "own", "share", "kernels", "times", "calls", "multiply-adds", "bytes", "GFLOP/s", "GB/s", "peak"}
    | {"before", "after", "change", "noise", "in the model", "alone", "its surroundings", "value"}
)
_BOUND_STYLES: Mapping[str, str] = {"compute": "green", "memory": "yellow", "overhead": "red"}


@dataclass(frozen=True, slots=True)
class _Section:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: str = ""


@dataclass(frozen=True, slots=True)
class _Line:
    """A call that has a line of its own; its own time is that of the calls without one in it, too."""

    call: CallTime
    own_us: float
    label: str
    parent: int | None
    elsewhere: str


def render_profile(
    result: ProfileResult,
    *,
    top: int | None = None,
    by: str | None = None,
    depth: int | None = None,
    all_calls: bool = False,
    colour: bool = False,
) -> str:
    """Render a profile as text.

    Args:
        result: The profile.
        top: List only so many calls, operators or classes, the slowest first.
        by: `operator` or `class`: these in place of calls.
        depth: How many levels of calls below the root to show.
        all_calls: Whether calls without a tag of their own have a line too.
        colour: Whether to use ANSI colours.
    """
    blocks = [_render_section(section, colour) for section in _list_sections(result, top, by, depth, all_calls, True)]
    return join_blocks(*blocks, *(f"note: {clean_name(note)}" for note in result.notes))


def profile_to_markdown(
    result: ProfileResult,
    *,
    top: int | None = None,
    by: str | None = None,
    depth: int | None = None,
    all_calls: bool = False,
) -> str:
    """Return a profile as a Markdown document; the options are those of `render_profile`."""
    blocks = [f"# {escape_markdown(result.model)}"]
    for section in _list_sections(result, top, by, depth, all_calls, False):
        table = make_markdown_table(section.columns, section.rows, tuple(_NUMBERS))
        blocks += [f"## {section.title}", table, escape_markdown(section.below)]
    blocks += [escape_markdown(f"note: {note}") for note in result.notes]
    return join_blocks(*blocks) + "\n"


def _render_section(section: _Section, colour: bool) -> str:
    rows = [[Text(cell, _BOUND_STYLES.get(cell, "")) for cell in row] for row in section.rows]
    table = render_table(section.columns, rows, numbers=tuple(_NUMBERS), colour=colour)
    return join_blocks(table, section.below)


def _list_sections(
    result: ProfileResult, top: int | None, by: str | None, depth: int | None, all_calls: bool, tree: bool
) -> Iterator[_Section]:
    if by is not None:
        yield _make_groups(by, result.by_operator if by == "operator" else result.by_class, top)
    else:
        yield _make_calls(result, top, depth, all_calls, tree)
    yield _Section("Run", (result.model, "value"), list(_list_totals(result)))
    if result.isolated:
        yield _make_isolated(result)
    if result.comparison is not None:
        yield _make_changes(result.comparison, top)


# -- calls ------------------------------------------------------------------------------------------------


def _make_calls(result: ProfileResult, top: int | None, depth: int | None, all_calls: bool, tree: bool) -> _Section:
    rows = select_rows(result.hierarchy, all_calls=all_calls or top is not None)
    lines = list(_arrange(result, rows, depth))
    tree = tree and top is None
    arms = draw_arms({place: line.parent for place, line in enumerate(lines)}) if tree else {}
    named = [
        (arms.get(place, "") + line.label if tree else name_call(line.call.id), line)
        for place, line in enumerate(lines)
    ]
    if top is not None:
        named = sorted(named, key=lambda item: -item[1].own_us)
    most = top or _MOST_LINES
    measured = result.machine is not None
    marked = any(line.elsewhere for _, line in named[:most])
    times = ("module", "time", "±", "", "share", "own") if tree else ("own", "", "share")
    columns = ("call", *times, "kernels", "multiply-adds")
    limits = ("GFLOP/s", "GB/s", "limit") if measured else ()
    columns = (*columns, *limits, *(("where its work is",) if marked else ()))
    cells = [_make_row(label, line, result, tree, measured, marked) for label, line in named[:most]]
    return _Section("Calls", columns, cells, _describe_calls(result, rows, lines, len(cells)))


def _arrange(result: ProfileResult, rows: TreeRows, depth: int | None) -> Iterator[_Line]:
    """Yield the lines in the order of a tree."""
    times = {call.id: call for call in result.calls}
    own: dict[CallId, list[float]] = defaultdict(list)
    moved: dict[CallId, list[str]] = defaultdict(list)
    for call in result.calls:
        own[rows.nearest[call.id]].append(call.own_us)
        if call.elsewhere:
            name = "" if rows.nearest[call.id] == call.id else f"{call.module.rpartition('.')[2]}: "
            moved[rows.nearest[call.id]].append(name + call.elsewhere)
    waiting: list[tuple[CallId, int | None, int]] = [(result.calls[0].id, None, 0)]
    place = 0
    while waiting:
        call_id, parent, level = waiting.pop()
        label = label_call(result.hierarchy.call_by_id[call_id], times[call_id].class_name)
        yield _Line(times[call_id], fsum(own[call_id]), label, parent, "; ".join(moved[call_id]))
        below = rows.below[call_id] if depth is None or level < depth else []
        waiting += [(child, place, level + 1) for child in reversed(below)]
        place += 1


def _make_row(
    label: str, line: _Line, result: ProfileResult, tree: bool, measured: bool, marked: bool
) -> tuple[str, ...]:
    call = line.call
    module = (name_module(result.hierarchy.call_by_id[call.id]),) if tree else ()
    shown = call.total_us if tree else line.own_us
    share = shown / result.total_us if result.total_us else 0.0
    work, kernels = (call.multiply_adds, call.kernels) if tree else (call.own_multiply_adds, call.own_kernels)
    rates = (call.gflops, call.gbytes_per_second) if tree else (call.own_gflops, call.own_gbytes_per_second)
    limits = (*map(_rate, rates), (call.bound if tree else call.own_bound) or "") if measured else ()
    return (
        label,
        *module,
        format_time(shown),
        *((format_time(call.spread_us),) if tree else ()),
        draw_bar(share),
        f"{100 * share:.1f} %",
        *((format_time(line.own_us) if line.own_us else "-",) if tree else ()),
        f"{kernels:,}",
        shorten(work) if work else "-",
        *limits,
        *((line.elsewhere,) if marked else ()),
    )


def _describe_calls(result: ProfileResult, rows: TreeRows, lines: Sequence[_Line], shown: int) -> str:
    parts = [f"{count(shown, 'call')} shown"]
    if more := len(lines) - shown:
        parts.append(f"{more:,} more left out")
    listed = len(set(rows.nearest.values()))
    if deeper := listed - len(lines):
        parts.append(f"{deeper:,} deeper")
    if hidden := len(result.calls) - listed:
        parts.append(f"{hidden:,} without a tag of their own are counted in these: --all lists them")
    return "; ".join(parts)


def draw_bar(share: float) -> str:
    """Draw a part of a whole as a bar."""
    eighths = round(max(0.0, min(share, 1.0)) * _BAR * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_BLOCKS[rest] if rest else "")


def format_time(us: float) -> str:
    """Write microseconds: `8.5 µs`, `1.25 ms`, `2.10 s`."""
    if abs(us) < 1000:
        return f"{us:.1f} µs"
    return f"{us / 1e3:.2f} ms" if abs(us) < 1e6 else f"{us / 1e6:.2f} s"


def _rate(value: float | None) -> str:
    return "-" if not value else f"{value:.1f}"


# -- groups, totals, changes ------------------------------------------------------------------------------


def _make_groups(by: str, groups: Sequence[TimeGroup], top: int | None) -> _Section:
    members = "calls" if by == "class" else "kernels"
    rows = [
        (
            group.name,
            format_time(group.us),
            draw_bar(group.share),
            f"{100 * group.share:.1f} %",
            *((format_time(group.own_us),) if by == "class" else ()),
            f"{group.members:,}",
            shorten(group.multiply_adds) if group.multiply_adds else "-",
            format_size(group.bytes),
        )
        for group in groups[: top or len(groups)]
    ]
    own = ("own",) if by == "class" else ()
    columns = (by, "time", "", "share", *own, members, "multiply-adds", "bytes")
    more = len(groups) - len(rows)
    return _Section(f"By {by}", columns, rows, f"{more:,} more left out" if more else "")


def _list_totals(result: ProfileResult) -> Iterator[tuple[str, str]]:
    if result.optimization:
        yield "optimization", result.optimization
    if result.providers:
        yield "providers", ", ".join(name.removesuffix("ExecutionProvider") for name in result.providers)
    if result.inputs:
        yield "inputs", ", ".join(f"{name}={kind}" for name, kind in result.inputs.items())
    yield f"kernels, median of {count(result.runs, 'run')}", format_time(result.total_us)
    for kind, us in result.by_kind.items():
        if us and kind != "module":
            yield f"  of these {kind}", format_time(us)
    if shared := [kernel for kernel in result.kernels if kernel.shared]:
        yield f"  of these shared by calls ({count(len(shared), 'kernel')})", format_time(fsum(k.us for k in shared))
    yield "a run from end to end", format_time(result.run_us)
    if result.plain_us is not None:
        yield "  without the profiler", format_time(result.plain_us)
    if result.load_us is not None:
        yield "loading and optimizing", format_time(result.load_us)
    if result.peak_memory is not None:
        yield "most memory in use", format_size(result.peak_memory)
    if result.machine is not None:
        machine = result.machine
        yield "this machine reaches", f"{machine.gflops:.1f} GFLOP/s, {machine.gbytes_per_second:.1f} GB/s"


def _make_isolated(result: ProfileResult) -> _Section:
    rows = []
    for item in result.isolated:
        name = str(item.module) + (f"@{item.call}" if item.call else "") or "(root)"
        if item.alone_us is None or item.context_us is None:
            rows.append((name, format_time(item.in_model_us), "-", "-", "-", item.problem))
        else:
            times = format_time(item.in_model_us), format_time(item.alone_us), format_time(item.alone_spread_us or 0)
            rows.append((name, *times, format_time(item.context_us), ""))
    return _Section("Alone", ("call", "in the model", "alone", "±", "its surroundings", ""), rows)


def _make_changes(comparison: ProfileComparison, top: int | None) -> _Section:
    changed = sorted(comparison.changed, key=lambda change: -abs((change.after_us or 0) - (change.before_us or 0)))
    rows = [_make_change_row(change) for change in changed[: top or _MOST_LINES]]
    whole = f"{format_time(comparison.before_us)} before, {format_time(comparison.after_us)} now"
    alike = len(comparison.changes) - len(changed)
    told = f"{count(len(changed), 'call')} changed by more than noise, {alike:,} did not"
    if not comparison.conclusive:
        told = "too few runs to tell a change from noise; 20 or more of both can (--runs)"
    turns = "runs taken in turns" if comparison.interleaved else "runs of another time: what else ran then is not known"
    below = f"against {comparison.other}: {whole}; {told}; {turns}"
    return _Section("Changes", ("call", "before", "±", "after", "±", "change", "noise"), rows, below)


def _make_change_row(change: CallChange) -> tuple[str, ...]:
    name = (f"{change.module}@{change.call}" if change.call else change.module) or "(root)"
    times = [
        "-" if us is None else format_time(us)
        for us in (change.before_us, change.before_spread_us, change.after_us, change.after_spread_us)
    ]
    percents = ["-" if p is None else f"{p:+.1f} %" for p in (change.percent,)]
    noise = "-" if change.noise_percent is None else f"{change.noise_percent:.1f} %"
    return (name, *times, *percents, noise)


# -- CSV --------------------------------------------------------------------------------------------------

_LISTS = frozenset({"samples_us", "floor_us"})


def profile_to_csv(result: ProfileResult, *, by: str | None = None) -> str:
    """Return the calls of a profile as CSV, or its operators or classes."""
    records: Sequence[Any] = result.calls
    if by is not None:
        records = result.by_operator if by == "operator" else result.by_class
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [field.name for field in fields(records[0]) if field.name not in _LISTS] if records else []
    names += getattr(records[0], "_derived", ()) if records else ()
    writer.writerow(names)
    writer.writerows([_to_cell(getattr(record, name)) for name in names] for record in records)
    return text.getvalue().rstrip("\n")


def _to_cell(value: Any) -> Any:
    if isinstance(value, tuple):
        value = str(value)
    return clean_name(value) if isinstance(value, str) else value
