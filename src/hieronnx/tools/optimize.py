"""Optimize: run an optimizer or simplifier of others on a model, and carry the hierarchy through it, in one step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hieronnx.errors import check_known
from hieronnx.graph.view import ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.tools.adapters.optimizers import OPTIMIZERS, Optimizer
from hieronnx.tools.adapters.running import run_tool
from hieronnx.tools.carry import CarryResult


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
    return replace(result, notes=(*result.notes, *_note_portability(tool, result.hierarchy)))


def _note_portability(tool: str, hierarchy: Hierarchy) -> Iterator[str]:
    if tool == "ort-all":
        yield (
            "ONNX Runtime chose some operators for the processor of this machine; "
            "on others the file may be slow, or not run at all"
        )
    elif any(node.domain.startswith("com.microsoft") for node in hierarchy.nodes):
        yield "the file has operators of ONNX Runtime's own, which other runtimes do not know"
