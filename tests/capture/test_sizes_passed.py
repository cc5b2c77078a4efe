"""Sizes that one call hands another: TorchScript traces them as tensors, and the file has those."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor, nn

import hieronnx
from hieronnx.hierarchy.records import CallId
from hieronnx.report.extraction import render_extraction
from support.exports import quiet

Sizes = tuple[int, int]


class Mixer(nn.Module):
    """Needs the height and width of an image that it has as one long row."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, row: Tensor, sizes: Sizes) -> tuple[Tensor, Sizes]:
        height, width = sizes
        image = self.linear(row).transpose(1, 2).reshape(row.shape[0], 4, height, width)
        return nn.functional.max_pool2d(image, 2).flatten(2).transpose(1, 2), (height // 2, width // 2)


class Pyramid(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Mixer(), Mixer()

    def forward(self, image: Tensor) -> Tensor:
        height, width = image.shape[2:]
        row, sizes = self.first(image.flatten(2).transpose(1, 2), (height, width))
        row, _ = self.second(row, sizes)
        return row.mean(1)


def export(folder: Path, exporter: str) -> tuple[Pyramid, Path]:
    torch.manual_seed(3)
    model, axes = Pyramid().eval(), {"image": {2: "height", 3: "width"}}
    torchscript = {"input_names": ["image"], "dynamic_axes": axes}
    options = torchscript if exporter == "torchscript" else {"dynamic_shapes": axes}
    with quiet():
        example = (torch.randn(1, 4, 8, 12),)
        result = hieronnx.export(model, example, folder / "model.onnx", exporter=exporter, **options)
    return model, result.path


def test_a_size_that_a_call_was_given_is_the_tensor_that_the_file_computes_it_as(tmp_path: Path) -> None:
    model, path = export(tmp_path, "torchscript")
    hierarchy = hieronnx.load(path)
    first, second = (hierarchy.call_by_id[CallId(name, 0)] for name in ("first", "second"))
    returned = {item.name: item.tensor for item in first.returned or ()}
    received = {item.name: item.tensor for item in second.received or ()}
    assert None not in returned.values()
    assert (received["sizes.0"], received["sizes.1"]) == (returned["1.0"], returned["1.1"])

    for name, unread in (("first", ()), ("second", ("1.0", "1.1"))):
        part = hieronnx.extract(path, name, output=tmp_path / f"{name}.onnx")
        assert (part.lost_arguments, part.undeclared_inputs, part.lost_outputs) == ((), (), unread)
        row = torch.randn(1, 5 * 7, 4)
        given = {"row": row.numpy(), "sizes.0": np.array(5), "sizes.1": np.array(7)}
        feed = {item.name: given[argument] for item in part.inputs for argument in item.arguments}
        found = ort.InferenceSession(str(tmp_path / f"{name}.onnx")).run(None, feed)
        values = {place: value for item, value in zip(part.outputs, found, strict=True) for place in item.places}
        image, sizes = model.get_submodule(name)(row, (5, 7))
        np.testing.assert_allclose(values["0"], image.detach().numpy(), atol=1e-5)
        assert unread or (int(values["1.0"]), int(values["1.1"])) == sizes == (2, 3)


def test_of_sizes_that_are_no_tensors_none_is_said_to_be_missing(tmp_path: Path) -> None:
    _, path = export(tmp_path, "dynamo")
    part = hieronnx.extract(path, "second")
    assert part.undeclared_inputs
    assert "forward received no tensor '" in render_extraction(part)
