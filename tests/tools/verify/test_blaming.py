"""Who is blamed, and who is not, in files that tell less than an export does, or whose model ran in another order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import hieronnx
from hieronnx.files.opening import open_model
from hieronnx.hierarchy.records import CallId
from hieronnx.runtime.sessions import open_runner
from hieronnx.tools.verify.references import FileReference, Sample
from support.exports import exported, quiet
from support.nets import export_stack
from support.zoo import CASES

# -- a module that is called in another order -----------------------------------------------------------------------


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, power: int) -> Tensor:
        return self.inner(x) ** power


class Unordered(nn.Module):
    """Calls two modules for each of its layers, in whatever order they are listed, as a loop over a set does."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.norm, self.order = Scale(), nn.Linear(4, 4), [1, 2]
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Tensor:
        scaled = {power: self.norm(self.scale(x, power)) for power in self.order}
        for power, layer in enumerate(self.layers, 1):
            x = layer(scaled[power]) + x
        return x


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_calls_in_another_order_are_told_by_who_reads_them(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model, x = Unordered().eval(), torch.linspace(-1, 1, 12).reshape(3, 4)
    path = tmp_path / "model.onnx"
    with quiet():
        hieronnx.export(model, (x,), path, exporter=exporter)
    model.order.reverse()
    result = hieronnx.verify(path, model, (x,))
    assert result.passed
    assert {"scale", "scale.inner", "norm"} <= {call.module for call in result.calls}
    with torch.no_grad():
        model.layers[1].bias += 1
    assert [culprit.module for culprit in hieronnx.verify(path, model, (x,)).culprits] == ["layers.1"]


# -- files that tell less -------------------------------------------------------------------------------------------


class Cancelling(nn.Module):
    """Adds up large numbers that cancel out, so that the order counts; then a module that rounds little."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.last = nn.Linear(512, 16), nn.Sigmoid()
        large, small = torch.randn(16, 256) * 300, torch.randn(16, 256) * 0.1
        self.mix.weight.data = torch.cat([large, small - large], 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.mix(torch.cat([x, x], -1)))


def test_a_file_of_which_only_the_outputs_are_known_is_held_to_the_noise_of_the_whole(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model, x = Cancelling().eval(), torch.randn(4, 256)
    with quiet():
        torch.onnx.export(model, (x,), tmp_path / "plain.onnx", dynamo=False)
        hieronnx.annotate(tmp_path / "plain.onnx", model, strategy="usage_based", output=tmp_path / "annotated.onnx")
    result = hieronnx.verify(tmp_path / "annotated.onnx", model, (x,))
    assert [(call.module, call.verdict) for call in result.calls] == [("", "noisy")]
    assert result.passed


def test_a_half_file_takes_arrays_of_floats_beside_its_model(tmp_path: Path) -> None:
    case = exported("conv_batch_norm_residual", "torchscript")
    hieronnx.quantize(case.result.path, output=tmp_path / "half.onnx", tool="fp16")
    (name,) = (value.name for value in onnx.load(tmp_path / "half.onnx").graph.input)
    (x,) = case.case.args()
    for dtype in (np.float32, np.float16):
        assert hieronnx.verify(tmp_path / "half.onnx", case.model, inputs={name: x.numpy().astype(dtype)}).passed


# -- sizes, and inputs that look alike ------------------------------------------------------------------------------


def test_a_fault_in_a_cache_is_that_of_the_layer(tmp_path: Path) -> None:
    """Keys and values look alike: what an input was at export tells which is which, not what agrees best."""
    path, model = tmp_path / "model.onnx", CASES["llama"].build()
    given = hieronnx.with_past(model)
    inputs = given["kwargs"]
    with quiet():
        hieronnx.export(model, output=path, **given)
    result = hieronnx.verify(path, model, (), inputs)
    assert result.passed
    assert not [call.module for call in result.skipped if call.live]
    altered = onnx.load(path)
    hierarchy = hieronnx.load(path)
    joined = (node for node in altered.graph.node if node.op_type == "Concat")
    *_, node = (node for node in joined if any("value" in name for name in node.input))
    layer = hierarchy.node_by_key["", node.output[0]].scope
    node.input[:] = [*reversed(node.input)]
    onnx.save(altered, tmp_path / "altered.onnx")
    assert [culprit.id for culprit in hieronnx.verify(tmp_path / "altered.onnx", model, (), inputs).culprits] == [layer]


# -- 4 bits ---------------------------------------------------------------------------------------------------------


def test_a_layer_in_4_bits_can_be_wrong(tmp_path: Path) -> None:
    source = export_stack(tmp_path / "stack.onnx", [64, 64, 64])
    made = tmp_path / "int4.onnx"
    hieronnx.quantize(source, output=made, tool="int4")
    assert hieronnx.verify(made, source).passed
    model = onnx.load(made)
    hierarchy = hieronnx.load(made)
    node = next(node for node in model.graph.node if node.op_type == "MatMulNBits")
    (scales,) = (tensor for tensor in model.graph.initializer if tensor.name == node.input[2])
    scales.CopyFrom(numpy_helper.from_array(0 * numpy_helper.to_array(scales), scales.name))
    onnx.save(model, tmp_path / "altered.onnx")
    blamed = hierarchy.node_by_key["", node.output[0]].scope
    culprits = hieronnx.verify(tmp_path / "altered.onnx", source).culprits
    assert [culprit.id for culprit in culprits] == [blamed]


# -- a reference in half precision ----------------------------------------------------------------------------------


class TwoResults(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.tanh(x * 1.1)
        return torch.sin(wide * 3), wide


class UsesBoth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = TwoResults(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.inner(x)
        return self.last(first + second)


def test_a_reference_in_half_precision_may_have_what_the_file_has_not(tmp_path: Path) -> None:
    torch.manual_seed(4)
    path, x = tmp_path / "half.onnx", torch.randn(3, 8).half()
    with quiet():
        hieronnx.export(UsesBoth().eval().half(), (x,), path, exporter="torchscript", input_names=["x"])
    opened, sample = open_model(path), Sample({"x": x.numpy()})
    assert opened.hierarchy is not None
    with open_runner(opened) as runner:
        reference = FileReference(runner, opened.hierarchy, buffer=1 << 20)
        exchanged = reference.run(sample).calls[CallId("inner", 0)]
        (first, key), _ = exchanged.returned.items()
        noise = reference.measure_noise(sample, [CallId("inner", 0)], [key])
    assert set(noise) == {(CallId("inner", 0), first), key}
