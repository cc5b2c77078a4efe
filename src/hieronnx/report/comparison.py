"""A comparison as text, JSON and Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from hieronnx.report.clean import clean_name
from hieronnx.report.markdown import escape_markdown, make_markdown_table
from hieronnx.report.text import make_table, to_text
from hieronnx.tools.compare import ChangeGroup, ComparedNode, CompareResult, Kind, NodeChange, ValueChange

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_STYLES = {"added": "green", "removed": "red", "changed": "yellow"}
_KINDS: tuple[Kind, ...] = ("added", "removed", "changed")
_ROLES = ("input", "output", "initializer")
_FEW = 3
_NODE_COLUMNS = ("kind", "operator", "node", "graph", "module", "differences")


# -- text -------------------------------------------------------------------------------------------------


def render_comparison(comparison: CompareResult, *, limit: int | None = None, colour: bool = False) -> str:
    """Render what was added, removed and changed, by module; after `limit` nodes the rest is only counted."""
    parts: list[RenderableType] = [Text(f"--- {clean_name(comparison.a)}\n+++ {clean_name(comparison.b)}", "bold")]
    parts.append(comparison.describe())
    parts += _render_groups(comparison, limit)
    parts += _render_values(comparison, limit)
    for key, kind in comparison.functions.items():
        parts.append(Text(f"{_SIGNS[kind]} function {clean_name(key)}", _STYLES[kind]))
    if comparison.operators:
        parts.append(to_text(_render_operators(comparison), colour=colour))
    parts.append("\n".join(f"note, which does not count: {clean_name(note)}" for note in comparison.notes))
    return "\n\n".join(to_text(part, colour=colour) for part in parts if part)


def _render_groups(comparison: CompareResult, limit: int | None) -> Iterator[Text]:
    left = len(comparison.nodes) if limit is None else limit
    for group in comparison.groups:
        shown = group.changes[: max(left, 0)]
        lines = [_render_node(change) for change in shown]
        if len(shown) < len(group.changes):
            lines.append(Text(f"  … {len(group.changes) - len(shown):,} more", "dim"))
        left -= len(shown)
        yield _join(_render_heading(group), *lines)


def _render_values(comparison: CompareResult, limit: int | None) -> Iterator[Text]:
    for role in _ROLES:
        changes = [change for change in comparison.values if change.role == role]
        # Of initializers that came or went with nodes a few are enough, unless all was asked for.
        several = _FEW if role == "initializer" and limit is not None else limit
        lines = []
        for kind in _KINDS:
            alike = [change for change in changes if change.kind == kind]
            shown = alike[: limit if kind == "changed" else several]
            lines += [_render_value(change) for change in shown]
            if len(shown) < len(alike):
                lines.append(Text(f"  … {len(alike) - len(shown):,} more {kind}", "dim"))
        if changes:
            yield _join(Text(f"{role}s", "bold"), *lines)


def _render_heading(group: ChangeGroup) -> Text:
    what = _summarize(group.changes)
    if group.scope is None:
        return Text(what, "bold")
    return Text.assemble(
        (clean_name(_name_group(group)), "bold cyan"),
        (f": {what}", "bold"),
        (f"  {clean_name(group.tag or '')}", "dim"),
    )


def _name_group(group: ChangeGroup) -> str:
    return "" if group.scope is None else str(group.scope) or "(root)"


def _summarize(changes: Iterable[NodeChange]) -> str:
    """Write what became of what: `MatMul+Add → Gemm`; several alike as `3×Mul`."""
    operators = {kind: Counter(c.node.operator for c in changes if c.kind == kind) for kind in _SIGNS}
    lists = {kind: "+".join(_times(*item) for item in counter.items()) for kind, counter in operators.items()}
    parts = []
    if lists["removed"] and lists["added"]:
        parts.append(f"{lists['removed']} → {lists['added']}")
    else:
        parts += [f"{lists[kind]} {kind}" for kind in ("removed", "added") if lists[kind]]
    parts += [f"{lists['changed']} changed"] if lists["changed"] else []
    return ", ".join(parts)


def _times(operator: str, number: int) -> str:
    return f"{number}×{clean_name(operator)}" if number > 1 else clean_name(operator)


def _render_node(change: NodeChange) -> Text:
    node = change.node
    differences = _tell(change)
    place = f"  in {node.graph}" if node.graph else ""
    line = f"{_SIGNS[change.kind]} {node.operator}  {node.name or node.output}{place}"
    return Text(clean_name(f"{line}  {differences}" if differences else line), _STYLES[change.kind])


def _render_value(change: ValueChange) -> Text:
    name = change.after if change.before in (None, change.after) else change.before
    name = f"{name} ({change.after} there)" if change.after not in (None, name) else name
    place = f"  in {change.graph}" if change.graph else ""
    differences = _tell(change)
    line = f"{_SIGNS[change.kind]} {name}{place}"
    return Text(clean_name(f"{line}  {differences}" if differences else line), _STYLES[change.kind])


def _tell(change: NodeChange | ValueChange) -> str:
    return "; ".join(map(str, change.differences))


def _render_operators(comparison: CompareResult) -> RenderableType:
    table = make_table("operator", *_KINDS, numbers=_KINDS)
    for operator, counts in comparison.operators.items():
        table.add_row(operator, *(f"{counts[kind]:,}" if counts[kind] else "-" for kind in _KINDS))
    return table


def _join(*lines: Text) -> Text:
    return Text("\n").join(lines)


# -- JSON -------------------------------------------------------------------------------------------------


def comparison_to_json(comparison: CompareResult) -> dict[str, Any]:
    """Return a comparison as JSON values."""
    return {
        "a": comparison.a,
        "b": comparison.b,
        "same": comparison.same,
        "compared_names": comparison.compared_names,
        "compared_values": comparison.compared_values,
        "summary": {
            "nodes_in_both": comparison.pairs,
            **{f"nodes_{kind}": comparison.count(kind) for kind in _KINDS},
            "operators": comparison.operators,
        },
        "modules": [
            {
                "module": None if group.scope is None else group.scope.module,
                "call": None if group.scope is None else group.scope.number,
                "tag": group.tag,
                "summary": _summarize(group.changes),
                "nodes": [_node_change_to_json(change) for change in group.changes],
            }
            for group in comparison.groups
        ],
        **{f"{role}s": [_value_to_json(c) for c in comparison.values if c.role == role] for role in _ROLES},
        "functions": comparison.functions,
        "notes": comparison.notes,
    }


def _node_change_to_json(change: NodeChange) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "before": _node_to_json(change.before),
        "after": _node_to_json(change.after),
        "differences": _differences_to_json(change),
    }


def _node_to_json(node: ComparedNode | None) -> dict[str, str] | None:
    if node is None:
        return None
    fields = ("graph", "name", "op_type", "domain", "output")
    return {field: getattr(node, field) for field in fields}


def _value_to_json(change: ValueChange) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "graph": change.graph,
        "before": change.before,
        "after": change.after,
        "differences": _differences_to_json(change),
    }


def _differences_to_json(change: NodeChange | ValueChange) -> list[dict[str, str]]:
    return [{"what": d.what, "name": d.name, "before": d.before, "after": d.after} for d in change.differences]


# -- Markdown ---------------------------------------------------------------------------------------------


def comparison_to_markdown(comparison: CompareResult) -> str:
    """Return a comparison as a Markdown document."""
    blocks = [
        f"# {escape_markdown(comparison.a)} → {escape_markdown(comparison.b)}",
        escape_markdown(comparison.describe()),
    ]
    if comparison.nodes:
        modules = [[_name_group(group), group.tag or "", _summarize(group.changes)] for group in comparison.groups]
        blocks += ["## Modules", make_markdown_table(["module", "tag", "what was done"], modules)]
        counts = [[name, *(str(c[kind]) for kind in _KINDS)] for name, c in comparison.operators.items()]
        blocks += ["## Operators", make_markdown_table(["operator", *_KINDS], counts, _KINDS)]
        blocks += ["## Nodes", make_markdown_table(_NODE_COLUMNS, map(_node_row, comparison.nodes))]
    if comparison.values:
        rows = [[c.role, c.kind, c.before or "", c.after or "", _tell(c)] for c in comparison.values]
        columns = ["role", "kind", "before", "after", "differences"]
        blocks += ["## Inputs, outputs, initializers", make_markdown_table(columns, rows)]
    if comparison.functions:
        rows = [[key, kind] for key, kind in comparison.functions.items()]
        blocks += ["## Functions", make_markdown_table(["function", "kind"], rows)]
    blocks += [f"Note, which does not count: {escape_markdown(note)}." for note in comparison.notes]
    return "\n\n".join(blocks) + "\n"


def _node_row(change: NodeChange) -> list[str]:
    scope = "" if change.scope is None else str(change.scope)
    return [
        change.kind,
        change.node.operator,
        change.node.name or change.node.output,
        change.node.graph,
        scope,
        _tell(change),
    ]
