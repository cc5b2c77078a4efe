"""The strategy `usage_based`: parameters find their owners whatever became of them, and dataflow fills the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from benchmarks.anonymize import anonymize
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from hieronnx.attribute.by_usage import attribute_usage_based
from hieronnx.attribute.request import Projected, Request
from hieronnx.files.opening import open_model
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import CallId
from support.exports import exported


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def export_bare(model: nn.Module, x: Tensor, *, dynamo: bool = False) -> onnx.ModelProto:
    """Export with torch alone, and take all names away."""
    program = torch.onnx.export(model, (x,), dynamo=True, verbose=False) if dynamo else None
    if program is not None:
        return anonymize(program.model_proto)
    from io import BytesIO

    stream = BytesIO()
    torch.onnx.export(model, (x,), stream, dynamo=False)
    return anonymize(onnx.ModelProto.FromString(stream.getvalue()))


def project(model: nn.Module, file: onnx.ModelProto | Path) -> tuple[Projected, View]:
    request = Request(open_model(file), model)
    return attribute_usage_based(request), request.view


def scopes(projected: Projected, view: View, op: str) -> list[str]:
    """Return the calls of all nodes with an operator, in order; `-` where nothing is known."""
    nodes = zip(view.nodes, projected.nodes, strict=True)
    return ["-" if found.evidence == "root" else str(found.scope) for node, found in nodes if node.op == op]


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_node_that_uses_a_parameter_belongs_to_its_owner_without_any_name(net: nn.Module, dynamo: bool) -> None:
    projected, view = project(net, export_bare(net, torch.randn(2, 8), dynamo=dynamo))
    assert scopes(projected, view, "Gemm") == ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head"]
    assert {found.evidence for found in projected.nodes if found.evidence != "root"} == {"parameter", "dataflow"}


def test_what_lies_between_two_siblings_belongs_to_their_parent(net: nn.Module) -> None:
    projected, view = project(net, export_bare(net, torch.randn(2, 8)))
    assert scopes(projected, view, "Relu") == ["blocks.0", "blocks.1"]


def test_a_node_between_layers_is_given_to_neither(net: nn.Module) -> None:
    projected, view = project(net, export_bare(net, torch.randn(2, 8)))
    assert scopes(projected, view, "Add")[-1] in ("-", "blocks.1")
    assert all(scope in ("-", "blocks.0") for scope in scopes(projected, view, "Add")[:1])


def test_the_calls_are_those_of_modules_in_the_file_and_those_above(net: nn.Module) -> None:
    projected, _ = project(net, export_bare(net, torch.randn(2, 8)))
    sites = {str(site.id): site.parent for site in projected.sites}
    assert list(sites) == [
        *("", "blocks.0", "blocks.0.up", "blocks.0.down", "blocks.1", "blocks.1.up", "blocks.1.down"),
        "head",
    ]
    assert sites["blocks.0"] == CallId("", 0), "a list of modules is never called"
    assert sites["blocks.0.up"] == CallId("blocks.0", 0)


def test_half_precision_is_the_same_parameter(net: nn.Module) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    file = convert_float_to_float16(export_bare(net, torch.randn(2, 8)), keep_io_types=True)
    projected, view = project(net, anonymize(file))
    assert scopes(projected, view, "Gemm")[:2] == ["blocks.0.up", "blocks.0.down"]
    assert projected.agreement == 1.0


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantized_weights_find_their_owners(net: nn.Module, per_channel: bool, tmp_path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    onnx.save(export_bare(net, torch.randn(2, 8)), tmp_path / "model.onnx")
    quantize_dynamic(tmp_path / "model.onnx", tmp_path / "int8.onnx", per_channel=per_channel)
    projected, view = project(net, anonymize(onnx.load(tmp_path / "int8.onnx")))
    found = scopes(projected, view, "MatMulInteger")
    assert found == ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head"]


def make_file(arrays: dict[str, np.ndarray], nodes: list[onnx.NodeProto], width: int) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, width]) for name in ("x", "y")]
    held = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_joined_weights_belong_to_all_whose_they_are(net: nn.Module) -> None:
    joined = np.concatenate([net.blocks[0].up.weight.detach().T, net.blocks[1].up.weight.detach().T], axis=1)
    file = make_file({"w": np.ascontiguousarray(joined)}, [helper.make_node("MatMul", ["x", "w"], ["y"])], 8)
    projected, _ = project(net, file)
    (node,) = projected.nodes
    assert node.origins == (CallId("blocks.0.up", 0), CallId("blocks.1.up", 0))
    assert node.scope == CallId("", 0)


def test_a_parameter_is_followed_through_what_prepares_it(net: nn.Module) -> None:
    file = make_file(
        {"w": net.head.weight.detach().numpy()},
        [helper.make_node("Transpose", ["w"], ["t"]), helper.make_node("MatMul", ["x", "t"], ["y"])],
        8,
    )
    projected, view = project(net, file)
    assert scopes(projected, view, "Transpose") == scopes(projected, view, "MatMul") == ["head"]


class Loops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = Block(), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.cell(x)
        return self.head(x)


def test_later_calls_are_not_given_a_number_that_nobody_knows() -> None:
    torch.manual_seed(0)
    model = Loops().eval()
    projected, view = project(model, export_bare(model, torch.randn(2, 8)))
    assert scopes(projected, view, "Gemm") == ["cell.up", "cell.down", "-", "-", "-", "-", "head"]
    assert {site.id.number for site in projected.sites} == {0}


def test_equal_weights_of_two_modules_decide_nothing(net: nn.Module) -> None:
    net.blocks[1].load_state_dict(net.blocks[0].state_dict())
    projected, view = project(net, export_bare(net, torch.randn(2, 8), dynamo=True))
    owners = scopes(projected, view, "Gemm")
    assert owners[-1] == "head"
    assert not {"blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down"} & set(owners)


def test_tied_weights_are_given_to_no_sibling() -> None:
    found = exported("tied_weights", "torchscript")
    projected, view = project(found.model, anonymize(onnx.load(found.result.path)))
    order = view.file_order
    for node, index in zip(found.hierarchy.nodes, order, strict=True):
        given = projected.nodes[index]
        assert given.evidence == "root" or given.scope in (*node.origins, *found.hierarchy.tree.ancestors(node.scope))


def test_names_tell_modules_with_equal_weights_apart(net: nn.Module) -> None:
    for block in net.blocks:
        nn.init.ones_(block.up.bias)
    names = {f"blocks.{n}.up.bias": net.blocks[n].up.bias.detach().numpy() for n in range(2)}
    nodes = [
        helper.make_node("Add", ["x", "blocks.0.up.bias"], ["h"]),
        helper.make_node("Add", ["h", "blocks.1.up.bias"], ["y"]),
    ]
    projected, view = project(net, make_file(names, nodes, 16))
    assert scopes(projected, view, "Add") == ["blocks.0.up", "blocks.1.up"]


class Token(nn.Module):
    """A token of zeros, a bias of zeros of the same size, and one that was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.patches, self.mixes = nn.Linear(4, 8), nn.Linear(8, 8)
        nn.init.zeros_(self.patches.bias)
        nn.init.zeros_(self.mixes.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.mixes(torch.cat([self.token.expand(2, 1, 8), self.patches(x)], 1))


def test_a_bias_of_zeros_belongs_to_the_product_that_it_is_added_to() -> None:
    torch.manual_seed(0)
    model = Token().eval()
    projected, view = project(model, export_bare(model, torch.randn(2, 3, 4)))
    assert scopes(projected, view, "MatMul") == ["patches", "mixes"]
    assert scopes(projected, view, "Add") == ["patches", "mixes"]
    assert scopes(projected, view, "Concat") == ["-"]


class LooksUp(nn.Module):
    """A table is looked up at places that are known, and the rows are added by the parent."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(12, 8), nn.Linear(8, 8)
        self.register_buffer("places", torch.arange(3) * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + self.table(self.places))


def test_what_was_looked_up_is_no_parameter_of_who_reads_it() -> None:
    torch.manual_seed(0)
    model = LooksUp().eval()
    projected, view = project(model, export_bare(model, torch.randn(2, 3, 8)))
    assert "table" not in scopes(projected, view, "Add")


def test_rows_that_an_exporter_looked_up_are_no_parameter_either() -> None:
    torch.manual_seed(0)
    model = LooksUp().eval()
    rows = model.table.weight.detach()[:6].numpy()
    file = make_file({"rows": rows}, [helper.make_node("Add", ["x", "rows"], ["y"])], 8)
    projected, view = project(model, file)
    assert scopes(projected, view, "Add") == ["-"]
    assert projected.initializers, "they are known to be of the table"


def test_other_weights_are_not_the_models(net: nn.Module) -> None:
    file = export_bare(net, torch.randn(2, 8))
    torch.manual_seed(1)
    other = Net().eval()
    projected, _ = project(other, file)
    assert projected.agreement == 0.0
    assert {str(call) for call in projected.unmatched} >= {"blocks.0.up", "blocks.1.down", "head"}


def test_a_name_alone_is_not_believed(net: nn.Module) -> None:
    file = make_file(
        {"head.weight": np.random.default_rng(0).random((4, 8), np.float32)},
        [helper.make_node("MatMul", ["head.weight", "x"], ["y"])],
        8,
    )
    projected, _ = project(net, file)
    assert projected.nodes[0].evidence == "root"
    assert not projected.initializers


def test_modules_of_which_the_file_has_nothing_are_named(net: nn.Module) -> None:
    file = export_bare(net, torch.randn(2, 8))
    net.extra = nn.Linear(8, 8)
    projected, _ = project(net, file)
    assert projected.unmatched == (CallId("extra", 0),)
    assert projected.agreement == 1.0


def test_nodes_in_bodies_are_attributed() -> None:
    found = exported("cond", "dynamo")
    projected, view = project(found.model, anonymize(onnx.load(found.result.path)))
    inside = [
        p for node, p in zip(view.nodes, projected.nodes, strict=True) if node.graph and p.evidence == "parameter"
    ]
    assert {found.scope.module for found in inside} == {"positive.linear", "negative"}


def test_weights_in_external_data_are_read_from_there(net: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(export_bare(net, torch.randn(2, 8)), path, save_as_external_data=True, size_threshold=0)
    projected, view = project(net, path)
    assert scopes(projected, view, "Gemm")[-1] == "head"


def test_a_very_long_chain_takes_no_recursion() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(40)))
    nodes, tensor = [], "x"
    arrays = {f"w{n}": layer.weight.detach().numpy() for n, layer in enumerate(model)}
    for layer in range(40):
        nodes.append(helper.make_node("MatMul", [tensor, f"w{layer}"], [f"m{layer}"]))
        tensor = f"m{layer}"
        for step in range(500):
            nodes.append(helper.make_node("Relu", [tensor], [f"r{layer}_{step}"]))
            tensor = f"r{layer}_{step}"
    nodes.append(helper.make_node("Identity", [tensor], ["y"]))
    projected, view = project(model, make_file(arrays, nodes, 8))
    assert scopes(projected, view, "MatMul") == [str(n) for n in range(40)]


def test_a_model_in_memory_needs_no_file(net: nn.Module) -> None:
    file = ir.serde.deserialize_model(export_bare(net, torch.randn(2, 8)))
    projected, view = project(net, file)
    assert scopes(projected, view, "Gemm")[0] == "blocks.0.up"
