"""Whether an ONNX file and its hierarchy can be believed: every check, each finding with its place and remedy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.files.opening import load_ir_model, read_structure, sidecar_path
from hieronnx.files.wire import read_left_out, read_skeleton
from hieronnx.graph.view import ModelLike, View
from hieronnx.hierarchy.categories import read_thresholds
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.tools.validate.claims import compare_claims
from hieronnx.tools.validate.findings import Finding, ValidateResult, collect
from hieronnx.tools.validate.forms import Form, read_embedded_form, read_graph, read_sidecar_form
from hieronnx.tools.validate.layers import check_layers
from hieronnx.tools.validate.model import check_external_data, check_onnx
from hieronnx.tools.validate.nodes import attributed_nodes, check_coverage, check_enclosing
from hieronnx.tools.validate.parameters import check_parameters
from hieronnx.tools.validate.passed import check_passed


def validate(
    onnx: ModelLike,
    *,
    strict: bool = False,
    baseline: ModelLike | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> ValidateResult:
    """Check an ONNX file, its hierarchy, and whether the two belong together; no weights of a file are read.

    Args:
        onnx: The model; of a file the sidecar beside it is checked too.
        strict: Whether warnings count as failures.
        baseline: A model that this one's graph must equal.
        thresholds: The percent of nodes to be attributed, by category, where it is not the usual one.

    Raises:
        HieronnxError: If the file cannot be read at all.

    Example:
        >>> hieronnx.validate("model.onnx").passed
        True
    """
    limits = read_thresholds(thresholds or {})
    subject = _open(onnx)
    found = check_onnx(subject.skeleton, subject.left_out)
    if subject.path is not None:
        found += check_external_data(subject.skeleton, subject.path.parent)
    accepted = not any(item.severity == "error" for item in found)
    found += _check_structure(subject, baseline, limits, accepted)
    return collect(subject.name, found, strict=strict)


@dataclass(frozen=True, slots=True)
class _Subject:
    """A model to check: of a file without its large weights, and how many bytes these have."""

    name: str
    path: Path | None
    skeleton: onnx.ModelProto
    left_out: list[dict[str, int]]


def _open(model: ModelLike) -> _Subject:
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        if not path.is_file():
            raise HieronnxError(f"no ONNX file at '{path}'")
        return _Subject(str(path), path, read_skeleton(path), read_left_out(path))
    proto = ir.serde.serialize_model(model) if isinstance(model, ir.Model) else model
    return _Subject("model", None, proto, [{} for _ in proto.graph.initializer])


def _check_structure(
    subject: _Subject, baseline: ModelLike | None, limits: Mapping[str, float], accepted: bool
) -> list[Finding]:
    """Check what needs the graph as onnx-ir reads it; a graph that cannot be read so is a finding by itself."""
    try:
        model, view = read_graph(subject.skeleton, subject.name)
    except HieronnxError as error:
        return [_unreadable(error, accepted)]
    embedded = read_embedded_form(model)
    sidecar = None if subject.path is None else read_sidecar_form(subject.path, view)
    found = _check_forms(subject, sidecar, embedded)
    if baseline is not None:
        found += _check_baseline(subject, baseline)
    hierarchy = _choose(sidecar, embedded)
    return found if hierarchy is None else found + _check_meaning(hierarchy, view, limits)


def _unreadable(error: HieronnxError, accepted: bool) -> Finding:
    """Tell a graph that hieronnx cannot read; what the ONNX checker accepts need not be mended."""
    if accepted:
        remedy = "the ONNX checker accepts the model, so nothing need be wrong with it; report it to hieronnx"
        return Finding("graph", "error", "graph", str(error), remedy)
    remedy = "mend the model with what made it: without its graph there is no hierarchy to check"
    return Finding("onnx", "error", "graph", str(error), remedy)


def _check_forms(subject: _Subject, sidecar: Form | None, embedded: Form | None) -> list[Finding]:
    """Collect what is wrong with each form, and whether they agree."""
    if sidecar is None and embedded is None:
        return [_no_hierarchy(subject)]
    found = [finding for form in (sidecar, embedded) if form is not None for finding in form.findings]
    if sidecar and embedded and sidecar.claim and embedded.claim and sidecar.belongs:
        found += compare_claims(sidecar.claim, embedded.claim)
    there = sidecar or embedded
    if subject.path is not None and (sidecar is None or embedded is None) and there is not None and there.is_whole:
        missing = "sidecar beside the model" if sidecar is None else "metadata inside the model"
        remedy = "'hieronnx validate --fix' writes it, if it is wanted"
        found.append(Finding("forms", "note", "file", f"there is no {missing}", remedy))
    return found


def _no_hierarchy(subject: _Subject) -> Finding:
    sidecar = f"no {sidecar_path(subject.path).name} beside it and " if subject.path is not None else ""
    message = f"the model has no hierarchy: {sidecar}no metadata inside"
    remedy = "export the model with 'hieronnx export', or annotate the file with 'hieronnx annotate'"
    return Finding("hierarchy", "warning", "file", message, remedy)


def _choose(sidecar: Form | None, embedded: Form | None) -> Hierarchy | None:
    """Choose what to go on with, as all tools do: the sidecar, unless it is of another file; else the metadata."""
    ours, theirs = (form.hierarchy if form else None for form in (sidecar, embedded))
    return ours if sidecar and sidecar.belongs and ours else theirs


def _check_meaning(hierarchy: Hierarchy, view: View, limits: Mapping[str, float]) -> list[Finding]:
    """Check what a hierarchy says of a graph against how that graph computes."""
    nodes = attributed_nodes(hierarchy, view)
    return [
        *check_enclosing(hierarchy, view, nodes),
        *check_layers(hierarchy, view, nodes),
        *check_parameters(hierarchy, view, nodes),
        *check_passed(hierarchy, view),
        *check_coverage(hierarchy, limits),
    ]


def _check_baseline(subject: _Subject, baseline: ModelLike) -> list[Finding]:
    """Compare the graphs alone: what is wrong with a hierarchy is told elsewhere."""
    from hieronnx.tools.compare import compare

    other = read_structure(Path(baseline)) if isinstance(baseline, str | os.PathLike) else load_ir_model(baseline)
    comparison = compare(*map(_without_hierarchy, (other, ir.serde.deserialize_model(subject.skeleton))))
    if comparison.same:
        return []
    remedy = "'hieronnx compare' with both files says where they differ"
    return [Finding("baseline", "error", "graph", f"it is not that of the baseline: {comparison.describe()}", remedy)]


def _without_hierarchy(model: ir.Model) -> ir.Model:
    props = {key: value for key, value in model.metadata_props.items() if not key.startswith("hieronnx.")}
    return ir.Model(
        model.graph,
        ir_version=model.ir_version,
        functions=list(model.functions.values()),
        metadata_props=props,
    )
