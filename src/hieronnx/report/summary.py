"""Results of the commands that write, as text: export, annotate, carry, and what they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from hieronnx.errors import count, list_some
from hieronnx.hierarchy.categories import CATEGORIES
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CONFIDENCE, LEVELS
from hieronnx.report.comparison import render_comparison
from hieronnx.report.names import clean_name, name_call
from hieronnx.report.precision import render_precision, render_search
from hieronnx.report.text import format_size, join_blocks, render_table, to_text
from hieronnx.tools.analyze.result import CategoryShare
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


def render_files(files: Sequence[WrittenFile], *, colour: bool = False) -> str:
    """Render where the files are, and how large; nothing where there are none."""
    rows = [(str(file.path), format_size(file.bytes)) for file in files]
    return render_table(("file", "size"), rows, numbers=("size",), colour=colour)


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
    rows = []
    for kind in ("inputs", "outputs"):
        for name, value in model[kind].items():
            sizes = "?" if value["shape"] is None else ", ".join("?" if d is None else str(d) for d in value["shape"])
            role = [] if forward is None else [forward.get((kind, name), "")]
            rows.append([kind.removesuffix("s"), name, f"{str(value['dtype']).lower()}[{sizes}]", *role])
    columns = (heading, "name", "type", *(["forward"] if forward is not None else []))
    return render_table(columns, rows, colour=colour)


def render_coverage(hierarchy: Hierarchy, *, colour: bool = False) -> str:
    """Render how many nodes are attributed: in all, by evidence, and by category of operator."""
    summary = summary_to_dict(hierarchy)
    nodes, by_evidence = summary["nodes"], summary["by_evidence"]
    if not nodes:
        return "no nodes to attribute"
    total = f"{summary['attributed']:,} of {count(nodes, 'node')} attributed ({summary['coverage']:.1f} %)"
    entries = summary["category_statistics"]
    shares = [
        CategoryShare(name, *(entries[name][key] for key in ("total", "attributed", "threshold", "critical")))
        for name in CATEGORIES
        if name in entries
    ]
    evidence = _render_evidence(by_evidence, nodes, colour)
    total += describe_below(summary["min_confidence"], summary["below"])
    return join_blocks(total, evidence, render_categories(shares, colour=colour))


def describe_below(min_confidence: str, below: int) -> str:
    """Say how many nodes are attributed with less confidence than counts; nothing where all that is known does."""
    if min_confidence == LEVELS[-1]:
        return ""
    return f", with {min_confidence} confidence at least ({below:,} more with less)"


def render_categories(shares: Sequence[CategoryShare], *, colour: bool = False) -> str:
    """Render how much of each category of operators is attributed, and whether that is enough."""
    rows = []
    for share in shares:
        mark = Text("under", "bold red") if share.under else Text("ok", "green")
        counts = (f"{share.total:,}", f"{share.attributed:,}", f"{share.percent:.1f}")
        rows.append((share.name, *counts, f"{share.threshold:g}", mark))
    numbers = ("nodes", "attributed", "percent", "threshold")
    return render_table(("category", *numbers, ""), rows, numbers=numbers, colour=colour)


def _render_evidence(by_evidence: Mapping[str, int], total: int | None, colour: bool) -> str:
    """Render the nodes by evidence, with their share where a total is given."""
    columns = ("nodes", "percent") if total else ("nodes",)
    rows = list_evidence(by_evidence, total)
    return render_table(("evidence", "confidence", *columns), rows, numbers=columns, colour=colour)


def list_evidence(by_evidence: Mapping[str, int], total: int | None) -> list[Sequence[str]]:
    """List each evidence that nodes have: its confidence, how many, and their share where a total is given."""
    return [
        (evidence, CONFIDENCE[evidence], f"{nodes:,}", *([f"{100 * nodes / total:.1f}"] if total else []))
        for evidence, nodes in by_evidence.items()
        if nodes
    ]


def render_export(result: ExportResult, *, colour: bool = False) -> str:
    """Render what was written: files, inputs and outputs, coverage, and how it compares with torch's own export."""
    inputs = _render_inputs(result)
    topology = ""
    if result.topology is not None and result.topology.same:
        topology = f"topology: what torch.onnx.export writes, {result.topology.pairs:,} nodes"
    elif result.topology is not None:
        topology = render_comparison(result.topology, colour=colour)
    files = render_files(result.files, colour=colour)
    if not result.hierarchy.calls:
        nowhere = "no hierarchy was written: --no-embed and --no-sidecar leave it nowhere to be"
        return join_blocks(files, nowhere, inputs, topology)
    model = render_model(result.hierarchy, colour=colour)
    return join_blocks(files, model, inputs, render_coverage(result.hierarchy, colour=colour), topology)


def _render_inputs(result: ExportResult) -> str:
    """Render which inputs were made up, which of their axes are fixed, and whether the others are dynamic."""
    lines = []
    for source in dict.fromkeys(result.made_up.values()):
        names = list_some(
            [clean_name(name) for name, origin in result.made_up.items() if origin == source], _MOST_LISTED
        )
        lines.append(f"inputs made up from the model's {source}: {names}; --input gives others")
    fixed = [
        f"{clean_name(name)}[{', '.join(f'{axis}: {size}' for axis, size in axes.items())}]"
        for name, axes in result.fixed_axes.items()
    ]
    if fixed:
        lines.append(
            f"axes with one size only, the example's: {list_some(fixed, _MOST_LISTED)}; --dynamic changes that"
        )
    if result.problem is not None:
        lines.append(f"example inputs: the file is wrong: {result.problem}")
    if result.axes is not None and result.axes.passed:
        sizes = ", ".join(f"{label} {size}" for label, size in result.axes.sizes.items())
        lines.append(f"dynamic axes: file and model do the same at {sizes}")
    elif result.axes is not None:
        lines.append(f"dynamic axes: {result.axes.problem or f'not checked ({result.axes.not_checked})'}")
    return "\n".join(lines)


def render_annotation(result: AnnotateResult, *, colour: bool = False) -> str:
    """Render what was found: agreement, coverage, contradictions, and the calls of which nothing is in the file."""
    lines = [f"{result.strategy}: {_AGREEMENT[result.strategy].format(result.agreement)}"]
    if result.outputs is not None:
        lines.append(f"the outputs of file and model are {result.outputs:.2%} of their spread apart")
    if result.input_sets == 1:
        lines.append(
            "on other inputs than those given they cannot be compared: what is equal on these by chance counts as equal"
        )
    nodes = [
        (
            item.node.name or item.node.output,
            item.node.op_type,
            ", ".join(f"{evidence}: {name_call(call)}" for evidence, call in item.says),
        )
        for item in result.contradictions
    ]
    modules = result.hierarchy.modules
    calls = [(Text(name_call(call), "cyan"), modules[call.module].class_name) for call in result.unmatched]
    contradicted = f"{count(len(nodes), 'node')} of which two kinds of evidence say different things"
    unmatched = f"{count(len(calls), 'call')} {_UNMATCHED[result.strategy]}"
    return join_blocks(
        render_files(result.files, colour=colour),
        "\n".join(lines),
        render_coverage(result.hierarchy, colour=colour),
        _render_first(contradicted, ("node", "operator", "the first won"), nodes, colour),
        _render_first(unmatched, ("call", "class"), calls, colour),
    )


def _render_first(heading: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]], colour: bool) -> str:
    """Render the first rows below a heading that counts them all; nothing where there are none."""
    rest = f", the first {_MOST_LISTED}" if len(rows) > _MOST_LISTED else ""
    table = render_table(columns, rows[:_MOST_LISTED], colour=colour)
    return f"{to_text(f'{heading}{rest}:')}\n{table}" if rows else ""


def render_carry(result: CarryResult, *, limit: int = 10, depth: int = 1, colour: bool = False) -> str:
    """Render what was carried; of long lists the first `limit` rows, of what was quantized so many levels of calls."""
    precision = ""
    if result.precision is not None:
        precision = render_precision(result.precision, result.hierarchy, depth=depth, limit=limit, colour=colour)
    after = len(result.hierarchy.nodes)
    below = describe_below(result.hierarchy.min_confidence, len(result.hierarchy.list_below()))
    covered = f"{100 * result.hierarchy.coverage():.1f} % of them with a module call{below}"
    parts = f"{result.untouched:,} untouched, {result.rewritten:,} rewritten, {result.inserted:,} without a counterpart"
    return join_blocks(
        "" if result.search is None else render_search(result.search, colour=colour),
        render_files(result.files, colour=colour),
        precision,
        f"{count(result.nodes_before, 'node')} became {after:,}, {covered}: {parts}",
        _render_evidence(result.by_evidence, None, colour),
        _render_rewritten(result.rewritten_by_call, limit, colour),
        _render_lost(result.lost, limit, colour),
    )


def _render_rewritten(groups: Sequence[RewrittenNodes], limit: int, colour: bool) -> str:
    rows = []
    for item in groups[:limit]:
        origins = list_some([name_call(origin) for origin in item.origins], _MOST_NAMED)
        rows.append((Text(name_call(item.scope), "cyan"), item.op_type, f"{item.nodes:,}", origins))
    columns = ("rewritten in", "operator", "nodes", "work of")
    return render_table(columns, rows, numbers=("nodes",), colour=colour) + _more(len(groups) - limit, "group")


def _render_lost(lost: Sequence[LostCall], limit: int, colour: bool) -> str:
    rows = []
    for item in lost[:limit]:
        names = list_some([clean_name(name) for name in item.folded_into], _MOST_NAMED)
        fate = f"folded into {names}" if names else "done by nobody, or by others under their own names"
        rows.append((Text(name_call(item.call), "cyan"), fate))
    return render_table(("no nodes left of", "its work"), rows, colour=colour) + _more(len(lost) - limit, "call")


def _more(left: int, noun: str) -> str:
    return f"\nand {count(left, noun)} more" if left > 0 else ""
