"""A node that somebody put behind a module's output: carried, the file is whole, and the module has the fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

import hieronnx
from support.exports import quiet


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(x)))


def put_behind(path: Path, tensor: str, output: Path) -> None:
    """Double a tensor of a file, under its name, and leave nothing of its hierarchy."""
    model = onnx.load(path)
    (index,) = (i for i, node in enumerate(model.graph.node) if tensor in node.output)
    model.graph.node[index].output[0] = "before"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    model.graph.node.insert(index + 1, helper.make_node("Mul", ["before", "two"], [tensor], name="put"))
    for node in model.graph.node:
        del node.metadata_props[:]
    del model.metadata_props[:]
    onnx.save(model, output)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("module", ["0", "0.act", "1.down", "1"])
def test_the_module_that_made_the_tensor_returns_what_is_made_of_it(module: str, exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x, path = nn.Sequential(Block(), Block(), nn.Linear(8, 4)).eval(), torch.randn(3, 8), tmp_path / "model.onnx"
    with quiet():
        hieronnx.export(net, (x,), path, exporter=exporter)
    (returned,) = hieronnx.load(path).find_call(module).returned
    put_behind(path, returned.tensor, tmp_path / "edited.onnx")
    carried = hieronnx.carry(path, tmp_path / "edited.onnx", output=tmp_path / "carried.onnx").path
    hierarchy = hieronnx.load(carried)
    put = hierarchy.find("put")
    assert (put.scope.module, put.evidence) == (module, "dataflow")
    assert hierarchy.find_call(module).returned == (returned,)
    assert hieronnx.validate(carried).passed
    assert [culprit.module for culprit in hieronnx.verify(carried, net, (x,)).culprits] == [module]
