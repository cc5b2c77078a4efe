"""`analyze`, `validate` and `compare` on generated files of growing size: how the time per node grows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from benchmarks.measure import Section, Work, measure, median
from hieronnx.files.document import describe_file, encode_sidecar
from hieronnx.files.opening import sidecar_path
from hieronnx.graph.building import view_model
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, Call, CallId, Initializer, Module, Node

_SIZES = (1_000, 10_000, 100_000)
_NODES_PER_CALL = 10
_WORKS = ("analyze", "validate", "compare, the same", "compare, edited", "compare, renamed and edited")
_TEXT = (
    "The tools on generated files, microseconds per node, reading the file and its sidecar included. Deep: one layer "
    "after the other; wide: all layers side by side, and one node that sums them up. "
    f"A layer has {_NODES_PER_CALL} nodes, a parameter, and a call. Edited: an operator put in at a third and at two "
    "thirds of the nodes; renamed: all names of the second file are others, and it has no hierarchy. "
    "Growth is the time per node at the largest size over that at the smallest."
)


def run(repeats: int) -> Section:
    """Measure every tool on every shape at every size."""
    rows = []
    for shape in ("deep", "wide"):
        for tool in _WORKS:
            works = {str(n): Work("benchmarks.tools:prepare", (shape, tool, str(n))) for n in _SIZES}
            costs = {size: median(found) for size, found in measure(works, repeats).items()}
            per_node = [costs[str(size)].seconds / size * 1e6 for size in _SIZES]
            largest = costs[str(_SIZES[-1])]
            rows.append(
                (
                    shape,
                    tool,
                    *(f"{time:.0f}" for time in per_node),
                    f"{per_node[-1] / per_node[0]:.2f}",
                    f"{largest.seconds:.1f}",
                    f"{largest.peak_mib:.0f}",
                )
            )
    sizes = (f"{size:,} nodes, µs" for size in _SIZES)
    header = ("shape", "tool", *sizes, "growth", "the largest, s", "peak of the largest, MiB")
    return Section("Tools", _TEXT, header, tuple(rows))


# -- in the child process -----------------------------------------------------------------------------------


def prepare(shape: str, tool: str, size: str) -> Callable[[], object]:
    """Write the files, warm up on small ones, and return the work to be measured."""
    from hieronnx import analyze, compare, validate

    if int(size) > _SIZES[0]:
        prepare(shape, tool, str(_SIZES[0]))()
    folder = Path(tempfile.mkdtemp(prefix="hieronnx-bench-"))
    model = make_model(shape, int(size))
    path = write(folder / "model.onnx", model, make_hierarchy(model))
    if tool == "analyze":
        return lambda: analyze(path)
    if tool == "validate":
        return lambda: validate(path)
    other = folder / "other.onnx"
    onnx.save(_edit(model, insert=tool != "compare, the same", rename="renamed" in tool), other)
    return lambda: compare(path, other)


def make_model(shape: str, size: int) -> onnx.ModelProto:
    """Make a model of so many nodes: `deep`, one layer after the other, or `wide`, all side by side."""
    nodes, weights, tensor, ends = [], [], "x", []
    for layer in range(size // _NODES_PER_CALL):
        tensor = tensor if shape == "deep" else "x"
        weights.append(helper.make_tensor(f"layers.{layer}.weight", TensorProto.FLOAT, [4], [1.0] * 4))
        for step in range(_NODES_PER_CALL):
            made = f"layer{layer}_{step}"
            reads = [tensor, weights[-1].name] if step % 3 == 0 else [tensor]
            nodes.append(helper.make_node(("Add", "Relu", "Neg")[step % 3], reads, [made], made))
            tensor = made
        ends.append(tensor)
    if shape == "wide":
        nodes.append(helper.make_node("Sum", ends, ["y"], "sum"))
    last = nodes[-1].output[0]
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", last)}
    graph = helper.make_graph(nodes, "main", [values["x"]], [values[last]], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def make_hierarchy(model: onnx.ModelProto) -> Hierarchy:
    """Make the hierarchy of such a model: a call for each layer."""
    names = tuple(weight.name for weight in model.graph.initializer)
    paths = [name.removesuffix(".weight") for name in names]
    modules = {"": Module("", "Net", "nets.Net", ("x",), {}, names, (), 4 * len(names), tuple(paths), 0)}
    modules |= {p: Module(p, "Layer", "nets.Layer", ("x",), {}, ("weight",), ("weight",), 4, (), 2) for p in paths}
    calls = [Call(ROOT, None, "", "/Net", True)]
    calls += [Call(CallId(path, 0), ROOT, path, f"/Net/Layer.{n}", True) for n, path in enumerate(paths)]
    scopes = [CallId(path, 0) for path in paths for _ in range(_NODES_PER_CALL)] + [ROOT]
    nodes = [
        Node("", node.name, node.op_type, "", node.output[0], scope, (scope,), "captured")
        for node, scope in zip(model.graph.node, scopes, strict=False)
    ]
    return Hierarchy(modules, tuple(calls), tuple(nodes), tuple(Initializer(name, name, ()) for name in names))


def write(path: Path, model: onnx.ModelProto, hierarchy: Hierarchy) -> Path:
    """Write a model with its sidecar."""
    onnx.save(model, path)
    described = replace(hierarchy, model=describe_file(path, "Net", "dynamo"))
    sidecar_path(path).write_bytes(encode_sidecar(described, view_model(ir.load(path))))
    return path


def _edit(model: onnx.ModelProto, *, insert: bool, rename: bool) -> onnx.ModelProto:
    edited = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = edited.graph.node
    for place in (len(nodes) // 3, 2 * len(nodes) // 3) if insert else ():
        read = nodes[place].input[0]
        nodes[place].input[0] = f"inserted{place}"
        nodes.insert(place, helper.make_node("Tanh", [read], [f"inserted{place}"]))
    if rename:
        _rename(edited.graph)
    return edited


def _rename(graph: onnx.GraphProto) -> None:
    names: dict[str, str] = {}
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = names.setdefault(value.name, f"r{len(names)}")
    for node in graph.node:
        node.name = ""
        node.input[:] = [names.setdefault(name, f"r{len(names)}") for name in node.input]
        node.output[:] = [names.setdefault(name, f"r{len(names)}") for name in node.output]
