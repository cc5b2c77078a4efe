"""Models of kinds that the zoo has not: many of their weights are zeros or ones, and tell nothing of whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from benchmarks.anonymize import anonymize_file
from benchmarks.scores import judge
from torch import nn

import hieronnx
from support.exports import quiet

SMALL = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
IMAGE = {"image_size": 16, "patch_size": 8}


def build(name: str) -> nn.Module:
    """Build a model from a small config, as it is before it is trained."""
    torch.manual_seed(0)
    if name == "deit":  # its tokens are zeros, and so are all its biases
        config = transformers.DeiTConfig(**SMALL, **IMAGE, num_hidden_layers=2)
        return transformers.DeiTModel(config).eval()
    # After each bias of zeros comes a scale of ones.
    config = transformers.Dinov2Config(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, **IMAGE)
    return transformers.Dinov2Model(config).eval()


@pytest.mark.parametrize("name", ["deit", "dinov2"])
def test_weights_that_tell_nothing_lead_nowhere(name: str, tmp_path: Path) -> None:
    model, images = build(name), {"pixel_values": torch.randn(2, 3, 16, 16)}
    with quiet():
        exported = hieronnx.export(model, (), tmp_path / "model.onnx", images, exporter="torchscript")
    truth = exported.hierarchy
    anonymize_file(tmp_path / "model.onnx", tmp_path / "bare.onnx")
    for strategy, doubted in (("htp", ()), ("usage_based", ("low",))):
        found = hieronnx.annotate(tmp_path / "bare.onnx", model, (), images, strategy=strategy).hierarchy
        pairs = zip(truth.nodes, found.nodes, strict=True)
        # Of equal literals an exporter keeps one, whose scope is that of one of its readers.
        judged = [(right, given) for right, given in pairs if right.op_type != "Constant"]
        wrong = [
            (right.output, str(given.scope), given.evidence)
            for right, given in judged
            if judge(truth, right, given) == "wrong" and given.confidence not in doubted
        ]
        assert not wrong, strategy
