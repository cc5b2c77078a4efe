"""Measuring: each run in a process of its own, the sides of a comparison in turn, medians and their ratio.

A piece of work is a function, named `module:function`, that takes strings, prepares everything that is not to
be measured (imports, the model, a warm-up) and returns a callable that does the work once.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """What one process is to do: a function, its arguments, and how many times to do the work."""

    function: str
    args: tuple[str, ...] = ()
    rounds: int = 1
    """Where the work is short, a process does it several times and reports the mean: the garbage collector's full
    passes fall into some of them only, and are part of the cost."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall time of the work, and the most memory that its process held, what it imported included."""

    seconds: float
    peak_mib: float

    def ratio_to(self, other: Cost) -> Cost:
        """Return this cost as a multiple of another."""
        return Cost(self.seconds / other.seconds, self.peak_mib / other.peak_mib)


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark's part of the report."""

    title: str
    text: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def measure(works: Mapping[str, Work], repeats: int) -> dict[str, list[Cost]]:
    """Run all works `repeats` times in turn, every second time in reverse order; return the costs of every run."""
    found: dict[str, list[Cost]] = {name: [] for name in works}
    for repeat in range(repeats):
        for name in list(works) if repeat % 2 == 0 else list(works)[::-1]:
            found[name].append(_run_in_child(works[name]))
    return found


def median(costs: Sequence[Cost]) -> Cost:
    """Return the median time and the median peak."""
    return Cost(
        statistics.median(cost.seconds for cost in costs),
        statistics.median(cost.peak_mib for cost in costs),
    )


def _run_in_child(work: Work) -> Cost:
    # This process must stay small, torch not imported: a child's peak begins with its parent's size.
    command = [sys.executable, "-m", "benchmarks.measure", work.function, str(work.rounds), *work.args]
    # One thread: with more, the sides would compete with whatever else the machine does.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{work.function} {' '.join(work.args)} failed:\n{done.stderr}")
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def _be_child(function: str, rounds: int, args: Sequence[str]) -> Cost:
    module, _, name = function.partition(":")
    do_work: Callable[[], object] = getattr(importlib.import_module(module), name)(*args)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        do_work()
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1024**2 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return Cost(statistics.mean(times), peak / unit)


if __name__ == "__main__":
    cost = _be_child(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    print(json.dumps({"seconds": cost.seconds, "peak_mib": cost.peak_mib}))
