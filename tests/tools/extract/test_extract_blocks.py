"""Extract from files that ONNX Runtime optimized: its own operators have types, blocks of channels are crossed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

import hieronnx
from hieronnx.errors import HieronnxError
from hieronnx.tools.extract.extracting import Extractor
from support.annotated import annotated
from support.callrecords import open_session
from support.exports import quiet


class Residual(nn.Module):
    """A sum, of which ONNX Runtime computes one term in blocks; then a norm that it cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(20, 20, 3, padding=1, groups=20), nn.GroupNorm(4, 20)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(x + self.conv(x))
        return result


class Net(nn.Module):
    """Convolutions in blocks that are not full, and layers between them that have none."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.SiLU())
        self.pool, self.first = nn.MaxPool2d(2), Residual()
        self.wide, self.act, self.second = nn.Conv2d(12, 20, 1), nn.Tanh(), Residual()
        self.up, self.head = nn.Upsample(scale_factor=2), nn.Conv2d(20, 5, 1)
        self.mean = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.second(self.act(self.first(self.wide(self.pool(self.stem(x))))))
        return self.head(self.up(x)), self.mean(self.act(x))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks")


def optimize(folder: Path, exporter: str, tool: str, dynamic: bool = False) -> Path:
    """Return the file of the net that a tool writes."""
    path, made = (folder / f"{exporter}_{dynamic}{ending}.onnx" for ending in ("", f"_{tool}"))
    options: dict[str, object] = {}
    if dynamic and exporter == "dynamo":
        options = {"dynamic_shapes": (dict.fromkeys((2, 3), torch.export.Dim.DYNAMIC),)}
    elif dynamic:
        options = {"dynamic_axes": {"x": {2: "h", 3: "w"}}, "input_names": ["x"]}
    if not path.exists():
        torch.manual_seed(0)
        with quiet():
            hieronnx.export(Net().eval(), (torch.randn(1, 3, 16, 16),), path, exporter=exporter, **options)
    if not made.exists():
        hieronnx.optimize(path, output=made, tool=tool)
    return made


def run_whole(path: Path) -> dict[str, np.ndarray]:
    """Return all tensors of a file."""
    model = onnx.load(path)
    given = {info.name for info in model.graph.output}
    made = (name for node in model.graph.node for name in node.output if name and name not in given)
    model.graph.output.extend([onnx.ValueInfoProto(name=name) for name in made])
    session = open_session(model)
    feeds = {
        info.name: np.random.default_rng(0).standard_normal((1, 3, 16, 16), np.float32) for info in model.graph.input
    }
    outputs = [info.name for info in session.get_outputs()]
    return {**feeds, **dict(zip(outputs, session.run(None, feeds), strict=True))}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("tool", ["ort-extended", "ort-all"])
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_every_call_of_an_optimized_file_is_a_part_that_gives_its_numbers(
    exporter: str, tool: str, dynamic: bool, folder: Path
) -> None:
    path = optimize(folder, exporter, tool, dynamic)
    values = run_whole(path)
    extractor = Extractor(path)
    calls = [call for call in extractor.hierarchy.calls if extractor.find(call.id) is not None]
    assert len(calls) > 15
    for call in calls:
        part = extractor.extract([call])
        session = open_session(part.model)
        found = session.run(None, {name: values[name] for name in part.input_names})
        for name, array in zip(part.output_names, found, strict=True):
            np.testing.assert_array_equal(array, values[name], err_msg=f"{call.id}: {name}")
        received = {item.tensor for item in call.received or ()}
        assert {item.name for item in part.undeclared_inputs} == set(part.input_names) - received, call.id


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_part_takes_what_its_call_received_and_not_its_blocks(exporter: str, folder: Path) -> None:
    path = optimize(folder, exporter, "ort-all")
    model = onnx.load(path)
    entering = {node.input[0]: node for node in model.graph.node if node.op_type == "ReorderInput"}
    if not entering:
        pytest.skip("ONNX Runtime uses no blocks on this processor")
    extractor = Extractor(path)
    crossing = [call for call in extractor.hierarchy.calls if call.id.module in ("second", "second.conv", "head")]
    for call in crossing:
        (received,) = call.received or ()
        assert received.tensor in entering, call.id
        part = extractor.extract([call])
        assert part.input_names == (received.tensor,)
        assert not part.undeclared_inputs
        assert "ReorderInput" in {node.op_type for node in part.nodes}


def test_a_type_that_nobody_knows_is_told_with_what_helps() -> None:
    def make(*infos: onnx.ValueInfoProto) -> onnx.ModelProto:
        text = """
            <ir_version: 10, opset_import: ["" : 21, "acme" : 1]>
            main (float[2] x) => (float[2] y) { b = acme.Blur (x)  h = Relu (b)  y = Neg (h) }
            """
        model = onnx.parser.parse_model(text)
        model.graph.value_info.extend(infos)
        return annotated(model, ["blur", "blur", "end"])

    with pytest.raises(HieronnxError) as refused:
        hieronnx.extract(make(), "end")
    assert "the type of 'h', an input of the part, is not in " in str(refused.value)
    assert str(refused.value).endswith(
        "and cannot be inferred through the acme::Blur that makes 'b'; extract from the file as it was before a tool "
        "wrote that operator, or declare it in the file's value_info"
    )
    declared = helper.make_tensor_value_info("h", TensorProto.FLOAT, [2])
    assert hieronnx.extract(make(declared), "end").input_names == ("h",)
