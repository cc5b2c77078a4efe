"""A hierarchy as notebooks and terminals show it: a tree of HTML without a script, a tree of rich's; and as tables."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from hieronnx.errors import check_known, require
from hieronnx.hierarchy.records import CallId

if TYPE_CHECKING:
    from rich.tree import Tree

    from hieronnx.hierarchy.hierarchy import Hierarchy

_MOST_CALLS = 1000
_LONGEST = 200
_OPEN = 2
"""So many levels of the HTML tree are open at first."""


def make_html(hierarchy: Hierarchy) -> str:
    """Return the tree of calls, each with its class, name and nodes."""
    shown = {call.id for call in hierarchy.calls[:_MOST_CALLS]}
    parts: list[str] = []
    waiting: list[tuple[CallId, int] | str] = [(call.id, 0) for call in hierarchy.calls[:1]]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            parts.append(item)
            continue
        call, depth = item
        below = [child for child in hierarchy.tree.children[call] if child in shown]
        name, nodes = hierarchy.modules[call.module].class_name, hierarchy.node_counts[call]
        line = f"<b>{escape(write_seen(name))}</b> {escape(write_seen(str(call)))} <i>{nodes:,}</i>"
        if not below:
            parts.append(f"<div style='margin-left:1.2em'>{line}</div>")
            continue
        opened = " open" if depth < _OPEN else ""
        parts.append(f"<details style='margin-left:1.2em'{opened}><summary>{line}</summary>")
        waiting += ["</details>", *((child, depth + 1) for child in reversed(below))]
    left_out = len(hierarchy.calls) - len(shown)
    more = f"<p>{left_out:,} more calls</p>" if left_out else ""
    return f"<div><p>{escape(write_seen(repr(hierarchy)))}</p>{''.join(parts)}{more}</div>"


def make_tree(hierarchy: Hierarchy) -> Tree:
    """Return the tree of calls for a terminal, as rich prints it."""
    from rich.text import Text
    from rich.tree import Tree

    whole = Tree(Text(write_seen(repr(hierarchy))))
    branches: dict[CallId | None, Tree] = {None: whole}
    for call in hierarchy.calls[:_MOST_CALLS]:  # each after the one above it
        name = Text(write_seen(hierarchy.modules[call.id.module].class_name), style="bold")
        name.append(f" {write_seen(str(call.id))}", style="not bold")
        name.append(f" {hierarchy.node_counts[call.id]:,}", style="not bold dim")
        branches[call.id] = branches[call.parent].add(name)
    if len(hierarchy.calls) > _MOST_CALLS:
        whole.add(f"{len(hierarchy.calls) - _MOST_CALLS:,} more calls")
    return whole


def make_frame(hierarchy: Hierarchy, of: str) -> Any:
    """Return a table as a pandas DataFrame: `nodes` or `calls`."""
    require("pandas", "pandas")
    check_known("table", of, ("nodes", "calls"))
    import pandas

    return pandas.DataFrame(_list_nodes(hierarchy) if of == "nodes" else _list_calls(hierarchy))


def _list_nodes(hierarchy: Hierarchy) -> list[dict[str, Any]]:
    return [
        {
            "graph": node.graph,
            "name": node.name,
            "op_type": node.op_type,
            "output": node.output,
            "module": node.scope.module,
            "call": node.scope.number,
            "tag": hierarchy.tag_of(node.scope),
            "evidence": node.evidence,
            "confidence": node.confidence,
            "origins": [str(origin) for origin in node.origins],
        }
        for node in hierarchy.nodes
    ]


def _list_calls(hierarchy: Hierarchy) -> list[dict[str, Any]]:
    counted = hierarchy.has_parameter_counts
    return [
        {
            "module": call.id.module,
            "call": call.id.number,
            "class": hierarchy.modules[call.id.module].qualified_class,
            "tag": call.tag,
            "via": call.via,
            "parent": None if call.parent is None else str(call.parent),
            "nodes": hierarchy.node_counts[call.id],
            "parameters": hierarchy.modules[call.id.module].parameter_count if counted else None,
        }
        for call in hierarchy.calls
    ]


def write_seen(text: str, most: int = _LONGEST) -> str:
    """Return a text as it can be shown: cut where it is too long, with what nobody sees written out."""
    cut = text if len(text) <= most else f"{text[: max(most - 1, 0)]}…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in cut)
