"""validate with a model in PyTorch: what one of the two does not have, what never ran, what is called otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hieronnx
from hieronnx.errors import InputError
from support.cli import run
from support.exports import exported, quiet

CASES = [
    ("shared_under_two_names", "dynamo"),
    ("nested_repeated_calls", "torchscript"),
    ("called_in_loop", "dynamo"),
    ("bert", "torchscript"),
    ("cond", "dynamo"),
]


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(torch.relu(self.linear(x)))


class Other(Cell):
    """Does the same under another name."""


class Net(nn.Module):
    def __init__(self, times: int = 2) -> None:
        super().__init__()
        self.cells = nn.ModuleList([Cell(), Cell()])
        self.spare = Cell()
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.cells[0](x)
        return self.cells[1](x)


INPUTS = (torch.ones(1, 4),)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("net") / "net.onnx"
    with quiet():
        hieronnx.export(Net().eval(), INPUTS, output, exporter="torchscript")
    return output


def found(path: Path, reference: nn.Module, *, run_it: bool = True) -> list[tuple[str, str, str]]:
    """Return severity, place and message of what a comparison with a model finds."""
    result = hieronnx.validate(path, reference=reference.eval(), args=INPUTS if run_it else ())
    return [(item.severity, item.place, item.message) for item in result if item.check == "model"]


@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_an_export_agrees_with_its_model(name: str, exporter: str) -> None:
    case = exported(name, exporter)
    options = {"args": case.case.args(), "kwargs": case.case.kwargs()}
    result = hieronnx.validate(case.result.path, strict=True, reference=case.model, **options)
    assert {item.severity for item in result} <= {"note"}, result.findings


@pytest.mark.parametrize("run_it", [True, False])
def test_what_never_ran_and_what_left_no_node_is_noted(path: Path, run_it: bool) -> None:
    calls, spare = found(path, Net(), run_it=run_it)
    assert spare[:2] == ("note", "module 'spare'")
    assert "this Cell never ran" in spare[2]
    assert "'/Net/Cell.spare'" in spare[2]
    assert calls[:2] == ("note", "calls")
    assert calls[2].startswith("the file has no node of 3 of 10: 'cells.0.dropout', 'cells.0.dropout@1'")


def test_modules_that_one_of_the_two_does_not_have_are_errors(path: Path) -> None:
    more, less = Net(), Net()
    more.extra = Cell()
    less.cells = nn.ModuleList([Cell()])
    assert [item[:2] for item in found(path, more, run_it=False) if item[0] == "error"] == [("error", "module 'extra'")]
    assert [item for item in found(path, less, run_it=False) if item[0] == "error"] == [
        ("error", "module 'cells.1'", "the file has this Cell, the model has no such module")
    ]


def test_another_class_is_an_error(path: Path) -> None:
    model = Net()
    model.cells[1] = Other()
    assert [item for item in found(path, model, run_it=False) if item[0] == "error"] == [
        ("error", "module 'cells.1'", "it is a Cell in the file, a Other in the model")
    ]


def test_calls_that_the_file_lacks_are_told_when_the_model_is_run(path: Path) -> None:
    assert [item for item in found(path, Net(times=3)) if item[0] == "warning"] == [
        ("warning", "module 'cells.0'", "the model calls it 3 times on these inputs, the file has it 2 times")
    ]
    assert not [item for item in found(path, Net(times=3), run_it=False) if item[0] == "warning"]


def test_metadata_alone_and_torchs_own_record_are_compared_as_far_as_they_go(path: Path, tmp_path: Path) -> None:
    inside = tmp_path / "inside.onnx"
    inside.write_bytes(path.read_bytes())
    assert {item[:2] for item in found(inside, Net())} == {("note", "calls"), ("note", "module 'spare'")}
    plain = tmp_path / "plain.onnx"
    with quiet():
        torch.onnx.export(Net().eval(), INPUTS, plain, dynamo=True, verbose=False)
    assert {item[0] for item in found(plain, Net(times=3))} == {"note"}  # it does not tell calls apart


def test_what_cannot_be_compared_is_refused(path: Path) -> None:
    with pytest.raises(InputError, match="it must be a torch"):
        hieronnx.validate(path, reference=Net)
    with pytest.raises(InputError, match="cannot be run on these inputs"):
        hieronnx.validate(path, reference=Net(), args=(torch.ones(3, 3),))


def test_the_command_runs_the_model(path: Path, tmp_path: Path) -> None:
    source = Path(__file__).read_text("utf-8").partition("INPUTS =")[0].replace("from support", "# ")
    (tmp_path / "net.py").write_text(source + "\n\nbuild = lambda: Net(times=3)\n")
    options = ("--model", f"{tmp_path / 'net.py'}:build")  # the file says what it takes
    result = run("validate", path, *options, "--json")
    assert result.exit_code == 0, result.output
    places = {(item["check"], item["place"], item["severity"]) for item in json.loads(result.stdout)["findings"]}
    assert ("model", "module 'cells.0'", "warning") in places
    assert run("validate", path, *options, "--strict").exit_code == 1
    assert run("validate", path, *options, "--input", "x=float32[3,4]").exit_code == 0  # other sizes than the file's
    assert run("validate", path, "--input", "x=float32[1,4]").exit_code == 2
