"""What was extracted: the call, its inputs and outputs, and what it shares with others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from hieronnx.hierarchy.records import CallId, Node
from hieronnx.report.clean import clean_line, clean_name
from hieronnx.report.summary import render_model
from hieronnx.report.text import count, make_table, to_text
from hieronnx.tools.extract.result import ExtractResult, PartInput


def render_extraction(extraction: ExtractResult, *, colour: bool = False) -> str:
    """Render one part: what it is, what goes in and out, what it shares."""
    forward = _name_ends(extraction) if extraction.recorded else None
    ends = render_model(extraction.hierarchy, forward=forward, colour=colour)
    blocks = [_describe(extraction), ends, to_text(*_say(extraction))]
    if extraction.shared_nodes:
        blocks.append(_render_shared(extraction, colour))
    return "\n\n".join(filter(None, blocks))


def _describe(extraction: ExtractResult) -> str:
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
    inputs = {
        ("inputs", i.name): f"← {', '.join(i.arguments)}" if i.arguments else "not received" for i in extraction.inputs
    }
    outputs = {("outputs", o.name): _name_places(o.places) for o in extraction.outputs}
    return inputs | outputs


def _name_places(places: Sequence[str]) -> str:
    if not places:
        return "not returned"
    return "→ " + ", ".join(place or "returned" for place in places)


def _say(extraction: ExtractResult) -> Iterator[str]:
    """Yield what one must know to feed the part and to read what it gives."""
    if not extraction.recorded:
        yield "not recorded: what forward received and returned; inputs and outputs are what enters and leaves nodes"
    form = " in this form" if extraction.lost_arguments else ""
    for item in extraction.undeclared_inputs:
        yield clean_line(f"forward did not receive '{item.name}'{form}: feed {_name_source(item)}")
    for held in extraction.constant_arguments:
        holder = f"constant '{held.tensor}'" if held.parameter is None else f"parameter '{held.parameter}'"
        yield clean_line(f"argument '{held.argument}' is no input: it is the {holder}, which the part has")
    if extraction.lost_arguments:
        yield clean_line(f"no tensor of the file is known to hold argument {_listed(extraction.lost_arguments)}")
    if extraction.fused_with:
        calls = _listed([str(call) or "the root" for call in extraction.fused_with])
        yield clean_line(f"fused with {calls}: nodes of the part do the work of both, and cannot be cut apart")
    unreturned = [result.name for result in extraction.outputs if not result.places]
    if extraction.recorded and unreturned:
        yield clean_line(f"forward did not return {_listed(unreturned)}, but others read it")


def _name_source(item: PartInput) -> str:
    maker = item.producer
    if maker is None:
        return "what is fed to the whole model under that name"
    scope = f"'{maker.scope}'" if str(maker.scope) else "the root"
    return f"what {maker.op_type} '{_name(maker)}' of {scope} gives"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _render_shared(extraction: ExtractResult, colour: bool) -> str:
    table = make_table("shared node", "operator", "calls that it stands for")
    for node in extraction.shared_nodes:
        calls = ", ".join(str(origin) or "the root" for origin in node.origins)
        table.add_row(node.name or node.output, node.op_type, Text(calls, "cyan"))
    return to_text(table, colour=colour)


def render_extractions(extractions: Sequence[ExtractResult], *, colour: bool = False) -> str:
    """Render many parts, a line for each."""
    table = make_table("module", "nodes", "inputs", "outputs", "file", numbers=("nodes", "inputs", "outputs"))
    for item in extractions:
        numbers = (len(item.nodes), len(item.input_names), len(item.output_names))
        call = Text(str(CallId(item.module, item.call)) or "(root)", "cyan")
        table.add_row(call, *(f"{number:,}" for number in numbers), Text(str(item.model)))
    return to_text(table, colour=colour)


def extraction_to_json(extraction: ExtractResult) -> dict[str, Any]:
    """Return one part as JSON values."""
    return {
        "module": extraction.module,
        "call": extraction.call,
        "tag": extraction.tag,
        "calls": extraction.calls,
        "nodes": [_name(node) for node in extraction.nodes],
        "input_names": list(extraction.input_names),
        "inputs": [_input(item) for item in extraction.inputs],
        "output_names": list(extraction.output_names),
        "outputs": [{"name": item.name, "places": list(item.places)} for item in extraction.outputs],
        "recorded": extraction.recorded,
        "undeclared_inputs": [_input(item) for item in extraction.undeclared_inputs],
        "constant_arguments": [
            {"argument": held.argument, "tensor": held.tensor, "parameter": held.parameter}
            for held in extraction.constant_arguments
        ],
        "lost_arguments": list(extraction.lost_arguments),
        "internal_tensors": list(extraction.internal_tensors),
        "boundary_nodes": [_name(node) for node in extraction.boundary_nodes],
        "shared_nodes": [
            {"name": _name(node), "op_type": node.op_type, "calls": [_call(origin) for origin in node.origins]}
            for node in extraction.shared_nodes
        ],
        "fused_with": [_call(call) for call in extraction.fused_with],
        "pulled_in_nodes": [_name(node) for node in extraction.pulled_in_nodes],
        "initializers": list(extraction.initializers),
    }


def _input(item: PartInput) -> dict[str, Any]:
    maker = item.producer
    producer = None if maker is None else {"name": _name(maker), "op_type": maker.op_type, **_call(maker.scope)}
    return {"name": item.name, "arguments": list(item.arguments), "producer": producer}


def _name(node: Node) -> str:
    return node.name or node.output


def _call(call: CallId) -> dict[str, Any]:
    return {"module": call.module, "call": call.number}
