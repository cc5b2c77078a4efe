"""Matching a node of B with nodes of A that read the same, by the kind of its operator: `QLinearConv` is a `Conv`.

For tools that write new operators for old ones and give every tensor on the way a new name.

    A: x ─ Conv ─ c ─┬─ Sigmoid ─ g ─┐               B: x ─ nchwc::Conv ─ t1 ─ QuickGelu ─ t2 ─ nchwc::Conv
                     └──────────── Mul ─ m ─ Conv          {Conv}            {Sigmoid, Mul}    {Conv}

A `Conv` that reads `x` is of the first node's kind. A has no operator of the second's kind: it stands for all nodes
behind `c`, until a tensor (`m`) is read by operators of the kinds that read `t2`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, cached_property
from math import prod
from typing import NamedTuple

import onnx

from hieronnx.graph.operators import DATA_MOVEMENT_OPS
from hieronnx.graph.values import Values
from hieronnx.graph.view import NO_TENSOR, View, ViewNode
from hieronnx.match.align.sequences import group

_MOST = 64  # nodes that read the same; more are not looked at
_GATE = 3  # tensors on the way from a value to the gate that it is multiplied with
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+")
_LONGEST = 6  # nodes that may have gone into one, or that pass a tensor on one after the other


class _Reader(NamedTuple):
    """A node of B that reads what another makes."""

    node: int
    least: int
    """How many values a node of A must read to be the same."""
    reads_again: bool
    """Whether it also reads what the other reads."""


class OperatorKinds:
    """Finds nodes of A by what they read and by the kind of their operator."""

    def __init__(self, a: View, b: View, values: Values) -> None:
        self._a, self._b, self._source = a, b, values.source

    @cached_property
    def _new_operators(self) -> set[str]:
        """The operators of B of whose kind A has none: a tool wrote them for several."""
        before, after = ({node.op for node in view.nodes} for view in (self._a, self._b))
        return {op for op in after - before if not any(is_related(op, other) for other in before)}

    @cached_property
    def named(self) -> dict[int, int]:
        """For nodes of B that a tool wrote in a domain of its own the node of A that theirs are named after, if one is.

        That is what their name begins with: `relu_nchwc` makes `relu`, or made it before more was fused into it,
        `node_silu/QuickGeluFusion/` does the work of `node_silu`.
        """
        makers: dict[str, set[int]] = {}
        for index, node in enumerate(self._a.nodes):
            for known in {node.name, *(self._a.names[t] for t in node.makes)}:
                makers.setdefault(known, set()).add(index)
        named: dict[int, int] = {}
        for index, node in enumerate(self._b.nodes):
            ends = range(len(node.name) if "::" in node.op else 0, 0, -1)
            begins = (node.name[:end] for end in ends if node.name[end : end + 1] in ("", "_", "/"))
            after = next((makers[begin] for begin in begins if begin in makers), set())
            if len(after) == 1:
                named[index] = next(iter(after))
        return named

    def _is_named_for(self, of_b: int, of_a: int) -> bool:
        """Say whether no other node of B than this one is named after a node of A."""
        return of_a not in self._named_by or of_b in self._named_by[of_a]

    @cached_property
    def _named_by(self) -> dict[int, list[int]]:
        """For nodes of A those of B that are named after them."""
        return group(self.named, self.named.__getitem__)

    @cached_property
    def _by_reading(self) -> dict[tuple[int, frozenset[int]], list[int]]:
        """The nodes of A by their graph and the values that they read."""
        nodes = self._a.nodes
        keys = [(node.graph, self._sources(self._values_read(index))) for index, node in enumerate(nodes)]
        reading = (n for n, (_, read) in enumerate(keys) if read and nodes[n].passes_on is None and not nodes[n].bodies)
        return group(reading, keys.__getitem__)

    def _sources(self, tensors: Iterable[int]) -> frozenset[int]:
        return frozenset(self._source[t] for t in tensors)

    def _values_read(self, node: int) -> list[int]:
        """Return the tensors that a node of A reads, constants left out."""
        return [t for t in self._a.nodes[node].reads if not self._a.flow.constant[t]]

    def _count_values(self, node: int) -> int:
        """Count the tensors that a node of B reads, constants left out."""
        return len({t for t in self._b.nodes[node].reads if not self._b.flow.constant[t]})

    def find(
        self, index: int, graph: int, read: Sequence[int], held: Mapping[int, int], is_open: Callable[[int], bool]
    ) -> tuple[tuple[int, ...], bool] | None:
        """Find the nodes of A that a node of B stands for, the maker of its output last, and whether that is sure.

        The node reads the tensors `read` of A, constants left out; `graph` is the graph of A to look in. `held` has
        the constants of A that are known in B, and `is_open` says whether nothing of B stands for a node of A yet.
        """

        def is_free(n: int) -> bool:
            return self._is_named_for(index, n) and is_candidate(n)

        def is_candidate(n: int) -> bool:
            makes_any = bool(self._a.nodes[n].makes)  # what makes nothing, a print, does no other node's work
            return makes_any and is_open(n) and self._find_reader(n, held) in (None, index)

        sources = self._sources(read)
        if len(self._by_reading.get((graph, sources), ())) > _MOST:
            return None
        node = self._b.nodes[index]
        related = self._find_related(node.op, graph, [sources])
        joining = [] if related else self._find_related(node.op, graph, [frozenset((s,)) for s in sorted(sources)])
        candidates = [n for n in related or joining if is_candidate(n) and self._can_have_weights(index, n)]
        starts = [n for n in candidates if is_free(n)]
        is_new = not starts and node.op in self._new_operators
        if is_new:
            readers = sorted({r for t in read for r in self._a.consumers[t]})
            ready = (r for r in readers if is_free(r) and self._sources(self._values_read(r)) <= sources)
            moves = node.op in DATA_MOVEMENT_OPS
            starts = [r for r in ready if not moves or self._a.nodes[r].op in DATA_MOVEMENT_OPS]
        fitting = [region for start in starts if (region := self._grow(index, start, read, is_free)) is not None]
        fitting = [region for region in fitting if self.named.get(index, region[-1]) in region]
        fitting = self._prefer(index, fitting, held)
        if len(fitting) == 1:
            return fitting[0], is_new or len(starts) == len(candidates)
        if (named := self._find_named(index, fitting)) is not None:
            return named, False
        # Not even their order tells which it is, if there are not as many in B.
        first = next(t for t in node.inputs if t != NO_TENSOR)
        similar = sum(self._b.nodes[reader].op == node.op for reader in set(self._b.consumers[first]))
        return (fitting[0], False) if fitting and len(related) == similar else None

    def _prefer(self, index: int, regions: list[tuple[int, ...]], held: Mapping[int, int]) -> list[tuple[int, ...]]:
        """Of several regions keep those that read what a node of B reads, that have its attributes, and its weights.

        A tool need not have kept any of these: what none of them has decides nothing.
        """
        reads = set(self._b.nodes[index].reads)
        for is_like in (
            lambda n: any(held.get(t) in reads for t in self._a.nodes[n].reads),
            lambda n: self._has_attributes(index, n),
            lambda n: self.can_hold_weights(index, n),
        ):
            if len(regions) > 1:
                regions = [region for region in regions if any(map(is_like, region))] or regions
        return regions

    def _find_reader(self, node: int, held: Mapping[int, int]) -> int | None:
        """Return the node of B that reads a weight of a node of A, and so does its work; None where nothing tells.

        The weight must be of these two alone: what many read tells nothing.
        """
        b, constant = self._b, self._b.flow.constant
        own = (t for t in self._a.nodes[node].reads if t in held and self._a.consumers[t] == [node])
        alone = (readers[0] for t in own if len(readers := find_readers(b, held[t])[0]) == 1)
        return next((reader for reader in alone if not all(constant[t] for t in b.nodes[reader].makes)), None)

    def _has_attributes(self, of_b: int, of_a: int) -> bool:
        """Say whether a node of A is of the kind of one of B, and their attributes differ in no value."""
        a, b = self._a.nodes[of_a], self._b.nodes[of_b]
        values = dict(b.attributes)
        return is_related(a.op, b.op) and all(values.get(name, value) == value for name, value in a.attributes)

    def _find_named(self, index: int, regions: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
        """Return the region whose name a node of B has, the node's or that of what it makes: `conv_output_nchwc`."""
        name, lengths = self._b.nodes[index].name, []
        for region in regions:
            nodes = [self._a.nodes[n] for n in region]
            names = {known for node in nodes for known in (node.name, *(self._a.names[t] for t in node.makes))}
            begins = (known for known in names if name == known or name.startswith((f"{known}_", f"{known}/")))
            lengths.append(max(map(len, begins), default=0))
        longest = max(lengths, default=0)
        return regions[lengths.index(longest)] if longest and lengths.count(longest) == 1 else None

    def _can_have_weights(self, of_b: int, of_a: int) -> bool:
        """Say whether two nodes of one operator may have the same weight: as many numbers, however they lie."""
        a, b = self._a.nodes[of_a], self._b.nodes[of_b]
        sizes = [_count_weights(self._a, a), _count_weights(self._b, b)]
        return a.op != b.op or None in sizes or sizes[0] == sizes[1]

    def can_hold_weights(self, of_b: int, of_a: int) -> bool:
        """Say whether the weight of a node of B may hold that of one of A: filled up to whole blocks, it is larger."""
        sizes = [_count_weights(view, view.nodes[n]) for view, n in ((self._a, of_a), (self._b, of_b))]
        return sizes[0] is None or sizes[1] is None or sizes[0] <= sizes[1]

    def _find_related(self, op: str, graph: int, reading: Iterable[frozenset[int]]) -> list[int]:
        """Find the nodes of A of an operator's kind that read some values."""
        nodes = (n for values in reading for n in self._by_reading.get((graph, values), [])[:_MOST])
        return [n for n in nodes if is_related(self._a.nodes[n].op, op)]

    def _grow(
        self, index: int, start: int, read: Sequence[int], is_free: Callable[[int], bool]
    ) -> tuple[int, ...] | None:
        """Add to a node of A those behind that B has nowhere, until what reads their one result is what B has there.

        Returns None where that is never so: the node of B does something else.
        """
        op = self._b.nodes[index].op
        only_moves = op in DATA_MOVEMENT_OPS
        wanted = self._find_wanted(index)
        region, given = [start], self._sources(read)
        inside = {*given, *self._sources(self._a.nodes[start].makes)}
        while wanted and len(region) < _LONGEST:
            outputs = (t for n in region for t in self._a.nodes[n].makes)
            results = [t for t in outputs if any(reader not in region for reader in self._a.consumers[t])]
            taken = {self._source[t] for n in region for t in self._values_read(n)}
            if len(results) == 1 and given <= taken and self._fits(results[0], wanted, given, inside):
                return tuple(region)
            candidates = {r for t in results for r in self._a.consumers[t] if r not in region}
            if any(is_related(self._a.nodes[r].op, op) for r in candidates):
                return None  # one node does not do the work of two such
            ready = [n for n in candidates if is_free(n) and self._sources(self._values_read(n)) <= inside]
            if not ready or len(candidates) > _LONGEST:
                return None
            if only_moves and self._a.nodes[min(ready)].op not in DATA_MOVEMENT_OPS:
                return None
            region.append(min(ready))
            inside |= self._sources(self._a.nodes[region[-1]].makes)
        return None

    def _find_wanted(self, index: int) -> list[_Reader]:
        """Return who reads what a node of B makes, each with how a node of A must read to be such a reader."""
        tensor, own = self._b.nodes[index].outputs[0], self._see_values(index)
        readers, passed_on = find_readers(self._b, tensor)
        same = {tensor, *passed_on}
        # What is read next to the first input may be what another node of A joined to it.
        leasts = (1 if self._b.nodes[r].inputs[0] in same else self._count_values(r) for r in readers)
        again = (not own.isdisjoint(self._see_values(r)) for r in readers)
        return [_Reader(*reader) for reader in zip(readers, leasts, again, strict=True)]

    def _see_values(self, node: int) -> set[int]:
        """Return what a node of B reads, before nodes that only passed it on; constants left out."""
        return {t for t in see_through(self._b, self._b.nodes[node].reads) if not self._b.flow.constant[t]}

    def _fits(self, tensor: int, wanted: Sequence[_Reader], given: Collection[int], own: Collection[int]) -> bool:
        """Say whether a tensor of A is read as one of B is: by operators of the same kind, or joined with others.

        Whoever reads what the tensor was computed from as well (`Mul` in a SiLU) is no reader that does not.
        """
        readers, _ = find_readers(self._a, tensor)
        values = {reader: self._values_read(reader) for reader in readers}
        again = {reader for reader in readers if not self._sources(values[reader]).isdisjoint(given)}
        kinds = {(self._a.nodes[reader].op, len(values[reader]), reader in again) for reader in readers}
        forks = len(readers) > 1
        others = {t for reader in readers for t in values[reader] if self._source[t] not in own}
        joins = not all(self._is_made_of(t, self._source[tensor]) for t in others)
        for reader, least, reads_again in wanted:
            op = self._b.nodes[reader].op
            if any(is_related(kind, op) and n >= least and reads_again >= more for kind, n, more in kinds):
                continue
            if self.named.get(reader) in readers:
                continue
            if not (joins and self._count_values(reader) > 1) and not (forks and op in self._new_operators):
                return False
        return True

    def _is_made_of(self, tensor: int, source: int) -> bool:
        """Say whether a tensor of A is computed from one value alone, within a few nodes."""
        pending, seen = [tensor], {tensor}
        for current in pending:
            producer = self._a.producers[current]
            if producer is None or len(seen) > _GATE:
                return False
            new = {t for t in self._values_read(producer) if self._source[t] != source} - seen
            seen |= new
            pending.extend(sorted(new))
        return True

    def find_same_reading(self, node: int) -> list[int]:
        """Return the nodes of A with the operator of one that read what it reads, itself among them."""
        graph, op = self._a.nodes[node].graph, self._a.nodes[node].op
        same = self._by_reading.get((graph, self._sources(self._values_read(node))), [])
        return [n for n in same if self._a.nodes[n].op == op] if len(same) <= _MOST else []


def find_readers(view: View, tensor: int) -> tuple[list[int], list[int]]:
    """Return the nodes that read a tensor, also where it was passed on, and the tensors that it was passed on as."""
    readers: list[int] = []
    passed_on = [tensor]
    for current in passed_on:
        for reader in view.consumers[current]:
            node = view.nodes[reader]
            if node.passes_on == current and len(passed_on) <= _LONGEST:
                passed_on.append(node.outputs[0])
            else:
                readers.append(reader)
    return readers, passed_on[1:]


def see_through(view: View, tensors: Iterable[int]) -> dict[int, None]:
    """Return what tensors are before nodes that only passed them on, each once."""
    sources: dict[int, None] = {}
    for tensor in tensors:
        while (producer := view.producers[tensor]) is not None and (read := view.nodes[producer].passes_on) is not None:
            tensor = read
        sources[tensor] = None
    return sources


def _count_weights(view: View, node: ViewNode) -> int | None:
    """Return how many numbers the largest constant has that a node reads; None without one, or if a size is unknown."""
    types = [view.types[tensor] for tensor in node.reads if view.flow.constant[tensor]]
    if not types or any(kind is None or None in kind.shape for kind in types):
        return None
    return max(prod(size or 0 for size in kind.shape) for kind in types if kind is not None)


def is_related(op: str, other: str) -> bool:
    """Say whether operators do the same kind of work, as names tell: `Conv`, `FusedConv`, `QLinearConv`."""
    return op == other or not _list_kinds(op).isdisjoint(_list_kinds(other))


@cache
def _list_kinds(op: str) -> frozenset[str]:
    """Return the standard operators that an operator is a form of: those whose words its name has, the longest.

    `FusedMatMul` is a form of `MatMul`, which is none of `Mul`: standard operators are forms of no other, but for those
    that compute in 8 bits what another does (`QLinearConv`, `ConvInteger`).
    """
    name = op.rpartition("::")[2]
    if op in _standard_operators():
        return frozenset((op,))
    words = _WORD.findall(name)
    pieces = {tuple(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    found = {known for piece in pieces if (known := "".join(piece)) in _standard_operators()}
    return frozenset(k for k in found if not any(k != other and k in other for other in found)) or frozenset((name,))


@cache
def _standard_operators() -> frozenset[str]:
    names = (schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain)
    return frozenset(name for name in names if not (name.startswith("QLinear") or name.endswith("Integer")))
