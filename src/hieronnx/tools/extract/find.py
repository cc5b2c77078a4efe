"""Finding the part of a graph that a module call is, or several: its nodes, inputs, outputs, what others share of it.

Its nodes are those of the call and the calls below it, and those that it shares with others through origins. Shared
nodes come along whole. Left out is what only makes the tensors that the call received::

    scope   ""        a         a, b      b
    node    Cast  →   Mul   →   Add   →   Relu        a: Mul, Add    b: Add, Relu

The part of several calls has all that lies between them, whosever it is: data that leaves a part does not come back::

    scope   a         ""        b
    node    Mul   →   Neg   →   Relu                  a and b: Mul, Neg, Relu
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hieronnx.errors import HieronnxError, list_some
from hieronnx.graph.operators import SIZE_OPS
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Module
from hieronnx.tools.extract.boundary import CallTensors, find_inputs, find_outputs, name_equals, read_io
from hieronnx.tools.extract.source import Source


@dataclass(frozen=True, slots=True)
class Part:
    """What belongs to a part, by the numbers of the whole model's view, in the order of the file.

    Attributes:
        call: the call that it is; of several the lowest call above them all.
        calls: the call itself, or several.
        between: the nodes of other calls on the way from one of several calls to another.
        region: the nodes of the call, those shared with others included; bodies belong to their nodes.
        pulled_in: constants and sizes from outside that come along, and what only changes the form of an input.
        graphs: the graphs that these nodes are in: the main graph, or bodies inside one another.
        inputs: what is read from outside: first what the call received, in the order of its arguments.
        outputs: what the call returned, in that order, and then what else is read outside.
        initializers: those that are needed.
        sizes: the inputs that are sizes: exporters compute these outside, once for all who need them.
        io: what the call received and returned.
        arguments: which of them the inputs are.
        places: where in what was returned the outputs are.
        retaken: the nodes that take a size of another tensor than in the whole model: of which input, and which axis.
    """

    call: CallId
    calls: tuple[CallId, ...]
    between: tuple[int, ...]
    region: tuple[int, ...]
    pulled_in: tuple[int, ...]
    graphs: frozenset[int]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    initializers: tuple[int, ...]
    sizes: tuple[int, ...]
    io: CallTensors
    arguments: Mapping[int, tuple[str, ...]]
    places: Mapping[int, tuple[str, ...]]
    retaken: Mapping[int, tuple[int, int]]

    @property
    def nodes(self) -> list[int]:
        """All nodes of the part in the order of the file."""
        return sorted((*self.region, *self.pulled_in))

    @property
    def undeclared_inputs(self) -> list[int]:
        """The inputs that the call did not receive; where that was not recorded, those that are sizes."""
        return [t for t in self.inputs if t not in self.arguments] if self.io.recorded else list(self.sizes)


def find_part(source: Source, calls: Sequence[CallId]) -> Part | None:
    """Find the part that a call is, or several together; None where the file has no node of it, literals aside.

    Raises:
        HieronnxError: If its nodes lie in graphs that cannot be one.
    """
    view, io = source.view, read_io(source, calls)
    call = source.hierarchy.tree.lowest_above(calls)
    region, between = _find_region(source, calls, io.received)
    if not region:
        return None
    graphs = _find_graphs(view, region, call)
    is_whole = any(source.hierarchy.call_by_id[item].parent is None for item in calls)
    # What one of several calls returned to another does not leave the part.
    inner = {t for index in region for t in view.nodes[index].reads} if len(calls) > 1 else set()
    received, returned = (
        [t for t in tensors if view.tensor_graphs[t] in graphs]
        for tensors in (io.received, [t for t in io.returned if t not in inner])
    )
    made = {t for index in region for t in view.nodes[index].makes}
    passed = [] if is_whole else [t for t in returned if t not in made]  # as it was received, or constants
    outputs = view.graphs[0].outputs if is_whole else (*find_outputs(source, calls, region, between, returned), *passed)
    places = name_equals(source, outputs, io.returned)
    inputs = find_inputs(source, region, received, passed)
    unmade = [t for t in dict.fromkeys(outputs) if view.producers[t] is None]  # the part returns them as they are
    entering = dict.fromkeys((*inputs.data, *(t for t in unmade if t not in view.constants), *inputs.sizes))
    arguments = name_equals(source, entering, io.received)
    read = (t for index in (*region, *inputs.pulled_in) for t in view.nodes[index].reads)
    return Part(
        call=call,
        calls=tuple(calls),
        between=tuple(sorted(between.intersection(region))),
        region=tuple(region),
        pulled_in=tuple(sorted(inputs.pulled_in)),
        graphs=graphs,
        inputs=tuple(dict.fromkeys((*arguments, *entering))),
        outputs=outputs if is_whole else tuple(dict.fromkeys((*places, *outputs))),
        initializers=tuple(sorted({t for t in (*read, *unmade) if t in view.constants})),
        sizes=tuple(inputs.sizes),
        io=io,
        arguments=arguments,
        places=places,
        retaken=inputs.retaken,
    )


# -- its nodes ---------------------------------------------------------------------------------------------


def _find_region(source: Source, targets: Sequence[CallId], received: Iterable[int]) -> tuple[list[int], set[int]]:
    """Find the nodes of calls, in the order of the file, and those of them that lie between several calls.

    There are none where the calls have literal constants alone.
    """
    calls = {below for target in targets for below in source.hierarchy.tree.below(target)}
    nodes = {index for item in calls for index in source.nodes_of.get(item, ())}
    if all(source.view.nodes[index].op == "Constant" for index in nodes):
        return [], set()  # a literal is no work
    call = source.hierarchy.tree.lowest_above(targets)
    top = _find_top(source, nodes, call)
    above = set(source.hierarchy.tree.ancestors(call))
    between = _find_between(source, top, calls, above if len(targets) == 1 else None)
    top |= between
    if source.hierarchy.call_by_id[call].parent is None and call in calls:
        return sorted(top), set()
    own = {index for index in top if source.attributions[index].scope in calls}
    joined = set() if len(targets) == 1 else between
    return _leave_received(source, _leave_sizes(source, sorted(top)), own | joined, received), joined


def _find_top(source: Source, nodes: set[int], call: CallId) -> set[int]:
    """Return the nodes that stand for themselves, not inside a body or function that comes with another of them.

    Where they lie in bodies beside one another, the nodes that have those bodies join them.
    """
    view = source.view
    while True:
        inside = set(source.bodies_below(nodes))
        top = {index for index in nodes if view.nodes[index].graph not in inside}
        graphs = {view.nodes[index].graph for index in top}
        deepest = max(graphs, key=lambda graph: len(_graphs_above(view, graph)))
        apart = graphs - set(_graphs_above(view, deepest))
        if not apart:
            return top
        owners = {view.graphs[graph].owner for graph in (*apart, deepest)}
        if None in owners:
            raise HieronnxError(f"call '{call}' lies in several functions of the file and cannot be taken out as one")
        nodes = nodes.union(owner for owner in owners if owner is not None)


def _graphs_above(view: View, graph: int) -> list[int]:
    """Return a graph and those that it lies in."""
    graphs = [graph]
    while (owner := view.graphs[graphs[-1]].owner) is not None:
        graphs.append(view.nodes[owner].graph)
    return graphs


def _find_graphs(view: View, region: Iterable[int], call: CallId) -> frozenset[int]:
    """Return the graphs that a region lies in: the main graph, or bodies inside one another.

    A function is an error: its tensors have no types, and its nodes may take attributes from callers.
    """
    inner = {view.nodes[index].graph for index in region}
    graphs = frozenset(above for graph in inner for above in _graphs_above(view, graph))
    for graph in sorted(graphs):
        if graph and view.graphs[graph].owner is None:
            raise HieronnxError(
                f"call '{call}' lies inside the function '{view.graphs[graph].key}' of the file and cannot be taken "
                "out of it; extract the call that uses the function, or inline the functions first (onnx.inliner)"
            )
    return graphs


def _find_between(
    source: Source, top: set[int], calls: Collection[CallId], others: Collection[CallId] | None
) -> set[int]:
    """Return the nodes of some other calls on a way from the calls' own nodes back into their part; None for any.

    Of one call these are nodes of calls above, which ran while it did. A node that is only shared is no beginning of
    such a way: it ran in another call, maybe long before.
    """
    view = source.view
    own = {index for index in top if source.attributions[index].scope in calls}
    if not own:
        return set()
    first, before = min(own), set[int]()
    pending = list(top)
    while pending:
        for tensor in view.nodes[pending.pop()].reads:
            producer = view.producers[tensor]
            if producer is None or producer < first or producer in before or producer in top:
                continue
            if others is None or source.attributions[producer].scope in others:
                before.add(producer)
                pending.append(producer)
    between: set[int] = set()
    for index in sorted(before):
        producers = {view.producers[tensor] for tensor in view.nodes[index].reads}
        if not (producers.isdisjoint(own) and producers.isdisjoint(between)):
            between.add(index)
    return between


def _leave_sizes(source: Source, region: list[int]) -> list[int]:
    """Leave out the sizes that the exporter takes for all who need them, where they are of tensors not read here.

    Nobody said that such a node belongs here: it was given to those who read it.
    """
    nodes = source.view.nodes
    guessed = {i for i in region if nodes[i].op in SIZE_OPS and source.attributions[i].confidence == "low"}
    here = {t for index in region if index not in guessed for t in (*nodes[index].reads, *nodes[index].outputs)}
    return [index for index in region if index not in guessed or here.issuperset(nodes[index].reads)] or region


def _leave_received(source: Source, region: list[int], inside: set[int], received: Iterable[int]) -> list[int]:
    """Leave out the nodes of others that only make what the call received: the part begins after them."""
    nodes, producers = source.view.nodes, source.view.producers
    own = inside.intersection(region)
    given = {t for t in received if producers[t] not in own}
    makers = {producers[t] for t in given}
    if makers.isdisjoint(region):
        return region
    members, read = set(region), {t for index in region for t in nodes[index].reads}
    last = (i for i in region if i not in makers and read.isdisjoint(nodes[i].outputs))
    needed, pending = set[int](), [*own, *last]
    while pending:
        index = pending.pop()
        if index not in needed:
            needed.add(index)
            before = (producers[t] for t in nodes[index].reads if t not in given)
            pending += (producer for producer in before if producer is not None and producer in members)
    return [index for index in region if index in needed] or region


# -- what is shared with other calls ----------------------------------------------------------------------


def find_shared(source: Source, part: Part) -> list[int]:
    """Return the nodes that stand for other calls too."""
    below, between = _calls_below(source, part), set(part.between)
    shared = (index for index in part.region if not below.issuperset(source.attributions[index].origins))
    return [index for index in shared if index not in between]


def _calls_below(source: Source, part: Part) -> set[CallId]:
    return {below for call in part.calls for below in source.hierarchy.tree.below(call)}


def find_fused(source: Source, part: Part, shared: Collection[int]) -> tuple[CallId, ...]:
    """Return the other calls whose work shared nodes do in one with that of the call.

    Of equal nodes one was kept, and it ran in one of the calls that it stands for. A fused node ran in none of them; or
    it begins before the call did, or ends after it. What constants and sizes are computed by is nobody's work.
    """
    below, view = _calls_below(source, part), source.view
    unreturned = (t for t in part.outputs if t not in part.places)
    outside = {*part.undeclared_inputs, *unreturned} if part.io.recorded else set()
    fused: dict[CallId, None] = {}
    for index in shared:
        node, makes = source.attributions[index], view.nodes[index].makes
        if not any(map(view.flow.is_data, makes)):
            continue
        if node.scope not in node.origins or outside.intersection((*view.nodes[index].reads, *makes)):
            fused |= dict.fromkeys(origin for origin in node.origins if origin not in below)
    return tuple(fused)


# -- calls without nodes ----------------------------------------------------------------------------------


def explain_no_nodes(hierarchy: Hierarchy, call: CallId) -> str:
    """Say in one line why there is nothing to extract: folded, passed through, removed, or not known at all."""
    module = hierarchy.modules[call.module]
    name = f"call '{call}' ({module.class_name}) has no nodes in the file"
    if all(node.evidence == "root" for node in hierarchy.nodes):
        return f"{name}: nothing was attributed, all nodes are the root's; export the model again to attribute them"
    below = set(hierarchy.tree.below(call))
    folded = [item.name for item in hierarchy.initializers if not below.isdisjoint(item.origins)]
    if folded:
        return f"{name}: its work was folded into {_listed('initializer', folded)}; extract a call that uses it"
    literals = [node.name or node.output for node in hierarchy.nodes if not below.isdisjoint(node.origins)]
    if literals:
        fate = f" but {_listed('constant', literals)}: its work was done at export"
    else:
        fate = _guess_fate(hierarchy, module)
    return f"{name}{fate}; extract the call that it is in"


def _guess_fate(hierarchy: Hierarchy, module: Module) -> str:
    """Say what can have become of a module's work, by its parameters alone."""
    prefix = f"{module.path}." if module.path else ""
    weights = [i.name for i in hierarchy.initializers if i.parameter and i.parameter.startswith(prefix)]
    if weights:
        return f": others do its work with {_listed('initializer', weights)}"
    removed = "what it returned was folded into a constant, or cancelled against a neighbour, or nothing reads it"
    if module.parameter_count:
        return f", nor its parameters: {removed}"
    passed = "it passes its input through" if module.parameter_count == 0 else "whether it has parameters is not known"
    return f": {passed}, or {removed}"


def _listed(noun: str, names: Sequence[str]) -> str:
    return f"{noun}{'s' * (len(names) > 1)} " + list_some([f"'{name}'" for name in names], 4)
