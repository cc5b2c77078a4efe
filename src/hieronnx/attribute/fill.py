"""Filling gaps: a node without a scope gets one from its neighbours, by one walk and two policies.

A literal (a `Constant`: a node that reads nothing) is always one. It does no work of its own, and exporters write equal
ones once, wherever they met the first: what they recorded of it says nothing of who needs it. So it belongs to those
who read it: their calls are its origins, and the lowest call above them is its scope. Where that is the call that was
recorded, the evidence stays; else it is `dataflow`, rule `consumers`. What a tool computed beforehand and wrote as a
literal is work (`carried`), and stays with the call that did it.

Each gap hears the calls of the nodes that feed it and of those that read it; a neighbour that is a gap itself stands
for the lowest call above what lies beyond it:

    Relu [a.x] → Neg [gap] → Abs [gap] → Exp [a.y]      both gaps hear a.x before and a.y after: they ran in a

A graph's output is read by whoever returns it: the root, or the node that has the body. A body's inputs are made by
the node that has the body. No node of a body belongs to a call above that node's: the body ran in that call.

`fill_gaps` is for few gaps, each filled by the first of these rules that applies:

between     what it reads was made by one call, what it makes is read by another: it ran between the two, so
            inside the lowest call above both. That may be coarse, but is never a sibling's.
parameter   it is a parameter under its own name, for the module that owns it: exporters write weights that are
            equal only once, and the others as copies
consumers   it reads constants and shapes alone and serves those who read it: the lowest call above them all, once
            these have theirs
root        nothing is known; an honest fallback that never counts as covered

`propagate` is for many: a node goes to the deepest call that has more than half of all that it hears, and some from
each side. So a residual goes to the layer that it closes, and what lies between two siblings goes to their parent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import ROOT, Attribution, CallId, Node

_ROUNDS = 3
"""How often `propagate` passes on what it filled; more rounds fill little more."""
_AT_ROOT = Attribution(ROOT, (ROOT,), "root", "root")
_BY_ROOT = Attribution(ROOT, (ROOT,), "captured")
"""What the model returns is read by whoever called it."""


def make_nodes(view: View, attributions: Sequence[Attribution]) -> tuple[Node, ...]:
    """Make the nodes of a hierarchy, in the order of the file."""
    nodes = []
    for index in view.file_order:
        node, (graph, output), by = view.nodes[index], view.node_key(index), attributions[index]
        domain, _, op_type = node.op.rpartition("::")
        nodes.append(Node(graph, node.name, op_type, domain, output, by.scope, by.origins, by.evidence, by.rule))
    return tuple(nodes)


def fill_gaps(
    view: View, attributions: Sequence[Attribution | None], tree: CallTree, parameters: Collection[str] = ()
) -> list[Attribution]:
    """Return the attributions, one for each node: literals by who reads them, other gaps (None) by the first rule."""
    known = [None if index in view.literals else item for index, item in enumerate(attributions)]
    if known.count(None) > len(view.literals):
        neighbours = _Neighbours(view)
        heard, gaps = neighbours.listen(known, tree), [index for index, item in enumerate(known) if item is None]
        for index in gaps:
            known[index] = _fill_between(heard[index], tree)
        for index in (index for index in reversed(gaps) if not heard[index].before):  # who reads a node is after it
            readers = [_BY_ROOT if n is None else known[n] or _AT_ROOT for n in neighbours.readers[index]]
            output = view.node_key(index)[1]
            owner = output.rpartition(".")[0] if output in parameters else None
            known[index] = _serve(readers, heard[index].around, owner, tree)
    for index, served in _find_served(view, known):
        known[index] = _give_to_readers(attributions[index], served, tree)
    return [item or _AT_ROOT for item in known]


def _find_served(view: View, attributions: Sequence[Attribution | None]) -> Iterator[tuple[int, list[Attribution]]]:
    """Yield each literal with what is known of those who read it, in bodies too; who has a graph reads its outputs."""
    readers: dict[int | None, list[Attribution | None]] = {}
    for index in sorted(view.literals):
        readers[index] = [attributions[reader] for t in view.nodes[index].makes for reader in view.consumers[t]]
    for number, graph in enumerate(view.graphs):
        around = attributions[graph.owner] if graph.owner is not None else None if number else _BY_ROOT
        for producer in map(view.producers.__getitem__, graph.outputs):
            if producer in readers:
                readers[producer].append(around)
    for index in sorted(view.literals):
        yield index, [reader for reader in readers[index] if reader is not None and reader.evidence != "root"]


def _give_to_readers(recorded: Attribution | None, served: Sequence[Attribution], tree: CallTree) -> Attribution | None:
    """Give a literal to those who read it, unless it holds work; what was recorded counts where nobody is known."""
    if not served or (recorded is not None and recorded.evidence == "carried"):
        return recorded
    joined = tree.join(served, "dataflow")
    if recorded is not None and recorded.evidence != "root" and recorded.scope == joined.scope:
        return Attribution(joined.scope, joined.origins, recorded.evidence, recorded.rule)
    return Attribution(joined.scope, joined.origins, "dataflow", "consumers")


def _serve(readers: Sequence[Attribution], around: CallId, owner: str | None, tree: CallTree) -> Attribution:
    """Attribute what reads nothing to those who read it; the owner is that of the parameter whose name it has."""
    if not readers or any(reader.evidence == "root" for reader in readers):
        return _AT_ROOT
    scope = tree.lowest_above([around if reader is _BY_ROOT else reader.scope for reader in readers])
    evidence, rule = ("parameter", "parameter") if scope.module == owner else ("dataflow", "consumers")
    return Attribution(scope, (scope,), evidence, rule)


def _fill_between(heard: _Heard, tree: CallTree) -> Attribution:
    if not heard.before or not heard.after:
        return _AT_ROOT
    after = tree.lowest_above(heard.after)
    return _make_between(tree.lowest_above((*heard.before, after)), heard.around, tree) or _AT_ROOT


def _make_between(scope: CallId, around: CallId, tree: CallTree) -> Attribution | None:
    if scope in tree.ancestors(around):  # what is in a body ran in the call of the node that has it
        scope = around
    # That a node ran somewhere in the model is no news.
    return None if scope == ROOT else Attribution(scope, (scope,), "dataflow", "between")


def propagate(view: View, attributions: Sequence[Attribution | None], tree: CallTree) -> list[Attribution]:
    """Return the attributions with every gap filled by what most neighbours say; by the root where they say nothing."""
    neighbours = _Neighbours(view)
    constant = [all(view.flow.constant[t] for t in node.makes) for node in view.nodes]
    filled = list(attributions)
    for _ in range(_ROUNDS):
        heard = neighbours.listen(filled, tree)
        gaps = [index for index, item in enumerate(filled) if item is None and not constant[index]]
        for index in gaps:
            filled[index] = _choose(heard[index], tree)
        if all(filled[index] is None for index in gaps):
            break
    # What reads constants and shapes alone serves those who read it.
    around = neighbours.find_around(filled)
    for index in range(len(filled) - 1, -1, -1):
        if filled[index] is None and constant[index] and (readers := neighbours.readers[index]):
            served = [around[index] if n is None else (filled[n] or _AT_ROOT).scope for n in readers]
            scope = tree.lowest_above(served)
            filled[index] = None if scope == ROOT else Attribution(scope, (scope,), "dataflow", "consumers")
    return [item or _AT_ROOT for item in filled]


def _choose(heard: _Heard, tree: CallTree) -> Attribution | None:
    """Choose the deepest call with more than half of what was heard, and some of each side; None for the root."""
    sides = [[above for call in side for above in tree.ancestors(call)] for side in (heard.before, heard.after) if side]
    votes = Counter(call for side in sides for call in side)
    total = len(heard.before) + len(heard.after)
    most = {call for call, count in votes.items() if 2 * count > total}.intersection(*sides)
    # Two calls that both have more than half are one above the other.
    return _make_between(max(most, key=tree.depth, default=ROOT), heard.around, tree)


class _Heard(NamedTuple):
    """The calls that a gap hears from those that feed it and those that read it, and the call around its graph."""

    before: list[CallId]
    after: list[CallId]
    around: CallId


class _Neighbours:
    """For each node those that feed it values and those that read it; None for what is around its graph."""

    def __init__(self, view: View) -> None:
        self._view = view
        given = {tensor for graph in view.graphs for tensor in graph.inputs} - set(view.constants)
        returned = {tensor for graph in view.graphs for tensor in graph.outputs}
        producers, consumers = view.producers, view.consumers
        self.feeders: list[list[int | None]] = [
            [producers[t] for t in dict.fromkeys(node.reads_values) if producers[t] is not None or t in given]
            for node in view.nodes
        ]
        self.readers: list[list[int | None]] = []
        for node in view.nodes:
            outputs = node.makes
            readers = [reader for tensor in outputs for reader in dict.fromkeys(consumers[tensor])]
            self.readers.append([*readers, *[None] * (not returned.isdisjoint(outputs))])

    def listen(self, attributions: Sequence[Attribution | None], tree: CallTree) -> list[_Heard]:
        """Return what each gap hears, through neighbours that are gaps themselves; nothing for the other nodes."""
        around = self.find_around(attributions)
        gaps = [index for index, item in enumerate(attributions) if item is None]
        sides = []
        for order, neighbours in ((gaps, self.feeders), (gaps[::-1], self.readers)):
            heard: list[list[CallId]] = [[] for _ in attributions]
            beyond = [None if item is None else item.scope for item in attributions]
            for index in order:
                calls = (around[index] if n is None else beyond[n] for n in neighbours[index])
                heard[index] = [call for call in calls if call is not None]
                beyond[index] = tree.lowest_above(heard[index]) if heard[index] else None
            sides.append(heard)
        return list(map(_Heard, *sides, around))

    def find_around(self, attributions: Sequence[Attribution | None]) -> list[CallId]:
        """Return for each node the call of the nearest node around its graph that has one; else the root."""
        by_graph = [ROOT] * len(self._view.graphs)
        for number, graph in enumerate(self._view.graphs):  # an outer graph comes before the bodies in it
            if graph.owner is not None:
                owner = attributions[graph.owner]
                by_graph[number] = by_graph[self._view.nodes[graph.owner].graph] if owner is None else owner.scope
        return [by_graph[node.graph] for node in self._view.nodes]
