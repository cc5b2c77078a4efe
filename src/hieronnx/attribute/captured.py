"""The strategy `captured`: what the exporter itself recorded, call by call, carried along the graphs that it made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from torch import nn

from hieronnx.attribute.binding import add_tensors
from hieronnx.attribute.carried import Carried, carry_scopes
from hieronnx.attribute.fill import fill_gaps, make_nodes
from hieronnx.attribute.folded import Folded
from hieronnx.capture.captured import Captured, Stage
from hieronnx.capture.modules import describe_modules, parameter_names
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree, Hierarchy
from hieronnx.hierarchy.records import Attribution, Call, Initializer
from hieronnx.hierarchy.tags import TagPolicy, build_calls


def attribute_captured(captured: Captured, model: nn.Module, policy: TagPolicy) -> Hierarchy:
    """Build the hierarchy of an export from what its route captured."""
    modules = describe_modules(model, policy)
    classes = {path: module.qualified_class for path, module in modules.items()}
    tree = CallTree({site.id: site.parent for site in captured.sites})
    parameters = parameter_names(model)
    carried = _carry_along(captured.stages, tree)
    filled = fill_gaps(captured.view, carried.nodes, tree, parameters)
    calls = build_calls(captured.sites, classes, policy)
    return Hierarchy(
        modules=modules,
        calls=tuple(_add_tensors(call, captured, carried.tensors) for call in calls),
        nodes=make_nodes(captured.view, filled),
        initializers=tuple(_make_initializers(captured.view, carried.initializers, parameters)),
        policy=policy,
        strategy="captured",
    )


# -- along the stages -------------------------------------------------------------------------------------


def _carry_along(stages: Sequence[Stage], tree: CallTree) -> Carried:
    """Carry what is known of the first graph to the last; the tensors of the result are by those of the first."""
    first = stages[0]
    carried = Carried(list(first.scopes), {}, list(range(len(first.view.names))))
    for before, after in pairwise(stages):
        step = _carry_step(before, carried.nodes, after, tree)
        reached = [t if t is not None else after.tensors.get(old) for old, t in enumerate(step.tensors)]
        tensors = [None if t is None else reached[t] for t in carried.tensors]
        carried = Carried(step.nodes, step.initializers, tensors)
    return carried


def _carry_step(before: Stage, scopes: Sequence[Attribution | None], after: Stage, tree: CallTree) -> Carried:
    """Carry the scopes of one graph to the next; where carry is not certain, what torch itself says comes first."""
    torch_says = zip(after.sources, after.scopes, strict=True)
    recorded = [(None if source is None else scopes[source]) or scope for source, scope in torch_says]
    if after.translated:
        _give_to_readers(after, scopes, recorded)
        return Carried(recorded, {}, [None] * len(before.view.names))
    # Of several tensors that torch says are one the first counts: what comes behind it went into its node.
    same = {new: old for old, new in sorted(after.tensors.items(), reverse=True)}
    carried = carry_scopes(before.view, scopes, after.view, tree, same)
    nodes = [
        own if own is not None and _is_better(own, scope) else scope
        for scope, own in zip(carried.nodes, recorded, strict=True)
    ]
    names = before.parameters
    initializers = {
        tensor: Folded(folded.origins, tuple(names.get(source, source) for source in folded.sources))
        for tensor, folded in carried.initializers.items()
    }
    return Carried(nodes, initializers, carried.tensors)


def _is_better(own: Attribution, carried: Attribution | None) -> bool:
    """Say whether torch's word on a node counts more than what carry found: unless that is certain, or has it too."""
    if carried is None or set(own.origins) <= set(carried.origins):
        return carried is None
    return carried.evidence not in ("captured", "carried")


def _give_to_readers(
    after: Stage, scopes: Sequence[Attribution | None], attributions: list[Attribution | None]
) -> None:
    """Let what torch put in for a translated node, such as a cast of what it reads, do the work of that node.

    What it put together from sizes and literals has the scope of a list that torch merged with equal ones elsewhere.
    """
    view = after.view
    inserted = [i for i, source in enumerate(after.sources) if source is None or scopes[source] is None]
    for index in reversed(inserted):
        outputs = view.nodes[index].makes
        served = {attributions[reader] for t in outputs for reader in view.consumers[t]}
        only = served.pop() if len(served) == 1 else None
        own = attributions[index]
        prepares = all(view.flow.constant[t] for t in outputs)
        if only is not None and own is not None and (prepares or only.scope == own.scope):
            attributions[index] = only


# -- the records of the hierarchy -------------------------------------------------------------------------


def _add_tensors(call: Call, captured: Captured, tensors: Sequence[int | None]) -> Call:
    """Add to a call what it received and returned, as far as it was carried to the last graph."""
    passed = captured.passed.get(call.id)
    return add_tensors(call, passed and passed.renumber(lambda tensor: tensors[tensor]), captured.view)


def _make_initializers(
    view: View, folded: Mapping[int, Folded], parameters: Mapping[str, str]
) -> Iterable[Initializer]:
    for tensor in view.constants:
        name = view.names[tensor]
        origins, sources = (folded[tensor].origins, folded[tensor].sources) if tensor in folded else ((), ())
        owned = {parameters[source] for source in (name, *sources) if source in parameters}
        yield Initializer(name, owned.pop() if len(owned) == 1 else None, origins)
