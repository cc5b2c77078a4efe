"""Arguments that hold several tensors: each is an input of the file, and goes by its name everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import torch
from click.testing import Result
from torch import Tensor, nn

from hieronnx.capture.dynamic import to_dynamic_shapes
from hieronnx.errors import InputError
from support.cli import run

BOTH = ["dynamo", "torchscript"]
NETS = """
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, past, state=None):
        y = self.linear(x)
        for key, value in past:
            y = y + key * value
        return y if state is None else y + state["a"]


class Shifted(nn.Module):
    def forward(self, x, past):
        return x * 2 + past[0][0].sum() + past[0][1].sum()


class Rest(nn.Module):
    def forward(self, x, *rest):
        return x + rest[0] + rest[1][0]


def load():
    torch.manual_seed(0)
    return Decoder()


def make_all():
    past = tuple((torch.randn(3, 4), torch.randn(3, 4)) for _ in range(2))
    return {"x": torch.randn(3, 4), "past": past, "state": {"a": torch.randn(3, 4)}}


def make_shifted():
    return {"x": torch.randn(3, 4), "past": ((torch.randn(4), torch.randn(5)),)}


def make_rest():
    return torch.randn(3, 4), torch.randn(3, 4), (torch.randn(3, 4),)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    yield
    os.chdir(before)


def export(target: str, maker: str, *options: str) -> Result:
    return run("export", f"nets.py:{target}", "-o", "net.onnx", "--inputs-from", f"nets.py:{maker}", *options)


def shapes() -> dict[str, list[str]]:
    """Return the sizes of the file's inputs."""
    inputs = onnx.load("net.onnx").graph.input
    return {item.name: [d.dim_param or str(d.dim_value) for d in item.type.tensor_type.shape.dim] for item in inputs}


# --- dynamic axes ---


@pytest.mark.parametrize("exporter", BOTH)
def test_a_star_makes_the_tensors_inside_arguments_dynamic_too(exporter: str) -> None:
    result = export("load", "make_all", "--dynamic", "*:0=batch", "--exporter", exporter)
    assert result.exit_code == 0, result.stderr
    names = ["x", "past_0_0", "past_0_1", "past_1_0", "past_1_1", "state_a"]
    assert shapes() == {name: ["batch", "4"] for name in names}
    assert "dynamic axes: file and model do the same at batch 6" in result.stdout


@pytest.mark.parametrize("exporter", BOTH)
def test_a_tensor_inside_an_argument_goes_by_the_name_of_the_files_input(exporter: str) -> None:
    options = ("--dynamic", "past_0_0:0=keys", "--exporter", exporter)
    result = export("Shifted", "make_shifted", *options)
    assert result.exit_code == 0, result.stderr
    assert shapes() == {"x": ["3", "4"], "past_0_0": ["keys"], "past_0_1": ["5"]}


@pytest.mark.parametrize("exporter", BOTH)
def test_an_argument_of_fixed_tensors_goes_with_a_dynamic_one(exporter: str) -> None:
    result = export("Shifted", "make_shifted", "--dynamic", "x:0=batch", "--exporter", exporter)
    assert result.exit_code == 0, result.stderr
    assert shapes() == {"x": ["batch", "4"], "past_0_0": ["4"], "past_0_1": ["5"]}


@pytest.mark.parametrize("exporter", BOTH)
def test_what_variadic_arguments_take_may_be_dynamic(exporter: str) -> None:
    result = export("Rest", "make_rest", "--dynamic", "*:0=batch", "--exporter", exporter)
    assert result.exit_code == 0, result.stderr
    assert shapes() == {name: ["batch", "4"] for name in ("x", "rest_0", "rest_1_0")}


class Takes(nn.Module):
    def forward(self, x: Tensor, past: tuple[Tensor, dict[str, Tensor], int]) -> Tensor:
        return x


NESTED = {"x": torch.ones(3), "past": (torch.ones(3, 2), {"k": torch.ones(2, 3)}, 4)}


def test_an_argument_stands_for_all_tensors_in_it() -> None:
    found = to_dynamic_shapes(Takes(), (), NESTED, {"past": {1: "n"}, "past_1_k": {0: "m"}})
    assert found == {"x": None, "past": ({1: "n"}, {"k": {1: "n", 0: "m"}}, None)}


@pytest.mark.parametrize(
    ("name", "axis", "message"),
    [
        ("past_1", 0, "no dynamic input 'past_1' in Takes.forward; did you mean 'past_1_k'"),
        ("past_2", 0, "dynamic input 'past_2' is a int, not a tensor"),
        ("past_0", 2, r"input 'past_0' of shape \[3, 2\] has no axis 2"),
    ],
)
def test_names_and_axes_that_are_not_there_are_refused(name: str, axis: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_dynamic_shapes(Takes(), (), NESTED, {name: {axis: "n"}})
