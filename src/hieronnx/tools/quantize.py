"""Quantize: run a quantizer of others on a model, all but chosen modules, and carry the hierarchy through it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hieronnx.errors import InputError, check_known, list_some
from hieronnx.graph.view import ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.adapters.calibration import Feeds, check_feeds, draw_feeds, read_feeds, read_inputs
from hieronnx.tools.adapters.quantizers import QUANTIZERS, Quantizer
from hieronnx.tools.adapters.running import copy_for_tool, run_tool
from hieronnx.tools.carry import CarryResult


def quantize(
    model: ModelLike,
    *,
    output: str | os.PathLike[str],
    tool: Quantizer,
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
    patterns = [exclude] if isinstance(exclude, str) else exclude

    def run(source: Path, made: Path, hierarchy: Hierarchy) -> Iterator[str]:
        inside = _find_excluded(hierarchy, patterns)
        nodes = [node for node in hierarchy.nodes if node.scope in inside or not inside.isdisjoint(node.origins)]
        _check_bodies(tool, nodes)
        feeds = _get_feeds(source, calibration, random_calibration)
        copy = copy_for_tool(source, made.with_name("copy"), {node.key for node in nodes})
        QUANTIZERS[tool](copy.path, made, copy.chosen, feeds, **options)
        yield from _note_shared([node for node in nodes if not inside.issuperset(node.origins)])
        if copy.named:
            yield f"{copy.named} nodes had no name of their own, which the tool needs; they got the names of outputs"
        if random_calibration:
            drawn = f"the ranges are those of {random_calibration} random inputs, not of your data"
            yield f"{drawn}; --calibration takes real ones"

    return run_tool(model, output, f"'{tool}'", run, embed=embed, sidecar=sidecar, progress=progress)


def _get_feeds(source: Path, given: str | os.PathLike[str] | Iterable[Mapping[str, Any]], drawn: int) -> list[Feeds]:
    inputs = read_inputs(source)
    if isinstance(given, str | os.PathLike):
        return read_feeds(Path(given), inputs)
    checked = [check_feeds(feeds, inputs, f"run {number} of the calibration") for number, feeds in enumerate(given)]
    return checked or draw_feeds(inputs, drawn)


# -- what stays in float ----------------------------------------------------------------------------------


def _find_excluded(hierarchy: Hierarchy, patterns: Sequence[str]) -> set[CallId]:
    """Return the calls that a pattern matches and those below them; a module's path stands for all its calls.

    They share its weights.

    Raises:
        InputError: If nothing matches a pattern.
    """
    chosen = {call for pattern in patterns for call in hierarchy.select_calls(pattern)}
    return {below for call in chosen for below in hierarchy.tree.below(call)}


def _check_bodies(tool: str, nodes: Iterable[Node]) -> None:
    """Make sure that the converter to half is not asked for what it writes broken files of.

    Raises:
        InputError: If it is.
    """
    inner = next((node for node in nodes if node.graph), None)
    if tool == "fp16" and inner is not None:
        raise InputError(
            f"fp16 can leave no node in float that is in a body of control flow or in a function, as "
            f"'{inner.name or inner.output}' of '{inner.scope}' is; exclude other modules"
        )


def _note_shared(nodes: Sequence[Node]) -> Iterator[str]:
    if nodes:
        names = list_some([node.name or node.output for node in nodes], 3)
        yield f"{len(nodes)} of the nodes left in float work for other calls, too: {names}"
