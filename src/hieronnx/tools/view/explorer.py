"""A model for Model Explorer: its graph nested by calls, and data of its nodes: time, error, category.

Both are JSON that Model Explorer reads as it is, without an adapter for ONNX. A group there is a call here, named as in
the page's tree (`BertModel/BertEncoder encoder/BertLayer layer.0`); what is known of the call is among the group's
attributes. Bodies and functions are graphs of their own, which their nodes lead to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hieronnx.hierarchy.categories import category_of
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.extract.source import Source
from hieronnx.tools.view.data import name_in, write_attribute, write_shape
from hieronnx.tools.view.measured import Measured

_HEAT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e8563c"}]
_COLOURS = ("#d6e9fb", "#fde2c8", "#d3f0dc", "#ecdcf9", "#fbf0bf", "#e6e9ed", "#fbd9e5", "#f2ece6")


def make_graphs(source: Source, measured: Measured) -> dict[str, Any]:
    """Return the graphs of a model as a collection of Model Explorer's."""
    names = name_groups(source)
    graphs = [_dump_graph(source, number, names) for number in range(len(source.view.graphs))]
    graphs[0]["groupNodeAttributes"] = {
        names[call.id]: _describe_call(source, call.id, measured) for call in source.hierarchy.calls
    }
    return {"label": source.opened.path.name if source.opened.path is not None else "model", "graphs": graphs}


def make_node_data(source: Source, measured: Measured) -> dict[str, dict[str, Any]]:
    """Return what nodes are coloured by, as node data of Model Explorer's: by the name of each its graphs.

    A call's own time is shared evenly by its own nodes: so what Model Explorer sums up for a group is the call's time.
    """
    categories = [category_of(node.op_type, node.domain) for node in source.nodes]
    colours = {name: _COLOURS[n % len(_COLOURS)] for n, name in enumerate(sorted(set(categories)))}
    found: dict[str, Sequence[dict[str, Any] | None]] = {
        "category": [{"value": name, "bgColor": colours[name]} for name in categories]
    }
    kinds: dict[str, dict[str, Any]] = {"category": {"hideInAggregatedStatsTable": True}}
    if measured.times:
        found["time"] = _share_times(source, measured)
        kinds["time"] = {"name": "time, µs (of a call's own nodes, evenly)", "gradient": _HEAT}
    if measured.errors:
        known = {call: error[0] for call, error in measured.errors.items() if error[0] is not None}
        found["error"] = [{"value": known[n.scope]} if n.scope in known else None for n in source.attributions]
        kinds["error"] = {"name": "relative error that the node's call introduces", "gradient": _HEAT}
    return {
        name: {
            _graph_id(source, graph): {
                "results": {_node_id(n): values[n] for n in source.view.nodes_in[graph] if values[n] is not None},
                "name": name,
                **kinds[name],
            }
            for graph in range(len(source.view.graphs))
        }
        for name, values in found.items()
    }


def name_groups(source: Source) -> dict[CallId, str]:
    """Return the group of each call: the names of the calls from the root down, `/` between them."""
    names: dict[CallId, str] = {}
    for call in source.hierarchy.calls:  # each after the one above it
        step = f"{source.hierarchy.modules[call.id.module].class_name} {name_in(call)}".strip()
        step = step.replace("~", "~0").replace("/", "~1")  # as in a tag
        names[call.id] = step if call.parent is None else f"{names[call.parent]}/{step}"
    return names


def _share_times(source: Source, measured: Measured) -> list[dict[str, Any] | None]:
    times = [0.0] * len(source.nodes)
    for call, (own, _) in measured.times.items():
        nodes = source.nodes_of.get(call, [])
        # A call whose work is all fused into others has none of its own: there it is a part of what they do.
        nodes = [index for index in nodes if source.attributions[index].scope == call] or nodes
        for index in nodes:
            times[index] += own / len(nodes)
    return [{"value": time} for time in times]


def _describe_call(source: Source, call: CallId, measured: Measured) -> dict[str, str]:
    found = {"class": source.hierarchy.modules[call.module].qualified_class, "module": str(call)}
    found["tag"] = source.hierarchy.tag_of(call)
    if call in measured.times:
        own, total = measured.times[call]
        found |= {"time, µs": f"{total:g}", "of its own, µs": f"{own:g}"}
    if call in measured.errors:
        introduced, accumulated, verdict = measured.errors[call]
        found |= {"error introduced": str(introduced), "error accumulated": str(accumulated), "verdict": verdict}
    return found


def _graph_id(source: Source, number: int) -> str:
    return source.view.graphs[number].key or "main"


def _node_id(node: int) -> str:
    return f"node {node}"


def _dump_graph(source: Source, number: int, names: Mapping[CallId, str]) -> dict[str, Any]:
    graph, view = source.view.graphs[number], source.view
    ends = {tensor: f"input {position}" for position, tensor in enumerate(graph.inputs)}
    nodes: list[dict[str, Any]] = [
        {
            "id": name,
            "label": view.names[tensor],
            "namespace": "",
            "outputsMetadata": [{"id": "0", "attrs": _describe_tensor(source, tensor)}],
        }
        for tensor, name in ends.items()
    ]
    nodes += [_dump_node(source, index, ends, names) for index in view.nodes_in[number]]
    nodes += [
        {
            "id": f"output {position}",
            "label": view.names[tensor],
            "namespace": "",
            "incomingEdges": _list_edges(source, number, (tensor,), ends),
        }
        for position, tensor in enumerate(graph.outputs)
    ]
    return {"id": _graph_id(source, number), "nodes": nodes, "nodeLabelsToHide": ["Constant"]}


def _dump_node(source: Source, index: int, ends: Mapping[int, str], names: Mapping[CallId, str]) -> dict[str, Any]:
    view, viewed, known = source.view, source.view.nodes[index], source.attributions[index]
    facts = {"name": viewed.name, "module": str(known.scope), "evidence": known.evidence}
    if set(known.origins) != {known.scope}:
        facts["works for"] = ", ".join(map(str, known.origins))
    facts |= {name: write_attribute(item) for name, item in source.nodes[index].attributes.items()}
    function = source.functions.get(source.nodes[index].op_identifier())
    inner = (*viewed.bodies, *(() if function is None else (function,)))
    return {
        "id": _node_id(index),
        "label": viewed.op,
        "namespace": names[known.scope],
        "subgraphIds": [_graph_id(source, graph) for graph in inner],
        "attrs": _list_pairs(facts),
        "incomingEdges": _list_edges(source, viewed.graph, viewed.inputs, ends),
        "inputsMetadata": [
            {"id": str(place), "attrs": _list_pairs({"__tensor_tag": view.names[tensor]})}
            for place, tensor in enumerate(viewed.inputs)
            if tensor >= 0
        ],
        "outputsMetadata": [
            {"id": str(place), "attrs": _describe_tensor(source, tensor)}
            for place, tensor in enumerate(viewed.outputs)
            if tensor >= 0
        ],
    }


def _list_edges(source: Source, graph: int, tensors: tuple[int, ...], ends: Mapping[int, str]) -> list[dict[str, str]]:
    """List the edges that lead to a node from nodes and inputs of its own graph."""
    edges = []
    for place, tensor in enumerate(tensors):
        producer = source.view.producers[tensor] if tensor >= 0 else None
        if tensor in ends:
            edges.append({"sourceNodeId": ends[tensor], "sourceNodeOutputId": "0", "targetNodeInputId": str(place)})
        elif producer is not None and source.view.nodes[producer].graph == graph:
            output = source.view.nodes[producer].outputs.index(tensor)
            start = {"sourceNodeId": _node_id(producer), "sourceNodeOutputId": str(output)}
            edges.append({**start, "targetNodeInputId": str(place)})
    return edges


def _describe_tensor(source: Source, tensor: int) -> list[dict[str, str]]:
    known = source.view.types[tensor]
    dtype = {} if known is None else {"dtype": known.dtype}
    return _list_pairs(
        {"tensor_name": source.view.names[tensor], "shape": write_shape(source.view.axes[tensor]), **dtype}
    )


def _list_pairs(facts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in facts.items() if value]
