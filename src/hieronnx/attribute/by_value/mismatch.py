"""What file and model do not share: weights that are of no use to the model, and modules of which the file has nothing.

Outputs alone do not tell: a layer that adds little to what it is given may be there or not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from hieronnx.attribute.by_value.classes import Classes
from hieronnx.attribute.by_value.projection import Projection
from hieronnx.attribute.by_value.trace import Trace
from hieronnx.attribute.weights import Weights
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import Attribution, CallId


def unknown_weights(view: View, classes: Classes, unknown: Iterable[int], varying: Collection[int]) -> tuple[int, ...]:
    """Return the weights of the file that are not the model's, and from which nothing is made that the model makes.

    Args:
        view: The file.
        classes: Which values are equal.
        unknown: Its weights that are not among the model's parameters: they may be made of several, or be of modules
            that the model does not register.
        varying: The tensors of the file that depend on its inputs.
    """
    consumers = view.consumers
    return tuple(
        t
        for t in unknown
        if not any(_is_known(made, classes) for made in (t, *_find_made(t, view, consumers, varying)))
    )


def _is_known(tensor: int, classes: Classes) -> bool:
    return any(c is not None and classes.telling[c] for c in classes.of_tensor.get(tensor, ()))


def _find_made(tensor: int, view: View, consumers: Sequence[Sequence[int]], varying: Collection[int]) -> Iterator[int]:
    """Yield what is computed from a constant and the inputs, also if the constant is first made into another."""
    pending, seen = [tensor], {tensor}
    while pending:
        for reader in consumers[pending.pop()]:
            for made in view.nodes[reader].outputs:
                if made in varying:
                    yield made
                elif made not in seen:
                    seen.add(made)
                    pending.append(made)


def modules_not_in_file(
    scene: Projection, attributions: Iterable[Attribution | None], weights: Weights
) -> tuple[CallId, ...]:
    """Return the calls that work on what the file gives, of which it has neither parameters nor values.

    What a tool merged into others is not missing: then those have other weights than before. Where weights have few
    bits, neither they nor values tell for sure.
    """
    if weights.rounded:
        return ()
    unheld = {call.module for call in weights.unmatched}
    there = {*_find_computed(scene), *_find_absorbed(scene.view, attributions, weights)}
    suspects = {call for call, name in _find_uses(scene.trace) if name.rpartition(".")[0] in unheld} - there
    needed = {scene.scope(op) for op in _find_needed(scene)} if suspects else set()
    return tuple(site.id for site in scene.trace.sites if site.id in suspects & needed)


def _find_uses(trace: Trace) -> Iterator[tuple[CallId, str]]:
    """Yield the calls that compute something from the inputs and a parameter, each with its name."""
    shows = dict(trace.parameters)
    for op in trace.ops:
        read = {shows[value] for value in op.reads if value in shows}
        if op.views and len(read) == 1:
            shows.update(dict.fromkeys(op.gives, *read))
        elif not trace.varying.isdisjoint(op.gives):
            yield from ((op.scope, name) for name in sorted(read))


def _find_computed(scene: Projection) -> Iterator[CallId]:
    """Yield the calls that computed something that the file has; what only moves values computes nothing."""
    of_value = scene.classes.of_value
    for op in scene.trace.ops:
        made = {of_value.get(value) for value in op.gives if value in scene.trace.varying}
        if not (made - {of_value.get(value) for value in op.reads}).isdisjoint(scene.present):
            yield op.scope


def _find_absorbed(view: View, attributions: Iterable[Attribution | None], weights: Weights) -> Iterator[CallId]:
    """Yield the calls whose work is done by nodes that read weights which are not simply parameters."""
    changed = {*weights.strange, *(t for t, held in weights.held.items() if held.how == "scaled")}
    for node, found in zip(view.nodes, attributions, strict=True):
        if found is not None and not changed.isdisjoint(node.reads_values):
            yield from found.origins


def _find_needed(scene: Projection) -> set[int]:
    """Return the operations on the way to what file and model give: equal outputs, or where there are none, as many."""
    trace, of_value = scene.trace, scene.classes.of_value
    outputs = [value for value in trace.outputs if value in trace.prints]
    classes = {of_value[value] for value in outputs}
    given = [t for t in scene.view.graphs[0].outputs if scene.layouts.seen(t)]
    equal = {c for t in given if (c := scene.class_of(t)) in classes}
    sizes = {scene.layouts.size(t) for t in given if scene.class_of(t) not in equal}
    pending = [v for v in outputs if of_value[v] in equal or trace.prints[v][0].size in sizes]
    found: set[int] = set()
    while pending:
        producer = trace.producers.get(pending.pop())
        if producer is not None and producer not in found:
            found.add(producer)
            pending.extend(trace.ops[producer].reads)
    return found
