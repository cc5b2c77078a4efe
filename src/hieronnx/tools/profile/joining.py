"""Joining the kernels of a trace to the nodes of the graph that ran.

A kernel is told by its node's name. What a Loop, Scan or If ran lies within its time, so that its own time is what is
left without these; two nodes of one name are told apart by the node in whose body they ran:

    MatMul  10 … 17  (body)   own 7
    Loop     5 … 19           own 7 = 14 - 7

What ONNX Runtime writes out in place of an operator that it has no kernel for has no names. It runs a graph in the
order in which it writes it, so that such nodes are known by their order:

    file    conv   HardSigmoid   Mul     conv_1   HardSigmoid   Mul
    trace   conv   HardSigmoid_7 Mul_8   conv_1   HardSigmoid_9 Mul_10
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hieronnx.graph.view import View
from hieronnx.runtime.profiles import Trace, TraceEvent

_UNNAMED = "\0"  # no name has it


@dataclass(slots=True)
class JoinedKernel:
    """All that ran of one node; or, where the graph has no node of the name, of one name.

    Attributes:
        name: as the trace has it.
        op_type: as the trace has it.
        provider: the execution provider that ran it.
        node: by its number in the view; None where the graph has none of the name.
        samples: the microseconds of each run, all its iterations together, without what it ran itself.
        counts: how often it ran in each run.
        events: those of the first run in which it ran.
        run: which run that is.
    """

    name: str
    op_type: str
    provider: str
    node: int | None
    samples: list[float]
    counts: list[int]
    run: int
    events: list[TraceEvent] = field(default_factory=list)


def join_kernels(trace: Trace, view: View) -> list[JoinedKernel]:
    """Join the kernels of all runs to nodes, in the order in which they first began."""
    named: dict[str, list[int]] = defaultdict(list)
    for index, viewed in enumerate(view.nodes):
        # ONNX Runtime calls a node without a name after its operator, and a number that no file has.
        named[viewed.name or f"{viewed.op.rpartition('::')[2]}{_UNNAMED}"].append(index)
    named |= {name: [node] for name, node in _pair_unnamed(trace, named, view).items()}
    kernels: dict[int | str, JoinedKernel] = {}
    for number, run in enumerate(trace.runs):
        for event, node, own in _walk_run(run, named, view):
            key = event.kernel if node is None else node
            kernel = kernels.get(key)
            if kernel is None:
                runs = len(trace.runs)
                says = event.args
                kernel = JoinedKernel(event.kernel, says.op_name, says.provider, node, [0.0] * runs, [0] * runs, number)
                kernels[key] = kernel
            kernel.samples[number] += own
            kernel.counts[number] += 1
            if kernel.run == number:
                kernel.events.append(event)
    return sorted(kernels.values(), key=lambda kernel: (kernel.run, min(event.ts for event in kernel.events)))


def _pair_unnamed(trace: Trace, named: Mapping[str, Sequence[int]], view: View) -> dict[str, int]:
    """Pair the kernels that no node has the name of with the nodes that have none, both in their order.

    Nothing is paired where an operator has more of the ones than of the others, or where nodes with names, or those
    that were paired, ran in another order than that of the file.
    """
    order = [event for run in trace.runs[:1] for event in sorted(run, key=lambda event: event.ts)]
    operators = {event.kernel: event.args.op_name for event in order}
    paired: dict[str, int] = {}
    for operator in dict.fromkeys(operators.values()):
        nodes = named.get(f"{operator}{_UNNAMED}", ())
        kernels = [name for name, op in operators.items() if op == operator and _is_unnamed(name, op, named)]
        if len(nodes) == len(kernels) and not any(view.nodes[node].graph for node in nodes):
            paired |= zip(kernels, nodes, strict=True)
    known = {name: nodes[0] for name, nodes in named.items() if len(nodes) == 1} | paired
    ran = [known[name] for name in operators if name in known and not view.nodes[known[name]].graph]
    return paired if ran == sorted(ran) else {}


def _is_unnamed(kernel: str, operator: str, named: Mapping[str, Sequence[int]]) -> bool:
    """Say whether a kernel may be of a node without a name."""
    return kernel not in named and kernel.startswith(f"{operator}_")


@dataclass(slots=True)
class _Ended:
    """An event that ended, and the nodes that it may be of; what it ran itself is taken out of its time."""

    event: TraceEvent
    nodes: Sequence[int]
    own: float


def _walk_run(
    run: Sequence[TraceEvent], named: Mapping[str, Sequence[int]], view: View
) -> list[tuple[TraceEvent, int | None, float]]:
    """Return each event of a run with its node and its own time."""
    open_ends: dict[int | str, list[_Ended]] = defaultdict(list)  # by thread; nothing that ended later ran them
    found: list[tuple[TraceEvent, int | None, float]] = []
    for event in run:
        ended = _Ended(event, named.get(event.kernel) or _find_unnamed(event, named), event.dur)
        waiting = open_ends[event.tid]
        if any(view.nodes[node].bodies for node in ended.nodes):
            found += _take_body(ended, waiting, view)
        waiting.append(ended)
    for waiting in open_ends.values():
        found += [(item.event, _choose(item.nodes, view, None), item.own) for item in waiting]
    return found


def _find_unnamed(event: TraceEvent, named: Mapping[str, Sequence[int]]) -> Sequence[int]:
    """Return the node without a name that an event is of, where the graph has one such node of the operator."""
    operator = event.args.op_name
    nodes = named.get(operator + _UNNAMED, ()) if event.kernel.startswith(f"{operator}_") else ()
    return nodes if len(nodes) == 1 else ()


def _take_body(ended: _Ended, waiting: list[_Ended], view: View) -> list[tuple[TraceEvent, int | None, float]]:
    """Take what a node ran in its bodies from the events before it, and out of its time."""
    taken = []
    while waiting and waiting[-1].event.ts >= ended.event.ts:
        inner = waiting[-1]
        if not any(_owner(node, view) in ended.nodes for node in inner.nodes):
            break
        waiting.pop()
        ended.own -= inner.event.dur
        owners = [node for node in inner.nodes if _owner(node, view) in ended.nodes]
        taken.append((inner.event, _choose(owners, view, ended), inner.own))
    ended.own = max(ended.own, 0.0)  # each time is rounded
    return taken


def _choose(nodes: Sequence[int], view: View, outer: _Ended | None) -> int | None:
    """Choose the node that an event is of: in no body if nothing ran it; none where several are left."""
    fitting = [node for node in nodes if outer is not None or _owner(node, view) is None] or list(nodes)
    return fitting[0] if len(fitting) == 1 else None


def _owner(node: int, view: View) -> int | None:
    """Return the node that has a node in one of its bodies."""
    return view.graphs[view.nodes[node].graph].owner
