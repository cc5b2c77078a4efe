"""What became of a call that the file has no node of."""

from __future__ import annotations

from collections.abc import Sequence

from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Module

_MOST_NAMED = 4


def explain_no_nodes(hierarchy: Hierarchy, call: CallId) -> str:
    """Say in one line why there is nothing to extract: folded, passed through, removed, or not known at all."""
    module = hierarchy.modules[call.module]
    name = f"call '{call}' ({module.class_name}) has no nodes in the file"
    if all(node.evidence == "root" for node in hierarchy.nodes):
        return f"{name}: nothing was attributed, all nodes are the root's; export the model anew to attribute them"
    folded = [held.name for held in hierarchy.initializers if _is_of(hierarchy, call, held.origins)]
    if folded:
        return f"{name}: its work was folded into {_listed('initializer', folded)}; extract a call that uses it"
    literals = [node.name or node.output for node in hierarchy.nodes if _is_of(hierarchy, call, node.origins)]
    if literals:
        return (
            f"{name} but {_listed('constant', literals)}: its work was done at export; extract the call that it is in"
        )
    return f"{name}{_guess_fate(hierarchy, module)}; extract the call that it is in"


def _guess_fate(hierarchy: Hierarchy, module: Module) -> str:
    """Say what can have become of a module's work, by its parameters alone."""
    prefix = f"{module.path}." if module.path else ""
    held = [i.name for i in hierarchy.initializers if i.parameter and i.parameter.startswith(prefix)]
    if held:
        return f": others do its work with {_listed('initializer', held)}"
    if module.parameter_count:
        return (
            ", nor its parameters: what it returned was folded into a constant, or cancelled against a neighbour, "
            "or nothing reads it"
        )
    passed = "it passes its input through" if module.parameter_count == 0 else "whether it has parameters is not known"
    return (
        f": {passed}, or what it returned was folded into a constant, or cancelled against a neighbour, "
        "or nothing reads it"
    )


def _is_of(hierarchy: Hierarchy, call: CallId, origins: Sequence[CallId]) -> bool:
    return any(call in hierarchy.tree.ancestors(origin) for origin in origins)


def _listed(noun: str, names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_MOST_NAMED])
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{noun}{'s' * (len(names) > 1)} {shown}{more}"
