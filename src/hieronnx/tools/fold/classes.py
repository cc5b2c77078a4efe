"""Finding the calls that compute the same but for their weights: they share a function.

Calls are equal if they are of one class and their nodes are the same one by one: operators, how they are wired, where
in the call they ran. Attributes that are small may differ; the function takes those that do as parameters. Tensors from
outside become inputs, in the order in which the nodes first read them; two that are the same tensor in some calls alone
are two inputs::

    attend(x, x)   attend(x, memory)             Attend(query, key)
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import onnx_ir as ir

from hieronnx.files.metadata import PREFIX
from hieronnx.graph.building import attribute_value_key
from hieronnx.graph.view import NO_TENSOR, SMALL_TENSOR_BYTES
from hieronnx.graph.walks import node_bodies
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.extract.source import Source
from hieronnx.tools.fold.regions import Item, Lifted, Plan, is_needed
from hieronnx.tools.fold.scopes import RelativeScopes
from hieronnx.tools.replace.graph import Names

Reading: TypeAlias = tuple[str, int, int]
"""Where a tensor is read: `node` or `body`, which one, and the place among the node's inputs or the body's outputs."""

_OUTSIDE = -2
_PLAIN = frozenset(getattr(ir.AttributeType, name) for name in ("FLOAT", "INT", "STRING", "FLOATS", "INTS", "STRINGS"))


def read_others(source: Source, node: int) -> dict[str, str]:
    """Return what others wrote on a node."""
    return {key: text for key, text in source.nodes[node].metadata_props.items() if not key.startswith(PREFIX)}


@dataclass(frozen=True)
class Instance:
    """A call that becomes a function: its nodes in order, those in bodies too, and what it reads from outside."""

    lifted: Lifted
    nodes: tuple[int, ...]
    readings: Mapping[Reading, int]
    """Where it reads tensors from outside, in order."""
    needed: frozenset[tuple[int, int]]
    """The outputs that others read: the place of the node, and that of the output."""

    @property
    def call(self) -> CallId:
        """The call."""
        return self.lifted.call


@dataclass(frozen=True)
class Equals:
    """Calls that share a function."""

    source: Source
    plan: Plan
    instances: tuple[Instance, ...]

    @property
    def first(self) -> Instance:
        """The one that gives the function its names."""
        return self.instances[0]

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """What the calls read from outside, as places among their readings: the first of those that are always one."""
        return tuple(dict.fromkeys(self._firsts))

    @cached_property
    def input_of(self) -> Mapping[Reading, int]:
        """For each reading of the first call, which of the inputs it is."""
        ranks = {place: rank for rank, place in enumerate(self.inputs)}
        return {reading: ranks[first] for reading, first in zip(self.first.readings, self._firsts, strict=True)}

    @cached_property
    def _firsts(self) -> list[int]:
        """For each reading the first one that has the same tensor in every call."""
        seen: dict[tuple[int, ...], int] = {}
        columns = zip(*(item.readings.values() for item in self.instances), strict=True)
        return [seen.setdefault(column, place) for place, column in enumerate(columns)]

    def read(self, instance: Instance) -> tuple[int, ...]:
        """Return the tensors that a call gives as inputs."""
        tensors = tuple(instance.readings.values())
        return tuple(tensors[place] for place in self.inputs)

    def find_readings(self, instance: Instance) -> tuple[Reading, ...]:
        """Return where a call reads its inputs first."""
        readings = tuple(instance.readings)
        return tuple(readings[place] for place in self.inputs)

    @cached_property
    def outputs(self) -> tuple[tuple[int, int], ...]:
        """What any of the calls has to give: the place of the node, and that of the output."""
        return tuple(sorted(set().union(*(item.needed for item in self.instances))))

    @cached_property
    def parameters(self) -> Mapping[tuple[int, str], str]:
        """The attributes that the calls differ in, by the place of the node and the attribute, with their names."""
        names: dict[tuple[int, str], str] = {}
        taken = Names(())
        for place, node in enumerate(self.first.nodes):
            for attribute in self.source.nodes[node].attributes:
                keys = {_value(self.source, item.nodes[place], attribute) for item in self.instances}
                if len(keys) > 1:
                    names[place, attribute] = taken.take(attribute)
        return names

    @cached_property
    def shared_metadata(self) -> tuple[Mapping[str, str], ...]:
        """For each node what others wrote on it in all calls alike."""
        columns = zip(*(item.nodes for item in self.instances), strict=True)
        entries = ([read_others(self.source, node) for node in column] for column in columns)
        return tuple({k: v for k, v in first.items() if all(o.get(k) == v for o in rest)} for first, *rest in entries)

    def output(self, instance: Instance, place: tuple[int, int]) -> int:
        """Return the tensor of a call that is at a place."""
        return self.source.view.nodes[instance.nodes[place[0]]].outputs[place[1]]


def find_equals(source: Source, plan: Plan, scopes: RelativeScopes) -> list[Equals]:
    """Find the calls that share a function; those whose functions others need come first."""
    finder = _Finder(source, plan, scopes)
    groups: dict[Hashable, list[Instance]] = {}
    for graph in (0, *(g for g in plan.graphs if g)):
        if source.view.graphs[graph].owner is None:
            for lifted in plan.walk(plan.graphs[graph], source):
                key, instance = finder.key(lifted)
                groups.setdefault(key, []).append(instance)
    return [Equals(source, plan, tuple(instances)) for instances in groups.values()]


class _Finder:
    def __init__(self, source: Source, plan: Plan, scopes: RelativeScopes) -> None:
        self._source, self._plan, self._scopes = source, plan, scopes

    def key(self, lifted: Lifted) -> tuple[Hashable, Instance]:
        """Return what equal calls have in common, and the call with what it reads and gives."""
        source, view = self._source, self._source.view
        nodes = tuple(self._plan.expand(lifted.items, source))
        own = {t for node in nodes for t in view.nodes[node].makes}
        own |= {t for node in nodes for body in view.nodes[node].bodies for t in list_held(source, body)}
        inside = set(nodes)
        needed = frozenset(
            (place, position)
            for place, node in enumerate(nodes)
            if view.nodes[node].graph == view.nodes[nodes[0]].graph
            for position, tensor in enumerate(view.nodes[node].outputs)
            if tensor != NO_TENSOR and is_needed(source, tensor, inside)
        )
        describer = _Describer(source, self._plan, self._scopes, lifted.call, own)
        rows = tuple(describer.describe(lifted.items, in_body=False))
        name = source.hierarchy.modules[lifted.call.module].qualified_class
        return (name, rows), Instance(lifted, nodes, describer.readings, needed)


class _Describer:
    """Describes the nodes of a call as those of all calls that are equal are."""

    def __init__(self, source: Source, plan: Plan, scopes: RelativeScopes, base: CallId, own: Collection[int]) -> None:
        self._source, self._plan, self._scopes, self._base, self._own = source, plan, scopes, base, own
        self._numbers: dict[int, int] = {NO_TENSOR: NO_TENSOR}
        self.readings: dict[Reading, int] = {}

    def describe(self, items: Iterable[Item], *, in_body: bool) -> Iterator[Hashable]:
        for item in items:
            if isinstance(item, Lifted):
                name = self._source.hierarchy.modules[item.call.module].qualified_class
                yield "call", name, self._scopes.tell(self._base, item.call)
                yield from self.describe(item.items, in_body=in_body)
                yield "end"
                continue
            yield self._describe_node(item, in_body=in_body)
            bodies = (graph for _, graph in node_bodies(self._source.nodes[item]))
            for body, graph in zip(self._source.view.nodes[item].bodies, bodies, strict=True):
                yield from self._describe_body(body, graph)

    def _describe_node(self, index: int, *, in_body: bool) -> Hashable:
        node, attribution = self._source.view.nodes[index], self._source.attributions[index]
        ways = tuple(self._scopes.tell(self._base, call) for call in (attribution.scope, *attribution.origins))
        attributes = tuple(
            (name, attribute.type.name if _is_small(attribute) and not in_body else attribute_value_key(attribute))
            for name, attribute in sorted(self._source.nodes[index].attributes.items())
            if attribute.is_ref() or attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        )
        return node.op, self._read("node", index, node.inputs), self._number(node.outputs), attributes, ways

    def _describe_body(self, body: int, graph: ir.Graph) -> Iterator[Hashable]:
        view = self._source.view
        held = tuple((t, view.constants.get(t)) for t in list_held(self._source, body))
        types = tuple(map(_type_key, (*graph.inputs, *graph.outputs)))
        yield "body", view.graphs[body].label, self._number([t for t, _ in held]), tuple(key for _, key in held), types
        yield from self.describe(self._plan.graphs[body], in_body=True)
        yield "end", self._read("body", body, view.graphs[body].outputs)

    def _read(self, kind: str, index: int, tensors: Sequence[int]) -> tuple[int, ...]:
        """Number tensors that nodes of the call make; of others remember where they are read."""
        outside = {place: t for place, t in enumerate(tensors) if t != NO_TENSOR and t not in self._own}
        self.readings.update(((kind, index, place), tensor) for place, tensor in outside.items())
        return tuple(
            _OUTSIDE if place in outside else self._numbers.setdefault(tensor, len(self._numbers))
            for place, tensor in enumerate(tensors)
        )

    def _number(self, tensors: Sequence[int]) -> tuple[int, ...]:
        return tuple(self._numbers.setdefault(tensor, len(self._numbers)) for tensor in tensors)


def list_held(source: Source, graph: int) -> Iterator[int]:
    """Yield the tensors that a body has by itself: its inputs and initializers."""
    yield from dict.fromkeys((*source.view.graphs[graph].inputs, *source.view.constants_in[graph]))


def _type_key(value: ir.Value) -> bytes:
    return bytes(ir.serde.serialize_value(value).type.SerializeToString(deterministic=True))


def _is_small(attribute: ir.Attr) -> bool:
    """Say whether an attribute can be a parameter of a function."""
    if attribute.is_ref():
        return False
    if attribute.type in _PLAIN:
        return True
    if attribute.type != ir.AttributeType.TENSOR:
        return False
    tensor = attribute.as_tensor()
    return not isinstance(tensor, ir.ExternalTensor) and tensor.nbytes <= SMALL_TENSOR_BYTES


def _value(source: Source, node: int, attribute: str) -> Hashable:
    found = source.nodes[node].attributes[attribute]
    if found.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return None
    return attribute_value_key(found)
