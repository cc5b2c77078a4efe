"""Quantize: run a quantizer of others on a model, all but chosen modules, and carry the hierarchy through it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hieronnx.errors import InputError, check_known
from hieronnx.files.opening import open_model, require_hierarchy
from hieronnx.files.writing import check_output, list_own_files
from hieronnx.graph.view import ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Call, CallId, Node
from hieronnx.tools.adapters.calibration import Feeds, check_feeds, draw_feeds, read_feeds, read_inputs
from hieronnx.tools.adapters.copying import Copy, copy_for_tool
from hieronnx.tools.adapters.files import reporting_failures, working_folder
from hieronnx.tools.adapters.quantizers import QUANTIZERS
from hieronnx.tools.carry import CarryResult, carry_temporary

_FEW = 3


def quantize(
    model: ModelLike,
    *,
    output: str | os.PathLike[str],
    tool: str,
    exclude: str | Sequence[str] = (),
    calibration: str | os.PathLike[str] | Iterable[Mapping[str, Any]] = (),
    random_calibration: int = 0,
    embed: bool = True,
    sidecar: bool = True,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> CarryResult:
    """Quantize a model with a tool of ONNX Runtime and write what it made, with the model's hierarchy.

    Args:
        model: The model, with its hierarchy.
        output: Where to write; the sidecar goes beside it.
        tool: `dynamic` or `static` for int8, `fp16` for half precision.
        exclude: What is to stay in float: module paths, for all their calls; calls as `path@n`; tags; globs over these.
            What is below comes with it.
        calibration: For `static`: a .npz file with an array for each input, a folder of such files, or the inputs
            themselves, a mapping for each run.
        random_calibration: For `static`, if there are no inputs: how many runs with random ones.
        embed: Whether to write the hierarchy into the file as metadata.
        sidecar: Whether to write it beside the file as JSON.
        progress: Called with the name of each stage as it begins.
        **options: Any option of `quantize_dynamic`, `quantize_static` or `convert_float_to_float16`.

    Raises:
        HieronnxError: If the model has no hierarchy, nothing matches a pattern, the tool is missing or fails, or the
            output cannot be written.

    Example:
        >>> hieronnx.quantize("model.onnx", output="int8.onnx", tool="dynamic", exclude=["encoder.layer.0.*"])
        CarryResult(94 nodes to 130, coverage 100.0%)
    """
    check_known("tool", tool, QUANTIZERS)
    destination, report = Path(output), progress or (lambda _stage: None)
    opened = open_model(model)
    hierarchy = require_hierarchy(opened.hierarchy, opened.path, opened.model)
    excluded = _find_excluded(hierarchy, [exclude] if isinstance(exclude, str) else exclude)
    _check_bodies(tool, excluded)
    check_output(destination, list_own_files(model))
    with working_folder(model, destination) as (source, made):
        feeds = _get_feeds(source, calibration, random_calibration)
        copy = copy_for_tool(source, _make_folder(made.with_name("copy")), excluded.keys)
        report(f"quantizing, {tool}")
        with reporting_failures(f"'{tool}'"):
            QUANTIZERS[tool](copy.path, made, copy.chosen, feeds, **options)
        report("carrying the hierarchy")
        result = carry_temporary(source, made, destination, embed=embed, sidecar=sidecar)
    notes = (*_note_excluded(excluded, copy), *_note_random(random_calibration))
    return replace(result, notes=(*result.notes, *notes))


def _make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def _get_feeds(source: Path, given: str | os.PathLike[str] | Iterable[Mapping[str, Any]], drawn: int) -> list[Feeds]:
    inputs = read_inputs(source)
    if isinstance(given, str | os.PathLike):
        return read_feeds(Path(given), inputs)
    found = [check_feeds(feeds, inputs, f"run {number} of the calibration") for number, feeds in enumerate(given)]
    return found or draw_feeds(inputs, drawn)


# -- what stays in float ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Excluded:
    """The nodes that stay in float, and those of them that do the work of other calls, too."""

    nodes: tuple[Node, ...]
    shared: tuple[Node, ...]

    @property
    def keys(self) -> set[tuple[str, str]]:
        """What identifies them: their graphs' keys and first outputs."""
        return {(node.graph, node.output) for node in self.nodes}


def _find_excluded(hierarchy: Hierarchy, patterns: Sequence[str]) -> _Excluded:
    """Find the nodes that work for a call that a pattern matches, or for one below it.

    Raises:
        HieronnxError: If nothing matches a pattern.
    """
    chosen = {call.id for pattern in patterns for call in _find_calls(hierarchy, pattern)}
    inside: set[CallId] = set()
    for call in hierarchy.calls:  # each after the one above it
        if call.id in chosen or call.parent in inside:
            inside.add(call.id)
    nodes = [node for node in hierarchy.nodes if node.scope in inside or not inside.isdisjoint(node.origins)]
    return _Excluded(tuple(nodes), tuple(node for node in nodes if not inside.issuperset(node.origins)))


def _check_bodies(tool: str, excluded: _Excluded) -> None:
    """Make sure that the converter to half is not asked for what it writes broken files of.

    Raises:
        InputError: If it is.
    """
    inner = next((node for node in excluded.nodes if node.graph), None)
    if tool == "fp16" and inner is not None:
        raise InputError(
            f"fp16 can leave no node in float that is in a body of control flow or in a function, as "
            f"'{inner.name or inner.output}' of '{inner.scope}' is; exclude other modules"
        )


def _find_calls(hierarchy: Hierarchy, pattern: str) -> list[Call]:
    """Find the calls that a pattern matches; a module's path alone stands for all its calls: they share its weights."""
    return [call for call in hierarchy.calls if call.id.module == pattern] or hierarchy.find_calls(pattern)


def _note_excluded(excluded: _Excluded, copy: Copy) -> Iterator[str]:
    if excluded.shared:
        names = ", ".join(node.name or node.output for node in excluded.shared[:_FEW])
        more = f" and {len(excluded.shared) - _FEW} more" if len(excluded.shared) > _FEW else ""
        yield f"{len(excluded.shared)} of the nodes left in float work for other calls, too: {names}{more}"
    if copy.named:
        yield f"{copy.named} nodes had no name of their own, which the tool needs; they are named after what they make"


def _note_random(count: int) -> Iterator[str]:
    if count:
        yield f"the ranges are those of {count} random inputs, not of your data; --calibration takes real ones"
