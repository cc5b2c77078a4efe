"""What a sidecar's module table and initializers name must exist: in the table, and in the file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from hieronnx.graph.view import View
from hieronnx.hierarchy.records import Module
from hieronnx.tools.validate.claims import Claim
from hieronnx.tools.validate.findings import Finding

_ANEW = "export the model anew, or restore the file"
_SHARED = f"nothing, if it is another name of a shared module; otherwise {_ANEW}"


def check_module_table(claim: Claim, view: View) -> Iterator[Finding]:
    """Check the children and parameters of each module, and the initializers.

    A shared module is in the table under its first name alone; of what lies below its other names nothing is known.
    """
    vias = {call.via for call in claim.calls}
    repeated = any(call.id.number for call in claim.calls)  # some exporters tell a module's first name alone
    for path, module in claim.modules.items():
        place = claim.place(f"module '{path}'" if path else "root module")
        for child in module.children:
            if not repeated and not _is_child(claim.modules, module, child, vias):
                message = f"it has a child '{child}', but there is no module '{_join(path, child)}'"
                yield Finding("sidecar-modules", "note", place, message, _SHARED)
        reasons = [f"it has a parameter '{p}', but no module does" for p in _missing_parameters(claim.modules, module)]
        if _is_orphan(claim.modules, path):
            reasons.append(f"it is not among the children of the module above it, '{_split(path)[0]}'")
        yield from (Finding("sidecar-modules", "error", place, reason, _ANEW) for reason in reasons)
    yield from _check_initializers(claim, view)
    yield from _check_sizes(claim, view)


def _check_sizes(claim: Claim, view: View) -> Iterator[Finding]:
    """Tell where a module without children has another number of parameters than the initializers that hold them."""
    types = {view.names[tensor]: view.types[tensor] for tensor in view.constants if not view.tensor_graphs[tensor]}
    unfolded = [item for item in claim.initializers if item.parameter and not item.origins]
    held = {item.parameter: types.get(item.name) for item in unfolded}
    for path, module in claim.modules.items():
        kinds = [held.get(_join(path, name)) for name in module.direct_parameters]
        if module.children or not kinds or module.parameter_count is None:
            continue
        sizes = [math.prod(size or 0 for size in kind.shape) for kind in kinds if kind is not None]
        if len(sizes) == len(kinds) and sum(sizes) != module.parameter_count:
            message = f"it has {module.parameter_count:,} parameters, the initializers that hold them {sum(sizes):,}"
            yield Finding("sidecar-modules", "error", claim.place(f"module '{path}'"), message, _ANEW)


def _check_initializers(claim: Claim, view: View) -> Iterator[Finding]:
    there = {view.names[tensor] for tensor in view.constants}
    for held in claim.initializers:
        place = claim.place(f"initializer '{held.name}'")
        if held.name not in there:
            yield Finding("sidecar-modules", "error", place, "there is no such initializer in the model", _ANEW)
        # A part of a model may hold parameters of modules outside it; not under the name of one of its own.
        if held.parameter and _find_owner(claim.modules, "", held.parameter) is None and _has(claim.modules, held.name):
            message = f"it holds parameter '{held.parameter}', which no module has"
            yield Finding("sidecar-modules", "error", place, message, _ANEW)


def _is_child(modules: Mapping[str, Module], module: Module, child: str, vias: set[str]) -> bool:
    """Say whether a child is in the table, or something else speaks of it under this name."""
    path = _join(module.path, child)
    return path in modules or path in vias or any(name.startswith(f"{child}.") for name in module.parameters)


def _missing_parameters(modules: Mapping[str, Module], module: Module) -> Iterator[str]:
    for name in module.parameters:
        owner = _find_owner(modules, module.path, name)
        if owner is None or (owner in modules and _split(name)[1] not in modules[owner].direct_parameters):
            yield name


def _has(modules: Mapping[str, Module], parameter: str) -> bool:
    above, name = _split(parameter)
    return above in modules and name in modules[above].direct_parameters


def _find_owner(modules: Mapping[str, Module], path: str, name: str) -> str | None:
    """Return the path of the module that a parameter's name leads to, below another one; None if there is none.

    A path that is not in the table is one below a shared module's other name.
    """
    owner, inside = path, _split(name)[0]
    for step in inside.split(".") if inside else ():
        below = _join(owner, step)
        if below not in modules:
            known = owner in modules and step in modules[owner].children
            return _join(path, inside) if known else None
        owner = below
    return owner


def _is_orphan(modules: Mapping[str, Module], path: str) -> bool:
    """Say whether a module is not among the children of the one above it, where these are known."""
    above, name = _split(path)
    module = modules.get(above) if path else None
    return module is not None and module.parameter_count is not None and name not in module.children


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _split(path: str) -> tuple[str, str]:
    above, _, name = path.rpartition(".")
    return above, name
