"""The hierarchy as a tree of calls, with what each call's region holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hieronnx.hierarchy.hierarchy import Hierarchy, TreeRows, select_rows
from hieronnx.hierarchy.records import Call, CallId, Node
from hieronnx.hierarchy.tags import label_call
from hieronnx.report.names import name_module
from hieronnx.report.text import count, make_table, to_text
from hieronnx.tools.results import dump_record


@dataclass(frozen=True, slots=True)
class Branch:
    """A call that has a line of its own, and those below it.

    Attributes:
        call: the call.
        class_name: of its module.
        parameters: of its module and those below; None where the file does not tell.
        own: the nodes in its region that lie in the region of no listed call below it.
        total: how many nodes its whole region has.
        children: the listed calls below it.
        hidden: how many calls below it were left out for being too deep.
        context: whether it is shown only as the way to what was asked for.
    """

    call: Call
    class_name: str
    parameters: int | None
    own: tuple[Node, ...]
    total: int
    children: tuple[Branch, ...]
    hidden: int
    context: bool

    @property
    def label(self) -> str:
        """The last segment of the tag; for a call without a tag of its own, what it would look like."""
        return label_call(self.call, self.class_name)


# -- growing ----------------------------------------------------------------------------------------------


def grow_tree(
    hierarchy: Hierarchy, *, pattern: str | None = None, depth: int | None = None, all_calls: bool = False
) -> Branch:
    """Arrange the calls of a hierarchy as a tree.

    Args:
        hierarchy: The hierarchy.
        pattern: A glob over module paths, calls and tags: only what matches, all below it, and the way there.
        depth: How many levels below the root, or below each match, to show.
        all_calls: Whether calls without a tag of their own are listed too.

    Raises:
        InputError: If the pattern matches nothing.
    """
    rows = select_rows(hierarchy, pattern=pattern, all_calls=all_calls)
    own: dict[CallId, list[Node]] = defaultdict(list)
    for node in hierarchy.nodes:
        own[rows.nearest[node.scope]].append(node)
    return _grow(rows, own, hierarchy.calls[0].id, None, depth)


def _grow(
    rows: TreeRows, own: Mapping[CallId, list[Node]], call: CallId, level: int | None, depth: int | None
) -> Branch:
    """Grow the branch of a call; `level` counts from the match above it, and is None above the match."""
    if call in rows.matches:
        level = 0
    below = [child for child in rows.below[call] if level is not None or child in rows.ways]
    cut = level is not None and level == depth
    deeper = None if level is None else level + 1
    region = list(rows.walk(call))
    module = rows.hierarchy.modules[call.module]
    return Branch(
        call=rows.hierarchy.call_by_id[call],
        class_name=module.class_name,
        # Only the sidecar counts parameters; it always describes the file too.
        parameters=module.parameter_count if rows.hierarchy.model else None,
        own=tuple(own[call]),
        total=sum(len(own[line]) for line in region),
        children=() if cut else tuple(_grow(rows, own, child, deeper, depth) for child in below),
        hidden=len(region) - 1 if cut else 0,
        context=level is None,
    )


# -- rendering --------------------------------------------------------------------------------------------


def render_tree(tree: Branch, *, nodes: bool = False, colour: bool = False) -> str:
    """Render a tree as text, a line for each call and, if asked, for each node."""
    known = tree.parameters is not None
    columns = ["call", "module", "nodes", "own"]
    columns += ["parameters"] if known else []
    columns += ["evidence"] if nodes else []
    table = make_table(*columns, numbers=("nodes", "own", "parameters"))
    _add_branch(table, tree, "", "", nodes)
    return to_text(table, "", _describe_tree(tree), colour=colour)


def _add_branch(table: Table, branch: Branch, guide: str, indent: str, nodes: bool) -> None:
    """Add the lines of a branch; `guide` leads to its own, `indent` to those below."""
    style = "dim" if branch.context else "bold" if branch.call.tagged else ""
    call = Text.assemble((guide, "dim"), (branch.label, style))
    own = f"{len(branch.own):,}" if branch.own else "-"
    cells: list[RenderableType] = [
        call,
        Text(name_module(branch.call), "cyan"),
        f"{branch.total:,}",
        own,
    ]
    cells += [f"{branch.parameters:,}"] if branch.parameters is not None else []
    table.add_row(*cells)
    listed = branch.own if nodes and not branch.context else ()
    last = len(listed) + len(branch.children) - 1
    for position, node in enumerate(listed):
        _add_node(table, node, branch, indent + ("└─ " if position == last else "├─ "))
    for position, child in enumerate(branch.children, len(listed)):
        arm, stem = ("└─ ", "   ") if position == last else ("├─ ", "│  ")
        _add_branch(table, child, indent + arm, indent + stem, nodes)


def _add_node(table: Table, node: Node, branch: Branch, guide: str) -> None:
    name = node.name or node.output
    graph = f"  in {node.graph}" if node.graph else ""
    line = Text.assemble((guide, "dim"), (node.op_type, "green"), f"  {name}{graph}")
    scope = "" if node.scope == branch.call.id else str(node.scope)
    blank = [""] * (len(table.columns) - 3)
    table.add_row(line, Text(scope, "cyan"), *blank, node.evidence)


def _describe_tree(tree: Branch) -> str:
    shown, hidden = _count_lines(tree)
    parts = [count(tree.total, "node"), f"{count(shown, 'call')} shown"]
    if hidden:
        parts.append(f"{hidden:,} deeper")
    if tree.parameters is None:
        parts.append("parameters unknown without the sidecar of the export")
    return ", ".join(parts)


def _count_lines(branch: Branch) -> tuple[int, int]:
    """Count the calls that are shown and those left out for being too deep."""
    below = [_count_lines(child) for child in branch.children]
    return 1 + sum(shown for shown, _ in below), branch.hidden + sum(hidden for _, hidden in below)


# -- JSON -------------------------------------------------------------------------------------------------


def tree_to_json(tree: Branch, *, nodes: bool = False) -> dict[str, Any]:
    """Return a tree as JSON values, `own` as the number of nodes; with the nodes themselves if asked."""
    listed = {"nodes": [dump_record(node) for node in tree.own]} if nodes and not tree.context else {}
    children = [tree_to_json(child, nodes=nodes) for child in tree.children]
    return {**dump_record(tree, {"own", "children"}), "own": len(tree.own), **listed, "children": children}
