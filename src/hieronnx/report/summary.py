"""Results of the commands that write, as text: export, annotate, carry, extract, and what they have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from hieronnx.errors import count, list_some
from hieronnx.hierarchy.categories import CATEGORIES
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CONFIDENCE, CallId
from hieronnx.report.checks import render_comparison
from hieronnx.report.names import clean_line, clean_name, name_call
from hieronnx.report.text import format_size, join_blocks, render_table, to_text
from hieronnx.tools.results import WrittenFile, summary_to_dict

if TYPE_CHECKING:
    from hieronnx.tools.annotate import AnnotateResult
    from hieronnx.tools.carry.result import CarryResult, LostCall, RewrittenNodes
    from hieronnx.tools.export import ExportResult
    from hieronnx.tools.extract.result import ExtractResult, PartInput

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
    total = f"{nodes - by_evidence['root']:,} of {count(nodes, 'node')} attributed ({summary['coverage']:.1f} %)"
    rows = []
    for name in CATEGORIES:
        if entry := summary["category_statistics"].get(name):
            mark = Text("under", "bold red") if entry["under"] else Text("ok", "green")
            counts = (f"{entry['total']:,}", f"{entry['attributed']:,}", f"{entry['percent']:.1f}")
            rows.append((name, *counts, f"{entry['threshold']:g}", mark))
    numbers = ("nodes", "attributed", "percent", "threshold")
    categories = render_table(("category", *numbers, ""), rows, numbers=numbers, colour=colour)
    return join_blocks(total, _render_evidence(by_evidence, nodes, colour), categories)


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


# -- export -----------------------------------------------------------------------------------------------


def render_export(result: ExportResult, *, colour: bool = False) -> str:
    """Render what was written: files, inputs and outputs, coverage, and how it compares with torch's own export."""
    topology = ""
    if result.topology is not None and result.topology.same:
        topology = f"topology: what torch.onnx.export writes, {result.topology.pairs:,} nodes"
    elif result.topology is not None:
        topology = render_comparison(result.topology, colour=colour)
    files = render_files(result.files, colour=colour)
    if not result.hierarchy.calls:
        nowhere = "no hierarchy was written: --no-embed and --no-sidecar leave it nowhere to be"
        return join_blocks(files, nowhere, topology)
    model = render_model(result.hierarchy, colour=colour)
    return join_blocks(files, model, render_coverage(result.hierarchy, colour=colour), topology)


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


# -- carry ------------------------------------------------------------------------------------------------


def render_carry(result: CarryResult, *, limit: int = 10, colour: bool = False) -> str:
    """Render what was carried; of long lists the first `limit` rows."""
    after = len(result.hierarchy.nodes)
    covered = f"{100 * result.hierarchy.coverage():.1f} % of them with a module call"
    parts = f"{result.untouched:,} untouched, {result.rewritten:,} rewritten, {result.inserted:,} without a counterpart"
    return join_blocks(
        render_files(result.files, colour=colour),
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


# -- extract ----------------------------------------------------------------------------------------------


def render_extraction(extraction: ExtractResult, *, colour: bool = False) -> str:
    """Render one part: what it is, what goes in and out, what it shares, where it is."""
    shared = [
        (node.name or node.output, node.op_type, Text(", ".join(map(name_call, node.origins)), "cyan"))
        for node in extraction.shared_nodes
    ]
    forward = _name_ends(extraction) if extraction.recorded else None
    return join_blocks(
        _describe_part(extraction),
        render_model(extraction.hierarchy, forward=forward, colour=colour),
        to_text(*_explain_ends(extraction)),
        render_table(("shared node", "operator", "calls that it stands for"), shared, colour=colour),
        render_files(extraction.files, colour=colour),
    )


def _describe_part(extraction: ExtractResult) -> str:
    name = clean_name(str(CallId(extraction.module, extraction.call))) or "the whole model"
    parts = [count(len(extraction.nodes), "node"), count(len(extraction.initializers), "initializer")]
    if extraction.pulled_in_nodes:
        parts.append(f"{len(extraction.pulled_in_nodes):,} of the nodes brought along from outside")
    lines = [to_text(f"{name}  {clean_name(extraction.tag)}"), ", ".join(parts)]
    if extraction.calls > 1:
        module = clean_name(extraction.module)
        lines.append(f"call {extraction.call} of {extraction.calls}: name another as '{module}@n'")
    return "\n".join(lines)


def _name_ends(extraction: ExtractResult) -> dict[tuple[str, str], str]:
    """Say of each input and output what it is to the module's forward."""
    ends = {}
    for item in extraction.inputs:
        ends["inputs", item.name] = f"← {', '.join(item.arguments)}" if item.arguments else "not received"
    for result in extraction.outputs:
        places = ", ".join(place or "returned" for place in result.places)
        ends["outputs", result.name] = f"→ {places}" if places else "not returned"
    return ends


def _explain_ends(extraction: ExtractResult) -> Iterator[str]:
    """Yield what one must know to feed the part and to read what it gives."""
    if not extraction.recorded:
        yield "not recorded: what forward received and returned; inputs and outputs are what enters and leaves nodes"
    form = " in this form" if extraction.lost_arguments else ""
    for item in extraction.undeclared_inputs:
        yield clean_line(f"forward did not receive '{item.name}'{form}: feed {_name_source(item)}")
    for constant in extraction.constant_arguments:
        holder = f"parameter '{constant.parameter}'" if constant.parameter else f"constant '{constant.tensor}'"
        yield clean_line(f"argument '{constant.argument}' is no input: it is the {holder}, which the part has")
    if extraction.lost_arguments:
        yield clean_line(f"no tensor of the file is known to hold argument {_listed(extraction.lost_arguments)}")
    if extraction.fused_with:
        calls = _listed([name_call(call) for call in extraction.fused_with])
        yield clean_line(f"fused with {calls}: nodes of the part do the work of both, and cannot be cut apart")
    unreturned = [result.name for result in extraction.outputs if not result.places]
    if extraction.recorded and unreturned:
        yield clean_line(f"forward did not return {_listed(unreturned)}, but others read it")


def _name_source(item: PartInput) -> str:
    maker = item.producer
    if maker is None:
        return "what is fed to the whole model under that name"
    scope = f"'{maker.scope}'" if str(maker.scope) else "the root"
    return f"what {maker.op_type} '{maker.name or maker.output}' of {scope} gives"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def render_extractions(extractions: Sequence[ExtractResult], *, colour: bool = False) -> str:
    """Render many parts, a line for each."""
    numbers = ("nodes", "inputs", "outputs")
    rows: list[tuple[str | Text, ...]] = []
    for item in extractions:
        counts = [f"{len(items):,}" for items in (item.nodes, item.inputs, item.outputs)]
        rows.append((Text(name_call(CallId(item.module, item.call)), "cyan"), *counts, str(item.model)))
    return render_table(("module", *numbers, "file"), rows, numbers=numbers, colour=colour)
