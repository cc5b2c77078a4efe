"""What was extracted: the call, its inputs and outputs, and what it shares with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from hieronnx._extraction import Extraction, Hoisted
from hieronnx.hierarchy import CallId, Node
from hieronnx.report._clean import clean_name
from hieronnx.report._text import count, make_table, to_text
from hieronnx.report.summary import render_model

__all__ = ["extraction_to_json", "render_extraction", "render_extractions"]


def render_extraction(extraction: Extraction, *, colour: bool = False) -> str:
    """Render one part: what it is, what goes in and out, what it shares."""
    blocks = [_describe(extraction), render_model(extraction.hierarchy, colour=colour)]
    if extraction.hoisted:
        blocks.append(_render_hoisted(extraction.hoisted, colour))
    if extraction.shared_operations:
        blocks.append(_render_shared(extraction, colour))
    return "\n\n".join(filter(None, blocks))


def _describe(extraction: Extraction) -> str:
    name = clean_name(str(CallId(extraction.module, extraction.call))) or "the whole model"
    parts = [count(len(extraction.operations), "node"), count(len(extraction.initializers), "initializer")]
    if extraction.brought_operations:
        parts.append(f"{len(extraction.brought_operations):,} of the nodes brought along from outside")
    lines = [to_text(f"{name}  {clean_name(extraction.tag)}"), ", ".join(parts)]
    if extraction.calls > 1:
        module = clean_name(extraction.module)
        lines.append(f"call {extraction.call} of {extraction.calls}: name another as '{module}@n'")
    return "\n".join(lines)


def _render_hoisted(hoisted: Sequence[Hoisted], colour: bool) -> str:
    table = make_table("size from outside", "made by", "module")
    for item in hoisted:
        maker = item.producer
        table.add_row(
            item.name,
            "-" if maker is None else f"{maker.op_type} {maker.name or maker.output}",
            Text("" if maker is None else str(maker.scope) or "the root", "cyan"),
        )
    return to_text(table, colour=colour)


def _render_shared(extraction: Extraction, colour: bool) -> str:
    table = make_table("shared node", "operator", "calls that it stands for")
    for node in extraction.shared_operations:
        calls = ", ".join(str(origin) or "the root" for origin in node.origins)
        table.add_row(node.name or node.output, node.op_type, Text(calls, "cyan"))
    return to_text(table, colour=colour)


def render_extractions(extractions: Sequence[Extraction], *, colour: bool = False) -> str:
    """Render many parts, a line for each."""
    table = make_table("module", "nodes", "inputs", "outputs", "file", numbers=("nodes", "inputs", "outputs"))
    for item in extractions:
        numbers = (len(item.operations), len(item.external_inputs), len(item.outputs))
        call = Text(str(CallId(item.module, item.call)) or "(root)", "cyan")
        table.add_row(call, *(f"{number:,}" for number in numbers), Text(str(item.model)))
    return to_text(table, colour=colour)


def extraction_to_json(extraction: Extraction) -> dict[str, Any]:
    """Return one part as JSON values."""
    return {
        "module": extraction.module,
        "call": extraction.call,
        "tag": extraction.tag,
        "calls": extraction.calls,
        "operations": [_name(node) for node in extraction.operations],
        "external_inputs": list(extraction.external_inputs),
        "outputs": list(extraction.outputs),
        "internal_tensors": list(extraction.internal_tensors),
        "boundary_operations": [_name(node) for node in extraction.boundary_operations],
        "shared_operations": [
            {"name": _name(node), "op_type": node.op_type, "calls": [_call(origin) for origin in node.origins]}
            for node in extraction.shared_operations
        ],
        "brought_operations": [_name(node) for node in extraction.brought_operations],
        "initializers": list(extraction.initializers),
        "hoisted": [
            {"name": item.name, "producer": None if item.producer is None else _name(item.producer)}
            for item in extraction.hoisted
        ],
    }


def _name(node: Node) -> str:
    return node.name or node.output


def _call(call: CallId) -> dict[str, Any]:
    return {"module": call.module, "call": call.number}
