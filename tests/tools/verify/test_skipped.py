"""Why a call is not compared: who lacks what it returned, the file or the reference."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import hieronnx
from support.annotated import annotated
from support.exports import quiet

LOST = "does not have what it returned: its work is one with that of what follows, or nobody reads it"
GUESSED = "does not tell which of its tensors is what it returned: names alone tell what does its work"
UNTOLD = "does not tell which of its tensors is what it returned, an output of the model"


def make(evidence: str = "captured", **returned: str | None) -> onnx.ModelProto:
    """Return a chain of two calls; for each the tensor that it is said to return, or None where nothing is recorded."""
    text = """
        main (float[2] x) => (float[2] y) <float[2] c = {1, 2}>
        { h = Relu (x)  k = Mul (h, c)  y = Neg (k) }
        """
    tensors = {"first": "h", "last": "y", **returned}
    passed = {call: ([], [f"={tensor}"]) for call, tensor in tensors.items() if tensor is not None}
    return annotated(text, ["first", "", "last"], {"": (["x=x"], ["=y"]), **passed}, evidence=evidence)


@pytest.mark.parametrize(
    ("file", "reference", "reason"),
    [
        ({"first": ""}, {}, f"the file {LOST}"),
        ({}, {"first": ""}, f"the reference {LOST}"),
        ({"last": ""}, {}, f"the file {UNTOLD}"),
        ({}, {"last": ""}, f"the reference {UNTOLD}"),
        ({"first": None}, {}, "what it returned was not recorded: export records it"),
        ({}, {"first": None}, "what it returned was not recorded in the reference"),
        ({"first": "c"}, {}, "what it returned is a constant of the file"),
        ({}, {"first": "c"}, "what it returned is a constant of the reference"),
        ({"first": "x"}, {"first": "x"}, "it returns an input of the file"),
    ],
)
def test_who_lacks_what_a_call_returned_is_told(
    file: dict[str, str | None], reference: dict[str, str | None], reason: str
) -> None:
    result = hieronnx.verify(make(**file), make(**reference))
    (skipped,) = [call for call in result.skipped if call.live]
    assert skipped.module == next(iter({**file, **reference}))
    assert skipped.reason.startswith(reason)


def test_what_is_not_told_for_the_nodes_are_guesses_is_not_said_to_be_lost() -> None:
    guessed = make("name", first="")
    for side, models in (("file", (guessed, make())), ("reference", (make(), guessed))):
        (skipped,) = [call for call in hieronnx.verify(*models).skipped if call.live]
        assert skipped.reason == f"the {side} {GUESSED}"


def test_what_the_reference_folded_away_is_no_constant_of_the_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.ConvTranspose2d(3, 4, 2, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    nn.init.uniform_(net[1].running_mean)
    for exporter in ("torchscript", "dynamo"):
        with quiet():
            hieronnx.export(net, (torch.randn(1, 3, 4, 4),), tmp_path / f"{exporter}.onnx", exporter=exporter)
    result = hieronnx.verify(tmp_path / "torchscript.onnx", tmp_path / "dynamo.onnx")
    assert {call.module: call.reason for call in result.skipped if call.live} == {"0": f"the reference {LOST}"}


def test_what_is_in_blocks_of_channels_alone_is_not_told_to_be_unread(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3), nn.SiLU(), nn.Conv2d(16, 4, 1)).eval()
    with quiet():
        hieronnx.export(net, (torch.randn(1, 3, 8, 8),), tmp_path / "net.onnx", exporter="torchscript")
    hieronnx.optimize(tmp_path / "net.onnx", output=tmp_path / "all.onnx", tool="ort-all")
    for file, reference in (("net", "all"), ("all", "net")):
        result = hieronnx.verify(tmp_path / f"{file}.onnx", tmp_path / f"{reference}.onnx")
        if "com.microsoft.nchwc" not in {node.domain for node in hieronnx.load(tmp_path / "all.onnx").nodes}:
            pytest.skip("ONNX Runtime uses no blocks on this processor")
        reasons = {call.module: call.reason for call in result.skipped if call.live}
        assert {"0", "2"} <= reasons.keys()
        assert all("it is in blocks of channels alone" in reason for reason in reasons.values())
