"""The checks of a sidecar alone: its nodes are the file's, its module table holds together, what it repeats follows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hieronnx.errors import list_some
from hieronnx.files.claims import RESTORE, Claim, Finding, node_place
from hieronnx.files.document import Document, ModelEntry, make_document
from hieronnx.graph.operators import name_operator
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Module, Node
from hieronnx.hierarchy.tags import expect_tags

_SHOWN = 3
"""So many nodes are named in a message."""
_OTHER_FILE = (
    "give the model its own sidecar: move this one away; then 'hieronnx validate --fix' writes one from the metadata "
    "inside, if any, without parameters"
)
_OTHER_OPERATOR = (
    "write it from the metadata inside the model with 'hieronnx validate --fix', or export the model again"
)
_SHARED = f"nothing, if it is another name of a shared module; otherwise {RESTORE}"
_REWRITE = "write it again with 'hieronnx validate --fix'"
_OF_THE_FILE = ("opset", "inputs", "outputs", "dynamic_axes")


def check_belongs(nodes: Sequence[Node], view: View) -> list[Finding]:
    """Check that a sidecar has the nodes of this file: all of them, no other, each once."""
    in_model = Counter(view.node_keys)
    in_sidecar = Counter(node.key for node in nodes)
    missing, extra = list(in_model - in_sidecar), list(in_sidecar - in_model)
    if not missing and not extra:
        return []
    names = [f"not in the sidecar: {node_place(*key)}" for key in missing]
    names += [f"not in the model{' as often' * (key in in_model)}: {node_place(*key)}" for key in extra]
    message = (
        f"it is not of this file: {len(missing):,} of the model's {len(view.nodes):,} nodes are not in it, "
        f"{len(extra):,} of its {len(nodes):,} are not in the model ({list_some(names, _SHOWN, '; ')})"
    )
    return [Finding("sidecar-nodes", "error", "sidecar: $.nodes", message, _OTHER_FILE, tuple(names))]


def check_wiring(model: ModelEntry, wiring: str) -> list[Finding]:
    """Check that a sidecar is of a file that is wired as this one; one before version 1.4 does not say."""
    if model.wiring in (None, wiring):
        return []
    message = "it is not of this file: the nodes of its file read or make other tensors, or are of other operators"
    return [Finding("sidecar-nodes", "error", "sidecar: $.model.wiring", message, _OTHER_FILE)]


def check_operators(nodes: Sequence[Node], view: View) -> Iterator[Finding]:
    """Check that the nodes of a sidecar of this file are of the operators that they are there."""
    in_model = dict(zip(view.node_keys, view.nodes, strict=True))
    for node in nodes:
        operator = name_operator(node.domain, node.op_type)
        overload = in_model[node.key].op.removeprefix(operator)  # which a sidecar does not tell
        if overload and (not overload.startswith(":") or overload.startswith("::")):
            place = f"sidecar: {node_place(*node.key, node.name)}"
            reason = f"it is {operator} there, {in_model[node.key].op} in the model"
            yield Finding("sidecar-nodes", "error", place, reason, _OTHER_OPERATOR)


def check_derived(
    document: Document, hierarchy: Hierarchy, view: View, described: Mapping[str, Any]
) -> Iterator[Finding]:
    """Check a sidecar that is otherwise whole and of this file, which is described as `describe_file` does."""
    expected = make_document(hierarchy, view)
    model = msgspec.to_builtins(document.model)
    wrong = [f"$.model.{key}" for key in _OF_THE_FILE if model[key] != described[key]]
    wrong += [f"$.{key}" for key in ("hierarchy", "summary") if getattr(document, key) != getattr(expected, key)]
    tensors, derived = (
        {(item.graph, item.name): (item.producer, item.consumers) for item in source.tensors}
        for source in (document, expected)
    )
    wrong += ["$.tensors"] * (tensors != derived)
    for key in ("tags", "confidence", "consumers"):
        pairs = ((getattr(a, key), getattr(b, key)) for a, b in zip(document.nodes, expected.nodes, strict=True))
        if any(a != b for a, b in pairs if a is not None):  # files before version 1.3 have no consumers
            wrong.append(f"$.nodes[].{key}")
    tags = _expect_tags(hierarchy)
    for key, derived_tags in (("tag", {p: m.tag for p, m in expected.modules.items()}), ("expected_tag", tags)):
        if any(getattr(entry, key) != derived_tags[path] for path, entry in document.modules.items()):
            wrong.append(f"$.modules[].{key}")
    yield from _check_names(hierarchy.nodes, view)
    for place in wrong:
        message = "it is not what follows from the nodes and the model"
        yield Finding("sidecar-derived", "warning", f"sidecar: {place}", message, _REWRITE)


def _expect_tags(hierarchy: Hierarchy) -> dict[str, str | None]:
    """Return the tags that the module table lets expect; none where it does not have them."""
    containers = {path for path, module in hierarchy.modules.items() if module.expected_tag is None}
    if "" in containers:
        return dict.fromkeys(hierarchy.modules)
    classes = {path: module.qualified_class for path, module in hierarchy.modules.items()}
    return dict.fromkeys(containers) | expect_tags(classes, containers, hierarchy.policy)


def _check_names(nodes: Sequence[Node], view: View) -> Iterator[Finding]:
    """Check that the nodes have the names that they have in the model."""
    in_model = dict(zip(view.node_keys, view.nodes, strict=True))
    pairs = ((node.name, in_model[node.key].name) for node in nodes)
    wrong = [f"'{name}' is '{actual}' in the model" for name, actual in pairs if name != actual]
    if wrong:
        message = f"{len(wrong):,} of {len(nodes):,} names are not those of the nodes in the model: {wrong[0]}"
        yield Finding("sidecar-derived", "warning", "sidecar: $.nodes[].name", message, _REWRITE, tuple(wrong))


def check_module_table(claim: Claim, view: View) -> Iterator[Finding]:
    """Check the children and parameters of each module, and the initializers.

    A shared module is in the table under its first name alone; of what lies below its other names nothing is known.
    """
    vias = {call.via for call in claim.calls}
    repeated = any(call.call for call in claim.calls)  # some exporters record a module's first name alone
    for path, module in claim.modules.items():
        place = f"module '{path}'" if path else "root module"
        for child in module.children:
            if not repeated and not _is_child(claim.modules, module, child, vias):
                message = f"it has a child '{child}', but there is no module '{_join(path, child)}'"
                yield Finding("sidecar-modules", "note", f"sidecar: {place}", message, _SHARED)
        missing = (name for name in module.parameters if not _has_owner(claim.modules, path, name))
        reasons = [f"it has a parameter '{name}', but no module does" for name in missing]
        reasons += _explain_children(claim.modules, module)
        above, _, name = path.rpartition(".")
        parent = claim.modules.get(above) if path else None
        if parent is not None and parent.parameter_count is not None and name not in parent.children:
            reasons.append(f"it is not among the children of the module above it, '{above}'")
        yield from (claim.error("sidecar-modules", place, reason) for reason in reasons)
    yield from _check_initializers(claim, view)
    yield from _check_sizes(claim, view)


def _explain_children(modules: Mapping[str, Module], module: Module) -> Iterator[str]:
    """Say where the class of a child is not that of the module of this name."""
    for name, qualified in module.child_classes.items():
        child = modules.get(_join(module.path, name))
        if child is not None and child.qualified_class != qualified:
            yield f"its child '{name}' is a '{qualified}' there, and '{child.qualified_class}' in the module table"


def _check_sizes(claim: Claim, view: View) -> Iterator[Finding]:
    """Find where a module without children has another number of parameters than the initializers that hold them."""
    types = {view.names[tensor]: view.types[tensor] for tensor in view.constants if not view.tensor_graphs[tensor]}
    unfolded = [item for item in claim.initializers if item.parameter and not item.origins]
    holders = {item.parameter: types.get(item.name) for item in unfolded}
    for path, module in claim.modules.items():
        kinds = [holders.get(_join(path, name)) for name in module.direct_parameters]
        if module.children or not kinds or module.parameter_count is None:
            continue
        sizes = [math.prod(size or 0 for size in kind.shape) for kind in kinds if kind is not None]
        if len(sizes) == len(kinds) and sum(sizes) != module.parameter_count:
            message = f"it has {module.parameter_count:,} parameters, the initializers that hold them {sum(sizes):,}"
            yield claim.error("sidecar-modules", f"module '{path}'", message)


def _check_initializers(claim: Claim, view: View) -> Iterator[Finding]:
    constants = {view.names[tensor] for tensor in view.constants}
    for item in claim.initializers:
        place = f"initializer '{item.name}'"
        if item.name not in constants:
            yield claim.error("sidecar-modules", place, "there is no such initializer in the model")
        # A part of a model may hold parameters of modules outside it; not under the name of one of its own.
        above, _, name = item.name.rpartition(".")
        own = above in claim.modules and name in claim.modules[above].direct_parameters
        if item.parameter and own and _find_owner(claim.modules, "", item.parameter) is None:
            message = f"it holds parameter '{item.parameter}', which no module has"
            yield claim.error("sidecar-modules", place, message)


def _is_child(modules: Mapping[str, Module], module: Module, child: str, vias: set[str]) -> bool:
    """Say whether a child is in the table, or something else has it under this name."""
    path = _join(module.path, child)
    return path in modules or path in vias or any(name.startswith(f"{child}.") for name in module.parameters)


def _has_owner(modules: Mapping[str, Module], path: str, name: str) -> bool:
    owner = _find_owner(modules, path, name)
    return owner is not None and (owner not in modules or name.rpartition(".")[2] in modules[owner].direct_parameters)


def _find_owner(modules: Mapping[str, Module], path: str, name: str) -> str | None:
    """Return the path of the module that a parameter's name leads to, below another one; None if there is none.

    A path that is not in the table is one below a shared module's other name.
    """
    owner, inside = path, name.rpartition(".")[0]
    for step in inside.split(".") if inside else ():
        below = _join(owner, step)
        if below not in modules:
            known = owner in modules and step in modules[owner].children
            return _join(path, inside) if known else None
        owner = below
    return owner


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
