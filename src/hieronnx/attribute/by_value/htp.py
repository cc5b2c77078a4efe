"""The strategy `htp`: hierarchical trace-and-project, by value.

The model runs in PyTorch with every operation logged by module call; the file runs with its tensors exposed; and a
node belongs to the call that made its values. Neither names nor the order of operations count; but where no values
tell, parameters do, and then names.

    trace          the eager run: operations by call, fingerprints of their values
    file_run       the file's run: fingerprints of its tensors
    equal_values   which of them are equal
    matching       nodes matched with the operations that made their values
    filling        those between matches
    passed         the tensors of the file that the calls received and returned
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hieronnx.attribute.by_value.equal_values import Classes, Projection, classify
from hieronnx.attribute.by_value.file_run import record_file
from hieronnx.attribute.by_value.filling import Filler
from hieronnx.attribute.by_value.matching import ValueMatcher
from hieronnx.attribute.by_value.passed import find_passed
from hieronnx.attribute.by_value.trace import FilePrints, Trace, trace_runs, vary
from hieronnx.attribute.fill import fill_gaps
from hieronnx.attribute.request import Contradiction, Projected, Request
from hieronnx.attribute.weights import Weights
from hieronnx.capture.modules import parameter_names
from hieronnx.graph.operators import QUANTIZE_OPS
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import Attribution, CallId

_Nodes = list[Attribution | None]


def attribute_htp(request: Request) -> Projected:
    """Attribute the nodes of a file from what its model computes.

    Raises:
        HieronnxError: If the model or the file cannot be run, or the inputs do not fit the file.
    """
    view, given = request.view, (request.args, request.kwargs)
    sets = [given, vary(given)]
    _ = request.first_run  # first: what cannot be run is refused here
    trace = trace_runs(request.model, sets)
    computed = (t for t, producer in enumerate(view.producers) if producer is not None)
    varying = frozenset(t for t in computed if not view.flow.constant[t])
    prints = record_file(request, sets[: trace.sets])
    trace, prints, classes = _compare(trace, prints, view, varying)
    tree = CallTree({site.id: site.parent for site in trace.sites})
    projection = Projection(view, trace, classes, prints, varying)
    ValueMatcher(projection).run()
    Filler(projection).run()
    nodes = [None if match is None else projection.attribute(match, tree) for match in projection.matches]
    by_parameters = tuple(_add_parameters(request, nodes, projection, tree))
    _add_inserted(view, nodes, tree)
    contradictions = (*by_parameters, *_add_names(view, nodes, trace, tree))
    return Projected(
        sites=trace.sites,
        nodes=nodes,
        initializers=request.weights.held,
        agreement=classes.agreement,
        unmatched=_find_unmatched(projection, nodes),
        missing=_find_missing_modules(projection, nodes, request.weights),
        unknown_weights=_count_unknown_weights(projection, request.weights),
        contradictions=contradictions,
        input_sets=trace.sets,
        passed=find_passed(request, projection, fill_gaps(view, nodes, tree, parameter_names(request.model)), tree),
    )


def _compare(
    trace: Trace, prints: FilePrints, view: View, varying: frozenset[int]
) -> tuple[Trace, FilePrints, Classes]:
    """Find what is equal on all sets of inputs; on the first alone, if only on that the file gives what the model does.

    Nobody gave the other sets: numbers that must be sorted, say, are not.
    """
    outputs = view.graphs[0].outputs
    first_trace = replace(trace, prints={value: taken[:1] for value, taken in trace.prints.items()}, sets=1)
    first_prints = {t: [one[:1] for one in values] for t, values in prints.items()}
    if any(len(values[0]) < trace.sets for values in prints.values()):
        trace, prints = first_trace, first_prints
    classes = classify(trace, prints, varying, outputs)
    if trace.sets > 1 and not classes.reached:
        alone = classify(first_trace, first_prints, varying, outputs)
        if alone.reached:
            return first_trace, first_prints, alone
    return trace, prints, classes


# -- parameters and names ---------------------------------------------------------------------------------


def _add_parameters(request: Request, nodes: _Nodes, projection: Projection, tree: CallTree) -> Iterator[Contradiction]:
    """Attribute by their parameters the nodes that no values tell of; yield where something else says otherwise.

    A node that reads a parameter does the work of a call that read it in the run, if its values tell which it is.
    """
    readers: dict[str, dict[CallId, None]] = defaultdict(dict)
    for op, names in projection.trace.parameter_uses():
        for name in names:
            readers[name][op.scope] = None
    canonical, held = parameter_names(request.model), request.weights.held
    for index, node in enumerate(request.view.nodes):
        if projection.seen.keys().isdisjoint(node.makes):
            continue  # a node that did not run is of no call of the run
        names = [name for t in node.reads_values if t in held and held[t].telling for name in held[t].parameters]
        calls = list(dict.fromkeys(call for name in names for call in readers.get(canonical[name], ())))
        current = nodes[index]
        if not calls:
            continue
        # It may be known only between what the node lies, and not even in one call.
        unsure = current is None or (current.rule and current.evidence != "value" and calls[0] not in current.origins)
        if len(calls) == 1 and unsure:
            nodes[index] = Attribution(calls[0], (calls[0],), "parameter", "parameter")
        if current is not None and not any(c in current.origins or current.scope in tree.ancestors(c) for c in calls):
            says = ((current.evidence, current.scope), ("parameter", calls[0]))
            yield index, says if nodes[index] is current else says[::-1]


def _add_inserted(view: View, nodes: _Nodes, tree: CallTree) -> None:
    """Give what tools insert to the call that made what it passes on; what no call made, to those that read it.

    What quantizes serves those that compute with the quantized numbers, unless they are only turned back.
    """
    inserted = [index for index, node in enumerate(view.nodes) if nodes[index] is None and node.is_inserted]
    for index in inserted:
        node = view.nodes[index]
        readers = [r for t in node.makes for r in view.consumers[t]]
        if node.op not in QUANTIZE_OPS or not readers or any(view.nodes[r].is_inserted for r in readers):
            producer = view.producers[node.inputs[0]]
            if (maker := nodes[producer] if producer is not None else None) is not None:
                nodes[index] = Attribution(maker.scope, maker.origins, "dataflow", "handed on")
    for index in reversed(inserted):
        readers = [r for t in view.nodes[index].makes for r in view.consumers[t]]
        reading = [reader for r in readers if (reader := nodes[r]) is not None]
        if nodes[index] is None and reading:
            served = tree.join(reading, "dataflow")
            nodes[index] = Attribution(served.scope, served.origins, "dataflow", "consumers")


def _add_names(view: View, nodes: _Nodes, trace: Trace, tree: CallTree) -> Iterator[Contradiction]:
    """Attribute by their names the nodes that only their neighbours tell of, or nothing; yield who says otherwise.

    Exporters of older times name a node after the modules around it, `/encoder/layer.0/dense/MatMul`. A module that was
    called more than once is left out: names number its calls in ways that cannot be told from a name.
    """
    calls: dict[str, list[CallId]] = defaultdict(list)
    for site in trace.sites:
        calls[site.id.module].append(site.id)
    for index, node in enumerate(view.nodes):
        call, current = _find_call(node.name, calls), nodes[index]
        if call is None:
            continue
        if current is None or current.evidence == "dataflow":
            origins = current.origins if current is not None and call in current.origins else (call,)
            nodes[index] = Attribution(call, origins, "name", "name")
            continue
        apart = tree.lowest_above((current.scope, call)) not in (current.scope, call)  # neither is above the other
        if current.evidence == "value" and call not in current.origins and apart:
            yield index, (("value", current.scope), ("name", call))


def _find_call(name: str, calls: Mapping[str, Sequence[CallId]]) -> CallId | None:
    """Return the only call of the module that a name leads to."""
    if not name.startswith("/"):
        return None
    path: list[str] = []
    for step in name.split("/")[1:-1]:
        # A child of a sequential module is named with its parent's name before it.
        repeated = bool(path) and step.startswith(f"{path[-1]}.")
        path[-1 if repeated else len(path) :] = [step]
    named = calls.get(".".join(path), ())
    return named[0] if len(named) == 1 else None


# -- what file and model do not share ---------------------------------------------------------------------
#
# Outputs alone do not tell: a layer that adds little to what it is given may be there or not.


def _find_computed(projection: Projection) -> Iterator[tuple[CallId, set[int]]]:
    """Yield calls and the classes of what they computed from the inputs; what only moves values computes nothing."""
    of_value = projection.classes.of_value
    for op in projection.trace.ops:
        classes = {of_value[value] for value in op.gives if value in projection.trace.varying and value in of_value}
        yield op.scope, classes - {of_value.get(value) for value in op.reads}


def _find_unmatched(projection: Projection, nodes: _Nodes) -> tuple[CallId, ...]:
    """Return the calls that computed something distinctive of which no node of the file does anything."""
    there = {call for node in nodes if node is not None for call in (node.scope, *node.origins)}
    distinctive = projection.classes.distinctive
    computed = {call for call, classes in _find_computed(projection) if any(distinctive[number] for number in classes)}
    return tuple(site.id for site in projection.trace.sites if site.id in computed - there)


def _find_missing_modules(projection: Projection, nodes: _Nodes, weights: Weights) -> tuple[CallId, ...]:
    """Return the calls that work on what the file gives, of which it has neither parameters nor values.

    What a tool merged into others is not missing: then those have other weights than before. Where weights have few
    bits, neither they nor values tell for sure.
    """
    if weights.rounded:
        return ()
    trace = projection.trace
    unmatched = {call.module for call in weights.unmatched}
    uses = ((op, names) for op, names in trace.parameter_uses() if not trace.varying.isdisjoint(op.gives))
    suspects = {op.scope for op, names in uses if any(name.rpartition(".")[0] in unmatched for name in names)}
    suspects -= {call for call, classes in _find_computed(projection) if not classes.isdisjoint(projection.present)}
    changed = {*weights.unknown, *(t for t, held in weights.held.items() if held.how == "scaled")}
    for node, attribution in zip(projection.view.nodes, nodes, strict=True):
        if attribution is not None and not changed.isdisjoint(node.reads_values):
            suspects.difference_update(attribution.origins)
    needed = set(projection.scopes(_find_needed(projection))) if suspects else set()
    return tuple(site.id for site in trace.sites if site.id in suspects & needed)


def _find_needed(projection: Projection) -> set[int]:
    """Return the operations on the way to what file and model give: equal outputs, or where there are none, as many."""
    trace, of_value, seen = projection.trace, projection.classes.of_value, projection.seen
    outputs = [value for value in trace.outputs if value in trace.prints]
    classes = {of_value[value] for value in outputs}
    given = [t for t in projection.view.graphs[0].outputs if t in seen]
    equal = {c for t in given if (c := projection.class_of(t)) in classes}
    sizes = {seen[t][0].size for t in given if projection.class_of(t) not in equal}
    pending = [v for v in outputs if of_value[v] in equal or trace.prints[v][0].size in sizes]
    needed: set[int] = set()
    while pending:
        producer = trace.producers.get(pending.pop())
        if producer is not None and producer not in needed:
            needed.add(producer)
            # What has no elements brings nothing, and tools leave out what makes it.
            pending.extend(value for value in trace.ops[producer].reads if value in trace.prints)
    return needed


def _count_unknown_weights(projection: Projection, weights: Weights) -> int:
    """Count the weights of the file that are not the model's, and from which nothing is made that the model makes.

    Weights that are not among the parameters may be made of several, or be of modules that the model does not register.
    """
    of_tensor, absent = projection.classes.of_tensor, projection.present.isdisjoint
    reached = ((weight, *_find_made(weight, projection)) for weight in weights.unknown)
    return sum(all(absent(of_tensor.get(tensor, ())) for tensor in tensors) for tensors in reached)


def _find_made(tensor: int, projection: Projection) -> Iterator[int]:
    """Yield what is computed from a constant and the inputs, also if the constant is first made into another."""
    view = projection.view
    pending, seen = [tensor], {tensor}
    while pending:
        for reader in view.consumers[pending.pop()]:
            for output in view.nodes[reader].makes:
                if output in projection.varying:
                    yield output
                elif output not in seen:
                    seen.add(output)
                    pending.append(output)
