"""The strategy `htp`: hierarchical trace-and-project, by value.

The model runs in PyTorch with every operation logged by module call; the file runs with its tensors exposed; and a
node belongs to the call that made its values. Neither names nor the order of operations count; but where no values
tell, parameters do, and then names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from hieronnx.attribute.by_value.classes import Classes, classify
from hieronnx.attribute.by_value.file_run import FileRun, choose_feeds, record_file
from hieronnx.attribute.by_value.inputs import InputSet, list_choices, name_arguments, vary
from hieronnx.attribute.by_value.mismatch import modules_not_in_file, unknown_weights
from hieronnx.attribute.by_value.names import add_names
from hieronnx.attribute.by_value.parameters import add_parameters, find_readers
from hieronnx.attribute.by_value.projecting import project
from hieronnx.attribute.by_value.projection import Projection
from hieronnx.attribute.by_value.trace import Trace, trace_runs
from hieronnx.attribute.projected import Projected
from hieronnx.attribute.weights import ModuleTable, compare_weights
from hieronnx.capture.modules import parameter_names
from hieronnx.files.opening import OpenedModel
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import Attribution, CallId
from hieronnx.runtime.sessions import open_runner


def attribute_htp(
    opened: OpenedModel, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, *, view: View
) -> Projected:
    """Attribute the nodes of a file from what its model computes.

    Args:
        opened: The file.
        model: The model that it was made from.
        args: Inputs to run both on.
        kwargs: Those that are given by name.
        view: The file's structure.

    Raises:
        HieronnxError: If ONNX Runtime cannot run the file, or the inputs do not fit it.
    """
    given = (tuple(args), dict(kwargs or {}))
    sets: list[InputSet] = [given, vary(given)]
    trace = trace_runs(model, sets)
    varying = [t for t, producer in enumerate(view.producers) if producer is not None and not view.flow.constant[t]]
    trace, seen, classes = _compare(trace, _see(opened, model, view, trace, sets), view, varying)
    tree = CallTree({site.id: site.parent for site in trace.sites})
    scene = Projection(view, trace, classes, seen.prints)
    nodes = project(scene, tree, varying)
    weights = compare_weights(opened, model, view, ModuleTable.of(model))
    readers = find_readers(trace, parameter_names(model))
    contradictions = add_parameters(view, nodes, weights.held, readers, tree, seen.prints)
    contradictions += add_names(view, nodes, trace.sites, tree)
    return Projected(
        sites=trace.sites,
        nodes=nodes,
        initializers=weights.held,
        unmatched=_find_unmatched(trace, classes, nodes),
        missing=modules_not_in_file(scene, nodes, weights),
        foreign=len(unknown_weights(view, classes, weights.strange, frozenset(varying))),
        agreement=classes.agreement,
        contradictions=contradictions,
        input_sets=trace.sets,
    )


def _compare(trace: Trace, seen: FileRun, view: View, varying: Sequence[int]) -> tuple[Trace, FileRun, Classes]:
    """Find what is equal on all sets of inputs; on the first alone, if only on that the file gives what the model does.

    Nobody gave the other sets: numbers that must be sorted, say, are not.
    """
    outputs = frozenset(view.graphs[0].outputs)
    first_trace, first_seen = trace.on_first(), seen.on_first()
    if seen.sets < trace.sets:
        trace, seen = first_trace, first_seen
    classes = classify(trace, seen.prints, varying, outputs)
    if trace.sets > 1 and not classes.reached:
        alone = classify(first_trace, first_seen.prints, varying, outputs)
        if alone.reached:
            return first_trace, first_seen, alone
    return trace, seen, classes


def _see(opened: OpenedModel, model: nn.Module, view: View, trace: Trace, sets: Sequence[InputSet]) -> FileRun:
    """Run the file on the sets of inputs that the run was made on."""
    arguments = [name_arguments(model, *inputs) for inputs in sets[: trace.sets]]
    outputs = [trace.prints[value][0] for value in trace.outputs if value in trace.prints]
    with open_runner(opened) as runner:
        ways = list_choices(runner.inputs, arguments[0], opened.name)
        feed = choose_feeds(runner, ways, arguments[0], outputs)
        return record_file(runner, view, [feed(one) for one in arguments])


def _find_unmatched(trace: Trace, classes: Classes, nodes: Iterable[Attribution | None]) -> tuple[CallId, ...]:
    """Return the calls that computed something telling from the inputs, of which no node of the file does anything."""
    known = {call for node in nodes if node is not None for call in (node.scope, *node.origins)}
    computed: dict[CallId, None] = {}
    for op in trace.ops:
        read = {classes.of_value.get(value) for value in op.reads}  # what only moves values computes nothing
        made = {classes.of_value.get(value) for value in op.gives if value in trace.varying} - read - {None}
        if any(number is not None and classes.telling[number] for number in made):
            computed[op.scope] = None
    return tuple(site.id for site in trace.sites if site.id in computed and site.id not in known)
