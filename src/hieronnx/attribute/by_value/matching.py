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
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hieronnx.attribute.by_value.equal_values import Projection, ValueMatch

_CONTROL_FLOW = frozenset({"cond", "while_loop", "scan", "map_impl"})


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
        if len(self._projection.computed[value_class]) < len(makers) and not self._knows_readers(tensor, value_class):
            read = []  # it stands for several, and who reads it besides may have it from any of them
        match = self._decide(value_class, self._projection.producers(read or values))
        scopes = set(self._projection.scopes(match.ops))
        self._homes[tensor] = tuple(v for v in makers if self._trace.ops[self._trace.producers[v]].scope in scopes)
        return match

    def _knows_readers(self, tensor: int, value_class: int) -> bool:
        """Say whether it is known of all who read a tensor what the run computed from those values there.

        It is not of what was fused with more, of what says too little, and of what is handed out.
        """
        view, reads, pending = self._view, self._origins.reads, [tensor]
        for current in pending:
            if current in view.handed_out:
                return False
            for reader in (n for n in view.consumers[current] if current in view.nodes[n].reads_values):
                makes = view.nodes[reader].makes
                moved = [t for t in makes if self._projection.above.get(t) == current]
                made = (self._projection.distinctive_class(t) for t in makes)
                if not moved and not any(c is not None and (value_class, c) in reads for c in made):
                    return False
                pending.extend(moved)
        return True

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
        is_merged = self._count_kept(tensor, value_class) == 1
        return ValueMatch(ops, "value", merged=True) if is_merged else ValueMatch(ops, "near", options=ops)

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
        read = [value for value in values if value in wanted]
        each_has_one = self._count_kept(tensor, value_class) >= len(values)
        return read if read and (each_has_one or self._knows_readers(tensor, value_class)) else values

    def _count_kept(self, tensor: int, value_class: int) -> int:
        """Count the tensors of the file that have the same values, in the same order and shape."""
        equal = self._projection.tensors_by_class[value_class]
        return sum(self._projection.same(self._tensors[other], self._tensors[tensor]) for other in equal)

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
