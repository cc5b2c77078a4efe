"""Inputs are named after `forward`'s arguments and outputs after what it returns, on both routes, by torch itself."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import hieronnx
from hieronnx.capture.names import make_unique, name_results
from support.baseline import assert_same_as_baseline
from support.exports import exported, names_in, quiet

BOTH = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
Pair = namedtuple("Pair", "first second")
X = torch.arange(6.0).reshape(2, 3)


class Single(nn.Module):
    def forward(self, hidden: Tensor) -> Any:
        return hidden * 2


class Positions(nn.Module):
    def forward(self, hidden: Tensor) -> Any:
        return hidden * 2, [hidden + 1, hidden - 1]


class Keys(nn.Module):
    def forward(self, hidden: Tensor) -> Any:
        return {"logits": hidden * 2, "nothing": None, "states": (hidden + 1, {"last": hidden - 1})}


class Fields(nn.Module):
    def forward(self, hidden: Tensor) -> Any:
        return Pair(hidden * 2, hidden + 1)


class Clashes(nn.Module):
    """Returns under the names of an input, a parameter and a tensor on the way; one tensor twice, an input as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 3.0))

    def forward(self, hidden: Tensor, scale: Tensor) -> Any:
        mul = hidden * self.scale
        return {
            "hidden": mul + scale,
            "scale": mul - 1,
            "mul": mul + 2,
            "same": mul,
            "again": mul,
            "as_is": scale,
            "": -mul,
        }


class Variadic(nn.Module):
    def forward(self, first: Tensor, *rest: Tensor, last: Tensor, **more: Tensor) -> Any:
        return first + 2 * rest[0] + 3 * rest[1] + 4 * last + 5 * more["other"]


def export(model: nn.Module, folder: Path, exporter: str, *args: Tensor, **options: Any) -> Path:
    kwargs = options.pop("kwargs", None)
    with quiet():
        path = hieronnx.export(model.eval(), args, folder / "m.onnx", kwargs, exporter=exporter, **options).path
    onnx.checker.check_model(path, full_check=True)
    return path


@BOTH
@pytest.mark.parametrize(
    ("model", "outputs"),
    [
        (Single, ["output"]),
        (Positions, ["output_0", "output_1_0", "output_1_1"]),
        (Keys, ["logits", "states_0", "states_1_last"]),
        (Fields, ["first", "second"]),
    ],
)
def test_outputs_have_the_names_of_what_is_returned(
    model: type[nn.Module], outputs: list[str], exporter: str, tmp_path: Path
) -> None:
    assert names_in(export(model(), tmp_path, exporter, X)) == {"input_names": ["hidden"], "output_names": outputs}


@BOTH
def test_names_that_clash_stay_apart_and_values_are_right(exporter: str, tmp_path: Path) -> None:
    model, args = Clashes().eval(), (X, X + 10)
    path = export(model, tmp_path, exporter, *args)
    names = names_in(path)
    everything = [*names["input_names"], *names["output_names"]]
    assert len(set(everything)) == len(everything) == 9
    assert names["input_names"][0] == "hidden"
    assert names["output_names"][0] == "hidden_out"
    assert names["output_names"][3:6] == ["same", "again", "as_is"]
    assert names["output_names"][6] == "output"
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = dict(zip(names["input_names"], (x.numpy() for x in args), strict=True))
    found = session.run(None, feeds)
    for ours, theirs in zip(found, tree_leaves(model(*args)), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), theirs.detach())
    with quiet():
        dynamo = exporter == "dynamo"
        torch.onnx.export(model, args, str(tmp_path / "torch.onnx"), dynamo=dynamo, verbose=False, **names)
    assert_same_as_baseline(path, tmp_path / "torch.onnx")


@BOTH
def test_inputs_of_any_kind_have_the_names_of_their_arguments(exporter: str, tmp_path: Path) -> None:
    kwargs = {"other": X * 5, "last": X * 4}
    path = export(Variadic(), tmp_path, exporter, X, X * 2, X * 3, kwargs=kwargs)
    assert names_in(path)["input_names"] == ["first", "rest_0", "rest_1", "other", "last"]
    feeds = {"first": X, "rest_0": X * 2, "rest_1": X * 3, **kwargs}
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {name: value.numpy() for name, value in feeds.items()})
    torch.testing.assert_close(torch.from_numpy(found), Variadic()(X, X * 2, X * 3, **kwargs))


@BOTH
def test_a_models_own_output_class_gives_the_names(exporter: str) -> None:
    names = names_in(exported("bert", exporter).result.path)
    assert names["output_names"] == ["last_hidden_state", "pooler_output"]
    assert set(names["input_names"]) <= {"input_ids", "attention_mask", "token_type_ids"}


@BOTH
def test_given_names_and_torchs_own_come_first(exporter: str, tmp_path: Path) -> None:
    path = export(Positions(), tmp_path, exporter, X, output_names=["mine"])
    names = names_in(path)
    assert names["input_names"] == ["hidden"]
    assert names["output_names"][0] == "mine"
    path = export(Positions(), tmp_path, exporter, X, torch_names=True)
    with quiet():
        model = Positions().eval()
        torch.onnx.export(model, (X,), str(tmp_path / "torch.onnx"), dynamo=exporter == "dynamo", verbose=False)
    assert_same_as_baseline(path, tmp_path / "torch.onnx")


def test_a_type_that_tells_no_keys_is_named_by_position() -> None:
    @dataclass
    class Opaque:
        left: int
        right: int

    torch.utils._pytree.register_pytree_node(Opaque, lambda o: ([o.left, o.right], None), lambda c, _: Opaque(*c))
    assert name_results({"part": Opaque(1, 2)}) == [("part_0", 1), ("part_1", 2)]


def test_unique_names_count_on() -> None:
    assert make_unique(["x", "x", "x", "y", ""], {"y"}, "out") == ["x", "x_out", "x_1", "y_out", "output"]
