"""Select: nodes by module, class, operator or category, in the form in which other tools take them."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hieronnx.errors import InputError, check_known, count, list_some
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import open_model, require_hierarchy
from hieronnx.graph.building import view_model
from hieronnx.graph.view import ModelLike, View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Node
from hieronnx.hierarchy.targets import Targets, parse_selector
from hieronnx.tools.results import Result

_FLOAT = ({"bitwidth": 32, "dtype": "float"},)


@dataclass(frozen=True, slots=True)
class Selection(Result):
    """Nodes that were selected, in the order of the file.

    Attributes:
        model: the model's name.
        patterns: what was asked for; nothing for all nodes.
        operators: the operators that were asked for.
        without: what was left out.
        nodes: the nodes.
        shared: those of them that work for calls that were not selected, too.
        tensors: what the nodes make.
        weights: the initializers that they read.
        repeated: the names of nodes that more than one node of the model has; nothing where nodes have no name.
    """

    _derived: ClassVar[tuple[str, ...]] = ("names",)

    model: str
    patterns: tuple[str, ...]
    operators: tuple[str, ...]
    without: tuple[str, ...]
    nodes: tuple[Node, ...]
    shared: tuple[Node, ...]
    tensors: tuple[str, ...]
    weights: tuple[str, ...]
    repeated: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return tuple(node.name for node in self.nodes)

    def for_tool(self, tool: str) -> Any:
        """Return the selection in the form in which a tool takes it, as lists and mappings; see `render_for`.

        Raises:
            InputError: If there is no such form, or the tool cannot tell the nodes: they have no name of their own.

        Example:
            >>> quantize_static(model, out, reader, **hieronnx.select(model, "head").for_tool("ort"))
        """
        check_known("form", tool, FORMS)
        if tool != "json":
            self._require_names()
        return FORMS[tool](self)

    def render_for(self, tool: str) -> str:
        """Return the selection as the text that a tool reads: JSON, names line by line, or options of a command.

        Raises:
            InputError: As `for_tool`.
        """
        content = self.for_tool(tool)
        if tool == "names":
            return "\n".join(content)
        return shlex.join(content) if tool == "polygraphy" else json.dumps(content, indent=1, ensure_ascii=False)

    def _require_names(self) -> None:
        bad = [node for node in self.nodes if not node.name or node.name in self.repeated]
        if bad:
            raise InputError(
                f"{count(len(bad), 'selected node')} of '{self.model}' cannot be told by name, as other tools do "
                f"(no name, or one that others have): {list_some([node.output for node in bad], 3)}; "
                "name the nodes first, each by a name of its own, or use --for json, which has their outputs"
            )

    def __repr__(self) -> str:
        return f"Selection({count(len(self.nodes), 'node')} of {self.model!r})"


@reads_files
def select(
    model: ModelLike,
    *patterns: str,
    op: str | Sequence[str] = (),
    without: str | Sequence[str] = (),
) -> Selection:
    """Select nodes of a model by module, class, operator or category.

    Args:
        model: The model, with its hierarchy.
        *patterns: What is selected, in the language of all commands: paths, tags, `path@n`, globs over these,
            `class:X`, `op:X`, `category:X`, with `not`, `and`, `or`. Several add up; none is all nodes.
        op: Only nodes of these operators.
        without: What is left out, in the same language.

    Raises:
        HieronnxError: If the model has no hierarchy, or a pattern names nothing.

    Example:
        >>> hieronnx.select("model.onnx", "encoder.layer.*.attention", op="MatMul").names
    """
    operators, left_out = ((given,) if isinstance(given, str) else tuple(given) for given in (op, without))
    opened = open_model(model)
    hierarchy = require_hierarchy(opened.hierarchy, opened.path, opened.model)
    kept = [f"op:{name}" for name in operators]
    nodes, shared = choose_nodes(hierarchy, patterns or ("",), kept, left_out)
    tensors, weights = _list_tensors(view_model(opened.model), nodes)
    names = Counter(node.name for node in hierarchy.nodes)
    return Selection(
        model=opened.name,
        patterns=patterns,
        operators=operators,
        without=left_out,
        nodes=nodes,
        shared=shared,
        tensors=tensors,
        weights=weights,
        repeated=tuple(sorted(name for name, times in names.items() if times > 1 and name)),
    )


def choose_nodes(
    hierarchy: Hierarchy, patterns: Sequence[str], kept: Sequence[str] = (), left_out: Sequence[str] = ()
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Choose the nodes that work for what is selected; return them, and those that work for other calls, too.

    Args:
        hierarchy: Of the model.
        patterns: Selections that add up.
        kept: If there are any, only nodes that one of these selects.
        left_out: What is left out.
    """
    targets = Targets(hierarchy.calls, hierarchy.modules, hierarchy.nodes)

    def make(selections: Sequence[str]) -> Callable[[Node], bool]:
        parts = [targets.make_filter(parse_selector(text), shared=True) for text in selections]
        return lambda node: any(part(node) for part in parts)

    asked, among, outside = make(patterns), make(kept), make(left_out)

    def chosen(node: Node) -> bool:
        return asked(node) and not outside(node) and (not kept or among(node))

    nodes = tuple(node for node in hierarchy.nodes if chosen(node))
    apart = ((node, [replace(node, scope=call, origins=(call,)) for call in node.origins]) for node in nodes)
    return nodes, tuple(node for node, parts in apart if not all(map(chosen, parts)))


def _list_tensors(view: View, nodes: Sequence[Node]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of what nodes make, and of the initializers that they read."""
    keys = {node.key for node in nodes}
    chosen = [node for key, node in zip(view.node_keys, view.nodes, strict=True) if key in keys]
    made = dict.fromkeys(view.names[t] for node in chosen for t in node.makes)
    read = dict.fromkeys(view.names[t] for node in chosen for t in node.reads if t in view.constants)
    return tuple(made), tuple(read)


# -- what other tools take --------------------------------------------------------------------------------


def _for_ort(selection: Selection) -> dict[str, list[str]]:
    # quantize_dynamic makes a MatMul and an Add of every Gemm before it looks at its list.
    gemms = [f"{node.name}_MatMul" for node in selection.nodes if node.op_type == "Gemm"]
    return {"nodes_to_exclude": [*selection.names, *gemms]}


def _for_regexes(selection: Selection) -> dict[str, list[str]]:
    return {"nodes_to_exclude": [f"^{re.escape(name)}$" for name in selection.names]}


def _for_nncf(selection: Selection) -> dict[str, list[str]]:
    # Constants are no nodes to it, and a name that it does not know is an error.
    return {"names": [node.name for node in selection.nodes if node.op_type != "Constant"]}


def _for_encodings(selection: Selection) -> dict[str, dict[str, list[Mapping[str, Any]]]]:
    return {
        "activation_encodings": {name: list(_FLOAT) for name in selection.tensors},
        "param_encodings": {name: list(_FLOAT) for name in selection.weights},
    }


def _for_polygraphy(selection: Selection) -> list[str]:
    layers = [f"{name}:float32" for name in selection.names]
    return ["--layer-precisions", *layers, "--precision-constraints", "obey"]


FORMS: Mapping[str, Callable[[Selection], Any]] = {
    "ort": _for_ort,
    "modelopt": _for_regexes,
    "nncf": _for_nncf,
    "aimet": lambda selection: [*selection.tensors, *selection.weights],
    "qnn": _for_encodings,
    "polygraphy": _for_polygraphy,
    "olive": _for_ort,
    "names": lambda selection: list(selection.names),
    "json": Selection.to_dict,
}
"""What makes a selection into the form that a tool takes."""
