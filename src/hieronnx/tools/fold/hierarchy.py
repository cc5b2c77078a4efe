"""The hierarchy of a folded model: a node of a function stands for the nodes of all calls that share it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from hieronnx.graph.view import NO_TENSOR
from hieronnx.graph.walks import body_key
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CONFIDENCE, BoundTensor, Call, CallId, Node
from hieronnx.tools.fold.building import Folded
from hieronnx.tools.fold.classes import Instance, list_held, read_others
from hieronnx.tools.fold.naming import Function
from hieronnx.tools.fold.record import CallRecord, FoldRecord, digest_operators, find_runs
from hieronnx.tools.fold.regions import Item, Lifted


def describe(folded: Folded) -> tuple[Hierarchy, FoldRecord]:
    """Return the hierarchy of a folded model, and what is needed to unfold it exactly."""
    whole, bindings = folded.source.hierarchy, Bindings(folded)
    hierarchy = replace(
        whole,
        calls=tuple(bindings.bind(call) for call in whole.calls),
        nodes=tuple(_Describer(folded).list_nodes()),
        model={},
    )
    return hierarchy, _make_record(folded, hierarchy, bindings)


class _Describer:
    def __init__(self, folded: Folded) -> None:
        self._folded, self._source, self._by_call = folded, folded.source, folded.by_call

    def list_nodes(self) -> Iterator[Node]:
        """Yield the nodes in the order of the file."""
        yield from self._list_items(self._folded.plan.graphs[0], "", None)
        for function in self._folded.functions:
            yield from self._list_items(function.equals.first.lifted.items, function.key, function)
        inner = {graph for graph in range(len(self._source.view.graphs)) if graph not in self._folded.plan.graphs}
        for index in self._source.view.file_order:
            if self._source.view.nodes[index].graph in inner:
                yield self._source.attributions[index]

    def _list_items(self, items: Iterable[Item], key: str, function: Function | None) -> Iterator[Node]:
        view = self._source.view
        places = {} if function is None else {n: place for place, n in enumerate(function.equals.first.nodes)}
        for item in items:
            if isinstance(item, Lifted):
                yield self._describe_call(item, key, function, places)
                continue
            node, known = view.nodes[item], self._source.attributions[item]
            if function is None:
                yield replace(known, consumers=None)
            else:
                alike = [self._source.attributions[i.nodes[places[item]]] for i in function.equals.instances]
                yield self._join(replace(known, graph=key, rule=""), alike)
            for body in node.bodies:
                inner = body_key(key, known.output, view.graphs[body].label)
                yield from self._list_items(self._folded.plan.graphs[body], inner, function)

    def _describe_call(self, lifted: Lifted, key: str, outer: Function | None, places: Mapping[int, int]) -> Node:
        function, instance = self._by_call[lifted.call]
        equals = function.equals
        output = self._source.view.names[equals.output(instance, equals.outputs[0])]
        calls = (lifted.call,) if outer is None else self._find_alike(lifted, outer, places)
        name = self._folded.name_call(lifted, outer)
        node = Node(key, name, function.name, function.domain, output, lifted.call, (lifted.call,), "root")
        work = [self._source.attributions[i] for call in calls for i in self._by_call[call][1].nodes]
        evidence = _weakest(item.evidence for item in work if item.is_attributed()) if work else "root"
        scope = self._source.hierarchy.tree.lowest_above(calls)
        return replace(node, scope=scope, origins=tuple(calls), evidence=evidence)

    def _find_alike(self, lifted: Lifted, outer: Function, places: Mapping[int, int]) -> tuple[CallId, ...]:
        """Return the calls that one stands for in the function around it: one in each call that shares that."""
        way = self._folded.scopes.tell(outer.equals.first.call, lifted.call)
        return tuple(self._folded.scopes.find(item.call, way) for item in outer.equals.instances)

    def _join(self, node: Node, alike: Sequence[Node]) -> Node:
        scope = self._source.hierarchy.tree.lowest_above(item.scope for item in alike)
        origins = tuple(dict.fromkeys(origin for item in alike for origin in item.origins))
        return replace(
            node, scope=scope, origins=origins, evidence=_weakest(item.evidence for item in alike), consumers=None
        )


def _weakest(evidence: Iterable[str]) -> str:
    return max(evidence, key=list(CONFIDENCE).index, default="root")


# -- what calls received and returned -----------------------------------------------------------------------


class Bindings:
    """Where in the folded model the tensors are that calls received and returned.

    They are in the graph that has the call; what does not come out to there is in the function that makes it.
    """

    def __init__(self, folded: Folded) -> None:
        self._folded, self._by_call = folded, folded.by_call
        self._tree = folded.source.hierarchy.tree
        self._names = {call: _name_tensors(folded, *found) for call, found in self._by_call.items()}
        self._makers: dict[int, tuple[str, str]] = {}
        for lifted in folded.plan.walk(folded.plan.graphs[0], folded.source):  # the innermost first
            for tensor, place in self._names[lifted.call].items():
                if tensor in lifted.makes:
                    self._makers.setdefault(tensor, place)
        self.deeper: list[tuple[str, int, int, str, str]] = []
        """What does not come out to where the call is, as a record has it."""

    def bind(self, call: Call) -> Call:
        """Return a call with what it received and returned as the folded model has it."""
        around = next((c for c in self._tree.ancestors(call.id) if c != call.id and c in self._by_call), None)
        names: Mapping[int, tuple[str, str]] = {} if around is None else self._names[around]
        bound = (
            self._bind_all(call, which, items, names) for which, items in enumerate((call.received, call.returned))
        )
        received, returned = bound
        return replace(call, received=received, returned=returned)

    def _bind_all(
        self, call: Call, which: int, items: tuple[BoundTensor, ...] | None, names: Mapping[int, tuple[str, str]]
    ) -> tuple[BoundTensor, ...] | None:
        if items is None:
            return None
        view, bound = self._folded.source.view, []
        for position, item in enumerate(items):
            tensor = view.find_tensor(item.graph, item.tensor)
            place = None if tensor is None else names.get(tensor)
            if place is None and tensor in self._makers and not self._is_in_sight(tensor):
                place = self._makers[tensor]
                self.deeper.append((str(call.id), which, position, item.graph, item.tensor or ""))
            bound.append(item if place is None else replace(item, graph=place[0], tensor=place[1]))
        return tuple(bound)

    def _is_in_sight(self, tensor: int) -> bool:
        """Say whether the main graph, or a body in it, has a tensor."""
        return tensor in self._outside

    @cached_property
    def _outside(self) -> set[int]:
        """The tensors that graphs outside of functions have."""
        plan, source = self._folded.plan, self._folded.source
        return {
            tensor
            for item in plan.list_visible(plan.graphs[0], source)
            for tensor in (self._list_outputs(item) if isinstance(item, Lifted) else source.view.nodes[item].makes)
        }

    def _list_outputs(self, lifted: Lifted) -> Iterator[int]:
        nodes = self._folded.source.view.nodes
        yield from (nodes[node].outputs[position] for node, position in self._folded.list_outputs(lifted))


def _name_tensors(folded: Folded, function: Function, instance: Instance) -> dict[int, tuple[str, str]]:
    """Return for the tensors that a call reads, and those in sight in it, what the function's graph has for them."""
    view, first = folded.source.view, function.equals.first
    names = {
        tensor: (function.key, function.formals[place])
        for place, tensor in reversed([*enumerate(function.equals.read(instance))])
    }
    others = dict(zip(instance.nodes, first.nodes, strict=True))
    for item in instance.lifted.items:
        if isinstance(item, Lifted):
            places = list(folded.list_outputs(item))
        else:
            places = [(item, position) for position in range(len(view.nodes[item].outputs))]
        for node, position in places:
            tensor, other = view.nodes[node].outputs[position], view.nodes[others[node]].outputs[position]
            if tensor != NO_TENSOR:
                names[tensor] = function.key, view.names[other]
    return names


# -- the record to unfold by --------------------------------------------------------------------------------


def _make_record(folded: Folded, hierarchy: Hierarchy, bindings: Bindings) -> FoldRecord:
    source, plan = folded.source, folded.plan
    outermost = [item for items in plan.graphs.values() for item in items if isinstance(item, Lifted)]
    place = {node: place for place, node in enumerate(source.view.nodes_in[0])}
    order = find_runs([place[node] for node in plan.flatten(plan.graphs[0])])
    inside = dict.fromkeys(node for item in outermost for node in plan.expand(item.items, source))
    shown = {item.tensor_name for item in folded.structure.graph.quantization_annotation}
    known = set(source.opened.model.opset_imports)
    domains = dict.fromkeys(function.domain for function in folded.functions if function.domain not in known)
    return FoldRecord(
        {str(item.call): _record_call(folded, item, hierarchy) for item in outermost},
        order,
        source.opened.model.ir_version or 0,
        [function.key for function in folded.functions],
        list(domains),
        bindings.deeper,
        list(folded.types.list_others(inside)),
        [item.SerializeToString() for item in folded.annotations if item.tensor_name not in shown],
    )


def _record_call(folded: Folded, lifted: Lifted, hierarchy: Hierarchy) -> CallRecord:
    evidence: dict[int, tuple[str, str]] = {}
    metadata: dict[int, dict[str, str | None]] = {}
    by_key, by_call = hierarchy.node_by_key, folded.by_call
    shown: dict[int, tuple[Node | None, Mapping[str, str]]] = {}
    for inner in (*folded.plan.walk(lifted.items, folded.source), lifted):
        function, instance = by_call[inner.call]
        equals = function.equals
        for mine, theirs, shared in zip(instance.nodes, equals.first.nodes, equals.shared_metadata, strict=True):
            key = (function.key, folded.source.attributions[theirs].output)
            shown.setdefault(mine, (by_key.get(key), shared))
    names: list[list[str]] = []
    nodes = list(folded.plan.expand(lifted.items, folded.source))
    for place, node in enumerate(nodes):
        known, (said, shared) = folded.source.attributions[node], shown[node]
        others = read_others(folded.source, node)
        if others.keys() != shared.keys():
            metadata[place] = {key: None if key in shared else value for key, value in others.items()}
        if said is None or (known.evidence, known.rule) != (said.evidence, ""):
            evidence[place] = known.evidence, known.rule
        names += _list_names(folded, node)
    return CallRecord(names, digest_operators(folded.source.nodes[node].op_type for node in nodes), evidence, metadata)


def _list_names(folded: Folded, node: int) -> Iterator[list[str]]:
    """Yield the names that a node has, and those that its bodies have themselves."""
    view = folded.source.view
    viewed = view.nodes[node]
    yield [viewed.name, *("" if t == NO_TENSOR else view.names[t] for t in viewed.outputs)]
    for body in viewed.bodies:
        yield [view.names[t] for t in list_held(folded.source, body)]
