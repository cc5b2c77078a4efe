"""Profile: which module is slow. ONNX Runtime runs the model with its profiler on; kernels become calls' times."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias

from hieronnx.errors import InputError, check_known, count, list_some, require
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import OpenedModel, open_model, require_hierarchy
from hieronnx.files.torch_scopes import note_torch_scopes
from hieronnx.graph.view import ModelLike
from hieronnx.runtime.profiles import LEVELS, read_trace
from hieronnx.tools.carry.pair import open_pair
from hieronnx.tools.fold.unfolding import open_flat
from hieronnx.tools.profile.assembling import Assembled, assemble
from hieronnx.tools.profile.comparing import compare_profiles, is_saved, read_saved, summarize_calls
from hieronnx.tools.profile.isolating import time_alone
from hieronnx.tools.profile.measuring import Measured, Settings, measure, measure_again
from hieronnx.tools.profile.result import Machine, ProfileResult
from hieronnx.tools.profile.roofline import measure_machine

Optimization: TypeAlias = Literal["none", "basic", "extended", "layout", "all"]


_OVERSTATED = 0.8
"""Where a run takes less than this part of what its kernels add up to, the profiler counts for too much."""
_ROUNDS = 2
"""Where calls seem to have changed, all is measured once more, and only what still seems so is a change."""
_MOST_NAMES = 3
_WARM = 2
"""With more runs than this, the first one of a trace can be left out."""


@reads_files
def profile(
    model: ModelLike,
    *,
    inputs: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    runs: int = 20,
    optimization: Optimization = "all",
    providers: Sequence[str] = (),
    threads: int | None = None,
    dims: Mapping[str, int] | None = None,
    warmup: int = 2,
    roofline: bool = True,
    against: ModelLike | None = None,
    against_optimization: Optimization | None = None,
    in_isolation: str | None = None,
    trace_from: str | os.PathLike[str] | None = None,
    optimized: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> ProfileResult:
    """Run a model in ONNX Runtime and tell where its time goes, by module call.

    The graph that is timed is the one that ONNX Runtime makes of the model; the hierarchy is carried onto it. Every
    kernel's time is the median of the runs, and belongs to the call whose work it does; where it does the work of
    several, it is divided by their multiply-adds, or equally. The calls' own times add up to the total.

    Args:
        model: The model, with its hierarchy: a file, a ModelProto or an ir.Model.
        inputs: An array for each input, or an .npz file of them; None: random ones of the file's types and sizes.
        runs: How many runs count.
        optimization: ONNX Runtime's level: `none`, `basic`, `extended`, `layout` or `all`.
        providers: Execution providers, as in `cuda`, in the order of preference; none: the CPU's.
        threads: How many threads an operator may use; None: ONNX Runtime's own choice.
        dims: Sizes of dynamic axes, by the axes' names, for random inputs.
        warmup: How many runs come first and do not count; one at least.
        roofline: Whether to measure what this machine reaches, to tell what limits each call.
        against: Another model, or the saved JSON of an earlier profile, to compare with.
        against_optimization: The level for the other model; None: the same. Without `against`, the same model at that
            level is the other one.
        in_isolation: Also time calls as models of their own: a target as for `extract`.
        trace_from: A trace that ONNX Runtime's profiler wrote, here or elsewhere: it is read, and nothing is run.
        optimized: The graph that ran when that trace was written, as `optimized_model_filepath` gives it; None: the
            model itself ran, not optimized.
        progress: Called with the name of each stage as it begins.

    Raises:
        HieronnxError: If the model has no hierarchy, ONNX Runtime cannot run it, or an option is wrong.

    Example:
        >>> result = hieronnx.profile("model.onnx", runs=50)
        >>> max(result.calls, key=lambda call: call.own_us).module
        'encoder.layer.0.intermediate.dense'
    """
    report = progress or (lambda _stage: None)
    settings = Settings(inputs, dims or {}, runs, warmup, optimization, providers, threads)
    settings.check()
    if trace_from is not None:
        return _read_from_elsewhere(_require(open_model(model)), Path(trace_from), optimized)
    if optimized is not None:
        raise InputError("'optimized' says which graph a trace is of; give trace_from, too")
    require("onnxruntime", "runtime")
    check_known("level of optimization", optimization, LEVELS)
    with open_flat(model) as opened:  # ONNX Runtime would give what it writes out names of its own
        _require(opened)
        machine = measure_machine(threads) if roofline else None
        if against is None and against_optimization is None:
            (measured,) = measure([opened], settings, report=report)
            result = _make_result(opened, settings, measured, machine)
        else:
            measured, result = _profile_against(opened, settings, machine, against, against_optimization, report)
        if in_isolation is not None:
            report("timing parts alone")
            result = replace(result, isolated=time_alone(opened, result, in_isolation, settings, measured.feeds))
    return result


def _require(opened: OpenedModel) -> OpenedModel:
    require_hierarchy(opened.hierarchy, opened.path, opened.model)
    return opened


def _make_result(opened: OpenedModel, settings: Settings, measured: Measured, machine: Machine | None) -> ProfileResult:
    return _describe(opened, settings.optimization, settings.threads, measured, assemble(measured, machine), machine)


def _describe(
    opened: OpenedModel,
    optimization: str,
    threads: int | None,
    measured: Measured,
    assembled: Assembled,
    machine: Machine | None,
) -> ProfileResult:
    peaks = [e.args.mem_in_use_peak for run in measured.trace.runs for e in run if e.args.mem_in_use_peak is not None]
    strategy = None if opened.hierarchy is None else opened.hierarchy.strategy
    return ProfileResult(
        model=opened.name,
        optimization=optimization,
        providers=measured.providers,
        threads=threads,
        inputs={name: f"{a.dtype}{list(a.shape)}".replace(" ", "") for name, a in measured.feeds.items()},
        runs=len(measured.trace.runs),
        total_us=assembled.total_us,
        run_us=median(measured.trace.run_us),
        plain_us=measured.plain_us,
        load_us=measured.load_us,
        peak_memory=max(peaks, default=None),
        machine=machine,
        calls=assembled.calls,
        kernels=assembled.kernels,
        by_kind=assembled.by_kind,
        hierarchy=assembled.hierarchy,
        notes=(
            *measured.notes,
            *note_torch_scopes(opened.name, strategy),
            *_note_kinds(assembled),
            *_note_uncounted(assembled),
            *_note_profiler(measured, assembled),
        ),
    )


def _note_kinds(assembled: Assembled) -> list[str]:
    """Say how much time is of kernels whose module is not known."""
    notes = []
    for kind, why in (
        ("unattributed", "of nodes whose module is not known"),
        ("runtime", "of kernels that no node of the graph has the name of"),
    ):
        if us := assembled.by_kind[kind]:
            share = 100 * us / assembled.total_us if assembled.total_us else 0.0
            notes.append(f"{us:,.0f} µs ({share:.1f} %) are {why}; they count at the root")
    return notes


def _note_uncounted(assembled: Assembled) -> list[str]:
    """Say which kernels of the graph have multiply-adds that are not known."""
    unknown = [kernel for kernel in assembled.kernels if kernel.node is not None and kernel.multiply_adds is None]
    operators = sorted({kernel.operator for kernel in unknown})
    return [
        f"the multiply-adds of {count(len(unknown), 'kernel')} are not known ({list_some(operators, _MOST_NAMES)}): "
        "those of a call with one of them are at least what is told"
    ][: len(unknown)]


def _note_profiler(measured: Measured, assembled: Assembled) -> list[str]:
    """Say so if what was timed is mostly the profiler itself."""
    plain, kernels = measured.plain_us, assembled.total_us
    if plain is None or plain >= kernels * _OVERSTATED:
        return []
    return [
        f"a run without the profiler takes {plain:,.0f} µs, and its kernels add up to {kernels:,.0f} µs: the profiler "
        "adds some µs to each kernel, so that small ones look slower than they are; larger inputs (--dim) tell more"
    ]


# -- against another --------------------------------------------------------------------------------------


def _profile_against(
    opened: OpenedModel,
    settings: Settings,
    machine: Machine | None,
    against: ModelLike | None,
    level: str | None,
    report: Callable[[str], None],
) -> tuple[Measured, ProfileResult]:
    if against is not None and is_saved(against):
        if level is not None:
            raise InputError("a saved profile has its level of optimization; leave the other level out")
        saved = read_saved(against)
        (measured,) = measure_again([opened], settings, report=report)
        result = _make_result(opened, settings, measured, machine)
        compared = compare_profiles(saved, summarize_calls(result), interleaved=False)
        return measured, replace(result, comparison=compared)
    levels = (level or settings.optimization, settings.optimization)
    with nullcontext(opened) if against is None else open_flat(against) as other:
        _require(other)
        named = f"{other.name} at level '{levels[0]}'" if levels[0] != levels[1] else other.name
        both: list[Measured] = []
        for _ in range(_ROUNDS):
            both = measure_again([other, opened], settings, levels=levels, earlier=both, report=report)
            before = _make_result(other, replace(settings, optimization=levels[0]), both[0], machine)
            result = _make_result(opened, settings, both[1], machine)
            earlier = replace(summarize_calls(before), name=named)
            compared = compare_profiles(earlier, summarize_calls(result), interleaved=True)
            if not any(change.percent is not None for change in compared.changed):
                break
    return both[1], replace(result, comparison=compared)


# -- from elsewhere ---------------------------------------------------------------------------------------


def _read_from_elsewhere(opened: OpenedModel, path: Path, optimized: str | os.PathLike[str] | None) -> ProfileResult:
    """Profile a model by a trace that was written before: by another program, or on another machine."""
    trace = read_trace(path)
    notes = []
    if len(trace.runs) > _WARM:
        trace = trace.take_last(len(trace.runs) - 1)
        notes.append("the first run of the trace does not count: ONNX Runtime plans its memory then")
    pair = open_pair(opened, opened.model if optimized is None else optimized)
    measured = Measured(pair, trace, (len(trace.runs),), {})
    measured.providers = tuple(dict.fromkeys(e.args.provider for run in trace.runs for e in run if e.args.provider))
    measured.notes = notes
    return _describe(opened, "", None, measured, assemble(measured, None), None)
