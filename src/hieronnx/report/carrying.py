"""What was carried: nodes before and after, what was made of them, and calls that are gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from hieronnx.hierarchy.records import CONFIDENCE, CallId
from hieronnx.report.clean import clean_name
from hieronnx.report.summary import summary_to_json
from hieronnx.report.text import count, make_table, to_text
from hieronnx.tools.carry import CarryResult, LostCall, RewrittenNodes

_MOST_NAMED = 3


def render_carry(result: CarryResult, *, limit: int = 10, colour: bool = False) -> str:
    """Render what was carried; of long lists the first `limit` rows."""
    blocks = [_describe(result), _render_evidence(result, colour)]
    if result.rewritten_by_call:
        blocks.append(_render_rewritten(result.rewritten_by_call, limit, colour))
    if result.lost:
        blocks.append(_render_lost(result.lost, limit, colour))
    return "\n\n".join(blocks)


def _describe(result: CarryResult) -> str:
    after = len(result.hierarchy.nodes)
    covered = f"{100 * result.hierarchy.coverage():.1f} % of them with a module call"
    parts = f"{result.untouched:,} untouched, {result.rewritten:,} rewritten, {result.inserted:,} without a counterpart"
    return f"{count(result.nodes_before, 'node')} became {after:,}, {covered}: {parts}"


def _render_evidence(result: CarryResult, colour: bool) -> str:
    table = make_table("evidence", "confidence", "nodes", numbers=("nodes",))
    for evidence, nodes in result.by_evidence.items():
        if nodes:
            table.add_row(evidence, CONFIDENCE[evidence], f"{nodes:,}")
    return to_text(table, colour=colour)


def _render_rewritten(groups: Sequence[RewrittenNodes], limit: int, colour: bool) -> str:
    table = make_table("rewritten in", "operator", "nodes", "work of", numbers=("nodes",))
    for item in groups[:limit]:
        table.add_row(Text(_name(item.scope), "cyan"), item.op_type, f"{item.nodes:,}", _list_calls(item))
    return to_text(table, *_more(len(groups) - limit, "group"), colour=colour)


def _list_calls(item: RewrittenNodes) -> str:
    others = [_name(origin) for origin in item.origins]
    more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
    return ", ".join(others[:_MOST_NAMED]) + more


def _render_lost(lost: Sequence[LostCall], limit: int, colour: bool) -> str:
    table = make_table("no nodes left of", "its work")
    for item in lost[:limit]:
        table.add_row(Text(_name(item.call), "cyan"), _describe_fate(item))
    return to_text(table, *_more(len(lost) - limit, "call"), colour=colour)


def _describe_fate(item: LostCall) -> str:
    if not item.folded_into:
        return "done by nobody, or by others under their own names"
    named = ", ".join(map(clean_name, item.folded_into[:_MOST_NAMED]))
    more = f" and {len(item.folded_into) - _MOST_NAMED} more" if len(item.folded_into) > _MOST_NAMED else ""
    return f"folded into {named}{more}"


def _more(left: int, noun: str) -> list[str]:
    return [f"and {count(left, noun)} more"] if left > 0 else []


def _name(call: CallId) -> str:
    return str(call) or "(root)"


def carry_to_json(result: CarryResult) -> dict[str, Any]:
    """Return what was carried as JSON values."""
    return {
        "nodes": {
            "before": result.nodes_before,
            "after": len(result.hierarchy.nodes),
            "untouched": result.untouched,
            "rewritten": result.rewritten,
            "inserted": result.inserted,
        },
        "rewritten": [
            {
                "module": item.scope.module,
                "call": item.scope.number,
                "op_type": item.op_type,
                "nodes": item.nodes,
                "origins": [_call(origin) for origin in item.origins],
            }
            for item in result.rewritten_by_call
        ],
        "lost": [{**_call(item.call), "folded_into": list(item.folded_into)} for item in result.lost],
        "notes": list(result.notes),
        "summary": summary_to_json(result.hierarchy),
    }


def _call(call: CallId) -> dict[str, Any]:
    return {"module": call.module, "call": call.number}
