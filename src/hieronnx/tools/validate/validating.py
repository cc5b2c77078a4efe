"""Validate: whether an ONNX file and its hierarchy can be believed; each finding with its place and remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import onnx
import onnx_ir as ir

from hieronnx.attribute.nested_inputs import read_recorded
from hieronnx.errors import HieronnxError, InputError, check_known
from hieronnx.files.boundary import reads_files
from hieronnx.files.claims import Finding
from hieronnx.files.document import summarize
from hieronnx.files.metadata import PREFIX
from hieronnx.files.opening import open_model, open_structure, require_file, sidecar_path
from hieronnx.files.torch_scopes import read_torch_scopes
from hieronnx.files.wire import read_left_out, read_skeleton
from hieronnx.graph.view import ModelLike, View
from hieronnx.hierarchy.categories import CATEGORIES, read_thresholds
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import LEVELS
from hieronnx.runtime.inputs import describe_inputs
from hieronnx.runtime.runs import Inputs, split_inputs
from hieronnx.tools.analyze.result import CategoryShare
from hieronnx.tools.fold.unfolding import unfold_opened
from hieronnx.tools.results import Result
from hieronnx.tools.validate import attribution
from hieronnx.tools.validate.boundaries import check_boundaries
from hieronnx.tools.validate.forms import Form, compare_claims, read_embedded_form, read_graph, read_sidecar_form
from hieronnx.tools.validate.layers import check_layers
from hieronnx.tools.validate.model import check_external_data, check_onnx
from hieronnx.tools.validate.reference import check_reference
from hieronnx.tools.validate.repair import repair

if TYPE_CHECKING:
    from torch import nn

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
        categories: how much of each category of operators is attributed, and whether that is enough.
        min_confidence: the least confidence with which a node counts as attributed.
        below: how many nodes are attributed with less than that.
    """

    _derived: ClassVar[tuple[str, ...]] = ("passed", "counts")

    model: str
    findings: tuple[Finding, ...]
    strict: bool = False
    fixed: tuple[str, ...] = ()
    categories: tuple[CategoryShare, ...] = ()
    min_confidence: str = "low"
    below: int = 0

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


@reads_files
def validate(
    model: ModelLike,
    *,
    strict: bool = False,
    baseline: ModelLike | None = None,
    thresholds: Mapping[str, float] | None = None,
    fix: bool = False,
    fix_from: Literal["sidecar", "embedded"] | None = None,
    min_confidence: str = "low",
    reference: nn.Module | None = None,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    inputs: Inputs | None = None,
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
        min_confidence: The least confidence, high, medium or low, with which a node counts as attributed.
        reference: The model in PyTorch that the file should be of: modules that one of the two does not have, classes
            that differ, modules that never ran, calls that have no node. Nothing is run unless inputs are given.
        args: Inputs of the reference by position, to run it and compare how often it calls each module.
        kwargs: Inputs by keyword.
        inputs: Inputs by the names that the file has for them, instead: arrays, or a `.npz` file; beside args and
            kwargs, what takes their places in these.

    Raises:
        HieronnxError: If the file cannot be read at all, or cannot be fixed without losing something; or the reference
            cannot be run.

    Example:
        >>> hieronnx.validate("model.onnx").passed
        True
    """
    limits = read_thresholds(thresholds or {})
    check_known("level of confidence", min_confidence, LEVELS)
    fixed: tuple[str, ...] = ()
    if fix or fix_from is not None:
        if not isinstance(model, str | os.PathLike):
            raise InputError("only a file can be fixed; save the model, and give the path instead")
        fixed = repair(model, trust=fix_from)
    subject = _open(model)
    findings = check_onnx(subject.skeleton, subject.left_out)
    if subject.path is not None:
        findings += check_external_data(subject.skeleton, subject.path)
    accepted = not any(item.severity == "error" for item in findings)
    hierarchy, found = _check_structure(subject, limits, min_confidence, accepted=accepted)
    findings += found
    if baseline is not None:
        findings += _check_baseline(subject, baseline)
    if reference is not None and hierarchy is not None:
        given = args if isinstance(args, tuple) else (args,), dict(kwargs or {})
        if inputs is not None:
            given = _arrange(subject, hierarchy, reference, given, inputs)
        findings += check_reference(hierarchy, reference, *given)
    order = sorted(set(findings), key=lambda f: (_SEVERITIES.index(f.severity), f.check, f.place, f.message))
    shares = () if hierarchy is None else tuple(_share_categories(hierarchy, limits))
    below = 0 if hierarchy is None else len(hierarchy.list_below())
    return ValidateResult(subject.name, tuple(order), strict, fixed, shares, min_confidence, below)


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
    subject: _Subject, limits: Mapping[str, float], min_confidence: str, *, accepted: bool
) -> tuple[Hierarchy | None, list[Finding]]:
    """Check what needs the graph as onnx-ir reads it; a graph that cannot be read so is a finding by itself.

    Also return the hierarchy that the tools use, as far as it holds together.
    """
    try:
        model, view = read_graph(subject.skeleton, subject.name)
    except HieronnxError as error:
        check, remedy = _ACCEPTED if accepted else _REJECTED
        return None, [Finding(check, "error", "graph", str(error), remedy)]
    embedded = read_embedded_form(model)
    sidecar = None if subject.path is None else read_sidecar_form(subject.path, view, subject.skeleton)
    if sidecar is None and embedded is None:
        of_torch = read_torch_scopes(model)
        return of_torch and of_torch.require_confidence(min_confidence), [_report_absence(subject, of_torch)]
    findings = _check_forms(subject, sidecar, embedded)
    # As all tools do: the sidecar, unless it is of another file; else the metadata.
    chosen = sidecar if sidecar and sidecar.belongs and sidecar.hierarchy else embedded
    if chosen is None or chosen.hierarchy is None:
        return None, findings
    hierarchy = chosen.hierarchy.require_confidence(min_confidence)
    return hierarchy, findings + _check_meaning(hierarchy, view, limits)


def _arrange(
    subject: _Subject,
    hierarchy: Hierarchy,
    reference: nn.Module,
    example: tuple[tuple[Any, ...], dict[str, Any]],
    inputs: Inputs,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the reference that arrays stand for, of several runs those of the first."""
    from hieronnx.attribute.file_inputs import arrange_arrays

    items, recorded = describe_inputs(subject.skeleton.graph), read_recorded(hierarchy)
    feeds = split_inputs(items, inputs, 1)[0]
    return arrange_arrays(feeds, items, reference, example, name=subject.name, recorded=recorded)


def _share_categories(hierarchy: Hierarchy, limits: Mapping[str, float]) -> Iterator[CategoryShare]:
    """Yield how much of each category is attributed, in the order of the categories."""
    statistics = summarize(hierarchy).category_statistics
    for name, category in CATEGORIES.items():
        if counts := statistics.get(name):
            yield CategoryShare(name, counts.total, counts.attributed, limits[name], category.critical)


def _report_absence(subject: _Subject, of_torch: Hierarchy | None) -> Finding:
    """Report that there is no hierarchy of hieronnx, and what torch itself may have left instead."""
    beside = f"no {sidecar_path(subject.path).name} beside it and " if subject.path is not None else ""
    message = f"the model has no hierarchy: {beside}no metadata inside"
    remedy = "export the model with 'hieronnx export', or annotate the file with 'hieronnx annotate'"
    if of_torch is not None:
        known = sum(node.evidence != "root" for node in of_torch.nodes)
        message += f"; all commands use torch's own record of modules, which {known:,} of {len(of_torch.nodes):,} "
        message += "nodes have, and which does not tell the calls of one module apart"
    return Finding("hierarchy", "warning", "file", message, remedy)


def _check_forms(subject: _Subject, sidecar: Form | None, embedded: Form | None) -> list[Finding]:
    """Collect what is wrong with each form, and whether they agree."""
    findings = [finding for form in (sidecar, embedded) if form is not None for finding in form.findings]
    whole = any(form is not None and form.is_whole for form in (sidecar, embedded))
    if sidecar and embedded and sidecar.claim and embedded.claim and sidecar.belongs:
        findings += compare_claims(sidecar.claim, embedded.claim)
    if subject.path is not None and (sidecar is None or embedded is None) and whole:
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

    other = _read_flat(baseline)
    try:
        own = _read_flat(subject.path or subject.skeleton)
    except HieronnxError:  # which is a finding of its own
        return []
    comparison = compare(*map(_without_hierarchy, (other, own)))
    if comparison.same:
        return []
    remedy = "'hieronnx compare' with both files says where they differ"
    return [Finding("baseline", "error", "graph", f"it is not that of the baseline: {comparison.describe()}", remedy)]


def _read_flat(model: ModelLike) -> ir.Model:
    """Read the graph of a model, of a folded one as it was before folding."""
    try:
        return unfold_opened(open_model(model)).model
    except HieronnxError:  # its hierarchy cannot be read, or its record
        return open_structure(model).model


def _without_hierarchy(model: ir.Model) -> ir.Model:
    props = {key: value for key, value in model.metadata_props.items() if not key.startswith(PREFIX)}
    functions = list(model.functions.values())
    return ir.Model(model.graph, ir_version=model.ir_version, functions=functions, metadata_props=props)
