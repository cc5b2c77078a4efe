"""Measuring models: sessions with the profiler on, warmed up, run in turns where there are several."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from hieronnx.errors import InputError, check_known
from hieronnx.files.opening import OpenedModel
from hieronnx.graph.shapes import bind_axes
from hieronnx.graph.sizes import find_free
from hieronnx.runtime.fitting import fit_inputs
from hieronnx.runtime.inputs import FileInput, check_feeds, draw_feeds, read_feeds
from hieronnx.runtime.profiles import ProfiledSession, Trace, open_profiled
from hieronnx.tools.carry.pair import Pair, open_pair

Inputs: TypeAlias = Mapping[str, Any] | str | os.PathLike[str] | None
"""Arrays by name, a file or folder of them, or None for random ones."""

_SESSIONS = 4
_PLAIN_SHARE = 8
_LEAST_PLAIN = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """How models are measured; the options of `profile`."""

    inputs: Inputs
    dims: Mapping[str, int]
    runs: int
    warmup: int
    optimization: str
    providers: Sequence[str]
    threads: int | None

    def check(self) -> None:
        """Make sure that the numbers make sense.

        Raises:
            InputError: If they do not.
        """
        if self.runs < 1:
            raise InputError(f"{self.runs} runs tell nothing; give 1 or more")
        if self.warmup < 0:
            raise InputError(f"{self.warmup} runs to warm up are too few; give 0 or more")
        for name, size in self.dims.items():
            if size < 1:
                raise InputError(f"axis '{name}' cannot have size {size}; a size is 1 or more")


@dataclass(slots=True)
class Measured:
    """What was measured of one model.

    Attributes:
        pair: the model and the graph that ran.
        trace: the runs that count, of all sessions.
        sessions: how many runs each session had.
        feeds: the inputs, by name.
        plain_us: the runs with the profiler off.
        load_us: what it took to make the session.
        providers: of the session.
        notes: what the user should know.
    """

    pair: Pair
    trace: Trace
    sessions: tuple[int, ...]
    feeds: Mapping[str, Any]
    plain_us: float | None = None
    load_us: float | None = None
    providers: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Running:
    """A model with its session, and what it is fed."""

    opened: OpenedModel
    session: ProfiledSession
    feeds: Mapping[str, Any]
    notes: list[str]
    plain: list[float] = field(default_factory=list)


def measure(
    models: Sequence[OpenedModel], settings: Settings, *, levels: Sequence[str] = (), report: Callable[[str], None]
) -> list[Measured]:
    """Measure models in one session each; the runs of several are taken in turns: what disturbs one disturbs all.

    Args:
        models: The models.
        settings: How.
        levels: The level of optimization of each; none: that of the settings.
        report: Called with the name of each stage as it begins.

    Raises:
        HieronnxError: If ONNX Runtime cannot load or run one of them, or inputs do not fit.
    """
    with ExitStack() as stack:
        report("loading and optimizing")
        chosen = levels or [settings.optimization] * len(models)
        running = [_start(opened, level, settings, stack) for opened, level in zip(models, chosen, strict=True)]
        report("running")
        for number in range(settings.runs):
            for item in running if number % 2 else reversed(running):
                item.session.run(item.feeds)
        traces = [item.session.finish() for item in running]
        for _ in range(max(settings.runs // _PLAIN_SHARE, _LEAST_PLAIN)):
            for item in running:
                item.plain.append(item.session.run(item.feeds))
        return [_end(item, trace, settings.runs) for item, trace in zip(running, traces, strict=True)]


def measure_again(
    models: Sequence[OpenedModel],
    settings: Settings,
    *,
    levels: Sequence[str] = (),
    earlier: Sequence[Measured] = (),
    report: Callable[[str], None],
) -> list[Measured]:
    """Measure models in several sessions each: where memory lies makes sessions of one model differ.

    What is loaded first finds other memory than what is loaded next: the models take turns in that, too.

    Args:
        models: The models.
        settings: How.
        levels: The level of optimization of each; none: that of the settings.
        earlier: What was measured of them before, to be joined with what is measured now.
        report: Called with the name of each stage as it begins.

    Raises:
        HieronnxError: If ONNX Runtime cannot load or run one of them, or inputs do not fit.
    """
    measured = list(earlier)
    for number in range(_SESSIONS):
        turn = 1 if number % 2 else -1
        latest = measure(models[::turn], settings, levels=levels[::turn], report=report)[::turn]
        measured = [_join(a, b) for a, b in zip(measured, latest, strict=True)] if measured else latest
    return measured


def _start(opened: OpenedModel, level: str, settings: Settings, stack: ExitStack) -> _Running:
    session = stack.enter_context(
        open_profiled(opened, optimization=level, providers=settings.providers, threads=settings.threads)
    )
    feeds, notes = _choose_feeds(session, settings, opened)
    for _ in range(settings.warmup - 1):  # the inputs were tried once
        session.run(feeds)
    return _Running(opened, session, feeds, notes)


def _end(item: _Running, trace: Trace, runs: int) -> Measured:
    kept = trace.take_last(runs)
    notes = item.notes
    if len(kept.runs) < runs or not all(kept.runs):
        whole = [place for place, run in enumerate(kept.runs) if run]
        kept = Trace([kept.runs[place] for place in whole], [kept.run_us[place] for place in whole])
        notes = [*notes, f"ONNX Runtime's profiler recorded {len(whole)} of {runs} runs: it keeps a million events"]
    return Measured(
        pair=open_pair(item.opened, item.session.optimized),
        trace=kept,
        sessions=(len(kept.runs),),
        feeds=item.feeds,
        plain_us=median(item.plain),
        load_us=item.session.load_seconds * 1e6,
        providers=item.session.providers,
        notes=notes,
    )


def _join(a: Measured, b: Measured) -> Measured:
    """Join what two sessions of a model gave."""
    trace = Trace([*a.trace.runs, *b.trace.runs], [*a.trace.run_us, *b.trace.run_us])
    plain = None if a.plain_us is None or b.plain_us is None else median((a.plain_us, b.plain_us))
    notes = list(dict.fromkeys((*a.notes, *b.notes)))
    return Measured(a.pair, trace, (*a.sessions, *b.sessions), a.feeds, plain, a.load_us, a.providers, notes)


# -- inputs -----------------------------------------------------------------------------------------------


def _choose_feeds(
    session: ProfiledSession, settings: Settings, opened: OpenedModel
) -> tuple[Mapping[str, Any], list[str]]:
    """Return inputs on which the model runs, and what the user should know of them; it is run on them once."""
    inputs = session.inputs
    axes = list(dict.fromkeys(size for item in inputs for size in item.shape or () if isinstance(size, str)))
    for axis in settings.dims:
        check_known("dynamic axis", axis, axes, "the model has")
    if settings.inputs is not None:
        feeds = _read_given(settings.inputs, inputs)
        session.run(feeds)
        return feeds, []
    (feeds,) = draw_feeds(fit_inputs(inputs, session.run, settings.dims), 1)
    sizes = bind_axes(opened.model, {name: array.shape for name, array in feeds.items()})
    chosen = [axis for axis in find_free(axes) if axis not in settings.dims]
    made = ", ".join(f"{axis} {sizes[axis]}" for axis in chosen)
    options = " ".join(f"--dim {axis}=SIZE" for axis in chosen)
    return feeds, [f"dynamic axes of '{opened.name}' had these sizes: {made}; {options} sets them"] if chosen else []


def _read_given(given: Mapping[str, Any] | str | os.PathLike[str], inputs: Sequence[FileInput]) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return check_feeds(given, inputs, "inputs")
    read = read_feeds(Path(given), inputs)
    if len(read) > 1:
        raise InputError(f"'{given}' has inputs of {len(read)} runs; a profile is of one: name the file")
    return read[0]
