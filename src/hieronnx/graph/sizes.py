"""Sizes as exporters write them: the name of an axis, or an expression of names, as `past + sequence`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

Operators: TypeAlias = Mapping[type[ast.operator], Callable[[Any, Any], Any]]
OPERATORS: Operators = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def find_free(axes: Iterable[str]) -> list[str]:
    """Return the names of axes that are no expressions of others, each once."""
    names = list(dict.fromkeys(axes))
    return [name for name in names if evaluate_size(name, {other: 1 for other in names if other != name}) is None]


def evaluate_size(text: str, known: Mapping[str, Any], operators: Operators = OPERATORS) -> Any:
    """Evaluate a size by what is known of axes; None where it is made of anything else."""
    if text in known:
        return known[text]
    try:
        return _evaluate(ast.parse(text, mode="eval").body, known, operators)
    except (SyntaxError, LookupError, TypeError, ArithmeticError, ValueError, RecursionError):
        return None


def _evaluate(node: ast.expr, known: Mapping[str, Any], operators: Operators) -> Any:
    if isinstance(node, ast.BinOp):
        left, right = (_evaluate(operand, known, operators) for operand in (node.left, node.right))
        return operators[type(node.op)](left, right)
    if isinstance(node, ast.Name):
        return known[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _evaluate(node.operand, known, operators) * -1
    raise TypeError(f"'{ast.unparse(node)}' is no size")
