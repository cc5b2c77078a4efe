"""Why a call is not compared: who lacks what it returned, the file or the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from onnx import parser
from torch import nn

import hieronnx
from hieronnx.files.opening import open_model
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.verify.untold import Untold
from support.annotated import annotated, embed, make_hierarchy
from support.exports import quiet

LOST_IN = "does not have what it returned: its work is one with that of what follows"
LOST = f"{LOST_IN}, or nobody reads it"
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


FUSED = """
    main (float[2] x) => (float[2] y) <float[2] s = {1, 1}> {
        t = Relu (x)
        u = Neg (t)
        a = Add (u, x)
        b = Mul (a, s)
        y = Abs (b)
    }
"""


def make_pair(
    ends: dict[str, tuple[str, ...]], evidence: dict[str, str], text: str = FUSED
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a model that lost what `layer` returned, and the whole one; whose nodes they are, and how that is known.

    Args:
        ends: For nodes of the first, by what they make, the modules that they are of.
        evidence: How that is known; `carried` where nothing is said.
        text: The graph.
    """
    plain = ["layer.attn", "layer.attn", "layer", "norm", "head"]
    made = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    outputs = [node.output[0] for node in made.graph.node]
    scopes = [ends.get(output, scope) for output, scope in zip(outputs, plain, strict=True)]
    passed = {"": (["x=x"], ["=y"]), "head": (["=b"], ["=y"])}
    lost = annotated(made, scopes, {**passed, "layer": ([], ["="])})
    hierarchy = open_model(lost).hierarchy
    assert hierarchy is not None
    nodes = (replace(node, evidence=evidence.get(node.output, "carried")) for node in hierarchy.nodes)
    lost = embed(made, replace(hierarchy, nodes=tuple(nodes)))
    return lost, annotated(made, plain, {**passed, "layer": ([], ["=a"])})


def explain(file: onnx.ModelProto, reference: onnx.ModelProto) -> str:
    """Return why `layer` is skipped."""
    return next(call.reason for call in hieronnx.verify(file, reference).skipped if call.module == "layer")


@pytest.mark.parametrize("side", ["file", "reference"])
@pytest.mark.parametrize(
    ("ends", "evidence", "reason"),
    [
        # What ends the layer is fused with the norm behind it; deep inside, names alone tell who does the work.
        ({"a": ("layer", "norm")}, {"t": "name", "u": "name"}, f"{LOST_IN}, 'norm', in 'a'"),
        ({"a": ("norm", "layer")}, {"u": "name"}, f"{LOST_IN}, 'norm', in 'a'"),
        ({}, {"t": "name", "u": "name"}, LOST),
        ({"t": ("", "layer.attn")}, {}, LOST),
        ({}, {"a": "name"}, GUESSED),
        ({"a": ("layer", "norm")}, {"a": "name"}, GUESSED),
    ],
)
def test_the_reason_is_that_of_the_nodes_which_end_the_call(
    side: str, ends: dict[str, tuple[str, ...]], evidence: dict[str, str], reason: str
) -> None:
    lost, whole = make_pair(ends, evidence)
    models = (lost, whole) if side == "file" else (whole, lost)
    assert explain(*models) == f"the {side} {reason}"


def test_a_node_that_names_place_in_a_call_may_end_it_though_it_is_read_inside_too() -> None:
    text = FUSED.replace("b = Mul (a, s)", "b = Mul (a, u)")  # the norm reads what the layer reads, too
    assert explain(*make_pair({}, {"u": "name"}, text)) == f"the file {GUESSED}"


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("layer", f"'layer' in 'model' can be compared: the file {GUESSED}"),
        ("layer.attn", "'layer.attn' in 'model' can be compared: what it returned was not recorded"),
        ("norm or layer", f"'norm or layer' in 'model' can be compared: the file {GUESSED}"),
    ],
)
def test_where_nothing_that_was_chosen_can_be_compared_the_reason_is_its_own(module: str, told: str) -> None:
    """Not that of another call, or of one below it."""
    lost, whole = make_pair({}, {"a": "name"})
    with pytest.raises(hieronnx.HieronnxError, match=rf"^no call of {re.escape(told)}"):
        hieronnx.verify(lost, whole, module=module)


@pytest.mark.parametrize("module", [None, ""])
def test_where_nothing_can_be_compared_it_is_said_of_the_file(module: str | None) -> None:
    text = "main (float[2] x) => (float[2] y) { h = Relu (x)  y = Neg (h) }"
    file, reference = (annotated(text, ["a", "b"], passed) for passed in ({}, {"": (["x=x"], ["0=y", "1=h"])}))
    with pytest.raises(hieronnx.HieronnxError, match=r"^no call of 'model' can be compared: what it "):
        hieronnx.verify(file, reference, module=module)


def test_why_calls_are_lost_is_found_at_once_for_all() -> None:
    """The nodes are looked at as often for one call as for many."""
    names = [f"layer{i}" for i in range(5)]
    nodes = tuple(Node("", name, "Add", "", name, CallId(name, 0), (CallId(name, 0),), "carried") for name in names)
    found, seen = make_hierarchy(set(names), []), list[int]()

    class Nodes(tuple[Node, ...]):
        def __iter__(self) -> Iterator[Node]:
            seen.append(1)
            return super().__iter__()

    untold = Untold("file", replace(found, nodes=Nodes(nodes)), dict)
    assert untold.explain(CallId("layer0", 0), False) == f"the file {LOST}"
    first = len(seen)
    assert all(untold.explain(CallId(name, 0), False) == f"the file {LOST}" for name in names)
    assert len(seen) == first


def test_what_the_reference_folded_away_is_no_constant_of_the_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.ConvTranspose2d(3, 4, 2, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    nn.init.uniform_(net[1].running_mean)
    for exporter in ("torchscript", "dynamo"):
        with quiet():
            hieronnx.export(net, (torch.randn(1, 3, 4, 4),), tmp_path / f"{exporter}.onnx", exporter=exporter)
    result = hieronnx.verify(tmp_path / "torchscript.onnx", tmp_path / "dynamo.onnx")
    (skipped,) = [call for call in result.skipped if call.live]
    assert (skipped.module, skipped.reason.rpartition(", in ")[0]) == ("0", f"the reference {LOST_IN}, '1'")


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
