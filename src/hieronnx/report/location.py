"""The module calls of a node or a tensor as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hieronnx.graph.operators import name_operator
from hieronnx.report.names import clean_line, name_call
from hieronnx.report.text import join_blocks, render_table

if TYPE_CHECKING:
    from hieronnx.tools.locate import LocatedNode, LocateResult

_COLUMNS = ("", "operator", "node", "call", "class", "tag", "evidence", "confidence", "stands for")


def render_location(location: LocateResult, *, colour: bool = False) -> str:
    """Render the nodes that a name leads to, a line for each, and what else it is."""
    roles = [role for role, is_so in (("an input", location.input), ("an output", location.output)) if is_so]
    lines = [f"'{location.name}' is {' and '.join(roles)} of the model"] if roles else []
    for item in location.initializers:
        held = f"parameter '{item.parameter}'" if item.parameter else "no parameter as it is"
        folded = f", with work of {', '.join(map(name_call, item.origins))} folded into it" if item.origins else ""
        lines.append(f"'{item.name}' is an initializer: it holds {held}{folded}")
    rows = [_make_row(item) for item in location.nodes]
    return join_blocks("\n".join(map(clean_line, lines)), render_table(_COLUMNS, rows, colour=colour))


def _make_row(item: LocatedNode) -> tuple[str | Text, ...]:
    node = item.node
    operator = name_operator(node.domain, node.op_type)
    name = f"{node.name or node.output}{f'  in {node.graph}' if node.graph else ''}"
    several = "" if node.origins == (node.scope,) else ", ".join(map(name_call, node.origins))
    call = Text(name_call(node.scope), "cyan")
    return item.role, operator, name, call, item.class_name, item.tag, node.evidence, node.confidence, several
