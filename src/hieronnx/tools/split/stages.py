"""The stages of a model: which nodes each has, what goes in and out, what is repeated."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from hieronnx.errors import HieronnxError
from hieronnx.hierarchy.records import ROOT
from hieronnx.tools.extract.boundary import CallTensors, derive
from hieronnx.tools.extract.find import Part
from hieronnx.tools.extract.source import Source
from hieronnx.tools.split.timeline import Timeline, is_literal_node, list_weights


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor that crosses cuts: who makes it (None: the model is fed it), and which stages read it."""

    tensor: int
    made_by: int | None
    read_by: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages as parts, and what crosses from each to those after it."""

    parts: tuple[Part, ...]
    crossings: tuple[Crossing, ...]

    def crossing_after(self, stage: int) -> list[Crossing]:
        """Return what crosses the cut after a stage."""
        return [c for c in self.crossings if (c.made_by is None or c.made_by <= stage) and c.read_by[-1] > stage]


def find_stages(timeline: Timeline, cuts: Sequence[int]) -> Stages:
    """Find the stages between cuts, each the time at which the next stage begins.

    Raises:
        HieronnxError: If a stage has nothing to do.
    """
    source, count = timeline.source, len(cuts) + 1
    members: list[list[int]] = [[] for _ in range(count)]
    for index in timeline.nodes:
        members[timeline.stage_of(index, cuts)].append(index)
    _check_work(timeline, cuts, members)
    makers = {t: stage for stage, nodes in enumerate(members) for i in nodes for t in source.view.nodes[i].makes}
    inputs, repeated = [], []
    for nodes in members:
        entering, again = _find_inputs(source, nodes)
        inputs.append(entering)
        repeated.append(again)
    outputs = source.view.graphs[0].outputs
    unmade = [t for t in dict.fromkeys(outputs) if t not in makers]  # the model gives these as it has or is fed them
    inputs[-1] |= dict.fromkeys(t for t in unmade if t not in source.view.constants)
    crossings = _find_crossings(inputs, makers)
    crossing = {item.tensor for item in crossings}
    parts = []
    for stage, nodes in enumerate(members):
        made = [t for i in nodes for t in source.view.nodes[i].makes]
        leaving = [t for t in outputs if makers.get(t) == stage or (stage == count - 1 and t in unmade)]
        leaving += [t for t in made if t in crossing]
        parts.append(_make_part(source, nodes, repeated[stage], inputs[stage], leaving))
    return Stages(tuple(parts), tuple(crossings))


def _check_work(timeline: Timeline, cuts: Sequence[int], members: Sequence[Sequence[int]]) -> None:
    """Make sure that each stage has a node that is no literal."""
    for stage, nodes in enumerate(members):
        if all(is_literal_node(timeline.source, index) for index in nodes):
            names = [f"'{timeline.name_cut(time)}'" for time in cuts]
            where = f"before {names[0]}" if not stage else f"after the cut before {names[stage - 1]}"
            also = f" and before {names[stage]}" if 0 < stage < len(cuts) else ""
            raise HieronnxError(f"there is nothing to compute {where}{also}: a stage would be empty; cut elsewhere")


def _find_inputs(source: Source, nodes: Iterable[int]) -> tuple[dict[int, None], list[int]]:
    """Return what a stage takes, in the order in which it reads it, and the nodes of others that it repeats.

    It repeats constants, but for those that are computed of weights, and sizes of what it has.
    """
    view = source.view
    made = {t for index in nodes for t in view.nodes[index].makes}
    read = dict.fromkeys(t for index in nodes for t in view.nodes[index].reads)
    wanted = [t for t in read if t not in made and t not in view.constants]
    entering = dict.fromkeys(t for t in wanted if view.flow.is_data(t) or view.producers[t] is None)
    repeated: set[int] = set()
    for tensor in wanted:
        if tensor in entering:
            continue
        cone = derive(source, tensor, made.union(entering), {})
        if cone is None or _uses_weights(source, cone):
            entering[tensor] = None
        else:
            repeated |= cone.keys()
    ordered = dict.fromkeys(t for t in view.graphs[0].inputs if t in entering)
    return {**ordered, **entering}, sorted(repeated)


def _uses_weights(source: Source, cone: Iterable[int]) -> bool:
    return any(not source.weighted.isdisjoint(source.view.nodes[index].makes) for index in cone)


def _find_crossings(inputs: Sequence[Collection[int]], makers: dict[int, int]) -> list[Crossing]:
    read_by: dict[int, list[int]] = {}
    for stage, entering in enumerate(inputs):
        for tensor in entering:
            read_by.setdefault(tensor, []).append(stage)
    found = (Crossing(tensor, makers.get(tensor), tuple(stages)) for tensor, stages in read_by.items())
    return [item for item in found if item.made_by is not None or item.read_by[-1] > 0]


def _make_part(
    source: Source, nodes: Sequence[int], repeated: Sequence[int], inputs: Iterable[int], outputs: Iterable[int]
) -> Part:
    leaving = tuple(dict.fromkeys(outputs))
    weights = {*list_weights(source, (*nodes, *repeated)), *(t for t in leaving if t in source.view.constants)}
    return Part(
        call=ROOT,
        calls=(ROOT,),
        between=(),
        region=tuple(nodes),
        pulled_in=tuple(repeated),
        graphs=frozenset({0}),
        inputs=tuple(inputs),
        outputs=leaving,
        initializers=tuple(sorted(weights)),
        sizes=(),
        io=CallTensors({}, {}, (), (), recorded=False),
        arguments={},
        places={},
        retaken={},
    )
