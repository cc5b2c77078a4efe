"""Matching nodes with operations: whose operation made what a node makes.

`ValueMatcher` goes by value. A node that computes belongs to the operation that made its values; where several did, to
the one that reads what the node reads, and from which those who read the node have them. A node that only moves values
(a reshape, a transpose) belongs to the operation that moved them in the same way, on the way from who made them to who
reads them.

    eager op, by call                    value     ONNX node                     matched
    aten.mul       in scales             #1 [8,6]  m = Mul (x, w)                scales: only scales made these values
    aten.view      in the root           #1 [2,4,6]
                                                   r = Reshape (m, s1) [2,4,6]   the root: it moved them so
    aten.transpose in turns              #1 [2,6,4]
                                                   t = Transpose (r) [2,6,4]     turns
    aten.tanh      in the root           #2        y = Tanh (t)                  the root

`Filler` finds whose work the other nodes do: those whose values the run did not make, or that say too little. They lie
between nodes that were matched. What the run does on the way to the same values, and the file has nowhere else, is
their work. Constants belong to who reads them.

    eager op, by call                     ONNX node
    aten.mul               in scales      Mul [scales]
    aten.native_group_norm in norm        Reshape [gap] → InstanceNormalization [gap] → Reshape [gap] → Mul [norm]
    aten.relu              in the root    Relu [the root]

All that the run does between scales and the root is in norm, and so are the gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hieronnx.attribute.by_value.equal_values import Projection, ValueMatch
from hieronnx.graph.operators import COPY_OPS

_CONTROL_FLOW = frozenset({"cond", "while_loop", "scan", "map_impl"})
_MANY = 64


class ValueMatcher:
    """Walks the nodes of a file in order, and finds the operations whose work each does."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._view, self._trace, self._classes = projection.view, projection.trace, projection.classes
        self._origins, self._values, self._tensors = projection.origins, projection.trace.prints, projection.seen
        self._homes: dict[int, tuple[int, ...]] = {}
        """For a tensor that is computed the values that it may be."""
        self._moved: dict[int, tuple[int, ...]] = {}
        """For a tensor that is moved the values that it may be."""

    def run(self) -> None:
        """Match every node whose values the run made too."""
        for index, node in enumerate(self._view.nodes):
            find = self._find_control_flow if node.bodies else self._find
            options = [match for t in node.makes if (match := find(index, t)) is not None]
            if len({self._projection.scopes(option.ops) for option in options}) > 1:
                ops = tuple(dict.fromkeys(op for option in options for op in option.ops))
                sure = all(option.evidence == "value" for option in options)
                options = [ValueMatch(ops, "value" if sure else "near")]
            if options:
                self._projection.matches[index] = options[0]

    def _find_control_flow(self, _: int, tensor: int) -> ValueMatch | None:
        value_class = self._projection.class_of(tensor)
        values = self._classes.members[value_class] if value_class is not None else ()
        ops = [op for op in self._projection.producers(values) if self._trace.ops[op].op in _CONTROL_FLOW]
        return ValueMatch(tuple(ops[:1]), "value") if len(self._projection.scopes(ops)) == 1 else None

    def _find(self, index: int, tensor: int) -> ValueMatch | None:
        classes = self._classes.of_tensor.get(tensor, ())
        if len(classes) > 1:
            return self._find_repeated(classes)
        value_class = classes[0] if classes else None
        if value_class is None:
            return None
        if not self._classes.distinctive[value_class]:
            vanished = self._projection.has_vanished(tensor)
            return None if vanished else self._find_low_information(index, value_class)
        moved = tensor in self._projection.above
        return self._find_move(index, tensor, value_class) if moved else self._find_make(index, tensor, value_class)

    def _find_repeated(self, classes: Sequence[int | None]) -> ValueMatch | None:
        """Find who made the values of a node that runs again and again: each time another call."""
        distinctive = [c for c in classes if c is not None and self._classes.distinctive[c]]
        firsts = [self._projection.producers(self._origins.makers[c])[:1] for c in distinctive]
        ops = tuple(dict.fromkeys(op for first in firsts for op in first))
        return ValueMatch(ops, "value", merged=True) if ops else None

    def _find_low_information(self, index: int, value_class: int) -> ValueMatch | None:
        """Find who made values that say too little by themselves: from what they were made."""
        read = self._view.nodes[index].reads_values
        values = {value for tensor in read for value in self._list_values(tensor, value_class)}
        readers = {op for value in values for op in self._trace.readers.get(value, ())}
        of_value = self._classes.of_value
        made = (op for op in readers if any(of_value.get(v) == value_class for v in self._trace.ops[op].gives))
        ops = sorted(op for op in made if self._projection.could_do(index, op))
        return ValueMatch(tuple(ops), "near") if len(self._projection.scopes(ops)) == 1 else None

    def _list_values(self, tensor: int, value_class: int) -> Iterable[int]:
        """List the values that a tensor may be, if others were made from them; else what its node gives."""
        distinctive = self._projection.distinctive_class(tensor)
        if distinctive is not None:
            return self._origins.reads.get((distinctive, value_class), ())
        producer = self._view.producers[tensor]
        match = self._projection.matches[producer] if producer is not None else None
        return [value for op in match.ops for value in self._trace.ops[op].gives] if match is not None else ()

    # -- nodes that compute ---------------------------------------------------------------------------------

    def _find_make(self, index: int, tensor: int, value_class: int) -> ValueMatch | None:
        makers = [value for value in self._origins.makers[value_class] if value in self._trace.producers]
        makers = self._reordered(tensor, value_class, makers) or makers
        if not makers:
            return None
        values, shared = self._by_inputs(index, makers)
        in_time = self._in_time(index, values)
        if not shared and not in_time:
            return None  # made of what came later: the same numbers once more, and not where they were computed
        values = in_time or values
        if not shared and not any(self._in_order(value, tensor) for value in makers):
            return None  # the same numbers in an order that they never had, from something else: only in passing
        wanted = self._origins.chains_to(value_class, self._projection.below[tensor])
        read = [value for value in values if value in wanted]
        if not shared and not read and self._trace.prints[values[0]][0].low_information:
            return None  # a pattern of two values that comes from elsewhere and goes elsewhere
        match = self._decide(value_class, self._projection.producers(read or values))
        scopes = set(self._projection.scopes(match.ops))
        self._homes[tensor] = tuple(v for v in makers if self._trace.ops[self._trace.producers[v]].scope in scopes)
        return match

    def _decide(self, value_class: int, ops: tuple[int, ...]) -> ValueMatch:
        if len(self._projection.scopes(ops)) == 1:
            return ValueMatch(ops[:1], "value")
        if len(self._projection.computed[value_class]) == 1:  # computed several times, in the file once
            return ValueMatch(ops, "value", merged=True, options=ops)
        return ValueMatch(ops, "near", options=ops)

    def _reordered(self, tensor: int, value_class: int, makers: Sequence[int]) -> list[int]:
        """Return the values that are numbers computed before, put into this order by an operation of its own."""
        if any(self._in_order(value, tensor) for value in makers):
            return []
        above = self._origins.above
        moved = (v for v in self._classes.members[value_class] if v in above and self._in_order(v, tensor))
        return [value for value in moved if not self._in_order(above[value], tensor)]

    def _in_order(self, value: int, tensor: int) -> bool:
        return self._projection.same_order(self._values[value], self._tensors[tensor])

    def _in_time(self, index: int, values: Iterable[int]) -> list[int]:
        """Keep the values of operations whose work a node could do, with what it reads."""
        return [value for value in values if self._projection.could_do(index, self._trace.producers[value])]

    def _by_inputs(self, index: int, makers: Sequence[int]) -> tuple[list[int], int]:
        """Return the makers that read most of what the node reads, and how much that is."""
        of_value, ops, producers = self._classes.of_value, self._trace.ops, self._trace.producers
        read = {self._projection.class_of(t) for t in self._view.nodes[index].reads_values} - {None}
        shared = [len(read & {of_value.get(v) for v in ops[producers[value]].reads}) for value in makers]
        most = max(shared)
        return [value for value, count in zip(makers, shared, strict=True) if count == most], most

    # -- nodes that move ------------------------------------------------------------------------------------

    def _find_move(self, index: int, tensor: int, value_class: int) -> ValueMatch | None:
        source, same = self._projection.above[tensor], self._projection.same
        prints, before = self._tensors[tensor], self._tensors[source]
        idle, same_kind = same(prints, before), prints[0].kind == before[0].kind
        node = self._view.nodes[index]
        if idle and (node.is_inserted or (same_kind and node.passes_on is not None)):
            return None  # the run has no operation where the type is right already, and none for what tools insert
        produced = [v for v in self._classes.members[value_class] if v in self._trace.producers]
        produced = self._in_time(index, produced)
        values = [v for v in produced if same(self._values[v], prints) and self._copies(v) == idle]
        if idle:
            values = self._by_operands(index, source, values)
        # What computed them has them in this shape, but who moved them later has so too, and does nothing else.
        values = [value for value in values if value in self._origins.above] or values
        values = self._on_the_way(values, tensor, source, value_class)
        if not values:
            return None
        self._moved[tensor] = tuple(values)
        ops = self._projection.producers(values)
        if len(self._projection.scopes(ops)) == 1:
            return ValueMatch(self._passed(values[0], source, value_class), "near" if idle and same_kind else "value")
        # Each may have moved the same for itself, of which the file may have kept one.
        kept = sum(same(self._tensors[t], prints) for t in self._projection.tensors_by_class[value_class])
        return ValueMatch(ops, "value", merged=True) if kept == 1 else ValueMatch(ops, "near", options=ops)

    def _by_operands(self, index: int, source: int, values: list[int]) -> list[int]:
        """Keep the values whose operations read the numbers that the node reads beside what it passes on: zeros, say.

        Where there are none, the operation that computed what is passed on may have done that, too.
        """
        of_value, ops, producers = self._classes.of_value, self._trace.ops, self._trace.producers
        others = [t for t in self._view.nodes[index].reads_values if t != source and t in self._tensors]
        # A single number need be no tensor in the run.
        operands = (t for t in others if self._tensors[t][0].kind == "f" and self._tensors[t][0].size > 1)
        read = {self._projection.class_of(t) for t in operands} - {None}
        made = self._homes.get(source, ()) if read else ()
        for candidates in (values, made):
            fitting = [v for v in candidates if read <= {of_value.get(r) for r in ops[producers[v]].reads}]
            if fitting:
                return fitting
        return []

    def _on_the_way(self, values: list[int], tensor: int, source: int, value_class: int) -> list[int]:
        """Keep the values that lie between who made them and who reads them, as the tensor does."""
        home = source
        while home in self._projection.above:
            home = self._projection.above[home]
        for before in (self._homes.get(home), self._moved.get(source)):
            if before:
                values = [v for v in values if not set(before).isdisjoint(self._origins.chain(v))]
        wanted = self._origins.chains_to(value_class, self._projection.below[tensor])
        return [value for value in values if value in wanted] or values

    def _copies(self, value: int) -> bool:
        """Say whether an operation gave what it was given, in the same order and shape."""
        above = self._origins.above.get(value)
        return above is not None and self._projection.same(self._values[value], self._values[above])

    def _passed(self, value: int, source: int, value_class: int) -> tuple[int, ...]:
        """Return the operations that move values from the layout of the source to this, by ways that the file skips."""
        layouts = [self._tensors[tensor] for tensor in (source, *self._projection.tensors_by_class[value_class])]
        steps, same = [value], self._projection.same
        for above in self._origins.chain(self._origins.above.get(value, value)):
            if above not in self._origins.above or any(same(self._values[above], layout) for layout in layouts):
                break
            if not self._copies(above):
                steps.append(above)
        return self._projection.producers(reversed(steps))


# -- the other nodes --------------------------------------------------------------------------------------


class Filler:
    """Fills the gaps that a match by value left, from what it matched."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._trace, self._classes, self._nodes = projection.trace, projection.classes, projection.view.nodes
        self._computes = [
            not projection.varying.isdisjoint(node.outputs)
            or any(projection.distinctive_class(t) is not None for t in node.reads_values)
            for node in self._nodes
        ]
        """For each node whether it works on values, those of the inputs or others that say something."""

    def run(self) -> None:
        """Fill what can be filled, from the surer to the less sure."""
        self._settle_options()
        self._match_backwards()
        matches = self._list_matches(range(len(self._nodes)))
        sure = (m for m in matches if not m.rule and len(self._projection.scopes(m.ops)) == 1)
        self._projection.done = {op for match in sure for op in match.ops}
        self._fill_between()
        self._fill_by_readers()

    def _list_gaps(self, *, computes: bool) -> list[int]:
        gaps = (index for index, match in enumerate(self._projection.matches) if match is None)
        return [index for index in gaps if not self._nodes[index].bodies and self._computes[index] == computes]

    def _list_matches(self, nodes: Iterable[int]) -> list[ValueMatch]:
        return [match for node in nodes if (match := self._projection.matches[node]) is not None]

    def _settle_options(self) -> None:
        """Decide between operations that made the same: by those who read the node, who have it from one of them."""
        for index in range(len(self._nodes) - 1, -1, -1):
            match = self._projection.matches[index]
            if match is None or not match.options:
                continue
            readers = self._list_matches(self._projection.readers(index))
            reading = {reader.ops[0] for reader in readers if len(reader.ops) == 1}
            ops = [op for op in match.options if not reading.isdisjoint(self._readers_of(op))]
            if len(self._projection.scopes(ops)) == 1:
                self._projection.matches[index] = ValueMatch(tuple(ops[:1]), "value")

    def _readers_of(self, op: int) -> set[int]:
        """Return the operations that read what an operation made, also through those that only move it."""
        above = self._projection.origins.above
        readers: set[int] = set()
        pending = list(self._trace.ops[op].gives)
        while pending:
            value = pending.pop()
            for reader in self._trace.readers.get(value, ()):
                if reader not in readers:
                    readers.add(reader)
                    pending.extend(v for v in self._trace.ops[reader].gives if above.get(v) == value)
        return readers

    def _match_backwards(self) -> None:
        """Match tensors of low information by who reads them: an operation that reads equal ones in the run."""
        for index in range(len(self._nodes) - 1, -1, -1):
            node = self._nodes[index]
            if self._projection.matches[index] is None and not node.bodies and node.op not in COPY_OPS:
                made = {op for t in self._nodes[index].makes for op in self._made_for_readers(t)}
                ops = sorted(op for op in made if self._projection.could_do(index, op))
                if ops:
                    self._projection.matches[index] = ValueMatch(tuple(ops), "near", merged=True)

    def _made_for_readers(self, tensor: int) -> Iterator[int]:
        value_class = self._projection.class_of(tensor)
        if value_class is None or self._classes.distinctive[value_class] or self._projection.has_vanished(tensor):
            return
        for match in self._list_matches(self._projection.view.consumers[tensor]):
            for op in match.ops:
                equal = (v for v in self._trace.ops[op].reads if self._classes.of_value.get(v) == value_class)
                yield from self._projection.producers(equal)

    def _fill_between(self) -> None:
        gaps, producers = self._list_gaps(computes=True), self._projection.view.producers
        after = self._gather(reversed(gaps), self._projection.readers)
        before = self._gather(gaps, lambda node: (producers[t] for t in self._nodes[node].reads_values))
        vanished = {node for node in gaps if all(map(self._projection.has_vanished, self._nodes[node].makes))}
        own = (node for node in gaps if node not in vanished and not self._nodes[node].is_inserted)
        filled = {node: self._find_between(node, after[node], before[node]) for node in own}
        for node, match in filled.items():
            self._projection.matches[node] = match

    def _gather(
        self, gaps: Iterable[int], neighbours: Callable[[int], Iterator[int | None]]
    ) -> dict[int, frozenset[int]]:
        """Return for each gap the operations of the matched nodes that come next, through other gaps.

        A node that does the same for several calls is that of the first.
        """
        gathered: dict[int, frozenset[int]] = {}
        for node in gaps:
            ops: set[int] = set()
            for other in neighbours(node):
                if other is not None:
                    match = self._projection.matches[other]
                    ops.update(gathered.get(other, ()) if match is None else match.ops[: 1 if match.merged else None])
            gathered[node] = frozenset(sorted(ops)[:_MANY])
        return gathered

    def _find_between(self, node: int, after: frozenset[int], before: frozenset[int]) -> ValueMatch | None:
        if not after:
            return None
        scopes = self._projection.scopes
        region = self._projection.region(sorted(after))
        rest, one_call = [op for op in region if op not in after], len(scopes(region)) == 1
        if rest:
            return ValueMatch(tuple(rest), "value" if one_call else "near", "between")
        moves = all(tensor in self._projection.above for tensor in self._nodes[node].makes)
        if one_call and (not moves or scopes(before) == scopes(region)):
            return ValueMatch((min(after),), "value", "between")
        if self._does_nothing(node):
            return self._find_served(node, after, before)
        return ValueMatch(tuple(sorted(after)), "dataflow", "consumers") if one_call or not moves else None

    def _does_nothing(self, node: int) -> bool:
        above, seen, same = self._projection.above, self._projection.seen, self._projection.same
        return all(tensor in above and same(seen[tensor], seen[above[tensor]]) for tensor in self._nodes[node].makes)

    def _find_served(self, node: int, after: frozenset[int], before: frozenset[int]) -> ValueMatch | None:
        """Find whom a node serves that does nothing: those it leads to, or who made it.

        A cast may be of either: one that begins a child is like one that its parent makes before it calls the child.
        """
        gaps = [reader for reader in self._projection.readers(node) if self._projection.matches[reader] is None]
        if any(not self._does_nothing(reader) for reader in gaps):
            return ValueMatch(tuple(sorted(after)), "dataflow", "consumers")
        if self._nodes[node].op in COPY_OPS or len(self._projection.scopes(before)) != 1:
            return None
        return ValueMatch(tuple(sorted(before)), "dataflow", "handed on")

    def _fill_by_readers(self) -> None:
        """Give constants to who reads them; one that is written down and that several read, to the first of them."""
        scopes = self._projection.scopes
        for index in reversed(self._list_gaps(computes=False)):
            readers = list(self._projection.readers(index))
            matches = self._list_matches(readers)
            if not matches or len(matches) < len(readers):
                continue
            decided = all(match.merged or len(scopes(match.ops)) == 1 for match in matches)
            ops = tuple(dict.fromkeys(op for match in matches for op in match.ops[: 1 if match.merged else None]))
            if not self._nodes[index].reads or len(scopes(ops)) == 1:
                self._projection.matches[index] = ValueMatch(ops, "dataflow", "consumers", merged=decided)
