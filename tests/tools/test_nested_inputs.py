"""Arguments that hold several tensors: each is an input of the file, and goes by its name everywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from click.testing import Result
from torch import Tensor, nn

from hieronnx.attribute.nested_inputs import fill_example, find_parts, nest
from hieronnx.capture.dynamic import to_dynamic_shapes
from hieronnx.errors import InputError
from hieronnx.runtime.inputs import FileInput
from support.cli import run

BOTH = ["dynamo", "torchscript"]
NETS = """
from dataclasses import dataclass

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


@dataclass
class Kept:
    keys: torch.Tensor
    values: torch.Tensor


torch.utils._pytree.register_dataclass(Kept)


class Keeper(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x, kept):
        return self.linear(x) + kept.keys * kept.values


def make_kept():
    return {"x": torch.randn(3, 4), "kept": Kept(torch.randn(3, 4), torch.randn(3, 4))}


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


# --- arrays by the names of the file's inputs ---

NAMES = ["x", "past_0_0", "past_0_1", "past_1_0", "past_1_1", "state_a"]


def save_arrays(*without: str, **others: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((3, 4)).astype(np.float32) for name in NAMES if name not in without}
    np.savez("data.npz", **arrays, **others)


@pytest.mark.parametrize("command", ["verify", "validate"])
@pytest.mark.parametrize("exporter", BOTH)
def test_arrays_by_the_files_names_are_put_into_arguments(command: str, exporter: str) -> None:
    assert export("load", "make_all", "--exporter", exporter).exit_code == 0
    save_arrays()
    result = run(command, "net.onnx", "--model", "nets.py:load", "--inputs", "data.npz", "--json")
    assert result.exit_code == 0, result.output
    if command == "verify":
        assert json.loads(result.stdout)["compared"] == 1.0


@pytest.mark.parametrize("command", ["verify", "validate", "annotate"])
def test_inputs_that_nobody_gives_are_made_and_put_into_arguments(command: str) -> None:
    assert export("load", "make_all", "--exporter", "torchscript").exit_code == 0
    options = ("-o", "annotated.onnx") if command == "annotate" else ()
    result = run(command, "net.onnx", "--model", "nets.py:load", *options)
    assert result.exit_code == 0, result.output


def test_what_is_given_beside_is_taken_and_the_rest_is_made() -> None:
    assert export("load", "make_all", "--exporter", "torchscript").exit_code == 0
    command = ("verify", "net.onnx", "--model", "nets.py:load", "--input")
    for given in ("x=float32[3,4]", "past_0_0=float32[3,4]"):
        result = run(*command, given)
        assert result.exit_code == 0, result.output


def test_an_export_asks_for_a_function_where_an_argument_holds_tensors() -> None:
    command = ("export", "nets.py:load", "-o", "net.onnx", "--input", "x=float32[3,4]")
    for given in ((), ("--input", "past_0_0=float32[3,4]")):
        result = run(*command, *given)
        assert result.exit_code == 2
        assert "what is no tensor is given with --inputs-from FILE.PY:FUNCTION, and all else with it" in result.stderr
    assert export("load", "make_all", "--exporter", "torchscript").exit_code == 0


def test_an_array_that_is_missing_is_named() -> None:
    assert export("load", "make_all", "--exporter", "torchscript").exit_code == 0
    save_arrays("past_1_0")
    result = run("verify", "net.onnx", "--model", "nets.py:load", "--inputs", "data.npz")
    assert result.exit_code == 2
    assert f"has no array for input 'past_1_0'; a run needs {', '.join(NAMES)}" in result.stderr


def test_an_object_needs_an_example_and_the_advice_works() -> None:
    assert export("Keeper", "make_kept", "--exporter", "torchscript").exit_code == 0
    assert list(shapes()) == ["x", "kept_keys", "kept_values"]
    arrays = {name: np.ones((3, 4), np.float32) for name in shapes()}
    np.savez("data.npz", **arrays)
    command = ("verify", "net.onnx", "--model", "nets.py:Keeper", "--inputs", "data.npz")
    result = run(*command)
    assert result.exit_code == 2
    assert "does not run with its argument kept put together from the inputs kept_keys, kept_values" in result.stderr
    assert "--inputs-from FILE.PY:FUNCTION" in result.stderr
    result = run(*command, "--inputs-from", "nets.py:make_kept")
    assert result.exit_code == 0, result.output


def test_arrays_take_the_places_of_an_example() -> None:
    model, example = Scaled().eval(), {"past": [(X, X)], "scale": 2.0}
    found = fill_example({"past_0_1": np.zeros(4)}, [PART], model, ((), example), {}, "m.onnx")
    assert found[0] == ()
    assert [part.tolist() for part in found[1]["past"][0]] == [X.tolist(), [0, 0, 0, 0]]
    assert found[1]["scale"] == 2.0
    with pytest.raises(InputError, match=r"is the input 'past_0_2' of 'm\.onnx'; they are past_0_0, past_0_1, scale"):
        fill_example({}, [FileInput("past_0_2", X.numpy().dtype, (4,))], model, ((), example), {}, "m.onnx")


X = torch.ones(4)
PART = FileInput("past_0_1", np.dtype(np.float32), (4,))


class Scaled(nn.Module):
    def forward(self, past: list[tuple[Tensor, Tensor]], scale: float) -> Tensor:
        return past[0][1] * scale


RECORDED = {"state_a_b": "state_a_b", "state_c_0": "state.c.0"}


@pytest.mark.parametrize(
    ("names", "recorded", "parts"),
    [
        (["x", "past_0_0", "past_0_1"], {}, {"past": {(0, 0): "past_0_0", (0, 1): "past_0_1"}}),
        (["state_a_b", "state_c_0"], {}, {}),  # names of their own, as far as anyone knows
        (["state_a_b", "state_c_0"], RECORDED, {"state": {("a_b",): "state_a_b", ("c", 0): "state_c_0"}}),
        (["t1", "t2"], {"t1": "past.0", "t2": "past.1"}, {"past": {(0,): "t1", (1,): "t2"}}),
        (["past_0"], {"past_0": "past.0"}, {"past": {(0,): "past_0"}}),
        (["past_0"], {}, {}),  # another name of past, as far as anyone knows
        (["past_0", "past_2"], {}, {}),
        (["past", "past_0", "past_1"], {}, {}),
        (["past_key_0", "past_key_1"], {}, {"past_key": {(0,): "past_key_0", (1,): "past_key_1"}}),
    ],
)
def test_the_way_to_a_tensor_is_read_off_names_and_records(
    names: list[str], recorded: dict[str, str], parts: dict[str, Any]
) -> None:
    assert find_parts(names, ["x", "past", "past_key", "state"], recorded) == parts


def test_numbers_are_places_and_words_are_keys() -> None:
    assert nest({(0, "a"): 1, (0, "b"): 2, (1,): 3}) == ({"a": 1, "b": 2}, 3)
    assert nest({(0, 0): 1, (0, 1): 2}, list) == [[1, 2]]
