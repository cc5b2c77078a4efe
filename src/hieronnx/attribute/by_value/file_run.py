"""The run of the file: the fingerprints of its tensors on every set of inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hieronnx.attribute.by_value.trace import Prints
from hieronnx.errors import HieronnxError
from hieronnx.graph.view import View
from hieronnx.match.fingerprints import Fingerprint, distance, take_fingerprint
from hieronnx.runtime.sessions import Array, Runner

_SAME = 1e-3
"""How far the outputs of the right way may be apart; where they are farther, all ways are tried."""

Feed = Callable[[Sequence[tuple[str, Array]]], dict[str, Array]]


@dataclass(slots=True)
class FileRun:
    """The values of the file's tensors, by their numbers in its view: several where a body or function ran again."""

    prints: dict[int, list[Prints]] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    sets: int = 1
    """On how many sets of inputs the file ran."""

    def on_first(self) -> FileRun:
        """Return what was seen on the first set of inputs alone."""
        return FileRun({t: [one[:1] for one in found] for t, found in self.prints.items()}, self.hidden)


def record_file(runner: Runner, view: View, feeds: Sequence[Mapping[str, Array]]) -> FileRun:
    """Run the file on every set of inputs and take the fingerprints of all that it computes and holds.

    The first set is what was given. One of the others on which the file cannot be run is left out, and those after it.
    """
    numbers = {
        (view.graphs[graph].key, name): t
        for t, (name, graph) in enumerate(zip(view.names, view.tensor_graphs, strict=True))
    }
    runs: list[dict[int, list[Fingerprint]]] = []
    seen = FileRun()
    for one in feeds:
        found: dict[int, list[Fingerprint]] = defaultdict(list)

        def visit(graph: str, name: str, array: Array, found: dict[int, list[Fingerprint]] = found) -> None:
            number = numbers.get((graph, name))
            if number is not None and array.dtype.kind in "biufc" and array.size:
                found[number].append(take_fingerprint(array))

        try:
            seen.hidden = runner.run_exposed(one, visit)
        except HieronnxError:
            if not runs:
                raise
            break
        for name, array in one.items():
            visit("", name, array)
        runs.append(found)
    seen.sets = len(runs)
    held: dict[int, list[Fingerprint]] = defaultdict(list)
    runner.read_initializers(lambda graph, name, array: _keep_held(held, numbers, name, array))
    seen.prints = {t: [(found[0],) * len(runs)] for t, found in held.items() if found}
    for number, found_first in runs[0].items():
        others = [run.get(number, []) for run in runs[1:]]
        if all(len(other) == len(found_first) for other in others):
            seen.prints[number] = list(zip(found_first, *others, strict=True))
    return seen


def _keep_held(
    held: dict[int, list[Fingerprint]], numbers: Mapping[tuple[str, str], int], name: str, array: Array
) -> None:
    number = numbers.get(("", name))
    if number is not None and array.dtype.kind in "biufc" and array.size:
        held[number].append(take_fingerprint(array))


def choose_feeds(
    runner: Runner, ways: Sequence[Feed], arguments: Sequence[tuple[str, Array]], outputs: Sequence[Fingerprint]
) -> Feed:
    """Return the way to give the arguments with which the file gives what the model gives, or nearly."""
    if len(ways) == 1:
        return ways[0]
    best, nearest = ways[0], np.inf
    for way in ways:
        try:
            given = [take_fingerprint(a) for a in runner.run(way(arguments)).values() if isinstance(a, np.ndarray)]
        except HieronnxError:  # of several ways to feed a file most are wrong
            continue
        apart = sum(min((min(distance(wanted, found), 1.0) for found in given), default=1.0) for wanted in outputs)
        if apart < nearest:
            best, nearest = way, apart
        if nearest <= _SAME * len(outputs):
            break
    return best
