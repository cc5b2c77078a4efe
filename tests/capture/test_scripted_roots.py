"""Models that are TorchScript themselves: what torch exports is exported, every node in the module that made it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import hieronnx
from hieronnx.capture.inputs import make_inputs
from hieronnx.capture.specs import InputSpec
from support.exports import quiet
from support.valuecheck import check_values
from support.zoo import CASES
from support.zoo._case import randomise

WIDTH = 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.linear(x * 1.5))) + x


class RepeatedCalls(nn.Module):
    """One module in a loop, others from a list, a container that calls its children itself."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = Block()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.shared(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * 0.5


class ListsAlike(nn.Module):
    """Two lists whose modules have the same names and class, called by the same module."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([Block(), Block()])
        self.up = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for down in self.down:
            x = down(x)
        x = torch.sigmoid(x)
        for up in self.up:
            x = up(x)
        return x


class Methods(nn.Module):
    """Calls modules from a method of its own, and one that is two levels below."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def project(self, x: Tensor) -> Tensor:
        return torch.exp(self.linear(x)) - self.block.linear(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.block(x))


class Convolutions(nn.Module):
    """Normalizations that torch folds into what is before them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return torch.flatten(self.pool(self.body(x) + x), 1)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "repeated_calls": (RepeatedCalls, (2, WIDTH)),
    "lists_alike": (ListsAlike, (2, WIDTH)),
    "methods": (Methods, (2, WIDTH)),
    "convolutions": (Convolutions, (1, 2, 8, 8)),
}
MAKERS: dict[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "scripted": lambda model, _x: torch.jit.script(model),
    "traced": lambda model, x: torch.jit.trace(model, x),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return randomise(make()).eval(), torch.randn(shape)


def check_modules(eager: nn.Module, inputs: tuple[Any, ...], result: hieronnx.ExportResult) -> None:
    """Check each node by value against a plain run of the eager model; its calls are not told apart."""
    onnx.checker.check_model(result.path, full_check=True)
    numbers = range(4)
    attributed = {
        (node.graph, node.output): frozenset((call.module, n) for call in node.origins for n in numbers)
        for node in result.hierarchy.nodes
    }
    report = check_values(eager, inputs, {}, result.path, attributed)
    assert not report.wrong, report.summary()
    assert report.right


def export(model: nn.Module, inputs: tuple[Any, ...], path: Path) -> hieronnx.ExportResult:
    """Export through TorchScript, and check that torch alone writes the same graph."""
    with quiet():
        result = hieronnx.export(model, inputs, path, exporter="torchscript", verify_topology=True)
    assert result.topology is not None
    assert result.topology.same
    return result


@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.parametrize("name", MODELS)
def test_a_torchscript_root_is_attributed_as_its_modules_say(name: str, made: str, tmp_path: Path) -> None:
    eager, x = build(name)
    result = export(MAKERS[made](eager, x), (x,), tmp_path / "m.onnx")
    assert result.hierarchy.coverage() == 1.0
    assert {node.evidence for node in result.hierarchy.nodes} <= {"name", "parameter", "dataflow"}
    check_modules(eager, (x,), result)
    modules = {path for path, module in eager.named_modules() if not isinstance(module, nn.ModuleList)}
    assert {call.id.module for call in result.hierarchy.calls} == modules


@pytest.mark.parametrize("made", MAKERS)
def test_a_second_export_is_attributed_as_the_first(made: str, tmp_path: Path) -> None:
    eager, x = build("repeated_calls")
    model = MAKERS[made](eager, x)
    first, again = (export(model, (x,), tmp_path / f"{n}.onnx").hierarchy for n in range(2))  # torch inlines the model
    scopes = [[(node.op_type, node.scope, node.evidence) for node in found.nodes] for found in (first, again)]
    assert scopes[0] == scopes[1]


def test_modules_of_one_name_are_told_by_their_parameters(tmp_path: Path) -> None:
    eager, x = build("lists_alike")
    result = hieronnx.export(torch.jit.trace(eager, x), (x,), tmp_path / "m.onnx", exporter="torchscript")
    blocks = [f"{part}.{number}" for part in ("down", "up") for number in range(2)]
    for block in blocks:
        nodes = result.hierarchy.nodes_in(block)
        assert {node.op_type for node in nodes} >= {"Gemm", "LayerNormalization", "Tanh", "Add", "Mul"}
        assert {node.evidence for node in nodes if node.op_type == "Tanh"} == {"parameter"}


def test_a_traced_bert_has_the_scopes_of_its_modules(tmp_path: Path) -> None:
    case = CASES["bert"]
    model = case.build()
    inputs = tuple(case.kwargs().values())
    names = tuple(case.kwargs())
    wrapper = ByPosition(model, names).eval()
    with quiet():
        traced = torch.jit.trace(wrapper, inputs, strict=False)
        result = hieronnx.export(traced, inputs, tmp_path / "bert.onnx", exporter="torchscript")
    assert result.hierarchy.coverage() >= 0.97
    check_modules(wrapper, inputs, result)


class ByPosition(nn.Module):
    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *args: Tensor) -> Any:
        return self.model(**dict(zip(self.names, args, strict=True)))[0]


class InATuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm = Block(), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.norm(self.block(x)),)


@pytest.mark.parametrize("made", MAKERS)
def test_what_is_returned_in_a_tuple_is_of_the_module_that_made_it(made: str, tmp_path: Path) -> None:
    eager, x = randomise(InATuple()).eval(), torch.randn(2, WIDTH)
    result = export(MAKERS[made](eager, x), (x,), tmp_path / "m.onnx")
    last = result.hierarchy.nodes[-1]
    assert (last.op_type, str(last.scope), [str(origin) for origin in last.origins]) == (
        "LayerNormalization",
        "norm",
        ["norm"],
    )


def test_of_a_model_that_torch_cannot_export_the_error_is_what_torch_says(tmp_path: Path) -> None:
    eager, x = build("convolutions")
    optimized = torch.jit.optimize_for_inference(torch.jit.trace(eager, x))
    with quiet(), pytest.raises(hieronnx.HieronnxError, match="no ONNX for the operator aten::to_mkldnn"):
        hieronnx.export(optimized, (x,), tmp_path / "m.onnx", exporter="torchscript")


def test_inputs_by_keyword_take_their_places(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, scale: float = 2.0, y: Tensor | None = None) -> Tensor:
            return x * scale if y is None else x * scale + y

    x, y = torch.randn(2, 3), torch.randn(2, 3)
    model = torch.jit.script(Scaled().eval())
    result = hieronnx.export(model, (x,), tmp_path / "m.onnx", {"y": y}, exporter="torchscript")
    scale = np.array(2.0)  # torch makes an input of a number
    session = onnxruntime.InferenceSession(result.path)
    feeds = dict(zip([value.name for value in session.get_inputs()], (x.numpy(), scale, y.numpy()), strict=True))
    torch.testing.assert_close(torch.from_numpy(session.run(None, feeds)[0]), x * 2 + y)
    with pytest.raises(hieronnx.InputError, match="no argument by keyword 'z'; choose one of scale, y"):
        hieronnx.export(model, (x,), tmp_path / "m.onnx", {"z": y}, exporter="torchscript")


def test_inputs_are_made_by_the_names_of_a_traced_forward() -> None:
    eager, x = build("methods")
    made = make_inputs(torch.jit.trace(eager, x), [InputSpec("x", "float32", (2, WIDTH))])
    assert {name: tuple(tensor.shape) for name, tensor in made.items()} == {"x": (2, WIDTH)}


def test_a_frozen_model_is_exported_and_says_that_its_modules_are_gone(tmp_path: Path) -> None:
    eager, x = build("repeated_calls")
    result = export(torch.jit.freeze(torch.jit.script(eager)), (x,), tmp_path / "m.onnx")
    assert {node.evidence for node in result.hierarchy.nodes if node.op_type == "Gemm"} == {"root"}


def test_a_traced_module_inside_an_eager_one_is_told_by_its_parameters(tmp_path: Path) -> None:
    eager, x = build("methods")
    holder = nn.Sequential(nn.Linear(WIDTH, WIDTH), eager).eval()
    with quiet():
        model = nn.Sequential(holder[0], torch.jit.trace(eager, x)).eval()
        result = hieronnx.export(model, (x,), tmp_path / "m.onnx", exporter="dynamo", verify_topology=True)
    assert result.topology is not None
    assert result.topology.same
    by_parameter = {node.scope.module for node in result.hierarchy.nodes if node.evidence == "parameter"}
    owners = {f"1.{path}" for path, module in eager.named_modules() if module._parameters}
    assert by_parameter == owners
    numbers = range(4)
    above = {
        (node.graph, node.output): frozenset(
            (path, n) for path, _ in eager_scopes(holder, node.scope.module) for n in numbers
        )
        for node in result.hierarchy.nodes
    }
    assert not check_values(holder, (x,), {}, result.path, above).wrong


def eager_scopes(model: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    """Return a module, and for one whose inside was not seen also those below."""
    inside = [(name, module) for name, module in model.named_modules() if name == path or name.startswith(f"{path}.")]
    return inside if path == "1" else inside[:1]
