"""Place: write by module on which device the nodes of a model should run, as ONNX Runtime's layer annotations.

--on 'cuda:encoder.*' --on 'cpu:*'        MatMul in `encoder.layer.0`   layer_ann: cuda
Gather in `embeddings`        layer_ann: cpu
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hieronnx.errors import HieronnxError, InputError, require
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import load, open_model, require_hierarchy, sidecar_path
from hieronnx.files.writing import write
from hieronnx.graph.view import ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy, NodeKey
from hieronnx.runtime.profiles import find_assignments, find_providers
from hieronnx.tools.fold.unfolding import open_flat
from hieronnx.tools.results import Result
from hieronnx.tools.written import WritingResult

ANNOTATION = "layer_ann"
"""The metadata of a node that ONNX Runtime reads."""
SETTINGS = "session.layer_assignment_settings"
_RESERVED = frozenset("(),;=")


@dataclass(frozen=True, slots=True)
class PlacedNodes(Result):
    """The nodes that one rule places.

    Attributes:
        device: where they should run, as ONNX Runtime names it: `cpu`, `cuda`, `gpu:1`, `npu`, …
        pattern: the target that names their calls.
        nodes: how many.
        providers: the execution providers that ONNX Runtime gave them here, and how many each; empty where that was
            not tried.
    """

    device: str
    pattern: str
    nodes: int
    providers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PlaceResult(WritingResult):
    """A model with its nodes placed, and how to run it.

    Attributes:
        path: the file that was written.
        sidecar: beside it.
        rules: what each rule placed, in their order.
        unplaced: how many nodes no rule is of: ONNX Runtime chooses.
        session_options: the entries that a session needs for the file to be run so.
        hierarchy: of the file.
        notes: what the user should know, a line each.
    """

    _derived: ClassVar[tuple[str, ...]] = ("files",)

    path: Path | None
    sidecar: Path | None
    rules: tuple[PlacedNodes, ...]
    unplaced: int
    session_options: Mapping[str, str]
    hierarchy: Hierarchy
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        placed = ", ".join(f"{rule.nodes} on {rule.device}" for rule in self.rules)
        return f"PlaceResult({placed}, {self.unplaced} as ONNX Runtime chooses)"


@reads_files
def place(
    model: ModelLike,
    *,
    on: Sequence[str],
    output: str | os.PathLike[str],
    providers: Sequence[str] = (),
    check: bool = True,
    embed: bool = True,
    sidecar: bool = True,
) -> PlaceResult:
    """Write by module on which device the nodes of a model should run.

    Args:
        model: The model, with its hierarchy. Of a folded one the functions are written out, so that each call has nodes
            of its own to place.
        on: Rules, as in `cuda:encoder.*`: a device as ONNX Runtime names it, and a target: a path, a tag or a glob
            over these. The first rule that a call is in counts.
        output: Where to write; the sidecar goes beside it.
        providers: Execution providers to try it with, as in `cuda`; none: the CPU's.
        check: Whether to load the file in ONNX Runtime, to see what each node is given.
        embed: Whether to write the hierarchy into the file as metadata.
        sidecar: Whether to write it beside the file as JSON.

    Raises:
        HieronnxError: If a rule is wrong or names no call, or the file cannot be written or loaded.

    Example:
        >>> hieronnx.place("model.onnx", on=["cuda:encoder.*", "cpu:*"], output="placed.onnx").session_options
        {'session.layer_assignment_settings': 'cuda(=cuda); cpu(=cpu)'}
    """
    rules = [_parse_rule(text) for text in on]
    if not rules:
        raise InputError("there is nothing to place; give a rule, as in cuda:encoder.*")
    if check:
        require("onnxruntime", "runtime")
        find_providers(providers)
    target = Path(output)
    with open_flat(model) as opened:  # calls that share a function may be on several devices
        hierarchy = require_hierarchy(opened.hierarchy, opened.path, opened.model)
        placed = _place_nodes(hierarchy, rules)
        annotations = {key: rules[rule][0] for key, rule in placed.items()}
        source = model if opened.path is None else opened.path
        written = write(source, hierarchy, target, embed=embed, sidecar=sidecar, annotations=(ANNOTATION, annotations))
    devices = dict.fromkeys(device for device, _ in rules)
    settings = {SETTINGS: "; ".join(f"{device}(={device})" for device in devices)}
    given: Mapping[NodeKey, str] = {}
    notes: list[str] = []
    if check:
        try:
            given = find_assignments(open_model(target), settings, providers)
        except HieronnxError as error:  # the file is written, and is what was asked for
            notes.append(f"what each node is given could not be seen: {error}")
    return PlaceResult(
        path=target,
        sidecar=sidecar_path(target) if sidecar else None,
        rules=tuple(_describe(number, rule, placed, given) for number, rule in enumerate(rules)),
        unplaced=len(hierarchy.nodes) - len(placed),
        session_options=settings,
        hierarchy=load(target) if embed or sidecar else written,
        notes=(*notes, *_note_misplaced(rules, placed, given)),
    )


def _parse_rule(text: str) -> tuple[str, str]:
    """Parse `device:target`; the device may have a colon itself, as in `gpu:1:encoder.*`."""
    device, colon, pattern = (part.strip() for part in text.rpartition(":"))
    if not colon or not device or not pattern or _RESERVED.intersection(device):
        raise InputError(f"cannot read the rule '{text}'; expected device:target, as in cuda:encoder.* or gpu:1:head")
    return device, pattern


def _place_nodes(hierarchy: Hierarchy, rules: Sequence[tuple[str, str]]) -> dict[NodeKey, int]:
    """Return for each node that a rule is of the first such rule."""
    by_call: dict[object, int] = {}
    for number, (_, pattern) in enumerate(rules):
        for call in hierarchy.select_calls(pattern):
            for below in hierarchy.tree.below(call):
                by_call.setdefault(below, number)
    return {node.key: by_call[node.scope] for node in hierarchy.nodes if node.scope in by_call}


def _describe(
    number: int, rule: tuple[str, str], placed: Mapping[NodeKey, int], given: Mapping[NodeKey, str]
) -> PlacedNodes:
    keys = [key for key, chosen in placed.items() if chosen == number]
    return PlacedNodes(*rule, len(keys), dict(Counter(given[key] for key in keys if key in given)))


def _note_misplaced(
    rules: Sequence[tuple[str, str]], placed: Mapping[NodeKey, int], given: Mapping[NodeKey, str]
) -> list[str]:
    """Say for which devices this ONNX Runtime gave nodes to the CPU alone."""
    notes = []
    for device in dict.fromkeys(device for device, _ in rules if device.lower() != "cpu"):
        got = {given[key] for key, number in placed.items() if rules[number][0] == device and key in given}
        if got == {"CPUExecutionProvider"}:
            notes.append(
                f"no provider for '{device}' was tried here: its nodes were given to the CPU; try it where one is"
            )
    return notes
