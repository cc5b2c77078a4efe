"""Deciding which calls become functions: those whose nodes can be one node, without a circle.

The region of a call has the nodes that do its work alone: one that stands for calls beside it, too, is left to the call
above them all, and so is a literal that others read; a copy of an initializer stays with the initializers. A region is
closed if no data leaves it and comes back; then what lies between its nodes in the file is computed before it or after
it::

    scope   a      b      a      b                 scope   a      b
    node    Mul    Neg    Add    Abs         →     node    a()    b()           Mul, Add; Neg, Abs
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hieronnx.errors import list_some
from hieronnx.hierarchy.records import ROOT, CallId
from hieronnx.tools.extract.source import Source


@dataclass(frozen=True, slots=True, eq=False)
class Lifted:
    """A call that becomes a function: what its body has, in order."""

    call: CallId
    items: tuple[Item, ...]
    reads: frozenset[int]
    makes: frozenset[int]


Item: TypeAlias = "int | Lifted"
"""A node by its number in the view, or a call that stands for several."""


@dataclass(slots=True)
class Plan:
    """Which calls become functions, and why others do not.

    Attributes:
        graphs: for each graph but those of functions, what it has, in order.
        inline: the calls that were asked for and stay as they are, with the reason.
        taken_in: for each call the nodes of others that its function has, too.
    """

    graphs: dict[int, tuple[Item, ...]]
    inline: dict[CallId, str] = field(default_factory=dict)
    taken_in: dict[CallId, tuple[int, ...]] = field(default_factory=dict)

    def walk(self, items: Iterable[Item], source: Source) -> Iterator[Lifted]:
        """Yield the calls that become functions among some items, each after those inside it."""
        for item in items:
            if isinstance(item, Lifted):
                yield from self.walk(item.items, source)
                yield item
            else:
                for body in source.view.nodes[item].bodies:
                    yield from self.walk(self.graphs[body], source)

    def list_visible(self, items: Iterable[Item], source: Source) -> Iterator[Item]:
        """Yield the items of a graph and those of the bodies in it; what functions have inside is left out."""
        pending = list(items)
        for item in pending:
            yield item
            if not isinstance(item, Lifted):
                pending += (inner for body in source.view.nodes[item].bodies for inner in self.graphs[body])

    def flatten(self, items: Iterable[Item]) -> Iterator[int]:
        """Yield the nodes of some items in order, those in bodies left out."""
        for item in items:
            if isinstance(item, Lifted):
                yield from self.flatten(item.items)
            else:
                yield item

    def expand(self, items: Iterable[Item], source: Source) -> Iterator[int]:
        """Yield the nodes of some items in order, those in bodies right after their node."""
        for node in self.flatten(items):
            yield node
            for body in source.view.nodes[node].bodies:
                yield from self.expand(self.graphs[body], source)


def plan_functions(source: Source, wanted: Collection[CallId], *, take_in: bool) -> Plan:
    """Decide which of the calls that are asked for become functions.

    Args:
        source: The model.
        wanted: These calls.
        take_in: Whether the function of a call may have nodes of others, where data leaves the call and comes back.
    """
    return _Planner(source, wanted, take_in=take_in).run()


class _Planner:
    def __init__(self, source: Source, wanted: Collection[CallId], *, take_in: bool) -> None:
        self._source, self._view, self._tree = source, source.view, source.hierarchy.tree
        self._wanted, self._take_in = wanted, take_in
        outer = set(source.functions.values())
        self._graphs = [graph for graph, around in enumerate(self._view.outermost) if around not in outer]
        self._homes = _find_homes(source, self._graphs)
        self._places = self._find_places()
        self._plan = Plan({graph: tuple(self._view.nodes_in[graph]) for graph in self._graphs})

    def run(self) -> Plan:
        for graph in reversed(self._graphs):
            self._graph = graph
            self._plan.graphs[graph] = tuple(self._fold(list(self._plan.graphs[graph]), ROOT))
        lifted = {item.call for item in self._plan.walk(self._plan.graphs[0], self._source)}
        for call, reason in self._explain_others(lifted):
            self._plan.inline.setdefault(call, reason)
        return self._plan

    def _explain_others(self, lifted: set[CallId]) -> Iterator[tuple[CallId, str]]:
        """Yield the calls that are asked for, have nodes, and were never tried, with the reason."""
        regions: dict[CallId, int] = {}
        for node, attribution in enumerate(self._source.attributions):
            if attribution.is_attributed():
                regions.update((call, node) for call in self._tree.ancestors(attribution.scope))
        for call in sorted(regions.keys() & set(self._wanted) - lifted):
            node = regions[call]
            if node not in self._homes:
                yield call, "its nodes are in a function that the file has already"
            elif _is_weight(self._source, node):
                yield call, "it only copies initializers"
            elif node in self._view.literals:
                yield call, "it has literals alone, and others read them, too"
            else:
                yield call, "its nodes do the work of other calls, too"

    def _find_places(self) -> Mapping[CallId, set[int]]:
        """Return for each call the graphs that its nodes are in, without bodies of nodes that are its own."""
        places: dict[CallId, set[int]] = defaultdict(set)
        for graph in self._graphs:
            owner = self._view.graphs[graph].owner
            around = set() if owner is None else {*self._tree.ancestors(self._homes[owner])}
            for node in self._view.nodes_in[graph]:
                for call in self._tree.ancestors(self._homes[node]):
                    if call not in around:
                        places[call].add(graph)
        return places

    def _fold(self, items: list[Item], call: CallId) -> list[Item]:
        """Put calls right below one in the place of their nodes, as far as they are closed; else those below them."""
        groups: dict[CallId, set[Item]] = defaultdict(set)
        for item in items:
            child = self._child(call, item.call if isinstance(item, Lifted) else self._homes[item])
            if child is not None:
                groups[child].add(item)
        for child in self._tree.children[call]:
            if members := groups.get(child):
                items = self._lift(items, child, members) or self._fold(items, child)
        return items

    def _child(self, call: CallId, home: CallId) -> CallId | None:
        """Return the call right below one that a home lies in; None where it is not below it."""
        below: CallId | None = None
        for above in self._tree.ancestors(home):
            if above == call:
                return below
            below = above
        return None

    def _lift(self, items: list[Item], call: CallId, members: set[Item]) -> list[Item] | None:
        """Put a call in the place of its nodes; where it cannot be, say why, and return None."""
        if call not in self._wanted or self._graph not in self._places[call]:
            return None
        arranged = self._find_place(items, call, members)
        if isinstance(arranged, str):
            self._plan.inline[call] = arranged
            return None
        before, inside, after = arranged
        if taken := [item for item in inside if item not in members]:
            self._plan.taken_in[call] = tuple(self._plan.flatten(taken))
        makes = frozenset(t for item in inside for t in self._makes(item))
        reads = frozenset(t for item in inside for t in self._reads(item)) - makes
        content = self._fold(inside, call)
        lifted = Lifted(call, tuple(content if self._graph else self._move_literals(content)), reads, makes)
        return [*before, lifted, *after]

    def _find_place(
        self, items: list[Item], call: CallId, members: set[Item]
    ) -> tuple[list[Item], list[Item], list[Item]] | str:
        """Part items into those before a call, in it and after it; say why it cannot be one node where it cannot."""
        if self._places[call] != {self._graph}:
            return "its nodes are in several graphs: a graph and the body of another call's node"
        arranged = self._arrange(items, members)
        if isinstance(arranged, str):
            return arranged
        before, inside, after = arranged
        if self._graph and (before or after) and _interleaved(items, set(inside)):
            return "nodes of other calls lie between its own, inside a body"
        if not self._is_read((t for item in inside for t in self._makes(item)), inside):
            return "nobody reads what it makes"
        return arranged

    def _arrange(self, items: Sequence[Item], members: set[Item]) -> tuple[list[Item], list[Item], list[Item]] | str:
        """Part items into those before a region, in it and after it; say why where that cannot be."""
        places = [place for place, item in enumerate(items) if item in members]
        if len(places) < len(members):
            return "another function took in some of its nodes"
        first, last = places[0], places[-1] + 1
        before, inside, after = list(items[:first]), list[Item](), list[Item]()
        made, later = set[int](), set[int]()
        for item in items[first:last]:
            reads = self._reads(item)
            if item in members:
                if not later.isdisjoint(reads):
                    between = self._find_between(items[first:last], members)
                    if not self._take_in:
                        return self._explain(between)
                    return self._arrange(items, members.union(between))
                inside.append(item)
                made.update(self._makes(item))
            elif made.isdisjoint(reads) and later.isdisjoint(reads):
                before.append(item)
            else:
                after.append(item)
                later.update(self._makes(item))
        return before, inside, [*after, *items[last:]]

    def _move_literals(self, items: Sequence[Item]) -> Iterator[Item]:
        """Yield items with each literal right before the first that reads it: where it was in the file says nothing."""
        waiting = {t: item for item in items if item in self._view.literals for t in self._makes(item)}
        for item in items:
            if item not in self._view.literals:
                reads = self._reads(item)
                ordered = sorted(reads) if isinstance(item, Lifted) else reads
                yield from dict.fromkeys(waiting.pop(t) for t in ordered if t in waiting)
                yield item
        yield from dict.fromkeys(waiting.values())

    def _find_between(self, items: Sequence[Item], members: set[Item]) -> list[Item]:
        """Return the items of others that data of a region goes through on its way back into it."""
        down = _reach(items, members, self._reads, self._makes)
        up = _reach(items[::-1], members, self._makes, self._reads)
        return [item for item in items if item in down and item in up and item not in members]

    def _explain(self, between: Sequence[Item]) -> str:
        item = between[0]
        if isinstance(item, Lifted):
            name, call = f"call '{item.call}'", ""
        else:
            attribution = self._source.attributions[item]
            name = f"node '{attribution.name or attribution.output}'"
            calls = list(dict.fromkeys((attribution.scope, *attribution.origins)))
            call = " of " + list_some([f"'{call}'" if call.module else "the root" for call in calls], 3)
        more = f" and {len(between) - 1} more" if len(between) > 1 else ""
        return f"it is not closed: {name}{call}{more} reads what it makes, and it reads what that makes"

    def _is_read(self, makes: Iterable[int], items: Iterable[Item]) -> bool:
        inside = set(self._plan.expand(items, self._source))
        return any(is_needed(self._source, tensor, inside) for tensor in makes)

    def _reads(self, item: Item) -> Collection[int]:
        return item.reads if isinstance(item, Lifted) else self._view.nodes[item].reads

    def _makes(self, item: Item) -> Collection[int]:
        return item.makes if isinstance(item, Lifted) else self._view.nodes[item].makes


def is_needed(source: Source, tensor: int, inside: Collection[int]) -> bool:
    """Say whether a tensor that some nodes make is read by others, or returned by the graph that they are in."""
    if any(node not in inside for node in source.view.consumers[tensor]):
        return True
    owners = (source.view.graphs[graph].owner for graph in source.returned_by.get(tensor, ()))
    return any(owner is None or owner not in inside for owner in owners)


def _interleaved(items: Sequence[Item], inside: set[Item]) -> bool:
    places = [place for place, item in enumerate(items) if item in inside]
    return places[-1] - places[0] >= len(places)


def _reach(
    items: Iterable[Item],
    members: set[Item],
    reads: Callable[[Item], Collection[int]],
    makes: Callable[[Item], Collection[int]],
) -> set[Item]:
    """Return the items that what members make reaches, in this order."""
    reached, tensors = set[Item](), set[int]()
    for item in items:
        if item in members or not tensors.isdisjoint(reads(item)):
            reached.add(item)
            tensors.update(makes(item))
    return reached


def _is_weight(source: Source, node: int) -> bool:
    """Say whether a node is a weight under another name, as exporters write one that is there twice."""
    viewed = source.view.nodes[node]
    return viewed.op == "Identity" and viewed.graph == 0 and viewed.inputs[0] in source.view.constants


def _find_homes(source: Source, graphs: Sequence[int]) -> Mapping[int, CallId]:
    """Return for each node the lowest call whose work alone it does, and of a literal also all who read it do."""
    view, tree = source.view, source.hierarchy.tree
    homes: dict[int, CallId] = {}
    for graph in reversed(graphs):  # bodies before what they are in
        for node in view.nodes_in[graph]:
            attribution = source.attributions[node]
            inner = (homes[n] for body in view.nodes[node].bodies for n in view.nodes_in[body])
            known = (call for call in inner if call != ROOT)
            homes[node] = tree.lowest_above((attribution.scope, *attribution.origins, *known))
            if _is_weight(source, node):
                homes[node] = ROOT
    for node in sorted(view.literals & homes.keys(), reverse=True):
        tensors = view.nodes[node].makes
        readers = [homes[reader] for t in tensors for reader in view.consumers[t] if reader in homes]
        returned = any(source.returned_by.get(t) for t in tensors)
        homes[node] = ROOT if returned else tree.lowest_above((homes[node], *readers))
    return homes
