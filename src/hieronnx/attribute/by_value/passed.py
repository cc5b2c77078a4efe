"""What calls received and returned, by value: the tensors of the file that hold it.

A tensor holds a value if it is equal to it on every set of inputs, in the same order and shape, and of the same kind.
Where several do, the place decides: what a call received is made outside its region and read in it, what it returned is
made in its region and read outside. Copies are one tensor; of others that are equal, that is bound whose node does the
work of the operation that made the value, or none:

    value, by call                     ONNX node                     bound
    #3 returned by norm                n = LayerNormalization (x)    n
    #4 returned by dense               m = MatMul (n, w)
                                       d = Add (m, b)                d: made in dense
    #4 received by act                 c = Identity (d)
                                       r = Relu (c)                  c: read in act

Values that say less, such as counts and small masks, are bound only where the place has one such tensor; numbers that
are all the same only if they are the one argument of the model, and the one input of the file, that is so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from onnx import helper

from hieronnx.attribute.by_value.equal_values import Projection, is_clear, measure_distance
from hieronnx.attribute.by_value.trace import Prints
from hieronnx.attribute.request import Request
from hieronnx.capture.calls import CallIO, NumberedTensors
from hieronnx.capture.eager import OpRecord
from hieronnx.graph.operators import DATA_MOVEMENT_OPS, LOOP_OPS
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import ROOT, Attribution, CallId
from hieronnx.match.fingerprints import FingerprintIndex
from hieronnx.runtime.sessions import as_file, read_element_types

_FARTHER = 2.0
# Values of the run that are not equal are farther apart than that.
_EXACT = 2e-6
_Candidates = Mapping[int, Sequence[int]]
"""For each value the tensors of the file that hold it, in the order in which they are made."""


def find_passed(
    request: Request, projection: Projection, nodes: Sequence[Attribution], tree: CallTree
) -> dict[CallId, CallIO]:
    """Return for each call the tensors of the file that it received and returned; None for what is not found.

    A call that the file has only in a loop is left out: there one tensor stands for those of several calls.

    Raises:
        HieronnxError: If the types of a quantized file cannot be read.
    """
    looped = _find_looped(projection.view)
    candidates = _find_candidates(request, projection, looped)
    regions = [frozenset(a for call in (n.scope, *n.origins) for a in tree.ancestors(call)) for n in nodes]
    outside = set[CallId]()
    for node, region in zip(projection.view.nodes, regions, strict=True):
        if node.graph not in looped:
            outside.update(region)
    hidden = set[CallId]().union(*regions) - outside
    binder = _Binder(projection, candidates, regions, _Order(nodes, tree, projection.trace.ops))
    passed = projection.trace.passed.items()
    return {call: binder.bind(call, io) for call, io in passed if hidden.isdisjoint(tree.ancestors(call))}


# -- who holds a value ------------------------------------------------------------------------------------


def _find_candidates(request: Request, projection: Projection, looped: Collection[int]) -> _Candidates:
    view, classes, seen = projection.view, projection.classes, projection.seen
    by_class: dict[int, list[int]] = defaultdict(list)
    for tensor in sorted(seen, key=lambda t: (-1 if (made := view.producers[t]) is None else made, t)):
        # What is in blocks was decoded: the tensor itself holds the values in another order.
        if tensor not in request.blocked.channels and view.tensor_graphs[tensor] not in looped:
            value_class = projection.class_of(tensor)
            if value_class is not None and not projection.has_vanished(tensor):
                by_class[value_class].append(tensor)
    nearest = _Nearest(projection)
    candidates: dict[int, Sequence[int]] = _find_inputs(projection)
    for value in _list_values(projection.trace.passed.values()):
        prints, value_class = projection.trace.prints.get(value), classes.of_value.get(value)
        if prints is None or value_class is None or not (classes.distinctive[value_class] or is_clear(prints)):
            continue
        equal = [
            tensor
            for tensor in by_class[value_class]
            if _are_equal(projection, seen[tensor], prints) and nearest.is_clear(tensor, value)
        ]
        of_type = [tensor for tensor in equal if seen[tensor][0].bits == prints[0].bits]
        candidates[value] = of_type or equal
    return candidates if request.first_run.unrounded is None else _leave_rounded(request, projection, candidates)


class _Nearest:
    """Tells whether a tensor holds one value of the run and no other that is like it.

    What a layer adds to its input may be less than half precision or rounded weights change.
    """

    def __init__(self, projection: Projection) -> None:
        self._seen, self._prints = projection.seen, projection.trace.prints
        self._of_value = projection.classes.of_value

    @cached_property
    def _index(self) -> FingerprintIndex:
        return FingerprintIndex((value, prints[0]) for value, prints in self._prints.items())

    def is_clear(self, tensor: int, value: int) -> bool:
        """Say whether all values that are not equal to one are much farther from a tensor than that."""
        seen, held = self._seen[tensor], self._prints[value]
        limit = _FARTHER * measure_distance(seen, held)
        if limit <= _EXACT:
            return True
        near = (self._prints[other] for _, other in self._index.find(seen[0], limit) if self._differ(value, other))
        alike = (other for other in near if (other[0].kind, other[0].shape) == (held[0].kind, held[0].shape))
        return all(measure_distance(seen, other) >= limit for other in alike)

    def _differ(self, value: int, other: int) -> bool:
        return self._of_value[value] != self._of_value[other]


def _find_inputs(projection: Projection) -> dict[int, Sequence[int]]:
    """Find for arguments of the model the inputs of the file, where both are the only ones of these values."""
    prints, seen = projection.trace.prints, projection.seen
    arguments = [value for value in _list_values([CallIO(projection.trace.passed[ROOT].received)]) if value in prints]
    inputs = [tensor for tensor in projection.view.graphs[0].inputs if tensor in seen]
    found: dict[int, Sequence[int]] = {}
    for value in arguments:
        equal = [tensor for tensor in inputs if _are_equal(projection, seen[tensor], prints[value])]
        rivals = [other for other in arguments if _are_equal(projection, prints[other], prints[value])]
        if len(equal) == len(rivals) == 1:
            found[value] = equal
    return found


def _are_equal(projection: Projection, a: Prints, b: Prints) -> bool:
    return a[0].kind == b[0].kind and projection.same(a, b)


def _leave_rounded(request: Request, projection: Projection, candidates: _Candidates) -> _Candidates:
    """Leave out tensors in few bits: where rounding was undone, what was seen of them are floats that they never hold.

    Of tensors in bodies the types are not known.
    """
    view, seen = projection.view, projection.seen
    computed = sorted({t for equal in candidates.values() for t in equal if view.producers[t] is not None})
    asked = [tensor for tensor in computed if not view.tensor_graphs[tensor]]
    with as_file(request.opened) as path:
        types = read_element_types(path, [view.names[tensor] for tensor in asked])
    kinds = {name: helper.tensor_dtype_to_np_dtype(type_).kind for name, type_ in types.items()}
    true = {tensor for tensor in asked if kinds.get(view.names[tensor]) == seen[tensor][0].kind}
    rounded = set(computed) - true
    return {value: [tensor for tensor in equal if tensor not in rounded] for value, equal in candidates.items()}


def _list_values(passed: Iterable[CallIO]) -> list[int]:
    ends = (end for io in passed for end in (io.received, io.returned))
    return sorted({value for end in ends for _, value in end or () if value is not None})


def _find_looped(view: View) -> set[int]:
    """Return the graphs that may run again and again: a tensor there has more values than were seen."""
    looped = set(view.repeated)
    for number, graph in enumerate(view.graphs):  # each after the one around it
        owner = None if graph.owner is None else view.nodes[graph.owner]
        if owner is not None and (owner.op in LOOP_OPS or owner.graph in looped):
            looped.add(number)
    return looped


# -- which of them a call had -----------------------------------------------------------------------------


class _Order:
    """Knows which nodes run only after a call has ended, and which may be of another one."""

    def __init__(self, nodes: Sequence[Attribution], tree: CallTree, ops: Sequence[OpRecord]) -> None:
        self._nodes, self._tree = nodes, tree
        self._places = {call: place for place, call in enumerate(tree.children)}
        self._ends = {call: number for number, op in enumerate(ops) for call in tree.ancestors(op.scope)}
        """For each call the last operation in it, or in a call below it."""

    def is_doubtful(self, node: int, call: CallId) -> bool:
        """Say whether a node may do another call's work instead: values tell only that it is one of several."""
        own = self._nodes[node]
        return own.evidence == "near" and any(call not in self._tree.ancestors(origin) for origin in own.origins)

    def was_run_after(self, ops: Collection[int], call: CallId) -> bool:
        """Say whether all of some operations were run after a call had ended, as far as is known."""
        end = self._ends.get(call)
        return end is not None and bool(ops) and min(ops) > end

    def belongs_after(self, node: int | None, call: CallId) -> bool:
        """Say whether all calls whose work a node does began after another had ended."""
        if node is None:
            return False
        own = (self._nodes[node].scope, *self._nodes[node].origins)
        forks = (self._tree.fork(one, call)[1:] for one in own)
        return all(a is not None and b is not None and self._places[a] > self._places[b] for a, b in forks)


class _Binder:
    """Finds for each call which of the tensors that hold a value is the one that it received or returned."""

    def __init__(
        self,
        projection: Projection,
        candidates: _Candidates,
        regions: Sequence[frozenset[CallId]],
        order: _Order,
    ) -> None:
        """Take the tensors that hold each value, and for each node the calls in whose region it is."""
        self._projection, self._candidates, self._regions, self._order = projection, candidates, regions, order
        self._view = projection.view
        main = self._view.graphs[0]
        self._inputs, self._outputs = frozenset(main.inputs), frozenset(main.outputs)
        self._given = frozenset(tensor for graph in self._view.graphs for tensor in graph.outputs)

    def bind(self, call: CallId, io: CallIO) -> CallIO:
        """Return what a call received and returned by the tensors of the file."""
        received = self._bind_all(call, io.received, {})
        known = dict(zip(_number(io.received), _number(received), strict=True))
        return CallIO(received, self._bind_all(call, io.returned, known, returned=True))

    def _bind_all(
        self,
        call: CallId,
        values: NumberedTensors | None,
        known: Mapping[int | None, int | None],
        *,
        returned: bool = False,
    ) -> NumberedTensors | None:
        if values is None:
            return None
        find = self._find_returned if returned else self._find_received
        return tuple((name, None if value is None else find(call, value, known.get(value))) for name, value in values)

    def _find_received(self, call: CallId, value: int, _: int | None) -> int | None:
        outside = [tensor for tensor in self._list_made(call, value) if not self._is_made_in(call, tensor, sure=True)]
        if call == ROOT:
            outside = [tensor for tensor in outside if tensor in self._inputs]
        read = [tensor for tensor in outside if self._is_read_in(call, tensor)]
        if not self._is_distinctive(value):
            return read[0] if len(read) == 1 else None
        return self._choose(value, read or outside)

    def _find_returned(self, call: CallId, value: int, received: int | None) -> int | None:
        equal = self._list_made(call, value)
        own = [tensor for tensor in equal if self._is_made_in(call, tensor)]
        if call == ROOT:
            own = [tensor for tensor in equal if tensor in self._outputs] or own
        if not self._is_distinctive(value):
            return own[0] if len(own) == 1 else received
        leaving = [tensor for tensor in own if self._leaves(call, tensor)]
        if leaving or own:
            return self._choose(value, (leaving or own)[::-1])
        return received if received is not None else self._choose(value, equal)

    def _list_made(self, call: CallId, value: int) -> list[int]:
        """List the tensors that hold a value, and were there by the end of a call."""
        producers, order = self._view.producers, self._order
        made = (t for t in self._candidates.get(value, ()) if not order.belongs_after(producers[t], call))
        return [tensor for tensor in made if not order.was_run_after(self._list_ops(tensor), call)]

    def _is_distinctive(self, value: int) -> bool:
        value_class = self._projection.classes.of_value.get(value)  # a tensor without elements is of none
        return value_class is not None and self._projection.classes.distinctive[value_class]

    def _is_made_in(self, call: CallId, tensor: int, *, sure: bool = False) -> bool:
        producer = self._view.producers[tensor]
        if producer is None or producer in self._view.literals:  # a literal is only written where it is read
            return False
        return call in self._regions[producer] and not (sure and self._order.is_doubtful(producer, call))

    def _is_read_in(self, call: CallId, tensor: int) -> bool:
        return any(call in self._regions[reader] for reader in self._view.consumers[tensor])

    def _leaves(self, call: CallId, tensor: int) -> bool:
        return tensor in self._given or any(
            call not in self._regions[reader] for reader in self._view.consumers[tensor]
        )

    def _choose(self, value: int, tensors: Sequence[int]) -> int | None:
        """Return the first of some tensors that are copies of one; else of those that the value's operation made."""
        if len({self._walk_back(tensor)[-1] for tensor in tensors}) > 1:
            makers = set(self._projection.producers(self._projection.origins.chain(value)))
            tensors = [tensor for tensor in tensors if makers.intersection(self._list_ops(tensor))]
            if len({self._walk_back(tensor)[-1] for tensor in tensors}) > 1:
                return None
        return tensors[0] if tensors else None

    def _walk_back(self, tensor: int) -> list[int]:
        """Return a tensor and those that it is a copy of, by nodes that only pass on what they read."""
        chain = [tensor]
        while (producer := self._view.producers[tensor]) is not None:
            node = self._view.nodes[producer]
            source = node.passes_on
            # What computes is no copy, though it changes nothing here: a pool of more than the whole image, say.
            if source is None and not self._projection.classes.near and node.op in DATA_MOVEMENT_OPS:
                source = self._projection.above.get(tensor)
            if source is None:
                break
            tensor = source
            chain.append(tensor)
        return chain

    def _list_ops(self, tensor: int) -> set[int]:
        """Return the operations whose work the nodes do that made a tensor, and passed it on."""
        producers = (self._view.producers[one] for one in self._walk_back(tensor))
        matches = (self._projection.matches[producer] for producer in producers if producer is not None)
        return {op for match in matches if match is not None for op in match.ops}


def _number(tensors: NumberedTensors | None) -> list[int | None]:
    return [number for _, number in tensors or ()]
