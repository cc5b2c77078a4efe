"""The hierarchy as a tree of calls, with what each call's region holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from hieronnx.errors import count, list_some
from hieronnx.hierarchy.elsewhere import WorkElsewhere, find_work_elsewhere
from hieronnx.hierarchy.hierarchy import Hierarchy, TreeRows, draw_arms, select_rows
from hieronnx.hierarchy.records import Call, CallId, Node
from hieronnx.hierarchy.tags import label_call
from hieronnx.report.names import name_module
from hieronnx.report.text import make_table, to_text
from hieronnx.tools.results import dump_record

_MOST_MARKS = 2


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
        elsewhere: the work of the call that other nodes or initializers hold: fused, shared or folded.
    """

    call: Call
    class_name: str
    parameters: int | None
    own: tuple[Node, ...]
    total: int
    children: tuple[Branch, ...]
    hidden: int
    context: bool
    elsewhere: tuple[WorkElsewhere, ...]

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
    return _grow(rows, own, find_work_elsewhere(hierarchy), hierarchy.calls[0].id, None, depth)


def _grow(
    rows: TreeRows,
    own: Mapping[CallId, list[Node]],
    elsewhere: Mapping[CallId, Sequence[WorkElsewhere]],
    call: CallId,
    level: int | None,
    depth: int | None,
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
        parameters=module.parameter_count if rows.hierarchy.has_parameter_counts else None,
        own=tuple(own[call]),
        total=sum(len(own[line]) for line in region),
        children=() if cut else tuple(_grow(rows, own, elsewhere, child, deeper, depth) for child in below),
        hidden=len(region) - 1 if cut else 0,
        context=level is None,
        elsewhere=tuple(elsewhere.get(call, ())),
    )


# -- rendering --------------------------------------------------------------------------------------------


def render_tree(tree: Branch, *, nodes: bool = False, elsewhere: bool = False, colour: bool = False) -> str:
    """Render a tree as text, a line for each call and, if asked, for each node.

    With `elsewhere` a call whose work other nodes or initializers hold says which.
    """
    columns = ["call", "module", "nodes", "own"]
    columns += ["parameters"] if tree.parameters is not None else []
    lines = list(_list_lines(tree, nodes))
    marked = elsewhere and any(branch.elsewhere for _, branch, _ in lines)
    more = [*(["evidence"] if nodes else []), *(["work elsewhere"] if marked else [])]
    table = make_table(*columns, *more, numbers=("nodes", "own", "parameters"))
    arms = draw_arms({position: parent for position, (parent, _, _) in enumerate(lines)})
    for (_, branch, node), arm in zip(lines, arms.values(), strict=True):
        if node is None:
            mark = Text(list_some(list(map(str, branch.elsewhere)), _MOST_MARKS), "yellow")
            table.add_row(*_make_branch_cells(branch, arm), *([""] if nodes else []), *([mark] if marked else []))
        else:
            blank = [""] * (len(columns) - 2)
            table.add_row(*_make_node_cells(node, branch, arm), *blank, node.evidence)
    shown = [branch for _, branch, node in lines if node is None]
    return to_text(table, "", _describe_tree(tree, shown), colour=colour)


def _list_lines(tree: Branch, nodes: bool) -> Iterator[tuple[int | None, Branch, Node | None]]:
    """Yield each line from top to bottom: the position of the one above it, its branch, and its node if it has one."""
    waiting: list[tuple[int | None, Branch]] = [(None, tree)]
    position = 0
    while waiting:
        parent, branch = waiting.pop()
        listed = branch.own if nodes and not branch.context else ()
        yield parent, branch, None
        yield from ((position, branch, node) for node in listed)
        waiting += [(position, child) for child in reversed(branch.children)]
        position += 1 + len(listed)


def _make_branch_cells(branch: Branch, arm: str) -> Iterator[str | Text]:
    style = "dim" if branch.context else "bold" if branch.call.tagged else ""
    yield Text.assemble((arm, "dim"), (branch.label, style))
    yield Text(name_module(branch.call), "cyan")
    yield f"{branch.total:,}"
    yield f"{len(branch.own):,}" if branch.own else "-"
    if branch.parameters is not None:
        yield f"{branch.parameters:,}"


def _make_node_cells(node: Node, branch: Branch, arm: str) -> tuple[Text, Text]:
    graph = f"  in {node.graph}" if node.graph else ""
    name = Text.assemble((arm, "dim"), (node.op_type, "green"), f"  {node.name or node.output}{graph}")
    return name, Text("" if node.scope == branch.call.id else str(node.scope), "cyan")


def _describe_tree(tree: Branch, shown: Sequence[Branch]) -> str:
    parts = [count(tree.total, "node"), f"{count(len(shown), 'call')} shown"]
    if hidden := sum(branch.hidden for branch in shown):
        parts.append(f"{hidden:,} deeper")
    if tree.parameters is None:
        parts.append("parameters unknown without the sidecar of the export")
    return ", ".join(parts)


# -- JSON -------------------------------------------------------------------------------------------------


def tree_to_json(tree: Branch, *, nodes: bool = False) -> dict[str, Any]:
    """Return a tree as JSON values, `own` as the number of nodes; with the nodes themselves if asked."""
    listed = {"nodes": [dump_record(node) for node in tree.own]} if nodes and not tree.context else {}
    children = [tree_to_json(child, nodes=nodes) for child in tree.children]
    return {**dump_record(tree, {"own", "children"}), "own": len(tree.own), **listed, "children": children}
