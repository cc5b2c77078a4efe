"""Sensitivity: how much each module loses by 8 bits, without writing a model."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hieronnx.errors import check_known, count
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import OpenedModel, open_model, require_hierarchy
from hieronnx.graph.shapes import bind_axes
from hieronnx.graph.view import ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.runtime.inputs import read_inputs, read_outputs
from hieronnx.runtime.runs import Inputs, check_samples, split_inputs
from hieronnx.runtime.sessions import CPU, as_file, open_session
from hieronnx.tools.analyze.counting import analyze
from hieronnx.tools.precision.calibration import Calibration
from hieronnx.tools.precision.result import ModuleSensitivity, SensitivityResult
from hieronnx.tools.precision.units import list_in_few_bits
from hieronnx.tools.quantize import draw_samples, read_samples, run_quantizer
from hieronnx.tools.verify.deviation import Deviation
from hieronnx.tools.verify.result import VerifyResult
from hieronnx.tools.verify.verifying import measure_calls

_MOST = 16
"""How many samples of a calibration are run."""
_MADE_UP = "the modules were run on random inputs, not on your data; --inputs takes real ones"


@reads_files
def sensitivity(
    model: ModelLike,
    *,
    tool: Literal["dynamic", "static", "int4"] = "dynamic",
    inputs: Inputs | None = None,
    samples: int = 1,
    calibration: Calibration = (),
    random_calibration: int = 0,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> SensitivityResult:
    """Rank the modules of a model by what quantization does to them, the most sensitive first; nothing is written.

    Everything is quantized once. Each module then runs alone on what it is given in float.

    Args:
        model: The model, with its hierarchy.
        tool: `dynamic`, `static` or `int4`.
        inputs: What to run on, by the names that the file has for them: arrays, or a `.npz` file. If not given, what
            the calibration has, at most sixteen samples of it; without that random ones.
        samples: How many random samples, if none are given.
        calibration: For `static`, as `quantize` takes it.
        random_calibration: For `static`, likewise.
        progress: Called with the name of each stage as it begins.
        **options: `operators`, `weight_type` and the others of `quantize`, or any option of the quantizer.

    Raises:
        HieronnxError: If the model has no hierarchy, or cannot be quantized or run.

    Example:
        >>> hieronnx.sensitivity("model.onnx", inputs="samples.npz").modules[0].module
        'encoder.layer.3.output'
    """
    check_known("tool", tool, ("dynamic", "static", "int4"))
    check_samples(samples)
    opened = open_model(model)
    hierarchy = require_hierarchy(opened.hierarchy, opened.path, opened.model)
    with as_file(opened) as source, tempfile.TemporaryDirectory(prefix="hieronnx-") as folder:
        runs = read_samples(source, calibration, random_calibration)
        path = Path(folder) / "quantized.onnx"
        quantized = run_quantizer(
            model,
            output=path,
            tool=tool,
            calibration=runs if calibration else (),
            random_calibration=random_calibration,
            progress=progress,
            **options,
        )
        if inputs is not None:
            given = split_inputs(read_inputs(source), inputs, samples)
        else:
            given = runs[:: math.ceil(len(runs) / _MOST)] if runs else draw_samples(source, samples)
        verified = measure_calls(path, model, given)
        shapes = {name: array.shape for name, array in given[0].items()}
        modules = rank_modules(hierarchy, verified, Costs.of(opened, shapes))
        output = max(verified.outputs, key=lambda deviation: deviation.severity, default=Deviation(""))
        made_up = inputs is None and not calibration
        notes = [*quantized.notes, *([_MADE_UP] if made_up else [])]
        if not output.max_abs or any(found.is_broken for found in (output, *(m.introduced for m in modules))):
            notes += _tell_nan(source, given, "random input" if made_up else "sample")
    return SensitivityResult(opened.name, tool, tuple(modules), output, verified.samples, tuple(notes))


def _tell_nan(source: Path, given: Sequence[Mapping[str, Any]], kind: str) -> list[str]:
    """Say on how many samples the model itself gives NaN, if on any: nothing can be told of quantization there."""
    session, names = open_session(source, providers=[CPU], optimized=True), read_outputs(source)
    odd = sum(any(map(_has_nan, session.run(feeds, names).values())) for feeds in given)
    told = (
        f"even in float the model gives NaN on {odd} of {count(len(given), kind)}, as it may for a length of 0 or a "
        "mask that hides all: what quantization does cannot be told there; --inputs takes others"
    )
    return [told] if odd else []


def _has_nan(made: Any) -> bool:
    return isinstance(made, np.ndarray) and made.dtype.kind == "f" and bool(np.isnan(made).any())


class Costs:
    """What each module costs, all its calls and what is below included."""

    def __init__(self, multiply_adds: Mapping[str, int], parameter_bytes: Mapping[str, int]) -> None:
        self.multiply_adds, self.bytes = multiply_adds, parameter_bytes

    @classmethod
    def of(cls, opened: OpenedModel, sample: Mapping[str, Sequence[int]]) -> Costs:
        """Count the multiply-adds and the parameters' bytes of all modules, for inputs of a sample's shapes."""
        adds: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for line in analyze(opened, all_calls=True, dims=bind_axes(opened.model, sample)).modules:
            path = line.call.id.module
            given = line.total.multiply_adds
            adds[path] = adds.get(path, 0) + (given if isinstance(given, int) else 0)
            sizes[path] = line.bytes or 0
        return cls(adds, sizes)


def rank_modules(hierarchy: Hierarchy, verified: VerifyResult, costs: Costs) -> list[ModuleSensitivity]:
    """Return the innermost modules with quantized nodes, those that make the largest error first."""
    quantized = set(list_in_few_bits(verified.hierarchy))
    worst: dict[str, Deviation] = {}
    for call in verified.calls:
        below = any(path.startswith(f"{call.module}." if call.module else "") for path in quantized - {call.module})
        if call.module in quantized or (below and not _has_child(call.module, verified, quantized)):
            found = worst.get(call.module)
            if found is None or call.introduced.severity > found.severity:
                worst[call.module] = call.introduced
    ranked = sorted(worst, key=lambda path: -worst[path].severity)
    return [
        ModuleSensitivity(
            module=path,
            class_name=hierarchy.modules[path].class_name,
            introduced=worst[path],
            multiply_adds=costs.multiply_adds.get(path, 0),
            bytes=costs.bytes.get(path, 0),
        )
        for path in ranked
    ]


def _has_child(path: str, verified: VerifyResult, quantized: set[str]) -> bool:
    """Say whether a module below was compared that has quantized nodes itself."""
    prefix = f"{path}." if path else ""
    inside = {call.module for call in verified.calls if call.module != path and call.module.startswith(prefix)}
    return not inside.isdisjoint(quantized)
