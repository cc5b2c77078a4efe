"""The names of inputs and outputs on the dynamo route: filled in when the program is there, made unique at the end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import onnx_ir as ir
import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from hieronnx.capture.captured import ExportRequest
from hieronnx.capture.names import make_unique, name_arguments, name_leaves, name_results
from hieronnx.capture.private_torch import pytree
from hieronnx.graph.walks import node_bodies, walk_nodes


class DynamoNames:
    """Fills in the names of inputs and outputs, once torch.export has told what the model takes and returns."""

    def __init__(self, request: ExportRequest) -> None:
        self._request = request
        self._names = request.names
        self._names.fill_inputs(())
        self._names.fill_outputs(())

    def translated(self, model: ir.Model, program: torch.export.ExportedProgram) -> None:
        """Name what the program takes and returns, constants left out, which are no part of the graph."""
        request, signature = self._request, program.graph_signature
        arguments = name_leaves(name_arguments(request.model, request.args, request.kwargs))
        received = [spec.arg for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
        self._names.fill_inputs(_keep_variable(arguments, received, model.graph.inputs))
        returned = [spec.arg for spec in signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
        self._names.fill_outputs(_keep_variable(name_results(_rebuild_result(program)), returned, model.graph.outputs))

    def rename_inputs(self, model: ir.Model) -> None:
        """Let no input have the name of another tensor; outputs get other names afterwards."""
        if self._names.inputs:
            outputs = model.graph.outputs if self._names.outputs else ()
            renamed = {id(value) for value in (*model.graph.inputs, *outputs)}
            self._names.fill_inputs(make_unique(self._names.inputs, _list_names(model, renamed), "in"))

    def rename_outputs(self, model: ir.Model) -> None:
        """Let no output have the name of another tensor; one that is an input too, or another output, ends the list."""
        if self._names.outputs:
            seen = {id(value) for value in model.graph.inputs}
            taken = _list_names(model, {id(value) for value in model.graph.outputs} - seen)
            names = make_unique(self._names.outputs, taken, "out")
            for index, value in enumerate(model.graph.outputs):
                if id(value) in seen:
                    del names[index:]
                seen.add(id(value))
            self._names.fill_outputs(names)


def _keep_variable(
    named: Sequence[tuple[str, Any]], arguments: Sequence[Any], values: Sequence[ir.Value]
) -> Sequence[str]:
    """Return the names of those that are values of the graph; torch's own where the two do not fit together."""
    pairs = zip(named, arguments, strict=False)
    names = [name for (name, _), argument in pairs if not isinstance(argument, ConstantArgument)]
    fit = len(named) == len(arguments) and len(names) == len(values)
    return names if fit else [str(value.name) for value in values]


def _rebuild_result(program: torch.export.ExportedProgram) -> Any:
    """Return what the model returned, tensors without values in it."""
    (returned,) = program.graph.output_node().args
    specs = program.graph_signature.output_specs
    leaves = [
        value.meta["val"] if isinstance(value, torch.fx.Node) else value
        for value, spec in zip(returned, specs, strict=True)
        if spec.kind is OutputKind.USER_OUTPUT
    ]
    return pytree.tree_unflatten(leaves, program.call_spec.out_spec)


def _list_names(model: ir.Model, without: Collection[int]) -> set[str]:
    """List the names of all tensors of a model but some, given by their identities."""
    nodes = [node for _, node in walk_nodes(model)]
    graphs = [model.graph, *(body for node in nodes for _, body in node_bodies(node))]
    given = (value for graph in graphs for value in (*graph.inputs, *graph.initializers.values()))
    made = (value for node in nodes for value in node.outputs)
    return {str(value.name) for value in chain(given, made) if id(value) not in without}
