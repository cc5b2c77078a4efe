"""Matching two graphs: for each node of B, the nodes of A that it stands for. The first half of carry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hieronnx.graph.operators import LAYOUT_OPS
from hieronnx.graph.values import Values
from hieronnx.graph.view import NO_TENSOR, TensorType, View, ViewNode
from hieronnx.match.kinds import OperatorKinds

# A region that has not closed after so many nodes is no region: the name was a coincidence.
_REGION_LIMIT = 2000
_GROUP_LIMIT = 500


@dataclass(slots=True)
class Match:
    """The nodes of A that a node of B stands for, and how far that was checked."""

    region: tuple[int, ...]
    proven: bool
    group: tuple[int, ...] = ()
    """Nodes of B that share the region, this one last; empty where the node stands alone."""
    altered: bool = False
    """Whether the node's operator, attributes or constants are not those of A's node: it may do more than that."""


class Matcher:
    """Walks B once, in order, and finds for each node its region in A."""

    def __init__(self, a: View, b: View, fixed: Mapping[int, int] | None = None) -> None:
        self.a, self.b = a, b
        self._fixed = fixed or {}
        """Tensors of B that are known to be tensors of A, whatever their names."""
        self.values = Values(a)
        self.match: dict[int, Match] = {}
        self.known: list[int | None] = [None] * len(b.names)
        """For each tensor of B the tensor of A that it equals."""
        self.handed: dict[int, int | None] = {}
        """For each node of B that was inserted and only hands a tensor on, the tensor of A that this is; None for a
        constant that A does not know."""
        self.graphs: dict[int, int] = {0: 0}
        """For each graph of B the one of A that it is."""
        self._by_name: dict[str, list[int]] = defaultdict(list)
        for tensor, name in enumerate(a.names):
            if name:
                self._by_name[name].append(tensor)
        self.constant_b = b.flow.constant
        """Whether a tensor of B depends on no input, but through a shape."""
        self._index: dict[Hashable, list[int]] = defaultdict(list)
        self._taken: set[int] = set()
        self.variants = OperatorKinds(a, b, self.values, self.constant_b)
        self._b_names = set(b.names)
        self._laid_out = {node.inputs[0]: node.outputs[0] for node in b.nodes if node.op in LAYOUT_OPS}
        self._output_positions = dict(_pair(a, a.graphs[0].outputs, b, b.graphs[0].outputs))

    def run(self) -> None:
        """Match every node of B, the bodies of a control-flow node right after the node itself."""
        self._pair_inputs(0, 0)
        for number, graph in enumerate(self.b.graphs[1:], 1):
            if graph.owner is None:  # a function: paired by its key
                same = [n for n, other in enumerate(self.a.graphs) if other.key == graph.key]
                if same:
                    self.graphs[number] = same[0]
                    self._pair_inputs(same[0], number)
        for tensor in self.b.constants:
            self.known[tensor] = self._named(tensor)
        for index, node in enumerate(self.a.nodes):
            self._index[self._loose_key(node, node.graph, self._number_a)].append(index)
        by_graph: dict[int, list[int]] = defaultdict(list)
        for index, node in enumerate(self.b.nodes):
            by_graph[node.graph].append(index)
        for number, graph in enumerate(self.b.graphs):
            if graph.owner is None:
                self._match_graph(number, by_graph)

    def _match_graph(self, graph: int, by_graph: Mapping[int, list[int]]) -> None:
        for index in by_graph[graph]:
            self._match_node(index)
            node = self.b.nodes[index]
            for body in node.bodies:
                self._pair_body(index, body)
                self._match_graph(body, by_graph)

    def _pair_inputs(self, graph_a: int, graph_b: int) -> None:
        self.known_update(_pair(self.a, self.a.graphs[graph_a].inputs, self.b, self.b.graphs[graph_b].inputs))

    def known_update(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Note which tensors of B are which of A."""
        for of_b, of_a in pairs:
            self.known[of_b] = of_a

    def _pair_body(self, owner: int, body: int) -> None:
        """Pair a body of B with that of the first node in its owner's region that has one of the same label."""
        match = self.match.get(owner)
        if match is None:
            return
        label = self.b.graphs[body].label
        for candidate in (n for n in match.region if self.a.nodes[n].bodies):
            for other in self.a.nodes[candidate].bodies:
                if self.a.graphs[other].label == label:
                    self.graphs[body] = other
                    self._pair_inputs(other, body)
                    return

    def _named(self, tensor: int) -> int | None:
        """Return A's tensor of the same name: in the graph that corresponds, or the only one there is."""
        if tensor in self._fixed:
            return self._fixed[tensor]
        found = self._output_positions.get(tensor)
        if found is None:
            candidates = self._by_name.get(self.b.names[tensor], [])
            graph = self.graphs.get(self.b.tensor_graphs[tensor])
            here = [t for t in candidates if self.a.tensor_graphs[t] == graph]
            chosen = here or candidates
            found = chosen[0] if len(chosen) == 1 else None
        if found is None or _contradict(self.a.types[found], self.b.types[tensor]):
            return None
        return found

    def _find_named(self, tensor: int) -> int | None:
        """Return A's tensor of the same name, or of the name that this one has in another layout."""
        found = self._named(tensor)
        laid_out = self._laid_out.get(tensor)
        return self._named(laid_out) if found is None and laid_out is not None else found

    # One node ------------------------------------------------------------------------------------------

    def _match_node(self, index: int) -> None:
        node = self.b.nodes[index]
        named = {t: found for t in node.outputs if t != NO_TENSOR and (found := self._find_named(t)) is not None}
        made = {t: found for t, found in named.items() if self.a.producers[found] is not None}
        if node.op in LAYOUT_OPS and self._hand_on_as(index, named):
            return
        match = self._match_named(index, made) if made else None
        if match is None:
            match = self._match_structure(index)
            if match is not None:
                twin = self.a.nodes[match.region[0]]
                made = dict(zip(node.outputs, twin.outputs, strict=False))
        if match is None and not made and named:
            # The output is an input of A under its own name: nothing was computed (an Identity that a tool added).
            self.known_update(named.items())
            if node.passes_on is not None:
                self.handed[index] = self.known[node.outputs[0]]
        elif match is None and not self._hand_on(index):
            self._match_variant(index)
        elif match is not None:
            self.match[index] = match
            self._taken.update(match.region)
            self.known_update(self._drop_absent(made))

    @staticmethod
    def _drop_absent(made: Mapping[int, int]) -> list[tuple[int, int]]:
        return [pair for pair in made.items() if NO_TENSOR not in pair]

    def _hand_on_as(self, index: int, named: Mapping[int, int]) -> bool:
        """Let a tensor in another layout be known under its name, if what is laid out is known to be that."""
        node = self.b.nodes[index]
        known = self.known[node.inputs[0]]
        made = named.get(node.outputs[0])
        if known is None or made is None or self.values.source[known] != self.values.source[made]:
            return False
        self.handed[index] = self.known[node.outputs[0]] = made
        return True

    def _hand_on(self, index: int) -> bool:
        """Let what an inserted node hands on be known as what it reads."""
        node = self.b.nodes[index]
        read = node.passes_on
        if read is None:
            return False
        known = self.known[read]
        if known is not None and self.variants.is_handed_on_as(index, lambda t: self._is_other(t, known)):
            return True  # it takes part in what is done to the tensor: a quantization that clips is a Relu
        if known is not None or read in self.b.constants:
            self.handed[index] = self.known[node.outputs[0]] = known
        return True

    def _is_other(self, tensor: int, known: int) -> bool:
        named = self._named(tensor)
        return named is not None and self.values.source[named] != self.values.source[known]

    def _match_variant(self, index: int) -> None:
        """Match a node of new names with one of A that reads the same and is an operator of the same kind."""
        node = self.b.nodes[index]
        graph = self.graphs.get(node.graph)
        read = [self.known[t] for t in self.b.nodes[index].reads if not self.constant_b[t]]
        known = [t for t in read if t is not None]
        if graph is None or node.bodies or not known or len(known) < len(read) or NO_TENSOR in node.outputs[:1]:
            return
        if self.variants.is_handed_on_as(index, lambda t: self._named(t) is not None):
            return  # a group with the node that makes the known tensor says more
        free = self.variants.find(index, graph, known, lambda n: n not in self._taken and not self._is_named(n))
        if free is not None:
            region, sure = free
            self.match[index] = Match(region, sure)
            self._taken.update(region)
            last = self.a.nodes[region[-1]]
            made = dict(zip(node.outputs, last.outputs, strict=False))
            self.known_update(self._drop_absent(made) if node.op == last.op else [(node.outputs[0], last.outputs[0])])

    def _match_named(self, index: int, made: Mapping[int, int]) -> Match | None:
        group, boundary = self._gather_group(index)
        region = self._close_region(made.values(), boundary)
        producer = self.a.producers[next(iter(made.values()))]
        assert producer is not None
        if region is None:
            same_op = self.a.nodes[producer].op == self.b.nodes[index].op
            return Match((producer,), False) if same_op else None
        altered = not self.same_form(self.b.nodes[index], self.a.nodes[producer])
        if altered:
            twin = self._match_structure(index)
            if twin is not None and twin.region[0] not in region:
                return None  # it is another node of A to the letter: the name was given anew
        if altered or len(group) > 1:
            return Match(region, True, group if len(group) > 1 else (), altered)
        self._pass_upstream(self.b.nodes[index], self.a.nodes[producer])
        return Match((producer,), True)

    def same_form(self, node: ViewNode, other: ViewNode) -> bool:
        """Say whether a node of B has the operator, attributes and constants of a node of A."""
        if (node.op, node.attributes, len(node.inputs)) != (other.op, other.attributes, len(other.inputs)):
            return False
        return all(map(self._same_constant, node.inputs, other.inputs))

    def _same_constant(self, of_b: int, of_a: int) -> bool:
        """Say whether two inputs can be the same constant; what A computed, B may have folded under a new name."""
        if NO_TENSOR in (of_b, of_a):
            return of_b == of_a
        if not self.values.constant[of_a]:
            return not self.constant_b[of_b]
        known = self.known[of_b]
        if known is not None and self.values.number[known] == self.values.number[of_a]:
            return True
        if _contradict(self.a.types[of_a], self.b.types[of_b]):
            return False
        folded = self.a.producers[of_a] is not None and self._content_a(of_a) is None
        if folded and self.b.producers[of_b] is None:
            return True  # what A computed cannot be compared with what B holds
        return self.b.constants.get(of_b) == self._content_a(of_a)

    def _pass_upstream(self, node: ViewNode, twin: ViewNode) -> None:
        """Give what A does before the twin, and B nowhere, to the altered node of B that feeds this one.

        A node that is as it was did not take over other work. If what it reads is now made from further back
        than in A, the node that makes it did: its tensor kept its name and has another value.
        """
        for of_b, of_a in zip(node.inputs, twin.inputs, strict=True):
            if NO_TENSOR in (of_b, of_a) or self.values.constant[of_a]:
                continue
            known, feeder = self.known[of_b], self.b.producers[of_b]
            if known is None or feeder is None or self.values.number[known] == self.values.number[of_a]:
                continue
            match = self.match.get(feeder)
            if match is None or not match.altered:
                continue
            _, boundary = self._gather_group(feeder)
            region = self._close_region([of_a], boundary)
            if region is not None:
                self.match[feeder] = Match(region, True, match.group, altered=True)
                self.known[of_b] = of_a

    def _gather_group(self, index: int) -> tuple[tuple[int, ...], list[int]]:
        """Return the node with those behind its unknown inputs, and the fixed points where they end."""
        group, boundary, pending = {index: None}, [], [index]
        constant = self.constant_b[next(t for t in self.b.nodes[index].outputs if t != NO_TENSOR)]
        while pending and len(group) < _GROUP_LIMIT:
            for tensor in self.b.nodes[pending.pop()].reads:
                producer = self.b.producers[tensor]
                known = self.known[tensor] if producer not in self.handed else self.handed[producer]
                if known is not None:
                    boundary.append(known)
                    continue
                if producer is not None and producer not in group and (constant or not self.constant_b[tensor]):
                    group[producer] = None
                    pending.append(producer)
        return tuple(sorted(group)), boundary

    def _close_region(self, outputs: Iterable[int], boundary: Iterable[int]) -> tuple[int, ...] | None:
        """Return the nodes of A between the boundary and the outputs; None if the outputs need more than that."""
        first = tuple(outputs)
        region = self._walk_region(first, boundary, self.values.number)
        # The same but for its type is the same: a tool that leaves out casts may have kept either name.
        return region or self._walk_region(first, boundary, self.values.source)

    def _walk_region(
        self, outputs: Sequence[int], boundary: Iterable[int], number: Sequence[int]
    ) -> tuple[int, ...] | None:
        a, constant = self.a, self.values.constant
        region: dict[int, None] = {}
        ends = {number[tensor] for tensor in boundary}
        pending, first = list(outputs), set(outputs)
        while pending:
            tensor = pending.pop()
            if tensor not in first and number[tensor] in ends:
                continue
            producer = a.producers[tensor]
            if producer is None:
                if constant[tensor] or tensor in a.constants:
                    continue
                return None
            if producer in region:
                continue
            region[producer] = None
            if constant[tensor] and tensor not in first:
                continue  # folded, or of a shape: part of the region, but nothing that it must be closed over
            if len(region) > _REGION_LIMIT:
                return None
            pending.extend(a.nodes[producer].reads)
        return tuple(sorted(region))

    # Where the names are new -----------------------------------------------------------------------------

    def _match_structure(self, index: int) -> Match | None:
        """Find the node of A with the same operator, attributes and inputs, whatever their names."""
        node = self.b.nodes[index]
        graph = self.graphs.get(node.graph)
        if graph is None or not node.inputs or node.bodies:
            return None
        key = self._loose_key(node, graph, self._number_b)
        if key is None:
            return None
        alike = [n for n in self._index.get(key, ()) if self.same_form(node, self.a.nodes[n])]
        free = [n for n in alike if n not in self._taken and not self._is_named(n)]
        chosen = free or alike
        classes = {self.values.key(n, self.a.nodes[n]) for n in chosen}
        return Match((chosen[0],), True) if len(classes) == 1 else None

    def _is_named(self, node: int) -> bool:
        return any(t != NO_TENSOR and self.a.names[t] in self._b_names for t in self.a.nodes[node].outputs)

    def _loose_key(self, node: ViewNode, graph: int, number: Callable[[int], Hashable]) -> Hashable:
        """Key a node for the search by structure; constants count as one, an unknown input spoils the key."""
        inputs = tuple(number(t) for t in node.inputs)
        if None in inputs or all(i == "constant" for i in inputs):
            return None
        return graph, node.op, node.attributes, inputs

    def _number_a(self, tensor: int) -> Hashable:
        if tensor == NO_TENSOR:
            return "absent"
        return "constant" if self.values.constant[tensor] else self.values.number[tensor]

    def _number_b(self, tensor: int) -> Hashable:
        if tensor == NO_TENSOR:
            return "absent"
        known = self.known[tensor]
        if known is not None:
            return self._number_a(known)
        return "constant" if self.constant_b[tensor] else None

    def _content_a(self, tensor: int) -> Hashable:
        producer = self.a.producers[tensor]
        if producer is not None and self.a.nodes[producer].op == "Constant":
            return self.a.nodes[producer].attribute("value")
        return self.a.constants.get(tensor)


def _contradict(a: TensorType | None, b: TensorType | None) -> bool:
    """Say whether two tensor types cannot be the same tensor's: static sizes that differ, or ranks."""
    if a is None or b is None:
        return False
    if len(a.shape) != len(b.shape):
        return True
    return any(x is not None and y is not None and x != y for x, y in zip(a.shape, b.shape, strict=True))


def _pair(a: View, of_a: Sequence[int], b: View, of_b: Sequence[int]) -> list[tuple[int, int]]:
    """Pair the inputs or outputs of two graphs: by name, and those left by position if they are equally many."""
    by_name = {a.names[tensor]: tensor for tensor in of_a}
    pairs = [(tensor, by_name[b.names[tensor]]) for tensor in of_b if b.names[tensor] in by_name]
    named = {tensor for pair in pairs for tensor in pair[:1]}
    left_b = [tensor for tensor in of_b if tensor not in named]
    left_a = [tensor for tensor in of_a if tensor not in {paired for _, paired in pairs}]
    return pairs + (list(zip(left_b, left_a, strict=True)) if len(left_a) == len(left_b) else [])
