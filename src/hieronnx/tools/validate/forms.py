"""The two forms in which a hierarchy is kept, each read and checked by itself, and compared with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import onnx
import onnx_ir as ir
from msgspec import inspect

from hieronnx.errors import InputError
from hieronnx.files.claims import RESTORE, Claim, Finding, call_place, check_claim, node_place
from hieronnx.files.document import CallEntry, Document, describe_file, read_document
from hieronnx.files.metadata import MODEL_KEYS, NODE_KEYS, PREFIX, read_metadata
from hieronnx.files.opening import deserialize, find_beside, read_beside, reading_graph
from hieronnx.graph.building import view_model
from hieronnx.graph.view import View
from hieronnx.graph.walks import walk_nodes
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Call, CallId
from hieronnx.hierarchy.tags import Segment, parse_tag
from hieronnx.tools.validate.sidecar import (
    check_belongs,
    check_derived,
    check_module_table,
    check_operators,
    check_wiring,
)

_HARMLESS = frozenset({"sidecar-derived", "metadata-derived", "sidecar-keys", "metadata-keys", "sidecar-modules"})
"""The checks whose findings leave the calls, and what is said of the nodes, as they are."""
_IN_BOTH = ("scope", "origins", "evidence")
_NEWER = "use a newer hieronnx if a newer one wrote the file; otherwise take the key out: nothing reads it"
_REWRITE = "write it again with 'hieronnx validate --fix'"
_CHOOSE = "say which one to trust: 'hieronnx validate --fix-from sidecar' or '--fix-from embedded'"
_Keys: TypeAlias = "dict[str, _Keys] | list[_Keys] | None"
"""The keys of an object, each with those of its value; or of the items of a list or map; None where there are none."""


@dataclass(frozen=True, slots=True)
class Form:
    """A sidecar, or the metadata inside a model.

    Attributes:
        claim: what it says; None where it cannot be read.
        hierarchy: what of that holds together.
        belongs: whether its nodes are those of this file and no others.
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
        return any(item.check.endswith("-derived") for item in self.findings)

    @property
    def unknown_keys(self) -> tuple[str, ...]:
        """The places of keys that this version does not know."""
        places = (item.place for item in self.findings if item.check.endswith("-keys"))
        return tuple(sorted(place.partition(": ")[2] for place in places))

    @property
    def is_of_another_version(self) -> bool:
        """Whether it is for another version of hieronnx to read."""
        return any(item.check.endswith("-version") for item in self.findings)


def read_graph(skeleton: onnx.ModelProto, name: str) -> tuple[ir.Model, View]:
    """Read the graph of a model.

    Raises:
        HieronnxError: If it is not one.
    """
    with reading_graph(f"the graph of '{name}'"):
        model = deserialize(skeleton, f"the graph of '{name}'")
        return model, view_model(model)


def read_sidecar_form(path: Path, view: View, skeleton: onnx.ModelProto) -> Form | None:
    """Read the sidecar of a model file, of which view and skeleton are given; None if there is none."""
    beside = find_beside(path)
    if not beside.exists():
        return None
    try:
        content = read_beside(beside)
        raw = msgspec.json.decode(content)  # also what no field of ours holds must be JSON
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else error
        message = f"it cannot be read: {reason}"
        return _make_form(None, False, [Finding("sidecar-schema", "error", beside.name, message, RESTORE)])
    claim, findings = read_document(content, beside.name)
    if claim is None:
        return _make_form(None, False, findings)
    others = check_belongs(claim.nodes, view)
    own = [] if others else [*check_operators(claim.nodes, view), *check_module_table(claim, view)]
    described: Mapping[str, Any] = {}
    if not others and claim.document is not None:
        about = claim.document.model
        described = describe_file(path, about.class_name, about.exporter, skeleton)
        others = check_wiring(about, described["wiring"])
    unknown = _walk_unknown(raw, _keys_of(inspect.type_info(Document)), "$")
    form = _make_form(claim, not others, [*_report_unknown("sidecar", unknown), *others, *own])
    if form.is_whole and form.hierarchy is not None and claim.document is not None:
        derived = check_derived(claim.document, form.hierarchy, view, described)
        return replace(form, findings=(*form.findings, *derived))
    return form


def read_embedded_form(model: ir.Model) -> Form | None:
    """Read the metadata inside a model; None if there is none."""
    claim, findings = read_metadata(model)
    if claim is not None:
        keys = [key for key in model.metadata_props if key not in MODEL_KEYS]
        keys += (key for _, node in walk_nodes(model) for key in node.metadata_props if key not in NODE_KEYS)
        findings += _report_unknown("metadata", (key for key in keys if key.startswith(PREFIX)))
    return _make_form(claim, True, findings) if claim or findings else None


def _make_form(claim: Claim | None, belongs: bool, findings: Iterable[Finding]) -> Form:
    if claim is None:
        return Form(None, None, False, tuple(findings))
    hierarchy, wrong = check_claim(claim)
    if hierarchy is not None:
        wrong += (*_check_node_tags(claim, hierarchy), *_check_tags(hierarchy, claim.source))
    return Form(claim, hierarchy, belongs, (*findings, *wrong))


def _report_unknown(source: str, places: Iterable[str]) -> Iterator[Finding]:
    """Report keys that this version does not know, one finding for each kind of place."""
    for place, times in Counter(places).items():
        message = "this version does not know the key" + (f" ({times:,} times)" if times > 1 else "")
        yield Finding(f"{source}-keys", "warning", f"{source}: {place}", message, _NEWER)


def _keys_of(kind: inspect.Type) -> _Keys:
    """Return the keys that a value of this type has."""
    if isinstance(kind, inspect.UnionType):  # of something and null
        return next((keys for option in kind.types if (keys := _keys_of(option)) is not None), None)
    if isinstance(kind, inspect.StructType | inspect.DataclassType):
        return {field.encode_name: _keys_of(field.type) for field in kind.fields}
    item = kind.value_type if isinstance(kind, inspect.DictType) else getattr(kind, "item_type", None)
    inner = None if item is None else _keys_of(item)
    return None if inner is None else [inner]


def _walk_unknown(value: Any, keys: _Keys, place: str) -> Iterator[str]:
    """Yield the place of each key that a value should not have; lists and maps are walked as one place."""
    if isinstance(keys, dict):
        yield from (f"{place}.{key}" for key in value if key not in keys)
        for key, inner in keys.items():
            if inner is not None and value.get(key) is not None:
                yield from _walk_unknown(value[key], inner, f"{place}.{key}")
    elif keys is not None:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _walk_unknown(item, keys[0], f"{place}[]")


def _check_node_tags(claim: Claim, hierarchy: Hierarchy) -> Iterator[Finding]:
    """Check that the tag written on each node is that of its call."""
    for node, tag in zip(claim.nodes, claim.tags, strict=True):
        call = hierarchy.call_by_id.get(node.scope)
        if call is not None and tag not in (None, call.tag):
            message = f"its tag is '{tag}', that of its call '{node.scope}' is '{call.tag}'"
            place = f"{claim.source}: {node_place(*node.key, node.name)}"
            yield Finding(f"{claim.source}-derived", "error", place, message, _REWRITE)


def _check_tags(hierarchy: Hierarchy, source: str) -> list[Finding]:
    """Check the tag of every call against that of its parent, and that no two calls share one."""
    holders: dict[str, CallId] = {}
    segments: dict[str, tuple[Segment, ...]] = {}
    findings = []
    for call in hierarchy.calls:
        with suppress(InputError):
            segments[call.tag] = parse_tag(call.tag)
        if reason := _explain_tag(hierarchy, call, holders, segments):
            findings.append(Finding("tags", "error", f"{source}: {call_place(call.id)}", reason, RESTORE))
        holders.setdefault(call.tag, call.id)
    return findings


def _explain_tag(
    hierarchy: Hierarchy, call: Call, holders: Mapping[str, CallId], segments: Mapping[str, tuple[Segment, ...]]
) -> str:
    """Say what is wrong with a call's tag; nothing if it is right."""
    parent = None if call.parent is None else hierarchy.call_by_id[call.parent]
    qualified = hierarchy.modules[call.id.module].qualified_class
    name, belongs = qualified.rpartition(".")[2], hierarchy.policy.belongs(qualified)
    if parent is not None and call.tag == parent.tag:  # no tag of its own
        return f"it has no tag of its own, and the tag policy ('torch_nn') gives one to '{name}'" * belongs
    own, above = segments.get(call.tag), () if parent is None else segments.get(parent.tag)
    if own is None:
        return f"'{call.tag}' is not a tag; one looks like /Model/Encoder/Layer.0"
    if call.tag in holders:
        return f"its tag '{call.tag}' is that of call '{holders[call.tag]}' too"
    if above is not None and own[:-1] != above:
        return f"its tag '{call.tag}' is not one step below '{parent.tag if parent else ''}', the tag of its parent"
    if parent is not None and not belongs:
        return f"it has a tag of its own, and the tag policy ('torch_nn') gives none to '{name}'"
    return "" if own[-1].class_name == name else f"its tag '{call.tag}' does not name its class '{name}'"


def compare_claims(sidecar: Claim, embedded: Claim) -> list[Finding]:
    """Check that both forms say the same: the same call tree, and the same of every node that both have."""
    findings = _compare_calls(sidecar, embedded)
    for key, what, a, b in (
        ("torch_nn", "tag policy", sidecar.policy, embedded.policy),
        ("strategy", "strategy", sidecar.strategy, embedded.strategy),
    ):
        if None not in (a, b) and a != b:
            message = f"the {what} is another in the sidecar than in the metadata"
            findings.append(Finding("agreement", "error", key, message, _CHOOSE))
    by_key = {node.key: node for node in embedded.nodes}
    for node in sidecar.nodes:
        other = by_key.get(node.key, node)
        values = ((name, getattr(node, name), getattr(other, name)) for name in _IN_BOTH)
        differences = [f"{name} {_quote(a)} in the sidecar, {_quote(b)} inside" for name, a, b in values if a != b]
        if differences:
            place, message = node_place(*node.key, node.name), "; ".join(differences)
            findings.append(Finding("agreement", "error", place, message, _CHOOSE))
    return findings


def _compare_calls(sidecar: Claim, embedded: Claim) -> list[Finding]:
    ours, theirs = ({CallId(e.module, e.call): e for e in claim.calls} for claim in (sidecar, embedded))
    findings = []
    for call in dict.fromkeys((*ours, *theirs)):
        own, other = (claim.modules.get(call.module) for claim in (sidecar, embedded))
        if call not in ours or call not in theirs:
            message = f"the call is only in the {'sidecar' if call in ours else 'metadata'}"
        elif ours[call] != theirs[call] and _describe(ours[call]) == _describe(theirs[call]):
            message = "what it received or returned is another in the sidecar than in the metadata"
        elif ours[call] != theirs[call]:
            message = f"the sidecar has {_describe(ours[call])}, the metadata {_describe(theirs[call])}"
        elif (a := own.qualified_class if own else "") != (b := other.qualified_class if other else ""):
            message = f"its class is '{a}' in the sidecar, '{b}' inside"
        else:
            continue
        findings.append(Finding("agreement", "error", call_place(call), message, _CHOOSE))
    if not findings and list(ours) != list(theirs):
        findings.append(Finding("agreement", "error", "calls", "the calls are in another order", _CHOOSE))
    return findings


def _describe(call: CallEntry) -> str:
    return f"parent {call.parent}, via '{call.via}', tag '{call.tag}'"


def _quote(value: object) -> str:
    if isinstance(value, tuple) and not isinstance(value, CallId):
        return "[" + ", ".join(f"'{item}'" for item in value) + "]"
    return f"'{value}'"
