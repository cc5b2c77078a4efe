"""Quantize: a quantizer of others on all but chosen modules; or on as much as possible, so that a target is met."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hieronnx.errors import HieronnxError, InputError, check_known
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import OpenedModel, open_model, require_hierarchy
from hieronnx.graph.shapes import bind_axes
from hieronnx.graph.view import ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.runtime.sessions import Array, as_file
from hieronnx.tools.carry import CarryResult
from hieronnx.tools.precision.calibration import Calibration
from hieronnx.tools.precision.measuring import Judge, Metric, Target
from hieronnx.tools.precision.result import TargetSearch, Trial
from hieronnx.tools.quantize import QUANTIZERS, Quantizer, read_samples, run_quantizer, translate_options

_DRAWN = 8
_NAMED = {"operators": "op"}
"""The options that have another name in the command."""
_PROBED = 2
"""On how many samples modules run alone, for estimates; candidates run on all."""
_PATIENCE = 4
"""How many times as many candidates may be built by default while little is in 8 bits."""
_DRAWN_NOTE = "the target was measured on random inputs, not on your data; --calibration takes real ones"


@reads_files
def quantize(
    model: ModelLike,
    *,
    output: str | os.PathLike[str],
    tool: Quantizer,
    exclude: str | Sequence[str] = (),
    calibration: Calibration = (),
    random_calibration: int = 0,
    operators: str | Sequence[str] = (),
    weight_type: str | None = None,
    activation_type: str | None = None,
    calibration_method: str | None = None,
    symmetric: bool = False,
    block_size: int | None = None,
    target: str | None = None,
    metric: Metric | None = None,
    budget: int | None = None,
    favour: Literal["multiply-adds", "bytes"] = "multiply-adds",
    best: bool = False,
    embed: bool = True,
    sidecar: bool = True,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> CarryResult:
    """Quantize a model with a tool of ONNX Runtime and write what it made, with the model's hierarchy.

    Args:
        model: The model, with its hierarchy.
        output: Where to write; the sidecar goes beside it.
        tool: `dynamic` or `static` for int8, `fp16` for half precision, `int4` for the weights of MatMuls alone.
        exclude: What is to stay in float, as `select` takes it: module paths, for all their calls; calls as `path@n`;
            tags; globs over these; `class:X`, `op:X`, `category:X`; with `not`, `and`, `or`. What is below comes too.
        calibration: For `static`: a .npz file with an array for each input, a .npy file for a model with one, a folder
            of such files; `file.py:name`, for an iterable or a function that gives one; or that itself: a mapping of
            arrays by the inputs' names for each run.
        random_calibration: For `static`, if there are no inputs: how many runs with random ones.
        operators: The operators to quantize, if not all that the tool can.
        weight_type: int8, uint8; for `static` int16, uint16, int4 and uint4, too.
        activation_type: For `static`: int8, uint8, int16 or uint16.
        calibration_method: For `static`: minmax, entropy or percentile.
        symmetric: For `static` and `int4`: whether ranges are made symmetric about zero.
        block_size: For `int4`: how many weights share a scale; 32 if not given.
        target: What the quantized model must reach: `snr>=30` in decibels, `cosine>=0.999`, or `drop<=0.01` of the
            metric. As few modules as need be are kept in float for it, beside those excluded.
        metric: Takes a function that runs the model (inputs by name to outputs by name), and returns how good it is.
        budget: For a target: how many candidates may be built; by default some for each level and module, and more
            while what meets the target leaves less than half in 8 bits.
        favour: For a target: what is to be in 8 bits as far as possible.
        best: For a target that cannot be met: whether the best that was found is written.
        embed: Whether to write the hierarchy into the file as metadata.
        sidecar: Whether to write it beside the file as JSON.
        progress: Called with the name of each stage as it begins.
        **options: Any option of `quantize_dynamic`, `quantize_static`, `convert_float_to_float16` or
            `MatMulNBitsQuantizer`.

    Raises:
        HieronnxError: If the model has no hierarchy, nothing matches a pattern, the tool is missing or fails, the
            target cannot be met, or the output cannot be written.

    Example:
        >>> hieronnx.quantize("model.onnx", output="int8.onnx", tool="dynamic", exclude=["encoder.layer.0.*"])
        CarryResult(94 nodes to 130, coverage 100.0%)
    """
    check_known("tool", tool, QUANTIZERS)
    patterns = [exclude] if isinstance(exclude, str) else list(exclude)
    written: dict[str, Any] = {"embed": embed, "sidecar": sidecar, "progress": progress}
    settings = {
        "operators": operators,
        "weight_type": weight_type,
        "activation_type": activation_type,
        "calibration_method": calibration_method,
        "symmetric": symmetric,
        "block_size": block_size,
    }
    options = {**options, **{name: value for name, value in settings.items() if value not in (None, (), False)}}
    translate_options(tool, options)
    given: dict[str, Any] = {"calibration": calibration, "random_calibration": random_calibration, **options}
    if target is None:
        if metric is not None:
            raise InputError("a metric is for a target, as in drop<=0.01; give that, too")
        return run_quantizer(model, output=output, tool=tool, exclude=patterns, **given, **written)
    if tool == "fp16":
        raise InputError("a target is for quantization to 8 or 4 bits; fp16 takes none")
    check_known("cost", favour, ("multiply-adds", "bytes"))
    wanted = Target.parse(target, metric)
    opened = open_model(model)
    hierarchy = require_hierarchy(opened.hierarchy, opened.path, opened.model)
    report = progress or (lambda _stage: None)
    with as_file(opened) as source, tempfile.TemporaryDirectory(prefix="hieronnx-") as folder:
        feeds = read_samples(source, calibration, max(random_calibration, _DRAWN))
        seen, held = _hold_back(feeds) if tool == "static" else (feeds, feeds)
        unseen = tool != "static" or held is not seen
        if tool == "static":
            options = {**options, "calibration_cache_path": str(Path(folder) / "ranges.json")}
        once: dict[str, Any] = {"tool": tool, "calibration": seen if tool == "static" else (), **options}
        judge = Judge(source, wanted, held, metric)
        task = _Task(opened, source, hierarchy, wanted, judge, held, patterns, once, favour, budget)
        search = replace(_search(task, Path(folder), report), held_back=unseen)
        chosen = search.chosen or (max(search.trials, key=_order(wanted)) if best else None)
        if chosen is None:
            raise HieronnxError(_explain_unmet(search, wanted))
        kept = [*patterns, *chosen.kept]
        result = run_quantizer(model, output=output, exclude=kept, **once, **written)
    if tool != "static":
        given = {name: value for name, value in given.items() if "calibration" not in name}
    elif not calibration:
        given["random_calibration"] = len(feeds)
    command = ["hieronnx", "quantize", opened.name, "-o", os.fspath(output), "--with", tool, *_list_words(given)]
    search = replace(search, command=(*command, *(word for path in kept for word in ("--exclude", path))))
    drawn = () if calibration or metric is not None else (_DRAWN_NOTE,)
    return replace(result, search=search, notes=(*result.notes, *drawn))


def _list_words(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield options as a command takes them; what is no text or number is for Python alone."""
    for name, value in options.items():
        word = f"--{_NAMED.get(name, name).replace('_', '-')}"
        if value is True:
            yield word
        elif value and isinstance(value, str | int | os.PathLike):
            yield from (word, str(value))
        elif value and name == "operators":
            yield from (part for item in value for part in (word, item))


@dataclass(frozen=True, slots=True)
class _Task:
    """What a search is to find.

    Attributes:
        opened: The model.
        source: The same as a file.
        hierarchy: Of the model.
        target: What is to be met.
        judge: Measures candidates.
        samples: What the judge runs on.
        patterns: What stays in float in any case.
        settings: How every candidate is quantized.
        favour: What is to be in 8 bits as far as possible.
        budget: How many candidates may be built; None for as many as the size of the model asks for.
    """

    opened: OpenedModel
    source: Path
    hierarchy: Hierarchy
    target: Target
    judge: Judge
    samples: Sequence[Mapping[str, Array]]
    patterns: Sequence[str]
    settings: Mapping[str, Any]
    favour: str
    budget: int | None


def _search(task: _Task, folder: Path, report: Callable[[str], None]) -> TargetSearch:
    """Search which modules must stay in float; candidates are written to a folder."""
    from hieronnx.tools.precision.searching import Search, default_budget
    from hieronnx.tools.precision.units import Units
    from hieronnx.tools.verify.verifying import measure_calls

    path, hierarchy = folder / "candidate.onnx", task.hierarchy

    def build(kept: tuple[str, ...]) -> float:
        report(f"trying {len(kept)} modules in float")
        run_quantizer(task.source, output=path, exclude=[*task.patterns, *kept], sidecar=False, **task.settings)
        return task.judge.measure(path)

    report("quantizing everything")
    run_quantizer(task.source, output=path, exclude=task.patterns, **task.settings)
    dims = bind_axes(task.opened.model, {name: array.shape for name, array in task.samples[0].items()})
    measured = measure_calls(path, task.source, list(task.samples[:_PROBED]))
    units = Units.of(task.source, path, measured, dims)
    depth = max(hierarchy.tree.depth(call.id) for call in hierarchy.calls)
    budget, patience = (task.budget, 1) if task.budget else (default_budget(len(units.all), depth), _PATIENCE)
    search = Search(task.target, units, budget, build, task.favour, patience)
    chosen = search.run(task.judge.measure(path))
    trials = tuple(search.trials.values())
    return TargetSearch(
        str(task.target), trials, chosen, len(task.samples), held_back=True, ended=len(trials) < search.allowed
    )


def _hold_back(feeds: Sequence[dict[str, Array]]) -> tuple[list[dict[str, Array]], list[dict[str, Array]]]:
    """Hold every third sample back from calibration; of a single one there is nothing to hold back."""
    held = [sample for number, sample in enumerate(feeds) if number % 3 == 2]
    seen = [sample for number, sample in enumerate(feeds) if number % 3 != 2]
    return seen, held or seen


def _order(target: Target) -> Callable[[Trial], float]:
    sign = -1 if target.name == "drop" else 1
    return lambda trial: sign * (trial.value if np.isfinite(trial.value) else math.copysign(1e300, trial.value))


def _explain_unmet(search: TargetSearch, target: Target) -> str:
    nearest = max(search.trials, key=_order(target))
    kept = f"with {len(nearest.kept)} modules in float"
    return (
        f"the target {target} was not met in {len(search.trials)} trials; the best is {nearest.value:.4g} {kept}; "
        "give another target, a larger --budget, or --best to write that one"
    )
