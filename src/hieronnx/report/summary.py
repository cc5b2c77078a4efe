"""Results of the commands that write: files, inputs and outputs, coverage, and what export, annotate and carry did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hieronnx.errors import list_some
from hieronnx.hierarchy.categories import CATEGORIES
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CONFIDENCE
from hieronnx.report.comparison import render_comparison
from hieronnx.report.names import clean_name, name_call
from hieronnx.report.text import count, format_size, make_table, to_text
from hieronnx.tools.results import WrittenFile, summary_to_dict

if TYPE_CHECKING:
    from hieronnx.tools.annotate import AnnotateResult
    from hieronnx.tools.carry.result import CarryResult, LostCall, RewrittenNodes
    from hieronnx.tools.export import ExportResult

_MOST_LISTED = 20
_MOST_NAMED = 3
_AGREEMENT = {
    "htp": "of the tensors that the file computes, {:.1%} have values that the model computes too",
    "usage_based": "of the weights that the file holds, the model has {:.1%}",
}
_UNMATCHED = {
    "htp": "of which nothing is in the file",
    "usage_based": "of whose parameters the file has none (unused, folded into others, or of another model)",
}


# -- parts ------------------------------------------------------------------------------------------------


def render_files(files: Sequence[WrittenFile], *, colour: bool = False) -> str:
    """Render where the files are, and how large; nothing where there are none."""
    table = make_table("file", "size", numbers=("size",))
    for file in files:
        table.add_row(Text(str(file.path)), format_size(file.bytes))
    return to_text(table, colour=colour) if files else ""


def render_model(
    hierarchy: Hierarchy, *, forward: Mapping[tuple[str, str], str] | None = None, colour: bool = False
) -> str:
    """Render the inputs and outputs of the file with their types; nothing where the hierarchy does not have them.

    Args:
        hierarchy: Of the file.
        forward: What they are to the module's forward, by kind and name; None where that is nothing to be told.
        colour: Whether to write colours.
    """
    model = hierarchy.model
    if not model:
        return ""
    heading = ", ".join(filter(None, (model["exporter"], f"opset {model['opset'].get('')}")))
    table = make_table(heading, "name", "type", *(["forward"] if forward is not None else []))
    for kind in ("inputs", "outputs"):
        for name, value in model[kind].items():
            sizes = "?" if value["shape"] is None else ", ".join("?" if d is None else str(d) for d in value["shape"])
            role = [] if forward is None else [forward.get((kind, name), "")]
            table.add_row(kind.removesuffix("s"), name, f"{str(value['dtype']).lower()}[{sizes}]", *role)
    return to_text(table, colour=colour)


def render_coverage(hierarchy: Hierarchy, *, colour: bool = False) -> str:
    """Render how many nodes are attributed: in all, by evidence, and by category of operator."""
    summary = summary_to_dict(hierarchy)
    nodes, by_evidence = summary["nodes"], summary["by_evidence"]
    if not nodes:
        return "no nodes to attribute"
    attributed = nodes - by_evidence["root"]
    total = f"{attributed:,} of {count(nodes, 'node')} attributed ({summary['coverage']:.1f} %)"
    evidence = _render_evidence(by_evidence, nodes, colour)
    return "\n\n".join([total, evidence, _render_categories(summary["category_statistics"], colour)])


def _render_evidence(by_evidence: Mapping[str, int], total: int | None, colour: bool) -> str:
    """Render the nodes by evidence, with their share where a total is given."""
    columns = ("nodes", "percent") if total else ("nodes",)
    table = make_table("evidence", "confidence", *columns, numbers=columns)
    for evidence, nodes in by_evidence.items():
        if nodes:
            share = [f"{100 * nodes / total:.1f}"] if total else []
            table.add_row(evidence, CONFIDENCE[evidence], f"{nodes:,}", *share)
    return to_text(table, colour=colour)


def _render_categories(statistics: Mapping[str, Mapping[str, Any]], colour: bool) -> str:
    numbers = ("nodes", "attributed", "percent", "threshold")
    table = make_table("category", *numbers, "", numbers=numbers)
    for name in CATEGORIES:
        if entry := statistics.get(name):
            mark = Text("under", "bold red") if entry["under"] else Text("ok", "green")
            counts = (f"{entry['total']:,}", f"{entry['attributed']:,}", f"{entry['percent']:.1f}")
            table.add_row(name, *counts, f"{entry['threshold']:g}", mark)
    return to_text(table, colour=colour)


def _join(*blocks: str) -> str:
    return "\n\n".join(filter(None, blocks))


# -- export -----------------------------------------------------------------------------------------------


def render_export(result: ExportResult, *, colour: bool = False) -> str:
    """Render what was written: files, inputs and outputs, coverage, and how it compares with torch's own export."""
    files = render_files(result.files, colour=colour)
    topology = _describe_topology(result, colour)
    if not result.hierarchy.calls:
        return _join(files, "no hierarchy was written: --no-embed and --no-sidecar leave it nowhere to be", topology)
    model = render_model(result.hierarchy, colour=colour)
    return _join(files, model, render_coverage(result.hierarchy, colour=colour), topology)


def _describe_topology(result: ExportResult, colour: bool) -> str:
    if result.topology is None:
        return ""
    if result.topology.same:
        return f"topology: what torch.onnx.export writes, {result.topology.pairs:,} nodes"
    return render_comparison(result.topology, colour=colour)


# -- annotate ---------------------------------------------------------------------------------------------


def render_annotation(result: AnnotateResult, *, colour: bool = False) -> str:
    """Render what was found: agreement, coverage, contradictions, and the calls of which nothing is in the file."""
    lines = [f"{result.strategy}: {_AGREEMENT[result.strategy].format(result.agreement)}"]
    if result.outputs is not None:
        lines.append(f"the outputs of file and model are {result.outputs:.2%} of their spread apart")
    if result.input_sets == 1:
        lines.append(
            "on other inputs than those given they cannot be compared: what is equal on these by chance counts as equal"
        )
    return _join(
        render_files(result.files, colour=colour),
        "\n".join(lines),
        render_coverage(result.hierarchy, colour=colour),
        _render_contradictions(result, colour),
        _render_unmatched(result, colour),
    )


def _render_contradictions(result: AnnotateResult, colour: bool) -> str:
    rows = []
    for item in result.contradictions:
        says = ", ".join(f"{evidence}: {name_call(call)}" for evidence, call in item.says)
        rows.append((item.node.name or item.node.output, item.node.op_type, says))
    heading = f"{count(len(rows), 'node')} of which two kinds of evidence say different things"
    return _render_first(heading, ("node", "operator", "the first won"), rows, colour)


def _render_unmatched(result: AnnotateResult, colour: bool) -> str:
    modules = result.hierarchy.modules
    rows = [(Text(name_call(call), "cyan"), modules[call.module].class_name) for call in result.unmatched]
    heading = f"{count(len(rows), 'call')} {_UNMATCHED[result.strategy]}"
    return _render_first(heading, ("call", "class"), rows, colour)


def _render_first(heading: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], colour: bool) -> str:
    """Render the first rows below a heading that counts them all; nothing where there are none."""
    if not rows:
        return ""
    table = make_table(*columns)
    for row in rows[:_MOST_LISTED]:
        table.add_row(*row)
    rest = f", the first {_MOST_LISTED}" if len(rows) > _MOST_LISTED else ""
    return to_text(f"{heading}{rest}:", table, colour=colour)


# -- carry ------------------------------------------------------------------------------------------------


def render_carry(result: CarryResult, *, limit: int = 10, colour: bool = False) -> str:
    """Render what was carried; of long lists the first `limit` rows."""
    after = len(result.hierarchy.nodes)
    covered = f"{100 * result.hierarchy.coverage():.1f} % of them with a module call"
    parts = f"{result.untouched:,} untouched, {result.rewritten:,} rewritten, {result.inserted:,} without a counterpart"
    return _join(
        render_files(result.files, colour=colour),
        f"{count(result.nodes_before, 'node')} became {after:,}, {covered}: {parts}",
        _render_evidence(result.by_evidence, None, colour),
        _render_rewritten(result.rewritten_by_call, limit, colour),
        _render_lost(result.lost, limit, colour),
    )


def _render_rewritten(groups: Sequence[RewrittenNodes], limit: int, colour: bool) -> str:
    table = make_table("rewritten in", "operator", "nodes", "work of", numbers=("nodes",))
    for item in groups[:limit]:
        origins = list_some([name_call(origin) for origin in item.origins], _MOST_NAMED)
        table.add_row(Text(name_call(item.scope), "cyan"), item.op_type, f"{item.nodes:,}", origins)
    return to_text(table, *_more(len(groups) - limit, "group"), colour=colour) if groups else ""


def _render_lost(lost: Sequence[LostCall], limit: int, colour: bool) -> str:
    table = make_table("no nodes left of", "its work")
    for item in lost[:limit]:
        names = list_some([clean_name(name) for name in item.folded_into], _MOST_NAMED)
        fate = f"folded into {names}" if names else "done by nobody, or by others under their own names"
        table.add_row(Text(name_call(item.call), "cyan"), fate)
    return to_text(table, *_more(len(lost) - limit, "call"), colour=colour) if lost else ""


def _more(left: int, noun: str) -> Iterable[str]:
    return [f"and {count(left, noun)} more"] if left > 0 else []
