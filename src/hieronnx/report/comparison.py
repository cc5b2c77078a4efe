"""A comparison as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
_WEIGHT_COLUMNS = ("weights of", "initializers", "different", "elements", "max abs", "relative")
_NODE_COLUMNS = ("kind", "operator", "node", "graph", "module", "differences")


def render_comparison(
    comparison: CompareResult, *, limit: int | None = None, top: int | None = None, colour: bool = False
) -> str:
    """Render what was added, removed and changed, by module.

    Args:
        comparison: The comparison.
        limit: How many nodes to list; the rest is only counted.
        top: List only so many calls, those with the most changes, and modules, those whose weights differ most.
        colour: Whether to use ANSI colours.
    """
    functions = comparison.functions.items()
    weights = _list_weights(comparison)
    parts: list[RenderableType] = [
        Text(f"--- {clean_name(comparison.a)}\n+++ {clean_name(comparison.b)}", "bold"),
        comparison.describe(),
        *_render_groups(comparison, limit, top),
        *_render_values(comparison, limit),
        *(Text(f"{_SIGNS[kind]} function {clean_name(key)}", _STYLES[kind]) for key, kind in functions),
    ]
    counts = [
        (operator, *(f"{numbers[kind]:,}" if numbers[kind] else "-" for kind in _KINDS))
        for operator, numbers in comparison.operators.items()
    ]
    return join_blocks(
        *(to_text(part, colour=colour) for part in parts),
        render_table(_WEIGHT_COLUMNS, weights[:top], numbers=_WEIGHT_COLUMNS[1:], colour=colour),
        _count_more(weights, top, "module"),
        render_table(("operator", *_KINDS), counts, numbers=_KINDS, colour=colour),
        to_text(*(f"note, which does not count: {clean_name(note)}" for note in comparison.notes)),
    )


def _render_groups(comparison: CompareResult, limit: int | None, top: int | None) -> Iterator[Text | str]:
    left = len(comparison.nodes) if limit is None else limit
    groups = comparison.groups
    if top is not None:
        groups = tuple(sorted(groups, key=lambda group: -len(group.changes))[:top])
    for group in groups:
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
    if more := _count_more(comparison.groups, top, "call"):
        yield more


def _count_more(items: Sequence[object], top: int | None, noun: str) -> str:
    more = 0 if top is None else len(items) - top
    return f"… and {more:,} more {noun}{'s' * (more > 1)}: without --top all are listed" if more > 0 else ""


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


def _list_weights(comparison: CompareResult) -> list[tuple[str, ...]]:
    """Return a row for each module whose weights differ."""
    rows: list[tuple[str, ...]] = []
    for item in comparison.weights:
        numbers = (f"{item.initializers:,}", f"{item.different:,}", f"{item.elements:,}")
        largest = "infinite" if item.max_absolute is None else f"{item.max_absolute:.3g}"
        share = "-" if item.relative is None else f"{100 * item.relative:.3g} %"
        module = "?" if item.module is None else item.module or "(root)"
        rows.append((module, *numbers, largest, share))
    return rows


def _render_line(change: NodeChange | ValueChange, name: str, graph: str) -> Text:
    parts = [f"{_SIGNS[change.kind]} {name}", f"in {graph}" if graph else "", _tell(change)]
    return Text(clean_name("  ".join(filter(None, parts))), _STYLES[change.kind])


def _tell(change: NodeChange | ValueChange) -> str:
    amount = getattr(change, "amount", None)
    # Where it is said by how much contents differ, that they do needs no saying.
    told = [str(item) for item in change.differences if amount is None or item.what != "values"]
    return "; ".join([*told, *([] if amount is None else [str(amount)])])


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
        rows = [[c.role, c.kind, c.before or "", c.after or "", c.module or "", _tell(c)] for c in comparison.values]
        columns = ["role", "kind", "before", "after", "module", "differences"]
        blocks += ["## Inputs, outputs, initializers", make_markdown_table(columns, rows)]
    if comparison.weights:
        blocks += ["## Weights", make_markdown_table(_WEIGHT_COLUMNS, _list_weights(comparison), _WEIGHT_COLUMNS[1:])]
    if comparison.functions:
        rows = [[key, kind] for key, kind in comparison.functions.items()]
        blocks += ["## Functions", make_markdown_table(["function", "kind"], rows)]
    blocks += [f"Note, which does not count: {escape_markdown(note)}." for note in comparison.notes]
    return "\n\n".join(blocks) + "\n"
