"""Extract gives all that a call returned and the file still holds, and lists the rest."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

import hieronnx
from hieronnx.report.extraction import render_extraction
from support.exports import exported, quiet, shared_folder
from support.extracted import PartCheck

EXPORTERS = ("torchscript", "dynamo")


def export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], exporter: str) -> Path:
    path = Path(mkdtemp(dir=shared_folder())) / "model.onnx"
    with quiet():
        hieronnx.export(model, args, path, kwargs, exporter=exporter)
    return path


@cache
def make_bloom() -> nn.Module:
    from transformers import BloomConfig, BloomModel

    torch.manual_seed(0)
    config = BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4, use_cache=False)
    config._attn_implementation = "eager"
    return BloomModel(config).eval()


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_attention_gives_its_probabilities_where_a_dropout_that_does_nothing_lies_between(exporter: str) -> None:
    model, inputs = make_bloom(), {"input_ids": torch.arange(7).reshape(1, 7)}
    path = export(model, (), inputs, exporter)
    part = hieronnx.extract(path, "h.1.self_attention")
    assert [item.places for item in part.outputs] == [("0",), ("1",)]
    assert part.lost_outputs == ()
    verdicts = PartCheck(path, model, (), inputs).check_all()
    assert not verdicts.wrong


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_block_gives_what_it_only_passes_on(exporter: str) -> None:
    found = exported("t5", exporter)
    for name in ("encoder.block.0", "encoder.block.1"):
        part = hieronnx.extract(found.result.path, name)
        given = {place for item in part.outputs for place in item.places}
        assert given | set(part.lost_outputs) == {item.name for item in found.hierarchy.find_call(name).returned or ()}
        assert "1" in given  # the position bias, which the second block was given by the first


class Passing(nn.Module):
    """Returns what it computes, what it was given, a constant, and a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.linear(x), y, torch.full((2,), 3.0), self.scale


class PassingRoot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Passing()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c, d = self.inner(x, torch.relu(x))
        return a + b * d + c.sum()


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_what_was_received_and_what_is_constant_is_given_as_well(exporter: str) -> None:
    model, x = PassingRoot().eval(), torch.randn(3, 4)
    part = hieronnx.extract(export(model, (x,), {}, exporter), "inner")
    given = {place: item.name for item in part.outputs for place in item.places}
    assert {*given, *part.lost_outputs} == {"0", "1", "2", "3"}
    assert {"0", "1", "3"} <= given.keys()
    expected = dict(zip("0123", model.inner(x, torch.relu(x)), strict=True))
    session = ort.InferenceSession(part.model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {i.name: {"x": x, "y": torch.relu(x)}[i.arguments[0]].numpy() for i in part.inputs}
    for name, array in zip(part.output_names, session.run(None, feeds), strict=True):
        for place in (place for place, held in given.items() if held == name):
            np.testing.assert_allclose(array, expected[place].detach().numpy(), rtol=1e-5, atol=1e-6)


def test_what_the_file_does_not_hold_is_listed() -> None:
    part = hieronnx.extract(exported("t5", "torchscript").result.path, "decoder.block.0.layer.1.EncDecAttention")
    assert part.lost_outputs == ("1",)  # a bias of zeros, which torch did not write
    assert part.to_dict()["lost_outputs"] == ["1"]
    assert "no tensor of the file is known to hold output '1' of forward" in render_extraction(part)
