"""Validate: whether an ONNX file and its hierarchy can be believed; each finding with its place and remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, InputError
from hieronnx.files.claims import Finding
from hieronnx.files.metadata import PREFIX
from hieronnx.files.opening import load_ir_model, read_structure, require_file, sidecar_path
from hieronnx.files.wire import read_left_out, read_skeleton
from hieronnx.graph.view import ModelLike, View
from hieronnx.hierarchy.categories import read_thresholds
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.tools.results import Result
from hieronnx.tools.validate import attribution
from hieronnx.tools.validate.boundaries import check_boundaries
from hieronnx.tools.validate.forms import Form, compare_claims, read_embedded_form, read_graph, read_sidecar_form
from hieronnx.tools.validate.layers import check_layers
from hieronnx.tools.validate.model import check_external_data, check_onnx
from hieronnx.tools.validate.repair import repair

_SEVERITIES = ("error", "warning", "note")
"""From what makes a check fail to what is only worth knowing."""
# Of a graph that hieronnx cannot read; one that the ONNX checker accepts need not be fixed.
_ACCEPTED = ("graph", "the ONNX checker accepts the model, so nothing need be wrong with it; report it to hieronnx")
_REJECTED = ("onnx", "fix the model with what made it: without its graph there is no hierarchy to check")


@dataclass(frozen=True, slots=True)
class ValidateResult(Result):
    """All that was found in one model, sorted by severity, check and place.

    Attributes:
        model: the file's path as it was given; `model` for a model in memory.
        findings: all of them.
        strict: whether warnings count as failures.
        fixed: what was written to fix the file before it was checked.
    """

    _derived: ClassVar[tuple[str, ...]] = ("passed", "counts")

    model: str
    findings: tuple[Finding, ...]
    strict: bool = False
    fixed: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def count(self, severity: str) -> int:
        """Return how many findings are of a severity."""
        return sum(item.severity == severity for item in self.findings)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many findings there are of each severity."""
        return {severity: self.count(severity) for severity in _SEVERITIES}

    @property
    def passed(self) -> bool:
        """Whether nothing was found that counts as a failure."""
        return not self.count("error") and not (self.strict and self.count("warning"))

    def __repr__(self) -> str:
        counts = ", ".join(f"{number} {severity}s" for severity, number in self.counts.items())
        return f"ValidateResult({self.model!r}: {'passed' if self.passed else 'failed'}, {counts})"


def validate(
    model: ModelLike,
    *,
    strict: bool = False,
    baseline: ModelLike | None = None,
    thresholds: Mapping[str, float] | None = None,
    fix: bool = False,
    fix_from: Literal["sidecar", "embedded"] | None = None,
) -> ValidateResult:
    """Check an ONNX file, its hierarchy, and whether the two belong together; no weights of a file are read.

    Args:
        model: The model; of a file the sidecar beside it is checked too.
        strict: Whether warnings count as failures.
        baseline: A model that this one's graph must equal.
        thresholds: The percent of nodes to be attributed, by category, where it is not the usual one.
        fix: Whether to write what is missing or stale of a file's hierarchy first: the sidecar from the metadata
            inside, or the reverse; never the graph. `ValidateResult.fixed` says what was written.
        fix_from: The same, and the one to trust where both are there and disagree: `sidecar` or `embedded`.

    Raises:
        HieronnxError: If the file cannot be read at all, or cannot be fixed without losing something.

    Example:
        >>> hieronnx.validate("model.onnx").passed
        True
    """
    limits = read_thresholds(thresholds or {})
    fixed: tuple[str, ...] = ()
    if fix or fix_from is not None:
        if not isinstance(model, str | os.PathLike):
            raise InputError("only a file can be fixed; save the model, and give the path instead")
        fixed = repair(model, trust=fix_from)
    subject = _open(model)
    findings = check_onnx(subject.skeleton, subject.left_out)
    if subject.path is not None:
        findings += check_external_data(subject.skeleton, subject.path.parent)
    accepted = not any(item.severity == "error" for item in findings)
    findings += _check_structure(subject, baseline, limits, accepted)
    order = sorted(set(findings), key=lambda f: (_SEVERITIES.index(f.severity), f.check, f.place, f.message))
    return ValidateResult(subject.name, tuple(order), strict, fixed)


@dataclass(frozen=True, slots=True)
class _Subject:
    """A model to check: of a file without its large weights, and how many bytes these have."""

    name: str
    path: Path | None
    skeleton: onnx.ModelProto
    left_out: list[dict[str, int]]


def _open(model: ModelLike) -> _Subject:
    if isinstance(model, str | os.PathLike):
        path = require_file(Path(model))
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
        check, remedy = _ACCEPTED if accepted else _REJECTED
        return [Finding(check, "error", "graph", str(error), remedy)]
    embedded = read_embedded_form(model)
    sidecar = None if subject.path is None else read_sidecar_form(subject.path, view, subject.skeleton)
    findings = _check_forms(subject, sidecar, embedded)
    if baseline is not None:
        findings += _check_baseline(subject, baseline)
    # As all tools do: the sidecar, unless it is of another file; else the metadata.
    chosen = sidecar if sidecar and sidecar.belongs and sidecar.hierarchy else embedded
    hierarchy = chosen.hierarchy if chosen else None
    return findings if hierarchy is None else findings + _check_meaning(hierarchy, view, limits)


def _check_forms(subject: _Subject, sidecar: Form | None, embedded: Form | None) -> list[Finding]:
    """Collect what is wrong with each form, and whether they agree."""
    present = sidecar or embedded
    if present is None:
        beside = f"no {sidecar_path(subject.path).name} beside it and " if subject.path is not None else ""
        message = f"the model has no hierarchy: {beside}no metadata inside"
        remedy = "export the model with 'hieronnx export', or annotate the file with 'hieronnx annotate'"
        return [Finding("hierarchy", "warning", "file", message, remedy)]
    findings = [finding for form in (sidecar, embedded) if form is not None for finding in form.findings]
    if sidecar and embedded and sidecar.claim and embedded.claim and sidecar.belongs:
        findings += compare_claims(sidecar.claim, embedded.claim)
    if subject.path is not None and (sidecar is None or embedded is None) and present.is_whole:
        missing = "sidecar beside the model" if sidecar is None else "metadata inside the model"
        remedy = "'hieronnx validate --fix' writes it, if it is wanted"
        findings.append(Finding("forms", "note", "file", f"there is no {missing}", remedy))
    return findings


def _check_meaning(hierarchy: Hierarchy, view: View, limits: Mapping[str, float]) -> list[Finding]:
    """Check what a hierarchy says of a graph against how that graph computes."""
    nodes = [hierarchy.node_by_key.get(key) for key in view.node_keys]
    return [
        *attribution.check_enclosing(hierarchy, view, nodes),
        *check_layers(hierarchy, view),
        *check_boundaries(hierarchy, view),
        *attribution.check_parameters(hierarchy, view, nodes),
        *attribution.check_passed(hierarchy, view),
        *attribution.check_coverage(hierarchy, limits),
    ]


def _check_baseline(subject: _Subject, baseline: ModelLike) -> list[Finding]:
    """Compare the graphs alone: what is wrong with a hierarchy is found elsewhere."""
    from hieronnx.tools.compare import compare

    other = read_structure(Path(baseline)) if isinstance(baseline, str | os.PathLike) else load_ir_model(baseline)
    comparison = compare(*map(_without_hierarchy, (other, ir.serde.deserialize_model(subject.skeleton))))
    if comparison.same:
        return []
    remedy = "'hieronnx compare' with both files says where they differ"
    return [Finding("baseline", "error", "graph", f"it is not that of the baseline: {comparison.describe()}", remedy)]


def _without_hierarchy(model: ir.Model) -> ir.Model:
    props = {key: value for key, value in model.metadata_props.items() if not key.startswith(PREFIX)}
    functions = list(model.functions.values())
    return ir.Model(model.graph, ir_version=model.ir_version, functions=functions, metadata_props=props)
