"""Matching nodes by value: whose operation made what a node makes.

A node that computes belongs to the operation that made its values; where several did, to the one that reads what the
node reads, and from which those who read the node have them. A node that only moves values (a reshape, a transpose)
belongs to the operation that moved them in the same way, on the way from who made them to who reads them.

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

from hieronnx.attribute.by_value.projection import Match, Projection
from hieronnx.graph.operators import COPY_OPS

_CONTROL_FLOW = frozenset({"cond", "while_loop", "scan", "map_impl"})


class Matcher:
    """Walks the nodes of a file in order, and finds the operations whose work each does."""

    def __init__(self, projection: Projection) -> None:
        self._projection = projection
        self._view, self._trace, self._classes = projection.view, projection.trace, projection.classes
        self._origins, self._layouts = projection.origins, projection.layouts
        self._homes: dict[int, tuple[int, ...]] = {}
        """For a tensor that is computed the values that it may be."""
        self._moved: dict[int, tuple[int, ...]] = {}
        """For a tensor that is moved the values that it may be."""

    def run(self) -> None:
        """Match every node whose values the run made too."""
        for index, node in enumerate(self._view.nodes):
            find = self._find_control_flow if node.bodies else self._find
            options = [match for t in node.makes if (match := find(index, t)) is not None]
            if options:
                self._projection.matches[index] = self._join(options)

    def _join(self, options: Sequence[Match]) -> Match:
        if len({self._projection.scopes(option.ops) for option in options}) == 1:
            return options[0]
        ops = tuple(dict.fromkeys(op for option in options for op in option.ops))
        sure = all(option.evidence == "value" for option in options)
        return Match(ops, "value" if sure else "near")

    def _find_control_flow(self, _: int, tensor: int) -> Match | None:
        made = self._projection.class_of(tensor)
        values = self._classes.members[made] if made is not None else ()
        ops = [op for op in self._projection.producers(values) if self._trace.ops[op].op in _CONTROL_FLOW]
        return Match(tuple(ops[:1]), "value") if len(self._projection.scopes(ops)) == 1 else None

    def _find(self, index: int, tensor: int) -> Match | None:
        classes = self._classes.of_tensor.get(tensor, ())
        if len(classes) > 1:
            return self._find_repeated(classes)
        made = classes[0] if classes else None
        if made is None:
            return None
        if not self._classes.distinctive[made]:
            return self._find_low_information(index, made)
        moved = tensor in self._projection.above
        return self._find_move(index, tensor, made) if moved else self._find_make(index, tensor, made)

    def _find_repeated(self, classes: Sequence[int | None]) -> Match | None:
        """Find who made the values of a node that runs again and again: each time another call."""
        distinctive = [made for made in classes if made is not None and self._classes.distinctive[made]]
        firsts = [self._projection.producers(self._origins.makers[made])[:1] for made in distinctive]
        ops = tuple(dict.fromkeys(op for first in firsts for op in first))
        return Match(ops, "value", merged=True) if ops else None

    def _find_low_information(self, index: int, made: int) -> Match | None:
        """Find who made values that say too little by themselves: from what they were made."""
        read = self._view.nodes[index].reads_values
        values = {value for tensor in read for value in self._list_values(tensor, made)}
        readers = {op for value in values for op in self._trace.readers.get(value, ())}
        of_value = self._classes.of_value
        ops = sorted(op for op in readers if any(of_value.get(v) == made for v in self._trace.ops[op].gives))
        return Match(tuple(ops), "near") if len(self._projection.scopes(ops)) == 1 else None

    def _list_values(self, tensor: int, made: int) -> Iterable[int]:
        """List the values that a tensor may be, if others were made from them; else what its node gives."""
        distinctive = self._projection.distinctive_class(tensor)
        if distinctive is not None:
            return self._origins.reads.get((distinctive, made), ())
        producer = self._view.producers[tensor]
        match = self._projection.matches[producer] if producer is not None else None
        return [value for op in match.ops for value in self._trace.ops[op].gives] if match is not None else ()

    # -- nodes that compute ---------------------------------------------------------------------------------

    def _find_make(self, index: int, tensor: int, made: int) -> Match | None:
        makers = [value for value in self._origins.makers[made] if value in self._trace.producers]
        makers = self._reordered(tensor, made, makers) or makers
        if not makers:
            return None
        values, shared = self._by_inputs(index, makers)
        if not shared and not any(self._layouts.same_order(value, tensor) for value in makers):
            return None  # the same numbers in an order that they never had, from something else: only in passing
        wanted = self._origins.chains_to(made, self._projection.below[tensor])
        read = [value for value in values if value in wanted]
        if not shared and not read and self._trace.prints[values[0]][0].low_information:
            return None  # a pattern of two values that comes from elsewhere and goes elsewhere
        match = self._decide(made, self._projection.producers(read or values))
        scopes = set(self._projection.scopes(match.ops))
        self._homes[tensor] = tuple(v for v in makers if self._trace.ops[self._trace.producers[v]].scope in scopes)
        return match

    def _decide(self, made: int, ops: tuple[int, ...]) -> Match:
        if len(self._projection.scopes(ops)) == 1:
            return Match(ops[:1], "value")
        if len(self._projection.made[made]) == 1:  # computed several times, in the file once
            return Match(ops, "value", merged=True, options=ops)
        return Match(ops, "near", options=ops)

    def _reordered(self, tensor: int, made: int, makers: Sequence[int]) -> list[int]:
        """Return the values that are numbers computed before, put into this order by an operation of its own."""
        same = self._layouts.same_order
        if not self._layouts.seen(tensor) or any(same(value, tensor) for value in makers):
            return []
        moved = (v for v in self._classes.members[made] if v in self._origins.above and same(v, tensor))
        return [value for value in moved if not same(self._origins.above[value], tensor)]

    def _by_inputs(self, index: int, makers: Sequence[int]) -> tuple[list[int], int]:
        """Return the makers that read most of what the node reads, and how much that is."""
        of_value, ops, producers = self._classes.of_value, self._trace.ops, self._trace.producers
        read = {self._projection.class_of(t) for t in self._view.nodes[index].reads_values} - {None}
        shared = [len(read & {of_value.get(v) for v in ops[producers[value]].reads}) for value in makers]
        most = max(shared)
        return [value for value, count in zip(makers, shared, strict=True) if count == most], most

    # -- nodes that move ------------------------------------------------------------------------------------

    def _find_move(self, index: int, tensor: int, made: int) -> Match | None:
        source = self._projection.above[tensor]
        idle = self._layouts.same_tensors(tensor, source)
        same_kind = self._layouts.kind(tensor) == self._layouts.kind(source)
        if idle and same_kind and self._view.nodes[index].op in COPY_OPS:
            return None  # the run has no operation where the type is right already
        same = self._layouts.same
        values = [v for v in self._classes.members[made] if v in self._trace.producers and same(v, tensor)]
        values = [v for v in values if self._copies(v) == idle]
        values = self._on_the_way(values, tensor, source, made)
        if not values:
            return None
        self._moved[tensor] = tuple(values)
        ops = self._projection.producers(values)
        if len(self._projection.scopes(ops)) > 1:
            return self._decide_move(tensor, made, ops)
        return Match(self._passed(values[0], source, made), "near" if idle and same_kind else "value")

    def _decide_move(self, tensor: int, made: int, ops: tuple[int, ...]) -> Match:
        """Decide among several: each may have moved the same for itself, of which the file may have kept one."""
        equal = (t for t in self._projection.tensors_by_class[made] if self._layouts.same_tensors(t, tensor))
        if len(list(equal)) == 1:
            return Match(ops, "value", merged=True)
        return Match(ops, "near", options=ops)

    def _on_the_way(self, values: list[int], tensor: int, source: int, made: int) -> list[int]:
        """Keep the values that lie between who made them and who reads them, as the tensor does."""
        home = source
        while home in self._projection.above:
            home = self._projection.above[home]
        for before in (self._homes.get(home), self._moved.get(source)):
            if before:
                values = [v for v in values if not set(before).isdisjoint(self._origins.chain(v))]
        wanted = self._origins.chains_to(made, self._projection.below[tensor])
        return [value for value in values if value in wanted] or values

    def _copies(self, value: int) -> bool:
        """Say whether an operation gave what it was given, in the same order and shape."""
        above = self._origins.above.get(value)
        return above is not None and self._layouts.same_values(value, above)

    def _passed(self, value: int, source: int, made: int) -> tuple[int, ...]:
        """Return the operations that move values from the layout of the source to this, by ways that the file skips."""
        layouts = (source, *self._projection.tensors_by_class[made])
        steps = [value]
        for above in self._origins.chain(self._origins.above.get(value, value)):
            if above not in self._origins.above or any(self._layouts.same(above, tensor) for tensor in layouts):
                break
            if not self._copies(above):
                steps.append(above)
        return self._projection.producers(reversed(steps))
