"""The inputs and outputs of a part.

It is recorded what the call received and returned: where that is known, it says where the part ends, and in which
order. Constants come along, and sizes that can be taken from the part's own inputs; all else that is read from outside
is an input::

    x ─→ Cast ─→ [ MatMul ─→ Add ] ─→ y       the call received x: the Cast comes along, x is the input
    x ─→ Shape ─→ [ Reshape ]                 the size is taken of x, or of an input with an axis of that name
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hieronnx.graph.operators import LAYOUT_OPS, VIEW_OPS
from hieronnx.hierarchy.records import BoundTensor, Call, CallId
from hieronnx.tools.extract.source import Source

# They give the values of what a call received in the form, or in the order in memory, in which its nodes read them.
_FORM_OPS = VIEW_OPS | LAYOUT_OPS


@dataclass(frozen=True, slots=True)
class CallTensors:
    """The tensors that a call, or several, received and returned, in order, each with the names that it had there.

    Attributes:
        received: by the arguments that they were.
        returned: by their places in what was returned.
        lost: the arguments whose tensors the file does not have any more.
        lost_returned: the places of what was returned whose tensors it does not have.
        recorded: whether all this is known.
    """

    received: Mapping[int, tuple[str, ...]]
    returned: Mapping[int, tuple[str, ...]]
    lost: tuple[str, ...]
    lost_returned: tuple[str, ...]
    recorded: bool


def read_io(source: Source, call_ids: Sequence[CallId]) -> CallTensors:
    """Read what calls received and returned, by the tensors that the file still has.

    Where several calls call one tensor by one name, it has that name once.
    """
    calls = [source.hierarchy.call_by_id[call_id] for call_id in call_ids]

    def name_tensors(bound: Iterable[tuple[Call, BoundTensor]]) -> dict[int | None, tuple[str, ...]]:
        names: dict[int | None, tuple[str, ...]] = {}
        for call, item in bound:
            tensor = source.view.find_tensor(item.graph, item.tensor)
            name = f"{call.id}: {item.name}" if tensor is None and len(calls) > 1 else item.name
            if len(calls) == 1 or name not in names.get(tensor, ()):
                names[tensor] = (*names.get(tensor, ()), name)
        return names

    received = name_tensors((call, item) for call in calls for item in call.received or ())
    returned = name_tensors((call, item) for call in calls for item in call.returned or ())
    return CallTensors(
        received={tensor: names for tensor, names in received.items() if tensor is not None},
        returned={tensor: names for tensor, names in returned.items() if tensor is not None},
        lost=received.get(None, ()),
        lost_returned=returned.get(None, ()),
        recorded=all(call.received is not None and call.returned is not None for call in calls),
    )


def name_equals(
    source: Source, tensors: Iterable[int], bound: Mapping[int, tuple[str, ...]]
) -> dict[int, tuple[str, ...]]:
    """Name tensors as those that a call received or returned: themselves, or one that is computed alike (a copy).

    The result has them in the order of the bound ones.
    """
    like = {tensor: tensor for tensor in tensors}
    missing = [tensor for tensor in like if tensor not in bound]
    if missing and bound:
        by_number = {source.numbers[tensor]: tensor for tensor in reversed(list(bound))}
        like |= {tensor: by_number.get(source.numbers[tensor], tensor) for tensor in missing}
    order = {tensor: position for position, tensor in enumerate(bound)}
    named = sorted((t for t in like if like[t] in order), key=lambda t: order[like[t]])
    return {tensor: bound[like[tensor]] for tensor in named}


# -- inputs -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Inputs:
    """What a region reads from outside.

    Attributes:
        data: the tensors that are made of the values of what is fed, and all that the call received.
        sizes: the sizes that none of these has.
        pulled_in: the nodes of constants and sizes that come along, and those that only change the form of an input.
        retaken: those of them that take the size of another tensor than in the whole model: of which, and which axis.
    """

    data: dict[int, None] = field(default_factory=dict)
    sizes: dict[int, None] = field(default_factory=dict)
    pulled_in: set[int] = field(default_factory=set)
    retaken: dict[int, tuple[int, int]] = field(default_factory=dict)


def find_inputs(source: Source, region: Sequence[int], received: Iterable[int], passed: Iterable[int]) -> Inputs:
    """Find what a region reads from outside; what its call received is where it can begin, as far as it is known.

    `passed` is what the call returned and its nodes do not make: that is read, too.
    """
    view, flow = source.view, source.view.flow
    made = {tensor for index in region for tensor in view.nodes[index].outputs}
    needed = (*(t for index in region for t in view.nodes[index].reads), *passed)
    read = dict.fromkeys(t for t in needed if t not in made)
    given = {t for t in received if t not in made and not source.is_literal(t)}
    # What is made of sizes and literals alone comes along where it can: who calls the module may leave it out.
    cut = {t for t in given if flow.is_data(t) or t in source.weighted}
    inputs = Inputs()
    for tensor in read:
        if tensor in cut or flow.is_data(tensor):
            begin, views = _look_through(source, tensor, made, cut) if cut else (tensor, set[int]())
            inputs.pulled_in |= views
            if begin not in made:
                inputs.data[begin] = None
    _take_sizes(source, sorted(t for t in read if flow.size[t] and t not in cut), made, given, inputs)
    for tensor in read:
        if flow.literal[tensor] and tensor not in cut:
            inputs.pulled_in |= (derive(source, tensor, made, {}) or {}).keys()
    inputs.pulled_in = _keep_needed(source, read, inputs)
    return inputs


def _keep_needed(source: Source, read: Iterable[int], inputs: Inputs) -> set[int]:
    """Return what must come along: not what makes an input, which one of several ways to another tensor may cross."""
    view, needed = source.view, set[int]()
    pending = list(read)
    while pending:
        tensor = pending.pop()
        producer = view.producers[tensor]
        if producer is None or producer in needed or tensor in inputs.data or tensor in inputs.sizes:
            continue
        if producer in inputs.pulled_in:
            needed.add(producer)
            pending += () if producer in inputs.retaken else view.nodes[producer].reads
    return needed


def _look_through(source: Source, tensor: int, made: Collection[int], cut: Collection[int]) -> tuple[int, set[int]]:
    """Return the made or received tensor that a tensor is only another form of, and the nodes that give it that form.

    If it is none, the tensor itself.
    """
    view, current, nodes = source.view, tensor, set[int]()
    while current not in cut and current not in made:
        producer = view.producers[current]
        if producer is None or view.nodes[producer].op not in _FORM_OPS:
            return tensor, set()
        current, *others = view.nodes[producer].reads
        nodes.add(producer)
        for other in others:
            derived = derive(source, other, made, {})
            if derived is None:
                return tensor, set()
            nodes |= derived.keys()
    return current, nodes


def _take_sizes(
    source: Source, sizes: Iterable[int], made: Collection[int], given: Collection[int], inputs: Inputs
) -> None:
    """Take sizes of the part's own tensors, or of what the call received; where that cannot be, they are inputs."""
    known, sized = {*made, *inputs.data}, source.view.axes
    named = [(name, (tensor, axis)) for tensor in inputs.data for axis, name in enumerate(sized[tensor] or ())]
    axes = {name: owner for name, owner in reversed(named) if isinstance(name, str) and name}  # the first that has it
    for tensor in sizes:
        derived = derive(source, tensor, known, axes)
        if derived is None:
            derived = derive(source, tensor, known.union(given), axes)
            read = (t for index in derived or () for t in source.view.nodes[index].reads)
            inputs.data |= dict.fromkeys(t for t in (tensor, *read) if t in given)
        if derived is None:
            inputs.sizes[tensor] = None
            known.add(tensor)
        else:
            inputs.pulled_in |= derived.keys()
            inputs.retaken |= {node: axis for node, axis in derived.items() if axis is not None}


def derive(
    source: Source, tensor: int, known: Collection[int], axes: Mapping[str, tuple[int, int]]
) -> dict[int, tuple[int, int] | None] | None:
    """Return the nodes that make a tensor of constants and known tensors; None where more would be needed.

    A node that takes a size of an unknown tensor has an axis of that name by its side, from which it can be taken.
    """
    view, cone, pending = source.view, dict[int, tuple[int, int] | None](), [tensor]
    while pending:
        current = pending.pop()
        producer = view.producers[current]
        if current in known or current in view.constants or producer in cone:
            continue
        if producer is None or view.flow.is_data(current):
            return None
        reads = view.nodes[producer].reads
        cone[producer] = None if all(t in known for t in reads) else axes.get(size_taken(source, producer))
        if cone[producer] is None:
            pending += reads
    return cone


def size_taken(source: Source, index: int) -> str:
    """Return the name of the one axis whose size a node takes; nothing where it is another kind of node."""
    node = source.nodes[index]
    if source.view.nodes[index].op != "Shape":
        return ""
    axes = source.view.axes[source.view.nodes[index].inputs[0]] or ()
    taken = axes[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(axes))]
    return taken[0] if len(taken) == 1 and isinstance(taken[0], str) else ""


# -- outputs ----------------------------------------------------------------------------------------------


def find_outputs(
    source: Source, calls: Sequence[CallId], region: Sequence[int], between: Collection[int], returned: Collection[int]
) -> tuple[int, ...]:
    """Return what a region makes for others; where others make it all themselves, whatever they read.

    Constants and sizes are nothing to be passed on, unless a call received or returned them: they come along with
    whoever reads them. What lies between several calls is theirs alone.
    """
    view = source.view
    inside = {*region, *(i for graph in source.bodies_below(region) for i in view.nodes_in[graph])}
    made = [t for index in region for t in view.nodes[index].makes]
    outer = {tensor: list(_outer_readers(source, tensor, inside)) for tensor in made}
    given = [t for t in made if any(r is None or not _makes_itself(source, r, t, calls) for r in outer[t])]
    computed = [t for t in given if view.flow.is_data(t) or t in source.returned_by or t in source.received]
    unread = [t for t in made if not view.consumers[t]]
    wanted = [t for t in made if t in returned] + computed
    asked = _asked_by_sharers(source, calls, [index for index in region if index not in between])
    asked.update(wanted or given or [t for t in made if outer[t]] or unread or made)
    return tuple(t for t in made if t in asked)


def _asked_by_sharers(source: Source, calls: Sequence[CallId], region: Sequence[int]) -> set[int]:
    """Return what nodes shared with other branches of the call tree read of what those did not make too.

    The part of the other branch has the shared node as well, and begins with it.
    """
    view, tree = source.view, source.hierarchy.tree
    shared = {item for call in calls for item in (*tree.below(call), *tree.ancestors(call))}
    branches: dict[int, set[CallId]] = {}  # the other branches that a node belongs to, by their outermost calls
    for index in region:
        node = source.attributions[index]
        tops = (_branch_top(source, origin, shared) for origin in (node.scope, *node.origins))
        branches[index] = {top for top in tops if top is not None}
    asked: set[int] = set()
    for index, others in branches.items():
        for tensor in view.nodes[index].reads if others else ():
            producer = view.producers[tensor]
            if producer in branches and view.flow.is_data(tensor) and not others <= branches[producer]:
                asked.add(tensor)
    return asked


def _branch_top(source: Source, call: CallId, shared: Collection[CallId]) -> CallId | None:
    """Return the outermost call above a call that is not among the shared ones; None if it is one of these itself."""
    branch = [above for above in source.hierarchy.tree.ancestors(call) if above not in shared]
    return branch[-1] if branch else None


def _outer_readers(source: Source, tensor: int, inside: Collection[int]) -> Iterator[int | None]:
    """Yield the nodes outside that read a tensor; None for whoever runs the model or the function."""
    yield from (reader for reader in source.view.consumers[tensor] if reader not in inside)
    for graph in source.returned_by.get(tensor, ()):
        owner = source.view.graphs[graph].owner
        if owner is None or owner not in inside:
            yield owner


def _makes_itself(source: Source, reader: int, tensor: int, calls: Sequence[CallId]) -> bool:
    """Say whether a reader's own branch of the call tree made the tensor too, before the two copies became one.

    So too where the reader is in a call above: that call has itself among the origins.
    """
    producer = source.view.producers[tensor]
    assert producer is not None  # only tensors of the region are asked for
    origins = source.attributions[producer].origins
    if len(origins) < 2:
        return False
    tree, scope = source.hierarchy.tree, source.attributions[reader].scope
    top = _branch_top(source, scope, {above for call in calls for above in tree.ancestors(call)})
    return scope in origins if top is None else any(top in tree.ancestors(origin) for origin in origins)
