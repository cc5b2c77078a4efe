"""The two forms in which a hierarchy is kept, each read and checked by itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from hieronnx.files.opening import reading_graph, sidecar_path
from hieronnx.graph.building import view_model
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.tools.validate.claims import Claim, check_claim
from hieronnx.tools.validate.derived import check_derived
from hieronnx.tools.validate.findings import Finding
from hieronnx.tools.validate.module_table import check_module_table
from hieronnx.tools.validate.nodes import check_belongs, check_operators
from hieronnx.tools.validate.reading import read_embedded_claim, read_sidecar_claim
from hieronnx.tools.validate.tags import check_tags

_DERIVED = frozenset({"sidecar-derived", "metadata-derived"})
_KEYS = frozenset({"sidecar-keys", "metadata-keys"})
_HARMLESS = _DERIVED | _KEYS | {"sidecar-modules"}
"""What leaves the calls, and what is said of the nodes, as they are."""
_VERSIONS = frozenset({"sidecar-version", "metadata-version"})


@dataclass(frozen=True, slots=True)
class Form:
    """A sidecar, or the metadata inside a model.

    Attributes:
        claim: what it says; None where it cannot be read.
        hierarchy: what of that holds together.
        belongs: whether it speaks of the nodes of this file and of no other.
        findings: what is wrong with it.
    """

    claim: Claim | None
    hierarchy: Hierarchy | None
    belongs: bool
    findings: tuple[Finding, ...]

    @property
    def is_whole(self) -> bool:
        """Whether everything that it says of calls and nodes of its own accord can be believed."""
        return self.hierarchy is not None and {item.check for item in self.findings} <= _HARMLESS

    @property
    def is_stale(self) -> bool:
        """Whether what it repeats is not what follows from the rest."""
        return any(item.check in _DERIVED for item in self.findings)

    @property
    def unknown_keys(self) -> tuple[str, ...]:
        """The places of keys that this version does not know."""
        return tuple(sorted(item.place.partition(": ")[2] for item in self.findings if item.check in _KEYS))

    @property
    def is_of_another_version(self) -> bool:
        """Whether it is for another version of hieronnx to read."""
        return any(item.check in _VERSIONS for item in self.findings)


def read_graph(skeleton: onnx.ModelProto, name: str) -> tuple[ir.Model, View]:
    """Read the graph of a model.

    Raises:
        HieronnxError: If it is not one.
    """
    with reading_graph(f"the graph of '{name}'"):
        model = ir.serde.deserialize_model(skeleton)
        return model, view_model(model)


def read_sidecar_form(path: Path, view: View) -> Form | None:
    """Read the sidecar of a model file; None if there is none."""
    beside = sidecar_path(path)
    if not beside.exists():
        return None
    claim, found = read_sidecar_claim(beside)
    if claim is None:
        return _make_form(None, False, found)
    nodes = [item.node for item in claim.nodes]
    foreign = check_belongs(nodes, view)
    own = [] if foreign else [*check_operators(nodes, view), *check_module_table(claim, view)]
    form = _make_form(claim, not foreign, [*found, *foreign, *own])
    if form.is_whole and form.hierarchy is not None and claim.document is not None:
        derived = check_derived(claim.document, form.hierarchy, view, path)
        return Form(claim, form.hierarchy, form.belongs, (*form.findings, *derived))
    return form


def read_embedded_form(model: ir.Model) -> Form | None:
    """Read the metadata inside a model; None if there is none."""
    claim, found = read_embedded_claim(model)
    return _make_form(claim, True, found) if claim or found else None


def _make_form(claim: Claim | None, belongs: bool, found: Iterable[Finding]) -> Form:
    if claim is None:
        return Form(None, None, False, tuple(found))
    hierarchy, wrong = check_claim(claim)
    tags = check_tags(hierarchy, claim.source) if hierarchy is not None else []
    return Form(claim, hierarchy, belongs, (*found, *wrong, *tags))
