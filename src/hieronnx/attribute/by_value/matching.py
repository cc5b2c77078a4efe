"""Matching nodes by value: whose operation made what a node makes.

A node that computes belongs to the operation that made its values; where several did, to the one that reads what the
node reads, and from which those who read the node have them. A node that only moves values (a reshape, a transpose)
belongs to the operation that moved them in the same way, on the way from who made them to who reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hieronnx.attribute.by_value.projection import Found, Projection
from hieronnx.graph.operators import COPY_OPS

_CONTROL_FLOW = frozenset({"cond", "while_loop", "scan", "map_impl"})


class Matcher:
    """Walks the nodes of a file in order, and finds the operations whose work each does."""

    def __init__(self, scene: Projection) -> None:
        self._scene = scene
        self._trace, self._classes, self._origins = scene.trace, scene.classes, scene.origins
        self._layouts = scene.layouts
        self._homes: dict[int, tuple[int, ...]] = {}
        """For a tensor that is computed the values that it may be."""
        self._moved: dict[int, tuple[int, ...]] = {}
        """For a tensor that is moved the values that it may be."""

    def run(self) -> None:
        """Match every node whose values the run made too."""
        for index, node in enumerate(self._scene.view.nodes):
            find = self._find_control_flow if node.bodies else self._find
            options = [found for t in self._scene.outputs(index) if (found := find(index, t)) is not None]
            if options:
                self._scene.found[index] = self._join(options)

    def _join(self, options: Sequence[Found]) -> Found:
        if len({self._scene.scopes(option.ops) for option in options}) == 1:
            return options[0]
        ops = tuple(dict.fromkeys(op for option in options for op in option.ops))
        sure = all(option.evidence == "value" for option in options)
        return Found(ops, "value" if sure else "near")

    def _find_control_flow(self, _: int, tensor: int) -> Found | None:
        made = self._scene.class_of(tensor)
        values = self._classes.members[made] if made is not None else ()
        ops = [op for op in self._scene.producers(values) if self._trace.ops[op].op in _CONTROL_FLOW]
        return Found(tuple(ops[:1]), "value") if len(self._scene.scopes(ops)) == 1 else None

    def _find(self, index: int, tensor: int) -> Found | None:
        classes = self._classes.of_tensor.get(tensor, ())
        if len(classes) > 1:
            return self._find_repeated(classes)
        made = classes[0] if classes else None
        if made is None:
            return None
        if not self._classes.telling[made]:
            return self._find_plain(index, made)
        return (
            self._find_move(index, tensor, made)
            if tensor in self._scene.above
            else self._find_make(index, tensor, made)
        )

    def _find_repeated(self, classes: Sequence[int | None]) -> Found | None:
        """Find who made the values of a node that runs again and again: each time another call."""
        telling = [made for made in classes if made is not None and self._classes.telling[made]]
        firsts = [self._scene.producers(self._origins.makers[made])[:1] for made in telling]
        ops = tuple(dict.fromkeys(op for first in firsts for op in first))
        return Found(ops, "value", merged=True) if ops else None

    def _find_plain(self, index: int, made: int) -> Found | None:
        """Find who made values that are too plain to tell by themselves: from what they were made."""
        read = self._scene.view.nodes[index].reads_values
        values = {value for tensor in read for value in self._list_values(tensor, made)}
        readers = {op for value in values for op in self._trace.readers.get(value, ())}
        ops = sorted(
            op for op in readers if any(self._classes.of_value.get(v) == made for v in self._trace.ops[op].gives)
        )
        return Found(tuple(ops), "near") if len(self._scene.scopes(ops)) == 1 else None

    def _list_values(self, tensor: int, made: int) -> Iterable[int]:
        """List the values that a tensor may be, if others were made from them; a plain one is what its node gives."""
        telling = self._scene.telling_class_of(tensor)
        if telling is not None:
            return self._origins.reads.get((telling, made), ())
        producer = self._scene.view.producers[tensor]
        found = self._scene.found[producer] if producer is not None else None
        return [value for op in found.ops for value in self._trace.ops[op].gives] if found is not None else ()

    # -- nodes that compute ---------------------------------------------------------------------------------

    def _find_make(self, index: int, tensor: int, made: int) -> Found | None:
        makers = [value for value in self._origins.makers[made] if value in self._trace.producers]
        makers = self._reordered(tensor, made, makers) or makers
        if not makers:
            return None
        values, shared = self._by_inputs(index, makers)
        if not shared and not any(self._layouts.same_order(value, tensor) for value in makers):
            return None  # the same numbers in an order that they never had, from something else: only in passing
        wanted = self._origins.chains_to(made, self._scene.below[tensor])
        read = [value for value in values if value in wanted]
        if not shared and not read and self._trace.prints[values[0]][0].plain:
            return None  # a pattern of two values that comes from elsewhere and goes elsewhere
        values = read or values
        found = self._decide(tensor, made, self._scene.producers(values), self._scene.producers(makers))
        scopes = set(self._scene.scopes(found.ops))
        self._homes[tensor] = tuple(v for v in makers if self._scene.scope(self._trace.producers[v]) in scopes)
        return found

    def _decide(self, tensor: int, made: int, ops: tuple[int, ...], makers: tuple[int, ...]) -> Found:
        if len(self._scene.scopes(ops)) == 1:
            return Found(ops[:1], "value")
        twins = self._scene.made[made]
        if len(twins) == 1:
            return Found(ops, "value", merged=True, options=ops)  # computed several times, in the file once
        if len(twins) == len(makers):
            # Nothing but their order tells them apart, if not who reads them.
            return Found((makers[twins.index(tensor)],), "near", options=ops)
        return Found(ops, "near", options=ops)

    def _reordered(self, tensor: int, made: int, makers: Sequence[int]) -> list[int]:
        """Return the values that are numbers computed before, put into this order by an operation of its own."""
        same = self._layouts.same_order
        if not self._layouts.seen(tensor) or any(same(value, tensor) for value in makers):
            return []
        moved = (v for v in self._classes.members[made] if v in self._origins.above and same(v, tensor))
        return [value for value in moved if not same(self._origins.above[value], tensor)]

    def _by_inputs(self, index: int, makers: Sequence[int]) -> tuple[list[int], int]:
        """Return the makers that read most of what the node reads, and how much that is."""
        read = {self._scene.class_of(t) for t in self._scene.view.nodes[index].reads_values} - {None}
        shared = [len(read & self._classes_read(value)) for value in makers]
        most = max(shared)
        return [value for value, count in zip(makers, shared, strict=True) if count == most], most

    def _classes_read(self, value: int) -> set[int | None]:
        return {self._classes.of_value.get(v) for v in self._trace.ops[self._trace.producers[value]].reads}

    # -- nodes that move ------------------------------------------------------------------------------------

    def _find_move(self, index: int, tensor: int, made: int) -> Found | None:
        source = self._scene.above[tensor]
        idle = self._layouts.same_tensors(tensor, source)
        same_kind = self._layouts.kind(tensor) == self._layouts.kind(source)
        if idle and same_kind and self._scene.view.nodes[index].op in COPY_OPS:
            return None  # the run has no operation where the type is right already
        values = [
            v for v in self._classes.members[made] if v in self._trace.producers and self._layouts.same(v, tensor)
        ]
        values = [v for v in values if self._copies(v) == idle]
        if idle:
            same_kinds = self._layouts.same_kinds
            values = [v for v in values if same_kinds(v, self._origins.above[v], tensor, source)]
        values = self._on_the_way(values, tensor, source, made)
        if not values:
            return None
        self._moved[tensor] = tuple(values)
        ops = self._scene.producers(values)
        if len(self._scene.scopes(ops)) > 1:
            return self._decide_move(tensor, values, ops)
        return Found(self._passed(values[0], source, made), "near" if idle and same_kind else "value")

    def _decide_move(self, tensor: int, values: Sequence[int], ops: tuple[int, ...]) -> Found:
        """Decide among several: each may have moved the same for itself, of which the file may have kept one."""
        shown = {
            v
            for value in values
            if value in self._origins.above
            for v in self._origins.chain(self._origins.above[value])
        }
        if not shown.isdisjoint(values):  # one after the other
            return Found(ops, "near", options=ops)
        same, above = self._layouts.same_tensors, self._scene.above
        alike = [t for t in self._scene.tensors_by_class[self._classes.of_value[values[0]]] if same(t, tensor)]
        twins = sorted(t for t in alike if t in above and not same(t, above[t]))
        if len(alike) == 1:
            return Found(ops, "value", merged=True)
        if len(twins) == len(ops) and tensor in twins:
            return Found((ops[twins.index(tensor)],), "near", options=ops)
        return Found(ops, "near", options=ops)

    def _on_the_way(self, values: list[int], tensor: int, source: int, made: int) -> list[int]:
        """Keep the values that lie between who made them and who reads them, as the tensor does."""
        for known in (self._homes_of(source), self._moved.get(source, ())):
            if known:
                values = [v for v in values if not set(known).isdisjoint(self._origins.chain(v))]
        values = _prefer(
            values, lambda v: v in self._origins.above and self._layouts.same(self._origins.above[v], source)
        )
        wanted = self._origins.chains_to(made, self._scene.below[tensor])
        return _prefer(values, wanted.__contains__)

    def _homes_of(self, tensor: int) -> tuple[int, ...]:
        while tensor in self._scene.above:
            tensor = self._scene.above[tensor]
        return self._homes.get(tensor, ())

    def _copies(self, value: int) -> bool:
        """Say whether an operation gave what it was given, in the same order and shape."""
        above = self._origins.above.get(value)
        return above is not None and self._layouts.same_values(value, above)

    def _passed(self, value: int, source: int, made: int) -> tuple[int, ...]:
        """Return the operations that move values from the layout of the source to this, by ways that the file skips."""
        steps = [value]
        for above in self._origins.chain(self._origins.above.get(value, value)):
            known = self._layouts.same(above, source) or any(
                self._layouts.same(above, t) for t in self._scene.tensors_by_class[made]
            )
            if known or above not in self._origins.above:
                break
            if not self._copies(above):
                steps.append(above)
        return self._scene.producers(reversed(steps))


def _prefer(values: list[int], test: Callable[[int], bool]) -> list[int]:
    return [value for value in values if test(value)] or values
