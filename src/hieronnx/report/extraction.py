"""Extracted parts as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from hieronnx.errors import count, list_some
from hieronnx.hierarchy.records import CallId
from hieronnx.report.names import clean_line, clean_name, name_call
from hieronnx.report.summary import render_files, render_model
from hieronnx.report.text import join_blocks, render_table, to_text

if TYPE_CHECKING:
    from hieronnx.tools.extract.result import ExtractResult, PartInput


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
    names = [clean_name(str(call)) for call in extraction.targets]
    name = list_some(names, 8) or "the whole model"
    parts = [count(len(extraction.nodes), "node"), count(len(extraction.initializers), "initializer")]
    if extraction.pulled_in_nodes:
        parts.append(f"{len(extraction.pulled_in_nodes):,} of the nodes brought along from outside")
    if extraction.between_nodes:
        parts.append(f"{len(extraction.between_nodes):,} of other calls that lie between these")
    lines = [to_text(f"{name}  {clean_name(extraction.tag)}"), ", ".join(parts)]
    if extraction.calls > 1 and len(names) == 1:
        module = clean_name(extraction.module)
        lines.append(f"call @{extraction.call}, of {extraction.calls} from @0: name another as '{module}@n'")
    return "\n".join(lines)


def _name_ends(extraction: ExtractResult) -> dict[tuple[str, str], str]:
    """Say of each input and output what it is to the module's forward."""
    ends = {}
    for item in extraction.inputs:
        unknown = "not known to be received" if extraction.lost_arguments else "not received"
        ends["inputs", item.name] = f"← {', '.join(item.arguments)}" if item.arguments else unknown
    for result in extraction.outputs:
        places = ", ".join(place or "returned" for place in result.places)
        unknown = "not known to be returned" if extraction.lost_outputs else "not returned"
        ends["outputs", result.name] = f"→ {places}" if places else unknown
    return ends


def _explain_ends(extraction: ExtractResult) -> Iterator[str]:
    """Yield what one must know to feed the part and to read what it gives."""
    if not extraction.recorded:
        yield "not recorded: what forward received and returned; inputs and outputs are what enters and leaves nodes"
    received = "is not known to have received" if extraction.lost_arguments else "received no tensor"
    for item in extraction.undeclared_inputs:
        yield clean_line(f"forward {received} '{item.name}': feed {_name_source(item)}")
    for constant in extraction.constant_arguments:
        holder = f"parameter '{constant.parameter}'" if constant.parameter else f"constant '{constant.tensor}'"
        yield clean_line(f"argument '{constant.argument}' is no input: it is the {holder}, which the part has")
    if extraction.lost_arguments:
        yield clean_line(f"no tensor of the file is known to hold argument {_listed(extraction.lost_arguments)}")
    if extraction.lost_outputs:
        places = [place or "returned" for place in extraction.lost_outputs]
        yield clean_line(f"no tensor of the file is known to hold output {_listed(places)} of forward")
    if extraction.fused_with:
        calls = _listed([name_call(call) for call in extraction.fused_with])
        yield clean_line(f"fused with {calls}: nodes of the part do the work of both, and cannot be cut apart")
    unreturned = [result.name for result in extraction.outputs if not result.places]
    if extraction.recorded and unreturned:
        returned = "is not known to have returned" if extraction.lost_outputs else "did not return"
        yield clean_line(f"forward {returned} {_listed(unreturned)}, but it is used outside")


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
