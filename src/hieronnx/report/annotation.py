"""What annotating found: how far file and model agree, the coverage, contradictions, and what is not in the file."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from hieronnx.errors import MismatchError
from hieronnx.hierarchy.records import CallId
from hieronnx.report.summary import render_coverage, summary_to_json
from hieronnx.report.text import count, make_table, to_text
from hieronnx.tools.annotate import AnnotateResult

_MOST_LISTED = 20
_AGREEMENT = {
    "htp": "of the tensors that the file computes, {:.1%} have values that the model computes too",
    "usage_based": "of the weights that the file holds, the model has {:.1%}",
}
_UNMATCHED = {
    "htp": "of which nothing is in the file",
    "usage_based": "of whose parameters the file has none (unused, folded into others, or of another model)",
}


def render_annotation(annotated: AnnotateResult, *, colour: bool = False) -> str:
    """Render what was found: agreement, coverage, contradictions, and the calls of which nothing is in the file."""
    agreement = _AGREEMENT[annotated.strategy].format(annotated.agreement)
    lines = [f"{annotated.strategy}: {agreement}", *_describe_outputs(annotated)]
    blocks = ["\n".join(lines), render_coverage(annotated.hierarchy, colour=colour)]
    if annotated.contradictions:
        blocks.append(_render_contradictions(annotated, colour))
    if annotated.unmatched:
        blocks.append(_render_unmatched(annotated, colour))
    return "\n\n".join(blocks)


def _describe_outputs(annotated: AnnotateResult) -> list[str]:
    lines = []
    if annotated.outputs is not None:
        lines.append(f"the outputs of file and model are {annotated.outputs:.2%} of their spread apart")
    if annotated.input_sets == 1:
        lines.append(
            "on other inputs than those given they cannot be compared: what is equal on these by chance counts as equal"
        )
    return lines


def _render_contradictions(annotated: AnnotateResult, colour: bool) -> str:
    table = make_table("node", "operator", "the first won")
    for item in annotated.contradictions[:_MOST_LISTED]:
        says = ", ".join(f"{evidence}: {_name(call)}" for evidence, call in item.says)
        table.add_row(item.node.name or item.node.output, item.node.op_type, Text(says))
    total = len(annotated.contradictions)
    heading = f"{count(total, 'node')} of which two kinds of evidence say different things{_rest(total)}:"
    return to_text(heading, table, colour=colour)


def _render_unmatched(annotated: AnnotateResult, colour: bool) -> str:
    table = make_table("call", "class")
    for call in annotated.unmatched[:_MOST_LISTED]:
        table.add_row(Text(_name(call), "cyan"), annotated.hierarchy.modules[call.module].class_name)
    total = len(annotated.unmatched)
    parts = _UNMATCHED[annotated.strategy]
    heading = f"{count(total, 'call')} {parts}{_rest(total)}:"
    return to_text(heading, table, colour=colour)


def _rest(total: int) -> str:
    return f", the first {_MOST_LISTED}" if total > _MOST_LISTED else ""


def _name(call: CallId) -> str:
    return str(call) or "the root"


def annotation_to_json(annotated: AnnotateResult) -> dict[str, Any]:
    """Return what was found as JSON values."""
    return {
        "matched": True,
        "strategy": annotated.strategy,
        "agreement": annotated.agreement,
        "outputs": annotated.outputs,
        "input_sets": annotated.input_sets,
        "summary": summary_to_json(annotated.hierarchy),
        "unmatched": [_call(call) for call in annotated.unmatched],
        "contradictions": [
            {
                "graph": item.node.graph,
                "output": item.node.output,
                "op_type": item.node.op_type,
                "says": [{"evidence": evidence, **_call(call)} for evidence, call in item.says],
            }
            for item in annotated.contradictions
        ],
    }


def mismatch_to_json(error: MismatchError) -> dict[str, Any]:
    """Return why a file is not of a model as JSON values."""
    return {
        "matched": False,
        "agreement": error.agreement,
        "unmatched": [{"module": module, "call": number} for module, number in error.unmatched],
        "message": str(error),
    }


def _call(call: CallId) -> dict[str, Any]:
    return {"module": call.module, "call": call.number}
