"""What stages cost: by time, multiply-adds or weights; and what crosses each place to cut."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hieronnx.errors import InputError, count, list_some
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.analyze.shapes import count_nodes, list_axes
from hieronnx.tools.split.balance import Numbers, join_weights, sum_costs
from hieronnx.tools.split.timeline import TensorSizes, Timeline, count_weight, is_literal_node, list_weights


def measure_stages(
    timeline: Timeline,
    balance: str | None,
    profile: str | os.PathLike[str] | Mapping[str, Any] | None,
    dims: Mapping[str, int],
    notes: list[str],
) -> tuple[str, Numbers]:
    """Return what stages are balanced by, and what each possible stage costs."""
    chosen = balance or ("multiply-adds" if profile is None else "time")
    if chosen == "bytes":
        return chosen, join_all_weights(timeline)
    if chosen == "time":
        assert profile is not None  # or the request was refused
        costs = _read_profile(timeline, profile)
    else:
        costs = _count_multiply_adds(timeline, dims, notes)
    if not any(costs.values()):
        notes.append(f"no node has a cost by {chosen}: the stages are balanced by their numbers of nodes")
        chosen, costs = "nodes", {i: 1.0 for i in timeline.nodes if not is_literal_node(timeline.source, i)}
    by_place = dict.fromkeys(timeline.places, 0.0)
    last = timeline.places[-1]
    for index, cost in costs.items():
        time = timeline.times[index]
        by_place[time if time in by_place else last] += cost
    return chosen, sum_costs(list(by_place.values()))


def _count_multiply_adds(timeline: Timeline, dims: Mapping[str, int], notes: list[str]) -> dict[int, float]:
    """Return the multiply-adds of each node of the main graph, its bodies included."""
    source = timeline.source
    counts, _ = count_nodes(source.opened.model, source.nodes, dims)
    named = sorted(name for name in list_axes(source.opened.model) if name not in dims)
    if named and not all(isinstance(item, int) for item in counts):
        raise InputError(
            "the multiply-adds depend on dynamic axes; give their sizes: "
            + " ".join(f"--dim {name}=SIZE" for name in named)
        )
    if unknown := sum(not isinstance(item, int) for item in counts):
        notes.append(f"the multiply-adds of {count(unknown, 'node')} are not known, and count as none")
    sums = dict.fromkeys(timeline.nodes, 0.0)
    for index, item in enumerate(counts):
        owner: int | None = index
        while owner is not None and source.view.nodes[owner].graph:
            owner = source.view.graphs[source.view.nodes[owner].graph].owner
        if owner in sums and isinstance(item, int):
            sums[owner] += item
    return sums


def _read_profile(timeline: Timeline, profile: str | os.PathLike[str] | Mapping[str, Any]) -> dict[int, float]:
    """Return the time of each node, by a profile: what a call took by itself, shared by its nodes."""
    source = timeline.source
    try:
        content = profile if isinstance(profile, Mapping) else json.loads(Path(profile).read_bytes())
        entries = {CallId(item["module"], item["call"]): float(item["own_us"]) for item in content["calls"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"the profile cannot be read ({error!r}); give what 'hieronnx profile --json' prints"
        ) from error
    unknown = [str(call) for call in entries if call not in source.hierarchy.call_by_id]
    if unknown:
        raise InputError(f"the profile is of another model: this one has no call {list_some(unknown, 3)}")
    working: dict[CallId, list[int]] = {}
    for index in timeline.nodes:
        if not is_literal_node(source, index):
            working.setdefault(source.attributions[index].scope, []).append(index)
    costs = dict.fromkeys(timeline.nodes, 0.0)
    for call, took in entries.items():
        # What a call without nodes took, those of the nearest call above did.
        nodes = next((working[above] for above in source.hierarchy.tree.ancestors(call) if above in working), [])
        for index in nodes:
            costs[index] += took / len(nodes)
    return costs


def join_all_weights(timeline: Timeline) -> Numbers:
    """Return how many bytes of weights each possible stage has."""
    source, ranks = timeline.source, {time: rank for rank, time in enumerate(timeline.places)}
    readers: dict[int, list[int]] = {}
    for index in timeline.nodes:
        rank = ranks.get(timeline.times[index], len(ranks) - 1)
        for tensor in list_weights(source, [index]):
            readers.setdefault(tensor, []).append(rank)
    return join_weights(len(ranks), [(count_weight(source, tensor), read) for tensor, read in readers.items()])


def measure_crossings(timeline: Timeline, sizes: TensorSizes) -> list[int]:
    """Return the bytes that cross a cut before each place; one for a tensor whose size is not known."""
    source, view = timeline.source, timeline.source.view
    ranks = {time: rank for rank, time in enumerate(timeline.places)}
    changes = [0] * (len(ranks) + 2)
    last: dict[int, int] = {}
    for index in timeline.nodes:
        for tensor in view.nodes[index].reads:
            if view.flow.is_data(tensor) and tensor not in view.constants:
                last[tensor] = max(last.get(tensor, 0), ranks.get(timeline.times[index], 0))
    for tensor, end in last.items():
        producer = view.producers[tensor]
        begin = 0 if producer is None else ranks.get(timeline.times.get(producer, 0), 0)
        if end > begin and source.view.tensor_graphs[tensor] == 0:
            size = sizes.count_bytes(tensor) or 1
            changes[begin + 1] += size
            changes[end + 1] -= size
    return [int(total) for total in np.cumsum(changes)[: len(ranks) + 1]]
