"""A comparison as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from hieronnx.errors import list_some
from hieronnx.report.names import clean_line, clean_name, escape_markdown, make_markdown_table, name_call
from hieronnx.report.text import join_blocks, render_table, to_text

if TYPE_CHECKING:
    from hieronnx.tools.compare.result import ChangeGroup, CompareResult, Kind, NodeChange, ValueChange

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_STYLES = {"added": "green", "removed": "red", "changed": "yellow"}
_KINDS: tuple[Kind, ...] = ("added", "removed", "changed")
_ROLES = ("input", "output", "initializer")
_FEW = 3
_NODE_COLUMNS = ("kind", "operator", "node", "graph", "module", "differences")


def render_comparison(comparison: CompareResult, *, limit: int | None = None, colour: bool = False) -> str:
    """Render what was added, removed and changed, by module; after `limit` nodes the rest is only counted."""
    functions = comparison.functions.items()
    parts: list[RenderableType] = [
        Text(f"--- {clean_name(comparison.a)}\n+++ {clean_name(comparison.b)}", "bold"),
        comparison.describe(),
        *_render_groups(comparison, limit),
        *_render_values(comparison, limit),
        *(Text(f"{_SIGNS[kind]} function {clean_name(key)}", _STYLES[kind]) for key, kind in functions),
    ]
    counts = [
        (operator, *(f"{numbers[kind]:,}" if numbers[kind] else "-" for kind in _KINDS))
        for operator, numbers in comparison.operators.items()
    ]
    return join_blocks(
        *(to_text(part, colour=colour) for part in parts),
        render_table(("operator", *_KINDS), counts, numbers=_KINDS, colour=colour),
        to_text(*(f"note, which does not count: {clean_name(note)}" for note in comparison.notes)),
    )


def _render_groups(comparison: CompareResult, limit: int | None) -> Iterator[Text]:
    left = len(comparison.nodes) if limit is None else limit
    for group in comparison.groups:
        shown = group.changes[: max(left, 0)]
        lines = [
            _render_line(change, f"{change.node.operator}  {change.node.name or change.node.output}", change.node.graph)
            for change in shown
        ]
        if len(shown) < len(group.changes):
            lines.append(Text(f"  … {len(group.changes) - len(shown):,} more", "dim"))
        left -= len(shown)
        what = clean_line(group.summary)
        heading = Text(what, "bold")
        if group.calls:
            call, tag = clean_name(_name_calls(group)), clean_name(group.tag or "")
            heading = Text.assemble((call, "bold cyan"), (f": {what}", "bold"), (f"  {tag}", "dim"))
        yield Text("\n").join([heading, *lines])


def _name_calls(group: ChangeGroup) -> str:
    return list_some([name_call(call) for call in group.calls], _FEW)


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
            yield Text("\n").join([Text(f"{role}s", "bold"), *lines])


def _render_value(change: ValueChange) -> Text:
    name = change.after if change.before in (None, change.after) else change.before
    other = f" ({change.after} there)" if change.after not in (None, name) else ""
    return _render_line(change, f"{name}{other}", change.graph)


def _render_line(change: NodeChange | ValueChange, name: str, graph: str) -> Text:
    parts = [f"{_SIGNS[change.kind]} {name}", f"in {graph}" if graph else "", _tell(change)]
    return Text(clean_name("  ".join(filter(None, parts))), _STYLES[change.kind])


def _tell(change: NodeChange | ValueChange) -> str:
    return "; ".join(map(str, change.differences))


def comparison_to_markdown(comparison: CompareResult) -> str:
    """Return a comparison as a Markdown document."""
    blocks = [
        f"# {escape_markdown(comparison.a)} → {escape_markdown(comparison.b)}",
        escape_markdown(comparison.describe()),
    ]
    if comparison.nodes:
        modules = [[_name_calls(group), group.tag or "", group.summary] for group in comparison.groups]
        blocks += ["## Modules", make_markdown_table(["module", "tag", "what was done"], modules)]
        counts = [[name, *(str(c[kind]) for kind in _KINDS)] for name, c in comparison.operators.items()]
        blocks += ["## Operators", make_markdown_table(["operator", *_KINDS], counts, _KINDS)]
        nodes = [
            [c.kind, c.node.operator, c.node.name or c.node.output, c.node.graph, str(c.scope or ""), _tell(c)]
            for c in comparison.nodes
        ]
        blocks += ["## Nodes", make_markdown_table(_NODE_COLUMNS, nodes)]
    if comparison.values:
        rows = [[c.role, c.kind, c.before or "", c.after or "", _tell(c)] for c in comparison.values]
        columns = ["role", "kind", "before", "after", "differences"]
        blocks += ["## Inputs, outputs, initializers", make_markdown_table(columns, rows)]
    if comparison.functions:
        rows = [[key, kind] for key, kind in comparison.functions.items()]
        blocks += ["## Functions", make_markdown_table(["function", "kind"], rows)]
    blocks += [f"Note, which does not count: {escape_markdown(note)}." for note in comparison.notes]
    return "\n\n".join(blocks) + "\n"
