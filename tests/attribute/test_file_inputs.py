"""Inputs for a file and its model: what the file takes, of its types and sizes, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

import hieronnx
from hieronnx.attribute.file_inputs import make_file_inputs
from hieronnx.capture.specs import InputSpec
from hieronnx.errors import InputError
from hieronnx.runtime.inputs import FileInput
from support.cli import run
from support.exports import quiet

FLOAT, WHOLE = np.dtype(np.float32), np.dtype(np.int64)


class Images(nn.Module):
    """Takes any images that two strides can halve."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, 2, 1), nn.Linear(4, 2)

    def forward(self, image: Tensor, scale: Tensor | None = None) -> Tensor:
        y: Tensor = self.head(self.conv(image).mean((2, 3)))
        return y if scale is None else y * scale


def make(model: nn.Module, *inputs: FileInput, specs: tuple[InputSpec, ...] = ()) -> dict[str, tuple[int, ...]]:
    made = make_file_inputs(inputs, model, specs, name="model.onnx")
    return {name: tuple(value.shape) for name, value in made.items()}


def test_sizes_and_types_are_those_of_the_file() -> None:
    assert make(Images(), FileInput("image", FLOAT, (1, 3, 20, 24))) == {"image": (1, 3, 20, 24)}


def test_axes_that_are_open_get_small_sizes_and_those_of_one_name_the_same() -> None:
    made = make(Images(), FileInput("image", FLOAT, ("n", 3, "h", "w")), FileInput("scale", FLOAT, ("n", 2)))
    assert made["image"][:2] == (2, 3)
    assert len(set(made["image"])) == 4
    assert made["scale"] == (2, 2)


class Squares(nn.Module):
    """Wants images of one size, square ones."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 32 * 32, 2)

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.head(image.flatten(1))
        return out


def test_sizes_are_tried_until_the_model_runs() -> None:
    assert make(Squares(), FileInput("image", FLOAT, (None, 3, None, None))) == {"image": (2, 3, 32, 32)}


def test_what_is_given_is_taken_as_it_is_and_the_rest_agrees_with_it() -> None:
    given = InputSpec("scale", "float32", (5, 2))
    made = make(
        Images(), FileInput("image", FLOAT, ("n", 3, 8, 8)), FileInput("scale", FLOAT, ("n", 2)), specs=(given,)
    )
    assert made == {"image": (5, 3, 8, 8), "scale": (5, 2)}


@pytest.mark.parametrize("name", ["image.1", "input.1", "t0"])
def test_inputs_of_other_names_are_taken_in_order(name: str) -> None:
    assert make(Images(), FileInput(name, FLOAT, (1, 3, 8, 8))) == {"image": (1, 3, 8, 8)}


def test_a_file_in_half_precision_is_compared_with_the_model_in_its_own() -> None:
    made = make_file_inputs([FileInput("image", np.dtype(np.float16), (1, 3, 8, 8))], Images(), name="model.onnx")
    assert made["image"].dtype is torch.float32


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (FileInput("image", FLOAT, None), r"cannot make the input image=float32\[…\] of 'model.onnx'.*--input"),
        (FileInput("image", None, None), r"image=unknown\[…\].*--input"),
        (FileInput("image", np.dtype(np.uint16), (1, 3, 8, 8)), r"image=uint16\[1,3,8,8\].*no inputs of type uint16"),
    ],
)
def test_what_cannot_be_made_is_told_with_its_type_and_shape(item: FileInput, told: str) -> None:
    with pytest.raises(InputError, match=told):
        make(Images(), item)


def test_an_input_for_which_forward_has_no_argument_is_told() -> None:
    items = [FileInput(name, FLOAT, ("n", 2)) for name in ("image", "scale", "past.0.key")]
    with pytest.raises(InputError, match=r"past\.0\.key=float32\[n,2\].*forward has no argument for it"):
        make(Images(), *items)


# -- with files -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def older_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small BERT and a file of it that takes two of its three usual inputs."""
    folder = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    model.save_pretrained(folder)
    ids = torch.randint(5, 40, (1, 6))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with quiet():
        hieronnx.export(
            model,
            (),
            folder / "old.onnx",
            inputs,
            exporter="torchscript",
            embed=False,
            sidecar=False,
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in inputs},
        )
    return folder


def test_a_file_that_takes_less_than_the_model_can_is_fed_what_it_takes(older_bert: Path) -> None:
    model = transformers.BertModel.from_pretrained(older_bert).eval()
    found = hieronnx.annotate(older_bert / "old.onnx", model)
    assert found.hierarchy.coverage() > 0.95
    assert found.outputs is not None
    assert found.outputs < 1e-4


def test_the_command_needs_no_inputs_for_it(older_bert: Path, tmp_path: Path) -> None:
    result = run("annotate", str(older_bert / "old.onnx"), "--model", str(older_bert), "-o", str(tmp_path / "new.onnx"))
    assert result.exit_code == 0, result.output
    assert hieronnx.load(tmp_path / "new.onnx").coverage() > 0.95
