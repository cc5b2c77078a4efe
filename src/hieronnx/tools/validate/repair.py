"""Writing one form of a hierarchy from the other. Nothing is guessed or lost, and the graph is never touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hieronnx.errors import HieronnxError, InputError, writing
from hieronnx.files.encoding import describe_file, encode_document, make_document
from hieronnx.files.metadata import embedded_metadata, embedded_model_metadata
from hieronnx.files.opening import sidecar_path
from hieronnx.files.staging import staging
from hieronnx.files.wire import map_file, read_skeleton, write_annotated
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Module, Node
from hieronnx.tools.validate.claims import compare_claims
from hieronnx.tools.validate.forms import Form, read_embedded_form, read_graph, read_sidecar_form

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
    model_path = Path(path)
    if not model_path.is_file():
        raise HieronnxError(f"no ONNX file at '{model_path}'")
    model, view = read_graph(read_skeleton(model_path), str(model_path))
    sidecar, embedded = read_sidecar_form(model_path, view), read_embedded_form(model)
    source = _choose_source(model_path, sidecar, embedded, trust)
    trusted = {"sidecar": sidecar, "embedded": embedded}.get(source or "")
    if trusted is None:
        return ()
    beside = sidecar is not trusted or trusted.is_stale
    inside = trusted.is_stale if embedded is trusted else not _is_up_to_date(embedded, trusted)
    if inside and embedded is not None:
        _make_sure_no_key_is_lost(model_path, embedded)
    written = _write_sidecar(model_path, trusted, sidecar, view) if beside and _may_replace(sidecar) else ()
    return (*written, *_write_metadata(model_path, trusted)) if inside and _may_replace(embedded) else written


# -- what can be trusted ----------------------------------------------------------------------------------


def _choose_source(path: Path, sidecar: Form | None, embedded: Form | None, trust: str | None) -> str | None:
    """Choose the form to write from; None if there is none."""
    whole = {name: form is not None and form.is_whole for name, form in zip(FORMS, (sidecar, embedded), strict=True)}
    if trust is not None and not whole[trust]:
        raise InputError(
            f"--fix-from {trust}: that form of the hierarchy of '{path}' is missing or not whole itself; "
            "'hieronnx validate' without --fix says what is wrong with it"
        )
    agreeing = all(whole.values()) and _agree(sidecar, embedded)
    if trust is not None and not agreeing:
        return trust
    found = [name for name in FORMS if whole[name]]
    if found and not agreeing and _contradict(sidecar, embedded):
        options = " or ".join(f"--fix-from {name}" for name in found)
        raise InputError(
            f"the sidecar and the metadata in '{path}' disagree, and either may be right; "
            f"name the one to trust with {options}"
        )
    return next(iter(found), None)


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
    ours, theirs = (_known_nodes(form) for form in (sidecar, embedded))
    return any(not _say_the_same(ours[key], theirs[key]) for key in ours.keys() & theirs.keys())


def _known_nodes(form: Form) -> dict[tuple[str, str], Node]:
    nodes = form.hierarchy.nodes if form.hierarchy is not None else ()
    return {(node.graph, node.output): node for node in nodes if node.evidence != "root"}


def _say_the_same(ours: Node, theirs: Node) -> bool:
    return (ours.scope, ours.origins, ours.evidence) == (theirs.scope, theirs.origins, theirs.evidence)


def _is_up_to_date(embedded: Form | None, sidecar: Form) -> bool:
    return embedded is not None and embedded.is_whole and not embedded.is_stale and _agree(sidecar, embedded)


def _may_replace(form: Form | None) -> bool:
    return form is None or not form.is_of_another_version


def _held(form: Form) -> Hierarchy:
    if form.hierarchy is None:
        raise HieronnxError("there is no hierarchy to write from")
    return form.hierarchy


# -- writing ----------------------------------------------------------------------------------------------


def _write_sidecar(path: Path, source: Form, sidecar: Form | None, view: View) -> tuple[str, ...]:
    """Write a sidecar: calls and nodes from the source, all that only a sidecar tells from the one that is there."""
    target = sidecar_path(path)
    if sidecar is not None:
        _make_sure_nothing_is_lost(target, sidecar)
    hierarchy = _held(source) if sidecar is None else _complete(target, _held(source), sidecar)
    hierarchy = replace(hierarchy, nodes=_name_nodes(hierarchy.nodes, view))
    told = hierarchy.model
    root = hierarchy.modules[""].class_name
    described = describe_file(path, str(told.get("class", root)), str(told.get("exporter", "unknown")))
    document = make_document(replace(hierarchy, model=described), view)
    with staging(target) as staged, writing(target):
        staged.write_bytes(encode_document(document))
        os.replace(staged, target)
    if sidecar is None:
        return (f"wrote {target.name} from the metadata inside the model; parameters stay unknown",)
    origin = "its own nodes" if source is sidecar else "the metadata inside the model; parameters are as they were"
    return (f"wrote {target.name} from {origin}",)


def _make_sure_nothing_is_lost(target: Path, sidecar: Form) -> None:
    """Make sure that a sidecar can be written anew with all that it tells.

    Raises:
        InputError: If it cannot.
    """
    if sidecar.claim is None or not sidecar.belongs:
        state = "cannot be read" if sidecar.claim is None else "tells of another file"
        raise InputError(
            f"'{target}' {state}, and --fix would overwrite it; move it away and run this again: "
            "what the metadata inside the model knows is written then, without parameters"
        )
    _make_sure_no_key_is_lost(target, sidecar)


def _make_sure_no_key_is_lost(path: Path, form: Form) -> None:
    if form.unknown_keys:
        raise InputError(
            f"'{path}' has keys that this version does not know ({', '.join(form.unknown_keys)}), and --fix would "
            "lose them; use a newer hieronnx if a newer one wrote the file, otherwise take them out"
        )


def _complete(target: Path, hierarchy: Hierarchy, sidecar: Form) -> Hierarchy:
    """Add to calls and nodes what only the sidecar tells: the module table, initializers, rules, and the model.

    Raises:
        InputError: If an initializer speaks of a call that is not there.
    """
    assert sidecar.claim is not None
    claim = sidecar.claim
    for held in claim.initializers:
        if unknown := [origin for origin in held.origins if origin not in hierarchy.call_by_id]:
            raise InputError(
                f"'{target}': initializer '{held.name}' speaks of call '{unknown[0]}', which is not among the calls, "
                "and --fix would lose it; restore the file, or export the model anew"
            )
    rules = {(item.node.graph, item.node.output): item.node for item in claim.nodes}
    return Hierarchy(
        modules=_merge_modules(claim.modules, hierarchy),
        calls=hierarchy.calls,
        nodes=tuple(_keep_rule(node, rules[node.graph, node.output]) for node in hierarchy.nodes),
        initializers=claim.initializers,
        model=claim.model,
    )


def _merge_modules(told: Mapping[str, Module], hierarchy: Hierarchy) -> dict[str, Module]:
    """Return the module table, with the classes of the modules that are called."""
    modules = {**told, **{path: module for path, module in hierarchy.modules.items() if path not in told}}
    for path, module in hierarchy.modules.items():
        if modules[path].qualified_class != module.qualified_class:
            modules[path] = replace(modules[path], class_name=module.class_name, qualified_class=module.qualified_class)
    return modules


def _keep_rule(node: Node, told: Node) -> Node:
    """Return the node with the rule that the sidecar gives for the same evidence."""
    return replace(node, rule=told.rule) if told.evidence == node.evidence else node


def _name_nodes(nodes: tuple[Node, ...], view: View) -> tuple[Node, ...]:
    names = {view.node_key(index): node.name for index, node in enumerate(view.nodes)}
    return tuple(replace(node, name=names[node.graph, node.output]) for node in nodes)


def _write_metadata(path: Path, source: Form) -> tuple[str, ...]:
    """Write the metadata into the model, all other bytes as they are."""
    hierarchy = _held(source)
    metadata = {(node.graph, node.output): embedded_metadata(hierarchy, node) for node in hierarchy.nodes}
    target = path.resolve()  # a link stays one
    with staging(target) as staged, writing(target):
        with open(target, "rb") as file, open(staged, "wb") as stream, map_file(file) as view:
            write_annotated(stream, view, metadata, embedded_model_metadata(hierarchy))
        shutil.copymode(target, staged)
        os.replace(staged, target)
    origin = "the sidecar" if hierarchy.model else "its own nodes"
    return (f"wrote the metadata in {path.name} from {origin}; the graph is as it was",)
