"""Optimize: run an optimizer or simplifier of others on a model, and carry the hierarchy through it, in one step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from hieronnx.errors import ExportError, HieronnxError, check_known, require
from hieronnx.files.boundary import reads_files
from hieronnx.files.staging import data_name
from hieronnx.graph.view import SMALL_TENSOR_BYTES, ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.runtime.inputs import MOST_DRAWN, read_inputs
from hieronnx.tools.carry import CarryResult
from hieronnx.tools.running import calling, has_external_data, run_tool, save_model

Optimizer: TypeAlias = Literal["ort-basic", "ort-extended", "ort-all", "onnxsim", "onnxslim", "onnxscript"]

_FATAL_ONLY = 4


@reads_files
def optimize(
    model: ModelLike,
    *,
    output: str | os.PathLike[str],
    tool: Optimizer,
    embed: bool = True,
    sidecar: bool = True,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> CarryResult:
    """Run an optimizer on a model and write what it made, with the model's hierarchy.

    Args:
        model: The model, with its hierarchy.
        output: Where to write; the sidecar goes beside it.
        tool: `ort-basic`, `ort-extended` or `ort-all` for the levels of ONNX Runtime, `onnxsim`, `onnxslim`, or
            `onnxscript` for its optimizer and rewriter.
        embed: Whether to write the hierarchy into the file as metadata.
        sidecar: Whether to write it beside the file as JSON.
        progress: Called with the name of each stage as it begins.
        **options: Any option of `onnxsim.simplify`, `onnxslim.slim` or `onnxscript.optimizer.optimize`.

    Raises:
        HieronnxError: If the model has no hierarchy, the tool is missing or fails, or the output cannot be written.

    Example:
        >>> hieronnx.optimize("model.onnx", output="fast.onnx", tool="ort-extended").hierarchy.coverage()
        1.0
    """
    check_known("tool", tool, OPTIMIZERS)

    def run(source: Path, made: Path, _: Hierarchy) -> tuple[str, ...]:
        OPTIMIZERS[tool](source, made, **options)
        return ()

    result = run_tool(model, output, tool, run, embed=embed, sidecar=sidecar, progress=progress)
    if tool == "ort-all":
        note = "ONNX Runtime chose some operators for the processor of this machine; on others the file may be slow"
        return replace(result, notes=(*result.notes, f"{note}, or not run at all"))
    if any(node.domain.startswith("com.microsoft") for node in result.hierarchy.nodes):
        note = "the file has operators of ONNX Runtime's own, which other runtimes do not know"
        return replace(result, notes=(*result.notes, note))
    return result


# -- the tools, imported when they run --------------------------------------------------------------------


def _optimize_with_runtime(level: str, source: Path, target: Path) -> None:
    require("onnxruntime", "runtime")
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level.upper()}")
    options.optimized_model_filepath = str(target)
    options.log_severity_level = _FATAL_ONLY
    if has_external_data(source):
        # Without this the file would refer to the data of the one that it was made of.
        key = "session.optimized_model_external_initializers"
        options.add_session_config_entry(f"{key}_file_name", data_name(target))
        options.add_session_config_entry(f"{key}_min_size_in_bytes", str(SMALL_TENSOR_BYTES))
    with calling(f"ort-{level}"):
        ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def _simplify(source: Path, target: Path, **options: Any) -> None:
    require("onnxsim", "optimizers")
    import onnxsim

    for item in read_inputs(source):
        if item.elements > MOST_DRAWN:  # it follows what may be a list of sizes element by element
            raise HieronnxError(
                f"the input '{item.name}' has {item.elements:,} elements, and onnxsim may take memory for each; "
                "use another tool, or give the input an axis that is dynamic"
            )
    with calling("onnxsim"):
        simplified, checked = onnxsim.simplify(str(source), **options)
    if not checked:
        raise ExportError("onnxsim's own check found that its result differs from the model; use another tool")
    save_model(simplified, target, external=has_external_data(source))


def _slim(source: Path, target: Path, **options: Any) -> None:
    require("onnxslim", "optimizers")
    import onnxslim

    with calling("onnxslim"):
        slimmed = onnxslim.slim(str(source), **options)
    if slimmed is None:
        raise ExportError("onnxslim's own check found that its result differs from the model; use another tool")
    # Not by onnxslim itself: before it writes external data it deletes a file of that name from the current folder.
    save_model(slimmed, target, external=has_external_data(source))


def _optimize_with_onnxscript(source: Path, target: Path, **options: Any) -> None:
    require("onnxscript", "torch")
    import onnx_ir as ir
    from onnxscript import optimizer, rewriter

    with calling("onnxscript"):
        model = rewriter.rewrite(optimizer.optimize(ir.load(source), **options))
    external = data_name(target) if has_external_data(source) else None
    ir.save(model, target, external_data=external, size_threshold_bytes=SMALL_TENSOR_BYTES)


OPTIMIZERS: Mapping[Optimizer, Callable[..., None]] = {
    "ort-basic": partial(_optimize_with_runtime, "basic"),
    "ort-extended": partial(_optimize_with_runtime, "extended"),
    "ort-all": partial(_optimize_with_runtime, "all"),
    "onnxsim": _simplify,
    "onnxslim": _slim,
    "onnxscript": _optimize_with_onnxscript,
}
"""Each takes the file to read, the file to write, and options of the tool's own."""
