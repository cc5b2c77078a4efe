"""Every command that writes a model writes the same metadata fields on its nodes, on the model and beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import hieronnx
from hieronnx.files.opening import sidecar_path
from hieronnx.graph.walks import walk_protos
from hieronnx.hierarchy.tags import TagPolicy

NODE_FIELDS = {"namespace", "hieronnx.tag", "hieronnx.module", "hieronnx.call", "hieronnx.evidence"}
MODEL_FIELDS = {"hieronnx.format_version", "hieronnx.calls", "hieronnx.torch_nn", "hieronnx.strategy"}
SOMETIMES = {"hieronnx.origins", "hieronnx.passed"}
"""Origins of a node that has others than its scope; what calls received, where that was recorded."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.second = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


@pytest.fixture(scope="module", params=["dynamo", "torchscript"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    net, path = Net().eval(), tmp_path_factory.mktemp(request.param) / "model.onnx"
    hieronnx.export(net, (torch.randn(2, 8),), path, exporter=request.param, torch_nn="all")
    return net, path


def strip(path: Path, output: Path) -> Path:
    """Save a model without any metadata, as a tool of others would."""
    model = onnx.load(path)
    del model.metadata_props[:]
    for _, graph in walk_protos(model):
        for node in graph.node:
            del node.metadata_props[:]
    onnx.save(model, output)
    return output


def by_export(net: nn.Module, path: Path, output: Path) -> None:
    shutil.copy(path, output)
    shutil.copy(sidecar_path(path), sidecar_path(output))


def by_export_with_htp(net: nn.Module, path: Path, output: Path) -> None:
    hieronnx.export(net, (torch.randn(2, 8),), output=output, exporter="torchscript", strategy="htp", torch_nn="all")


def by_annotate(net: nn.Module, path: Path, output: Path) -> None:
    plain = strip(path, output.with_name("plain.onnx"))
    hieronnx.annotate(plain, net, (torch.randn(2, 8),), output=output, torch_nn="all")


def by_carry(net: nn.Module, path: Path, output: Path) -> None:
    hieronnx.carry(path, strip(path, output.with_name("plain.onnx")), output=output)


def by_optimize(net: nn.Module, path: Path, output: Path) -> None:
    hieronnx.optimize(path, output=output, tool="ort-extended")


def by_quantize(net: nn.Module, path: Path, output: Path) -> None:
    hieronnx.quantize(path, output=output, tool="dynamic")


def by_extract(net: nn.Module, path: Path, output: Path) -> None:
    hieronnx.extract(path, "second", output=output)


def by_extract_in_memory(net: nn.Module, path: Path, output: Path) -> None:
    part = hieronnx.extract(path, "second").model
    assert isinstance(part, onnx.ModelProto)
    onnx.save(part, output)


def by_fix_inside(net: nn.Module, path: Path, output: Path) -> None:
    strip(path, output)
    shutil.copy(sidecar_path(path), sidecar_path(output))
    assert hieronnx.validate(output, fix=True).fixed


def by_fix_beside(net: nn.Module, path: Path, output: Path) -> None:
    shutil.copy(path, output)
    assert hieronnx.validate(output, fix=True).fixed


WRITERS = [
    by_export,
    by_export_with_htp,
    by_annotate,
    by_carry,
    by_optimize,
    by_quantize,
    by_extract,
    by_extract_in_memory,
    by_fix_inside,
    by_fix_beside,
]


def own(entry: onnx.StringStringEntryProto) -> bool:
    """Say whether an entry is one that hieronnx writes; torch's own are left where they are."""
    return entry.key.startswith("hieronnx.") or entry.key == "namespace"


@pytest.mark.parametrize("write", WRITERS)
def test_every_command_writes_the_same_fields(
    write: Callable[[nn.Module, Path, Path], None], exported: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    output = tmp_path / "written.onnx"
    write(*exported, output)
    model = onnx.load(output)
    fields = [{e.key for e in n.metadata_props if own(e)} for _, graph in walk_protos(model) for n in graph.node]
    assert fields
    assert all(keys - SOMETIMES == NODE_FIELDS for keys in fields)
    assert {entry.key for entry in model.metadata_props if own(entry)} - SOMETIMES == MODEL_FIELDS
    assert hieronnx.load(output).policy == TagPolicy(None), "tags were made with all of torch.nn"
    if write is not by_extract_in_memory:
        assert sidecar_keys(output) == sidecar_keys(exported[1])


def sidecar_keys(path: Path) -> dict[str, set[str]]:
    """Return the fields of a sidecar, and those of its model, modules, calls and nodes."""
    document = json.loads(sidecar_path(path).read_bytes())
    rows = {"modules": list(document["modules"].values()), "calls": document["calls"], "nodes": document["nodes"]}
    keys = {name: {key for row in entries for key in row} - {"rule"} for name, entries in rows.items()}
    return {"document": set(document), "model": set(document["model"]), **keys}
