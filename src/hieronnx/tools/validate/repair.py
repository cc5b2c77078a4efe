"""Repairing a hierarchy (`validate --fix`): one form from the other; nothing is guessed, the graph is not touched."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from hieronnx.errors import InputError, check_known
from hieronnx.files.claims import Claim
from hieronnx.files.opening import require_file, sidecar_path
from hieronnx.files.wire import read_skeleton
from hieronnx.files.writing import write
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.tools.validate.forms import Form, compare_claims, read_embedded_form, read_graph, read_sidecar_form

FORMS = ("sidecar", "embedded")
"""What can be trusted: the file beside the model, or the metadata inside it."""


def repair(path: str | os.PathLike[str], *, trust: str | None = None) -> tuple[str, ...]:
    """Write what is missing or stale of a file's hierarchy from what is there; return what was written.

    A form of another version of hieronnx is left as it is.

    Args:
        path: The ONNX file.
        trust: The form to take for true where both disagree, one of `FORMS`.

    Raises:
        HieronnxError: If the file cannot be read, the form to trust is not whole, none is named and both disagree, or
            something would be lost. Then nothing is written.
    """
    if trust is not None:
        check_known("form of a hierarchy", trust, FORMS)
    model_path = require_file(Path(path))
    skeleton = read_skeleton(model_path)
    model, view = read_graph(skeleton, str(model_path))
    sidecar, embedded = read_sidecar_form(model_path, view, skeleton), read_embedded_form(model)
    trusted = _choose_source(model_path, sidecar, embedded, trust)
    if trusted is None or trusted.hierarchy is None:
        return ()
    beside = sidecar is not trusted or trusted.is_stale
    current = embedded is not None and embedded.is_whole and not embedded.is_stale and _agree(trusted, embedded)
    inside = trusted.is_stale if embedded is trusted else not current
    if inside and embedded is not None:
        _make_sure_no_key_is_lost(model_path, embedded)
    in_view = dict(zip(view.node_keys, view.nodes, strict=True))
    nodes = tuple(replace(node, name=in_view[node.key].name) for node in trusted.hierarchy.nodes)
    hierarchy = replace(trusted.hierarchy, nodes=nodes)
    written: list[str] = []
    if beside and not (sidecar and sidecar.is_of_another_version):
        written.append(_write_sidecar(model_path, hierarchy, sidecar, view, own=sidecar is trusted))
    if inside and not (embedded and embedded.is_of_another_version):
        write(model_path, hierarchy, model_path, embed=True, sidecar=None)
        origin = "its own nodes" if trusted is embedded else "the sidecar"
        written.append(f"wrote the metadata in {model_path.name} from {origin}; the graph is as it was")
    return tuple(written)


def _choose_source(path: Path, sidecar: Form | None, embedded: Form | None, trust: str | None) -> Form | None:
    """Choose the form to write from; None if there is none."""
    forms = dict(zip(FORMS, (sidecar, embedded), strict=True))
    whole = {name: form for name, form in forms.items() if form is not None and form.is_whole}
    if trust is not None and trust not in whole:
        raise InputError(
            f"--fix-from {trust}: that form of the hierarchy of '{path}' is missing or not whole itself; "
            "'hieronnx validate' without --fix says what is wrong with it"
        )
    agreeing = len(whole) == len(FORMS) and _agree(sidecar, embedded)
    if trust is not None and not agreeing:
        return whole[trust]
    if whole and not agreeing and _contradict(sidecar, embedded):
        options = " or ".join(f"--fix-from {name}" for name in whole)
        raise InputError(
            f"the sidecar and the metadata in '{path}' disagree, and either may be right; "
            f"name the one to trust with {options}"
        )
    return next(iter(whole.values()), None)


def _agree(sidecar: Form | None, embedded: Form | None) -> bool:
    return bool(
        sidecar and embedded and sidecar.claim and embedded.claim and not compare_claims(sidecar.claim, embedded.claim)
    )


def _contradict(sidecar: Form | None, embedded: Form | None) -> bool:
    """Say whether both forms know what they say, of one file, and say different things."""
    if sidecar is None or embedded is None or not sidecar.belongs:
        return False
    if sidecar.is_whole and embedded.is_whole:
        return not _agree(sidecar, embedded)
    nodes = (form.hierarchy.nodes if form.hierarchy is not None else () for form in (sidecar, embedded))
    beside, inside = ({n.key: (n.scope, n.origins, n.evidence) for n in ns if n.evidence != "root"} for ns in nodes)
    return any(beside[key] != inside[key] for key in beside.keys() & inside.keys())


def _write_sidecar(path: Path, hierarchy: Hierarchy, sidecar: Form | None, view: View, *, own: bool) -> str:
    """Write a sidecar: calls and nodes of the hierarchy, and what only a sidecar says from the one that is there."""
    target = sidecar_path(path)
    if sidecar is not None:
        if sidecar.claim is None or not sidecar.belongs:
            state = "cannot be read" if sidecar.claim is None else "is of another file"
            raise InputError(
                f"'{target}' {state}, and --fix would overwrite it; move it away and run this again: "
                "what the metadata inside the model knows is written then, without parameters"
            )
        _make_sure_no_key_is_lost(target, sidecar)
        hierarchy = _complete(target, hierarchy, sidecar.claim)
    write(path, hierarchy, path, embed=None, view=view)
    if sidecar is None:
        return f"wrote {target.name} from the metadata inside the model; parameters stay unknown"
    origin = "its own nodes" if own else "the metadata inside the model; parameters are as they were"
    return f"wrote {target.name} from {origin}"


def _make_sure_no_key_is_lost(path: Path, form: Form) -> None:
    if form.unknown_keys:
        raise InputError(
            f"'{path}' has keys that this version does not know ({', '.join(form.unknown_keys)}), and --fix would "
            "lose them; use a newer hieronnx if a newer one wrote the file, otherwise take them out"
        )


def _complete(target: Path, hierarchy: Hierarchy, claim: Claim) -> Hierarchy:
    """Add to calls and nodes what only the sidecar says: the module table, initializers, rules, and the model."""
    for item in claim.initializers:
        if unknown := [origin for origin in item.origins if origin not in hierarchy.call_by_id]:
            raise InputError(
                f"'{target}': initializer '{item.name}' refers to call '{unknown[0]}', which is not among the calls, "
                "and --fix would lose it; restore the file, or export the model again"
            )
    rules = {node.key: (node.evidence, node.rule) for node in claim.nodes}
    nodes = (replace(n, rule=rules[n.key][1]) if rules[n.key][0] == n.evidence else n for n in hierarchy.nodes)
    modules = dict(claim.modules)
    for path, module in hierarchy.modules.items():  # the classes are those of the modules that are called
        if modules.setdefault(path, module).qualified_class != module.qualified_class:
            modules[path] = replace(modules[path], class_name=module.class_name, qualified_class=module.qualified_class)
    # The policy goes with the tags, which are those of the form that is trusted, and so does what they are known by.
    about = (claim.model, hierarchy.policy, hierarchy.strategy or claim.strategy)
    return Hierarchy(modules, hierarchy.calls, tuple(nodes), claim.initializers, *about)
