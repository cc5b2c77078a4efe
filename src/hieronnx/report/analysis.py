"""An analysis as text and as Markdown, the same sections, each a table; and as CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hieronnx.errors import HieronnxError, count, list_some
from hieronnx.hierarchy.hierarchy import draw_arms
from hieronnx.report.names import clean_name, escape_markdown, make_markdown_table, name_call, name_module
from hieronnx.report.summary import list_evidence
from hieronnx.report.text import align_rows, format_size, join_blocks, render_table

if TYPE_CHECKING:
    from hieronnx.tools.analyze.result import AnalysisResult, AnalyzedNode, ModuleLine

# What the lines of modules can be sorted by, and where a line has it.
_MEASURES = {
    "nodes": "total.nodes",
    "parameters": "parameters",
    "bytes": "bytes",
    "multiply-adds": "total.multiply_adds",
}
SORT_KEYS = tuple(_MEASURES)

# A row per call or per operator could be a hundred thousand; JSON and CSV have them all.
_MOST_LINES = 500
_MOST_OPERATORS = 20
_OPERATORS_OF_LINE = 3
_STYLES: Mapping[str, str] = {"under": "bold red", "ok": "green"}
_NODES = ("operator", "node", "category", "tag", "module", "evidence", "confidence", "multiply-adds", "stands for")
_NUMBERS = ("nodes", "own", "percent", "attributed", "threshold", "parameters", "bytes", "multiply-adds", "value")


@dataclass(frozen=True, slots=True)
class _Section:
    """A table with what is said below it."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    below: str = ""
    long: bool = False
    """Whether it may have a row for each node."""


def render_analysis(
    analysis: AnalysisResult,
    *,
    sort: str | None = None,
    depth: int | None = None,
    detailed: bool = False,
    colour: bool = False,
) -> str:
    """Render an analysis as text.

    Args:
        analysis: The analysis.
        sort: One of `SORT_KEYS`: the modules as a flat table in this order; a tree if not given.
        depth: How many levels of modules below the root, or below each match, to show.
        detailed: Whether to list the nodes.
        colour: Whether to use ANSI colours.
    """
    sections = _list_sections(analysis, sort, depth, detailed=detailed, tree=sort is None)
    blocks = [_render_section(section, colour) for section in sections]
    return join_blocks(*blocks, *(f"note: {clean_name(note)}" for note in analysis.notes))


def analysis_to_markdown(
    analysis: AnalysisResult, *, sort: str | None = None, depth: int | None = None, detailed: bool = False
) -> str:
    """Return an analysis as a Markdown document; the options are those of `render_analysis`."""
    blocks = [f"# {escape_markdown(analysis.model)}"]
    for section in _list_sections(analysis, sort, depth, detailed=detailed, tree=False):
        table = make_markdown_table(section.columns, section.rows, _NUMBERS)
        blocks += [f"## {section.title}", table, escape_markdown(section.below)]
    blocks += [escape_markdown(f"note: {clean_name(note)}") for note in analysis.notes]
    return join_blocks(*blocks) + "\n"


def _render_section(section: _Section, colour: bool) -> str:
    if section.long:
        table = align_rows(section.columns, section.rows, numbers=_NUMBERS)
    else:
        rows = [[Text(cell, _STYLES.get(cell, "")) for cell in row] for row in section.rows]
        table = render_table(section.columns, rows, numbers=_NUMBERS, colour=colour)
    return join_blocks(table, section.below)


# -- sections ---------------------------------------------------------------------------------------------


def _list_sections(
    analysis: AnalysisResult, sort: str | None, depth: int | None, *, detailed: bool, tree: bool
) -> Iterator[_Section]:
    yield _Section("Totals", (analysis.model, "value"), list(_list_totals(analysis)))
    if analysis.by_evidence and analysis.nodes:
        yield _make_evidence(analysis)
    if analysis.categories and analysis.hierarchy is None:
        totals = [(share.name, f"{share.total:,}") for share in analysis.categories]
        yield _Section("Categories", ("category", "nodes"), totals)
    elif analysis.categories:
        yield _make_categories(analysis)
    if analysis.nodes:
        operators = [(operator, f"{number:,}") for operator, number in analysis.total.operators.items()]
        more = len(operators) - _MOST_OPERATORS
        below = f"and {count(more, 'operator')} more" if more > 0 else ""
        yield _Section("Operators", ("operator", "nodes"), operators[:_MOST_OPERATORS], below)
    if analysis.modules:
        yield _make_modules(analysis, sort, depth, tree)
    if detailed:
        yield _Section("Nodes", _NODES, [_make_node_row(node) for node in analysis.nodes], long=True)
    if analysis.tensors:
        tensors = [
            (_name_in_graph(tensor.name, tensor.graph), tensor.producer or "", " ".join(tensor.consumers))
            for tensor in analysis.tensors
        ]
        yield _Section("Tensors", ("tensor", "made in", "read in"), tensors, long=True)


def _list_totals(analysis: AnalysisResult) -> Iterator[tuple[str, str]]:
    total = analysis.total
    yield "nodes in the file", f"{analysis.file_nodes:,}"
    if analysis.filters:
        asked = ", ".join(f"{name} {text}" for name, text in analysis.filters.items())
        yield f"nodes counted ({asked})", f"{total.nodes:,}"
    at_least = f" (at least: not known of {count(total.uncounted, 'node')})" if total.uncounted else ""
    yield "multiply-adds" + at_least, f"{total.multiply_adds:,}"
    yield "initializers", f"{analysis.initializers:,}"
    yield "elements in initializers", f"{analysis.elements:,}"
    yield "bytes in initializers", f"{analysis.bytes:,}"
    if analysis.hierarchy is not None:
        parameters = analysis.parameters
        yield "parameters", "unknown without the sidecar of the export" if parameters is None else f"{parameters:,}"
        yield "calls", f"{analysis.calls:,}"


def _make_evidence(analysis: AnalysisResult) -> _Section:
    nodes = len(analysis.nodes)
    attributed = analysis.attributed or 0
    below = f"{attributed:,} of {count(nodes, 'node')} attributed ({100 * attributed / nodes:.1f} %)"
    if analysis.min_confidence not in (None, "low"):
        below += f" with {analysis.min_confidence} confidence at least"
    levels = ", ".join(f"{number:,} {level}" for level, number in analysis.by_confidence.items())
    columns = ("evidence", "confidence", "nodes", "percent")
    return _Section("Evidence", columns, list_evidence(analysis.by_evidence, nodes), f"{below}; confidence: {levels}")


def _make_categories(analysis: AnalysisResult) -> _Section:
    columns = ("category", "nodes", "attributed", "percent", "threshold", "")
    rows = []
    for share in analysis.categories:
        counts = (f"{share.total:,}", f"{share.attributed:,}", f"{share.percent:.1f}", f"{share.threshold:g}")
        rows.append((share.name, *counts, "under" if share.under else "ok"))
    return _Section("Categories", columns, rows)


def _make_modules(analysis: AnalysisResult, sort: str | None, depth: int | None, tree: bool) -> _Section:
    shown = {
        position: line
        for position, line in enumerate(analysis.modules)
        if line.level is None or depth is None or line.level <= depth
    }
    deeper = len(analysis.modules) - len(shown)
    arms = draw_arms({position: line.parent for position, line in shown.items()})
    named = [(arms[i] + line.label if tree else line.call.tag, line) for i, line in shown.items()]
    if sort is not None:
        measure = attrgetter(_MEASURES[sort])
        named = [(label, line) for label, line in named if line.level is not None]
        named.sort(key=lambda item: -(measure(item[1]) or 0))
    known = analysis.parameters is not None
    sizes = ("parameters", "bytes") if known else ()
    columns = ("call", "module", "nodes", "own", *sizes, "multiply-adds", "operators")
    rows = [_make_row(label, line, known) for label, line in named[:_MOST_LINES]]
    hidden = 0 if analysis.filters else (analysis.calls or 0) - len(analysis.modules)
    below = _describe_modules([line for _, line in named], deeper, hidden, known)
    return _Section("Modules", columns, rows, below)


def _make_row(label: str, line: ModuleLine, known: bool) -> tuple[str, ...]:
    sizes = [f"{line.parameters:,}", format_size(line.bytes or 0)] if known else []
    return (
        label,
        name_module(line.call),
        f"{line.total.nodes:,}",
        f"{line.own.nodes:,}" if line.own.nodes else "-",
        *(f"({text})" if line.repeated else text for text in sizes),
        f"{line.total.multiply_adds:,}" + ("+" if line.total.uncounted else ""),
        list_some([f"{operator} {n:,}" for operator, n in line.total.operators.items()], _OPERATORS_OF_LINE),
    )


def _describe_modules(lines: Sequence[ModuleLine], deeper: int, hidden: int, known: bool) -> str:
    parts = [f"{count(min(len(lines), _MOST_LINES), 'call')} shown"]
    if more := max(len(lines) - _MOST_LINES, 0):
        parts.append(f"{more:,} more left out: narrow it down with --module, or take --csv or --json")
    if deeper:
        parts.append(f"{deeper:,} deeper")
    if hidden:
        parts.append(f"{hidden:,} without a tag of their own are counted in these: --all lists them")
    if not known:
        parts.append("parameters unknown without the sidecar of the export")
    if known and any(line.repeated for line in lines):
        parts.append("(…): the parameters of an earlier call's module")
    if any(line.total.uncounted for line in lines):
        parts.append("+: at least, for some nodes' shapes or operators are not known")
    return "; ".join(parts)


def _name_in_graph(name: str, graph: str) -> str:
    return f"{name} in {graph}" if graph else name


def _make_node_row(node: AnalyzedNode) -> tuple[str, ...]:
    known = node.attribution
    attribution = ("", "", "") if known is None else (str(known.scope), known.evidence, known.confidence)
    work = "?" if node.multiply_adds is None else f"{node.multiply_adds:,}"
    several = () if known is None or known.origins == (known.scope,) else known.origins
    name = _name_in_graph(node.name or node.output, node.graph)
    return (node.operator, name, node.category, node.tag or "", *attribution, work, ", ".join(map(name_call, several)))


# -- CSV --------------------------------------------------------------------------------------------------

# Each column, and where a record has it.
_NODE_COLUMNS = {
    **{name: name for name in ("graph", "name", "op_type", "domain", "output", "category", "tag")},
    "module": "attribution.scope.module",
    "call": "attribution.scope.number",
    "evidence": "attribution.evidence",
    "confidence": "attribution.confidence",
    "multiply_adds": "multiply_adds",
}
_LINE_COLUMNS = {
    "tag": "call.tag",
    "class": "class_name",
    "module": "call.id.module",
    "call": "call.id.number",
    "via": "call.via",
    "level": "level",
    "nodes": "total.nodes",
    "own_nodes": "own.nodes",
    "operators": "total.operators",
    **{name: name for name in ("parameters", "parameter_bytes", "other_bytes", "repeated")},
    "multiply_adds": "total.multiply_adds",
    "uncounted_nodes": "total.uncounted",
}
_FILE_COLUMNS = {**_LINE_COLUMNS, "own_nodes": "total.nodes"}
_TENSOR_COLUMNS = {name: name for name in ("graph", "name", "producer", "consumers")}


def analysis_to_csv(analysis: AnalysisResult, *, detailed: bool = False, tensors: bool = False) -> str:
    """Return a row for each module line; for each node or tensor instead, if asked. Unknown values are empty.

    Raises:
        HieronnxError: If nodes and tensors are asked for together.
    """
    if detailed and tensors:
        raise HieronnxError("CSV is one table: ask for the nodes (--detailed) or the tensors (--tensors), not both")
    if tensors:
        return _write_csv(_TENSOR_COLUMNS, analysis.tensors)
    if detailed:
        return _write_csv(_NODE_COLUMNS, analysis.nodes)
    lines = [line for line in analysis.modules if line.level is not None]
    # Without a hierarchy the file as a whole is all there is to tell of.
    return _write_csv(_LINE_COLUMNS, lines) if lines else _write_csv(_FILE_COLUMNS, [analysis])


def _write_csv(columns: Mapping[str, str], records: Iterable[object]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_to_cell(record, path) for path in columns.values()] for record in records)
    return text.getvalue().rstrip("\n")


def _to_cell(record: object, path: str) -> Any:
    value: Any = record
    for name in path.split("."):
        value = getattr(value, name, None)
    if isinstance(value, Mapping):
        value = " ".join(f"{key}={number}" for key, number in value.items())
    elif isinstance(value, tuple):
        value = json.dumps(value)
    return clean_name(value) if isinstance(value, str) else value
