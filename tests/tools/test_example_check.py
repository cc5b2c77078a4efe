"""An export is run on its example: a file that gives something else than the model is no silent success.

Nor is one that is right called wrong: not for chance, noise, numbers that are none, or what ONNX Runtime lacks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hieronnx
from support.cli import run
from support.exports import quiet

BOTH = ["dynamo", "torchscript"]
X = torch.linspace(-2, 2, 24).reshape(3, 8)


def export(model: nn.Module, folder: Path, *args: Any, **options: Any) -> hieronnx.ExportResult:
    with quiet():
        return hieronnx.export(model, args or (X,), folder / "m.onnx", **{"check": True, **options})


def is_exported(x: Tensor) -> bool:
    """Say whether an exporter runs the model: torch.export does so without values."""
    return torch.jit.is_tracing() or type(x).__name__ == "FakeTensor"


# --- wrong files ---


class Pads(nn.Module):
    """Pads to the longest text; where it is exported, to another length."""

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        longest = 4 if is_exported(x) else int(lengths.max())
        return x[:, :longest]


class Scales(nn.Module):
    """One number of many is another in the file."""

    def forward(self, x: Tensor) -> Tensor:
        factor = torch.ones(8)
        if is_exported(x):
            factor = torch.tensor([1, 1, 1, 1, 1, 1, 1, 1.1])
        return x * factor


class Divides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / (0.0 if is_exported(x) else 1.0)


@pytest.mark.parametrize("exporter", BOTH)
@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Scales().eval(), "output 'output' is 10% of its largest number off PyTorch's"),
        (Divides().eval(), "output 'output' is no number where PyTorch gives one"),
    ],
    ids=["values", "no number"],
)
def test_a_file_that_gives_something_else_is_told(
    model: nn.Module, words: str, exporter: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = export(model, tmp_path, exporter=exporter)
    assert result.problem == words
    assert result.to_dict()["problem"] == words
    assert f"the file is wrong, on the example inputs already: {words}; another --exporter" in caplog.text
    assert result.path.is_file()
    for check in (False, None):  # nobody waits for a run without need
        assert export(model, tmp_path, exporter=exporter, check=check).problem is None


def test_a_file_that_gives_another_shape_is_told(tmp_path: Path) -> None:
    result = export(Pads(), tmp_path, X, torch.tensor([3, 8, 5]), exporter="torchscript")
    assert result.problem == "output 'output' has the shape [3, 4], and PyTorch's is [3, 8]"


def test_a_file_that_does_not_run_is_told(tmp_path: Path) -> None:
    from onnxscript import opset18

    def translate(x: Any) -> Any:
        return opset18.Reshape(x, opset18.Constant(value_ints=[7, 7]))

    table = {torch.ops.aten.relu.default: translate}
    result = export(nn.ReLU().eval(), tmp_path, exporter="dynamo", custom_translation_table=table)
    assert "PyTorch runs, and ONNX Runtime does not" in str(result.problem)


def test_axes_are_not_asked_about_in_a_wrong_file(tmp_path: Path) -> None:
    result = export(Scales(), tmp_path, exporter="torchscript", dynamic_shapes={"x": {0: "rows"}})
    assert result.axes == hieronnx.AxesCheck(not_checked="the file is wrong at the example's sizes already")


class Normalizes(nn.Module):
    """Takes another mean in training mode; dynamo writes it as in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(8, 8, 1), nn.BatchNorm1d(8, momentum=0.5)
        nn.init.constant_(self.norm.running_mean, 3.0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.conv(x))
        return y


def test_values_are_compared_in_training_mode_where_nothing_is_drawn(tmp_path: Path) -> None:
    model = Normalizes().train()
    before = {name: tensor.clone() for name, tensor in model.named_buffers()}
    result = export(model, tmp_path, X.reshape(1, 8, 3).repeat(2, 1, 1), exporter="dynamo", train=True)
    assert "of its largest number off PyTorch's" in str(result.problem)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_buffers())


@pytest.mark.parametrize("exporter", BOTH)
def test_it_is_said_where_values_were_not_compared(
    exporter: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = "numbers are drawn at random: of the example's outputs shapes were compared, and no values"
    export(Drops().train(), tmp_path, exporter=exporter, train=True)
    assert said in caplog.text
    caplog.clear()
    export(Drops().eval(), tmp_path, exporter=exporter)
    assert said not in caplog.text


NET = """
import torch
from torch import nn


class Net(nn.Module):
    example_inputs = (torch.ones(3, 8),)

    def forward(self, x):
        return x * (2 if torch.onnx.is_in_onnx_export() else 1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(tmp_path)
    Path("net.py").write_text(NET)
    yield
    os.chdir(before)


@pytest.mark.parametrize("options", [("--check",), ("--dynamic", "x:0=rows")], ids=["fixed", "dynamic"])
def test_the_command_exits_with_1(options: tuple[str, ...], folder: None) -> None:
    command = ("export", "net.py:Net", "-o", "net.onnx", "--exporter", "torchscript", *options)
    result = run(*command)
    assert result.exit_code == 1
    assert "the file is wrong, on the example inputs already: output 'output' is 100% " in result.stderr
    assert "example inputs: the file is wrong: output 'output' is 100% " in result.stdout
    assert run(*command, "--no-check").exit_code == 0


# --- right files ---


class Draws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 100 * torch.rand_like(x)


class DrawsInPython(nn.Module):
    """Draws what the trace takes for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x * float(torch.rand(()))


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.dropout(self.norm(x))
        return y


class HasNoNumbers(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.log(x), x.masked_fill(x > 0, torch.finfo(x.dtype).min)


class Logistic(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 3.99 * x * (1 - x)


class Chaos(nn.Module):
    """Makes everything of the last bit of a number."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Sequential(nn.Sigmoid(), *(Logistic() for _ in range(60)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.steps(x)
        return y


class Ties(nn.Module):
    """Chooses among what is equal but for rounding."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.stack([(x * 0.1 + 0.2) * 3, x * 0.3 + 0.6, (x + 2) * 0.3])
        return y.argmax(0)


class Padded(nn.Module):
    """Has a fast path in PyTorch that gives zeros for padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.encoder(x, src_key_padding_mask=mask)
        return y


class Counts(nn.Module):
    """Writes to a buffer, its input, and returns both."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.count.add_(1)
        x.mul_(2)
        return self.count, x


class Deep(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(24))
        self.layers = nn.Sequential(*layers).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


MASK = torch.tensor([[False] * 4, [False] * 3 + [True], [False, False, True, True]])
RIGHT: dict[str, tuple[Any, ...]] = {
    "random numbers": (Draws().eval(), X),
    "random numbers of a trace": (DrawsInPython().eval(), X),
    "training": (Drops().train(), X),
    "no numbers": (HasNoNumbers().eval(), X),
    "chaos": (Chaos().eval(), X),
    "ties": (Ties().eval(), X),
    "a fast path": (Padded().eval(), torch.randn(3, 4, 8), MASK),
    "written buffers": (Counts().eval(), X.clone()),
    "a deep model": (Deep(torch.float32).eval(), X),
    "half precision": (Deep(torch.float16).eval(), X.half()),
    "bfloat16": (Deep(torch.bfloat16).eval(), X.bfloat16()),
}


@pytest.mark.parametrize("exporter", BOTH)
@pytest.mark.parametrize("case", RIGHT)
def test_a_right_file_is_not_called_wrong(
    case: str, exporter: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, *args = RIGHT[case]
    with caplog.at_level(logging.WARNING, logger="hieronnx"):
        try:
            result = export(model, tmp_path, *args, exporter=exporter, train=case == "training")
        except hieronnx.HieronnxError:
            pytest.skip("torch cannot export it")
    assert result.problem is None
    assert "the file is wrong" not in caplog.text


class Picky(nn.Module):
    """Takes whole numbers only, as floats, and gives something else in the file."""

    def forward(self, x: Tensor) -> Tensor:
        if not is_exported(x) and not bool((x == x.round()).all()):
            raise ValueError("whole numbers only")
        return x * (2 if is_exported(x) else 1)


def test_a_model_that_bears_no_noise_is_compared_without(tmp_path: Path) -> None:
    problem = export(Picky().eval(), tmp_path, X.round(), exporter="torchscript").problem
    assert problem == "output 'output' is 100% of its largest number off PyTorch's"
