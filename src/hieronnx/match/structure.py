"""Matching two graphs by names and structure: for each node of B, the nodes of A that it stands for.

The first half of carry. A tensor that both graphs have is a fixed point: by its name, if its type and what it is
computed from allow it, or because it is computed from fixed points by the same operator. A node of B stands for its
region: the nodes of A between the fixed points that it reads and those that it makes.

    A: x ─ MatMul ─ a ─ Add ─ b ─ Relu ─ y          B: x ─ Gemm ─ b ─ Relu ─ new
                                                         {MatMul, Add}  {Relu}

`b` has kept its name, so Gemm stands for MatMul and Add; Relu reads `b`, as the Relu of A does, so `new` is `y`.
Nodes between fixed points whose own outputs have new names form a group, and share one region:

    A: x ─ MatMul ─ a ─ Add ─ y                     B: x ─ Reshape ─ p ─ Gemm ─ q ─ Reshape ─ y
                                                         {MatMul, Add} for the three of them together
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hieronnx.graph.operators import DEQUANTIZE_OPS, LAYOUT_OPS
from hieronnx.graph.values import Values
from hieronnx.graph.view import NO_TENSOR, TensorType, View, ViewNode
from hieronnx.match.align.sequences import group
from hieronnx.match.kinds import OperatorKinds, find_readers, see_through
from hieronnx.match.regions import find_region
from hieronnx.match.renamed import holds_other, pair_left, read_content
from hieronnx.match.upstream import pass_constants_upstream, pass_upstream, took_over

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

    def with_region(self, region: Iterable[int], proven: bool) -> Match:
        """Return the match of the same node of B with another region."""
        return replace(self, region=tuple(sorted(region)), proven=proven)


class Matcher:
    """Walks B once, in order, and finds for each node its region in A.

    Attributes:
        matches: for each node of B what it stands for.
        tensor_in_a: for each tensor of B the tensor of A that it equals.
        passed_on: for each node of B that was inserted and only passes a tensor on, the tensor of A that this is; None
            for a constant that A does not have.
        graph_in_a: for each graph of B the graph of A that it is.
        fixed: tensors of B that are known to be tensors of A, whatever their names.
    """

    def __init__(
        self,
        a: View,
        b: View,
        fixed: Mapping[int, int] | None = None,
        altered: Mapping[int, int] | None = None,
        likely: Mapping[int, int] | None = None,
    ) -> None:
        """Take two graphs, and what is known of them besides names.

        Args:
            a: The graph before.
            b: The graph after.
            fixed: Tensors of B that are tensors of A.
            altered: Constants of B that hold constants of A in another form: turned, in fewer bits, scaled.
            likely: Tensors of B that are tensors of A if what they are computed from is.
        """
        self.a, self.b, self.values = a, b, Values(a)
        self.kinds = OperatorKinds(a, b, self.values)
        self.matches: dict[int, Match] = {}
        self.tensor_in_a: list[int | None] = [None] * len(b.names)
        self.passed_on: dict[int, int | None] = {}
        self.graph_in_a: dict[int, int] = {}
        self.fixed = {**(likely or {}), **(fixed or {})}
        self._altered, self._likely = altered or {}, likely or {}
        self._fixed_in_a = set(self.fixed.values())
        self.renamed = {a.names[t]: t for of_b, t in self.fixed.items() if a.names[t] != b.names[of_b]}
        """The fixed points that have another name in B, by that in A."""
        self._names_in_b = {name for tensor, name in enumerate(b.names) if tensor not in self.fixed}
        named = (t for t, name in enumerate(a.names) if name and t not in self._fixed_in_a)
        self._by_name = group(named, a.names.__getitem__)
        keys = [self._structure_key(node, node.graph, self._number_in_a) for node in a.nodes]
        self._by_structure = group(range(len(keys)), keys.__getitem__)
        self._held: dict[int, int] = {}
        """The constants of A that B holds."""
        self._taken: set[int] = set()
        """Nodes of A that a node of B stands for."""
        self._guessed: set[int] = set()
        """Tensors of B that may be others of A than was found: what is computed from them may be, too."""
        self._guesses: set[int] = set()
        """Nodes of A that a node of B may stand for: so may others of B."""
        self._reordered = {node.inputs[0]: node.outputs[0] for node in b.nodes if node.op in LAYOUT_OPS}
        self._restored = {node.inputs[0]: node.outputs[0] for node in b.nodes if node.op in DEQUANTIZE_OPS}
        self._outputs = dict(self._pair_ends(a.graphs[0].outputs, b.graphs[0].outputs))
        self._outputs_in_a = set(self._outputs.values())

    def run(self) -> Matcher:
        """Match every node of B, the bodies of a control-flow node right after the node itself."""
        self._pair_graphs(0, 0)
        functions = {graph.key: number for number, graph in reversed(list(enumerate(self.a.graphs)))}
        for number, graph in enumerate(self.b.graphs[1:], 1):
            if graph.owner is None and graph.key in functions:
                self._pair_graphs(functions[graph.key], number)
        for tensor in self.b.constants:
            same = self._altered[tensor] if tensor in self._altered else self.find_by_name(tensor)
            self.tensor_in_a[tensor] = same
            if same is not None:
                self._held[same] = tensor
        for index in self.b.file_order:
            self._match_node(index)
            match = self.matches.get(index)
            bodies = [g for n in (match.region if match else ()) for g in self.a.nodes[n].bodies]
            for body in self.b.nodes[index].bodies:
                same = next((g for g in bodies if self.a.graphs[g].label == self.b.graphs[body].label), None)
                if same is not None:
                    self._pair_graphs(same, body)
        return self

    def _pair_graphs(self, graph_a: int, graph_b: int) -> None:
        self.graph_in_a[graph_b] = graph_a
        self._add_tensors(self._pair_ends(self.a.graphs[graph_a].inputs, self.b.graphs[graph_b].inputs))

    def _pair_ends(self, of_a: Sequence[int], of_b: Sequence[int]) -> list[tuple[int, int]]:
        """Pair the inputs or outputs of two graphs: fixed ones, by name, those left by position if equally many."""
        pairs = {t: self.fixed[t] for t in of_b if t in self.fixed}
        by_name = {self.a.names[t]: t for t in of_a if t not in self._fixed_in_a}
        pairs |= {t: by_name[name] for t in of_b if t not in pairs and (name := self.b.names[t]) in by_name}
        return pair_left(pairs, of_a, of_b)

    def _add_tensors(self, pairs: Iterable[tuple[int, int]]) -> None:
        for of_b, of_a in pairs:
            self.tensor_in_a[of_b] = of_a

    def find_by_name(self, tensor: int) -> int | None:
        """Return A's tensor of the same name: in the graph that corresponds, or the only one there is.

        In a function that runs more than once a name of another graph can only be that of one of the runs. An output of
        A is that of B, whatever in B has its name.
        """
        if tensor in self.fixed:
            return self.fixed[tensor]
        same = self._outputs.get(tensor)
        if same is None:
            candidates = self._by_name.get(self.b.names[tensor], [])
            graph = self.b.tensor_graphs[tensor]
            chosen = [t for t in candidates if self.a.tensor_graphs[t] == self.graph_in_a.get(graph)]
            if not chosen and graph not in self.b.repeated:
                chosen = [t for t in candidates if t not in self._outputs_in_a]
            same = chosen[0] if len(chosen) == 1 else None
        return None if same is None or _contradict(self.a.types[same], self.b.types[tensor]) else same

    # One node ------------------------------------------------------------------------------------------

    def _match_node(self, index: int) -> None:
        node = self.b.nodes[index]
        self._drop_unlikely(node)
        named: dict[int, int] = {}
        for tensor in node.makes:
            same, reordered = self.find_by_name(tensor), self._reordered.get(tensor)
            if same is None and reordered is not None:  # the name may be that of the same tensor in another layout
                same = self.find_by_name(reordered)
            if same is not None:
                named[tensor] = same
        if node.op in LAYOUT_OPS and self._reorder(index, named):
            return
        outputs = {t: same for t, same in named.items() if self.a.producers[same] is not None}
        match = self._match_by_name(index, outputs) if outputs else None
        if match is None:
            match = self._match_by_structure(index)
            outputs = outputs if match is None else _pair_outputs(node, self.a.nodes[match.region[0]])
        if match is not None:
            self.add_match(index, match, outputs.items())
        elif named and not outputs:
            # The output is an input of A under its own name: nothing was computed (an Identity that a tool added).
            self._add_tensors(named.items())
            if node.passes_on is not None:
                self.passed_on[index] = self.tensor_in_a[node.outputs[0]]
        elif node.passes_on is not None:
            self._pass_on(index, node.passes_on)
        elif node.makes:
            self._match_by_kind(index)

    def _drop_unlikely(self, node: ViewNode) -> None:
        """Forget what a likely tensor is if its node reads other tensors than A's: factors in another order, say."""
        same = self._likely.get(node.outputs[0]) if node.outputs else None
        producer = None if same is None else self.a.producers[same]
        if producer is None:
            return
        source, read = self.values.source, [self.tensor_in_a[t] for t in node.reads if not self.b.flow.constant[t]]
        known = {source[t] for t in read if t is not None}
        if not known <= {source[t] for t in self.a.nodes[producer].reads}:
            del self.fixed[node.outputs[0]]

    def add_match(self, index: int, match: Match, outputs: Iterable[tuple[int, int]]) -> None:
        """Keep what a node of B stands for, and which tensors of A its outputs are."""
        self.matches[index] = match
        self._taken.update(match.region)
        self._add_tensors(outputs)
        if not match.proven:
            self._guessed.update(self.b.nodes[index].makes)
            self._guesses.update(match.region)

    def _reorder(self, index: int, named: Mapping[int, int]) -> bool:
        """Match a tensor in another layout with A's tensor of its name, if the tensor read is known to be that."""
        node, source = self.b.nodes[index], self.values.source
        read, output = self.tensor_in_a[node.inputs[0]], named.get(node.outputs[0])
        is_same = read is not None and output is not None and source[read] == source[output]
        if is_same:
            self.passed_on[index] = self.tensor_in_a[node.outputs[0]] = output
        return is_same

    def _pass_on(self, index: int, read: int) -> None:
        """Take what an inserted node passes on for the tensor of A that it reads."""
        same, source = self.tensor_in_a[read], self.values.source
        output = self.b.nodes[index].outputs[0]
        if same is not None:
            for further in find_readers(self.b, output)[1]:
                named = self.find_by_name(further)
                if named is not None and source[named] != source[same]:
                    return  # it takes part in what is done to the tensor: a quantization that clips is a Relu
        if same is not None or read in self.b.constants:
            self.passed_on[index] = self.tensor_in_a[output] = same
            if read in self._guessed:
                self._guessed.add(output)

    def _match_by_kind(self, index: int) -> None:
        """Match a node of new names with one of A that reads the same and is an operator of the same kind."""
        node, constant = self.b.nodes[index], self.b.flow.constant
        graph = self.graph_in_a.get(node.graph)
        read = [self.tensor_in_a[t] for t in node.reads if not constant[t]]
        of_a = [t for t in read if t is not None]
        if graph is None or node.bodies or not of_a or len(of_a) < len(read) or NO_TENSOR in node.outputs[:1]:
            return
        if any(self.find_by_name(t) is not None for t in find_readers(self.b, node.outputs[0])[1]):
            return  # a group with the node that makes the known tensor says more
        match = self.kinds.find(index, graph, of_a, self._held, lambda n: n not in self._taken and not self.is_in_b(n))
        if match is not None:
            region, sure = match
            last = self.a.nodes[region[-1]]
            outputs = _pair_outputs(node, last) if node.op == last.op else {node.outputs[0]: last.outputs[0]}
            proven = sure and self._is_certain(index, self.kinds.find_same_reading(region[0]))
            self.add_match(index, Match(region, proven), outputs.items())

    def _is_certain(self, index: int, alike: Iterable[int]) -> bool:
        """Say whether what a node of B reads is certain, and what else stands for nodes of A that are alike."""
        return self._guessed.isdisjoint(self.b.nodes[index].reads) and self._guesses.isdisjoint(alike)

    # Where an output has its name ------------------------------------------------------------------------

    def _match_by_name(self, index: int, outputs: Mapping[int, int]) -> Match | None:
        """Match a node of B with the region of A that makes its outputs, `outputs`, from what the node reads."""
        node = self.b.nodes[index]
        group, boundary = self.gather_group(index)
        region = find_region(self.a, self.values, list(outputs.values()), boundary)
        producer = self.a.producers[next(iter(outputs.values()))]
        assert producer is not None
        if region is None:
            return Match((producer,), False) if self.a.nodes[producer].op == node.op else None
        altered = not self._same_form(node, self.a.nodes[producer])
        if altered and self.fixed.keys().isdisjoint(outputs):
            other = self._match_by_structure(index)
            if other is not None and other.region[0] not in region:
                return None  # it is exactly another node of A: the name was given to something else
        if len(group) > 1:
            return Match(region, True, group, altered)
        took = altered or took_over(self, index, (producer,), region)
        if took is not False:
            region, sure = pass_constants_upstream(self, index, producer, region)
            return Match(region, sure and took is True, altered=True)
        pass_upstream(self, node, self.a.nodes[producer])
        return Match((producer,), True)

    def _same_form(self, node: ViewNode, other: ViewNode, *, exact: bool = False) -> bool:
        """Say whether a node of B has the operator, attributes and constants of a node of A, as far as can be told."""
        if (node.op, node.attributes, len(node.inputs)) != (other.op, other.attributes, len(other.inputs)):
            return False
        pairs = zip(node.inputs, other.inputs, strict=True)
        return all(self._can_be_same_input(of_b, of_a, exact) for of_b, of_a in pairs)

    def _can_be_same_input(self, of_b: int, of_a: int, exact: bool) -> bool:
        """Say whether two inputs are both computed or the same constant; B may have folded one under a new name.

        `exact` tells what to say where that is not known.
        """
        if NO_TENSOR in (of_b, of_a):
            return of_b == of_a
        if of_b in self._altered:
            return False
        if not self.a.flow.constant[of_a]:
            return not self.b.flow.constant[of_b]
        same, number = self.tensor_in_a[of_b], self.values.number
        if same is not None and number[same] == number[of_a]:
            return not holds_other(self.a, same, self.b, of_b)
        if _contradict(self.a.types[of_a], self.b.types[of_b]):
            return False
        content = read_content(self.a, of_a)
        if self.a.producers[of_a] is not None and content is None:
            if same is not None and self._are_of_two_weights(same, of_a):
                return False
            if self.b.producers[of_b] is None:
                return not exact  # what A computed cannot be compared with what B holds
        return self.b.constants.get(of_b) == content

    def _are_of_two_weights(self, tensor: int, other: int) -> bool:
        """Say whether two tensors of A are two constants that it holds, or copies of these."""
        held = [t for t in see_through(self.a, (tensor, other)) if self.a.producers[t] is None]
        return len(held) > 1 and self.values.source[held[0]] != self.values.source[held[1]]

    def gather_group(self, index: int) -> tuple[tuple[int, ...], list[int]]:
        """Return the node with those behind its unknown inputs, and the fixed points where they end."""
        group, boundary, pending = {index: None}, [], [index]
        constant = self.b.flow.constant
        of_constants = constant[self.b.nodes[index].makes[0]]
        while pending and len(group) < _GROUP_LIMIT:
            for tensor in self.b.nodes[pending.pop()].reads:
                producer = self.b.producers[tensor]
                same = self.tensor_in_a[tensor] if producer not in self.passed_on else self.passed_on[producer]
                restored = self._restored.get(tensor)  # the same tensor, not in few bits
                if same is None and restored is not None and restored not in self.b.nodes[index].makes:
                    same = self.find_by_name(restored)
                if same is not None:
                    boundary.append(same)
                elif producer is not None and producer not in group and (of_constants or not constant[tensor]):
                    group[producer] = None
                    pending.append(producer)
        return tuple(sorted(group)), boundary

    # Where the names are new -----------------------------------------------------------------------------

    def _match_by_structure(self, index: int) -> Match | None:
        """Find the node of A with the same operator, attributes and inputs, whatever their names."""
        node = self.b.nodes[index]
        graph = self.graph_in_a.get(node.graph)
        is_comparable = graph is not None and node.inputs and not node.bodies
        key = self._structure_key(node, graph, self._number_in_b) if is_comparable else None
        if key is None:
            return None
        same = [n for n in self._by_structure.get(key, ()) if self._same_form(node, self.a.nodes[n])]
        chosen = [n for n in same if n not in self._taken and not self.is_in_b(n)]
        # Others in B do the same already: one more of them is the same to the last constant.
        chosen = chosen or [n for n in same if self._same_form(node, self.a.nodes[n], exact=True)]
        classes = {self.values.key(n) for n in chosen}
        return Match((chosen[0],), self._is_certain(index, same)) if len(classes) == 1 else None

    def is_in_b(self, node: int) -> bool:
        """Say whether B has an output of a node of A, going by names."""
        names = self.a.names
        return any(t in self._fixed_in_a or names[t] in self._names_in_b for t in self.a.nodes[node].makes)

    def _structure_key(self, node: ViewNode, graph: int | None, number: Callable[[int], Hashable]) -> Hashable:
        """Key a node by operator and inputs, constants all alike; None if an input is unknown, or none is computed."""
        inputs = tuple(number(t) for t in node.inputs)
        if None in inputs or all(i == "constant" for i in inputs):
            return None
        return graph, node.op, node.attributes, inputs

    def _number_in_a(self, tensor: int) -> Hashable:
        if tensor == NO_TENSOR:
            return "absent"
        return "constant" if self.a.flow.constant[tensor] else self.values.number[tensor]

    def _number_in_b(self, tensor: int) -> Hashable:
        same = NO_TENSOR if tensor == NO_TENSOR else self.tensor_in_a[tensor]
        if same is not None:
            return self._number_in_a(same)
        return "constant" if self.b.flow.constant[tensor] else None


def _pair_outputs(node: ViewNode, other: ViewNode) -> dict[int, int]:
    pairs = zip(node.outputs, other.outputs, strict=False)
    return {of_b: of_a for of_b, of_a in pairs if NO_TENSOR not in (of_b, of_a)}


def _contradict(a: TensorType | None, b: TensorType | None) -> bool:
    """Say whether two tensor types cannot be the same tensor's: static sizes that differ, or ranks."""
    if a is None or b is None:
        return False
    sizes = zip(a.shape, b.shape, strict=False)
    return len(a.shape) != len(b.shape) or any(x != y and None not in (x, y) for x, y in sizes)
