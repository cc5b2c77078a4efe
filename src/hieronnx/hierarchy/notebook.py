"""A hierarchy as a small tree of HTML, for notebooks: it opens and folds without a script."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from hieronnx.hierarchy.records import CallId

if TYPE_CHECKING:
    from hieronnx.hierarchy.hierarchy import Hierarchy

_MOST_CALLS = 1000
_LONGEST = 200


def make_tree(hierarchy: Hierarchy) -> str:
    """Return the tree of calls, each with its class, name and nodes; the first two levels are open."""
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
        line = f"<b>{_write(name)}</b> {_write(str(call))} <i>{nodes:,}</i>"
        if not below:
            parts.append(f"<div style='margin-left:1.2em'>{line}</div>")
            continue
        opened = " open" if depth < 2 else ""
        parts.append(f"<details style='margin-left:1.2em'{opened}><summary>{line}</summary>")
        waiting += ["</details>", *((child, depth + 1) for child in reversed(below))]
    left_out = len(hierarchy.calls) - len(shown)
    more = f"<p>{left_out:,} more calls</p>" if left_out else ""
    return f"<div><p>{_write(repr(hierarchy))}</p>{''.join(parts)}{more}</div>"


def _write(text: str) -> str:
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return escape("".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in cut))
