"""Who is suspected where the file tells less than the model did: lost arguments, merged work, sizes, other layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import hieronnx
from support.exports import quiet
from support.faults import find_faults

BOTH = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


def write(model: nn.Module, args: tuple[Any, ...], path: Path, exporter: str, **options: Any) -> Path:
    with quiet():
        hieronnx.export(model.eval(), args, path, exporter=exporter, **options)
    return path


def double(path: Path, output: Path, *modules: str) -> Path:
    """Double the largest weight that nodes of each module read."""
    model, hierarchy = onnx.load(path), hieronnx.load(path)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for module in modules:
        nodes = {node.output for node in hierarchy.nodes if node.scope.module == module}
        read = [n for node in model.graph.node if nodes & set(node.output) for n in node.input if n in weights]
        weight = weights[max(read, key=lambda name: np.prod(weights[name].dims))]
        weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), weight.name))
    onnx.save(model, output)
    return output


# -- another layout -------------------------------------------------------------------------------------------------


class Speech(nn.Module):
    """Hands a recurrent layer what a convolution gives, turned; the two Transposes of that become one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.rnn = nn.Conv1d(6, 8, 3, padding=1), nn.GRU(8, 5, batch_first=True)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.relu(self.conv(x)).transpose(1, 2)
        return self.head(self.rnn(turned)[0])


@BOTH
@pytest.mark.parametrize("altered", ["rnn", "conv"])
def test_an_argument_in_another_layout_is_known_by_its_numbers(exporter: str, altered: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Speech().eval(), torch.randn(2, 6, 9)
    path = write(model, (x,), tmp_path / "model.onnx", exporter)
    right = hieronnx.verify(path, model, (x,))
    assert right.passed
    assert {call.module for call in right.calls} == {"", "conv", "rnn", "head"}
    found = hieronnx.verify(double(path, tmp_path / "wrong.onnx", altered), model, (x,))
    assert [culprit.module for culprit in found.culprits] == [altered]


# -- what the reference did not give --------------------------------------------------------------------------------


class Looks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        if mask is not None:
            scores = scores + mask
        return torch.softmax(scores, -1) @ x


class Masks(nn.Module):
    """Leaves out a mask that hides nothing, which an exporter cannot know."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Looks(), Looks()])

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if torch.jit.is_tracing() or torch.compiler.is_compiling() or not bool(mask.all()):
            given = ((1.0 - mask.float()) * -1e4).clamp(-9e3, 0.0)[:, None, :]
        else:
            given = None
        for layer in self.layers:
            x = layer(x, given)
        return x


@BOTH
def test_what_the_reference_leaves_out_comes_with_others(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args = Masks().eval(), (torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.long))
    path = write(model, args, tmp_path / "model.onnx", exporter)
    right = hieronnx.verify(path, model, args)
    assert right.passed
    assert {"layers.0", "layers.1"} <= {call.module for call in right.calls}  # with the mask that is made for them
    # The mask is made wrong: no layer is, though both give something wrong.
    wrong = onnx.load(path)
    (product,) = [node for node in wrong.graph.node if node.op_type == "Sub"]
    product.input[0] = "ones"
    wrong.graph.initializer.append(numpy_helper.from_array(np.float32([1, 1, 1, 1, 1.001]), "ones"))
    onnx.save(wrong, tmp_path / "wrong.onnx")
    found = hieronnx.verify(tmp_path / "wrong.onnx", model, args)
    assert [culprit.module for culprit in found.culprits] == [""]
    reasons = {call.module: call.reason for call in found.skipped}
    assert "the reference gives it no 'mask' on these inputs" in reasons["layers.0"]


@BOTH
def test_a_call_that_cannot_be_compared_is_named_by_its_nodes(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args = Masks().eval(), (torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.long))
    path = write(model, args, tmp_path / "model.onnx", exporter)
    altered = onnx.load(path)
    softmax = [n for n, node in enumerate(altered.graph.node) if node.op_type == "Softmax"][1]
    next(f for f in find_faults(altered) if (f.kind, f.node) == ("softmax axis", softmax)).plant(altered)
    onnx.save(altered, tmp_path / "wrong.onnx")
    found = hieronnx.verify(tmp_path / "wrong.onnx", model, args, dump=tmp_path / "dump")
    assert [culprit.module for culprit in found.culprits] == ["layers.1"]
    assert "layers.1" in {call.module for call in found.skipped}
    (folder,) = (tmp_path / "dump").iterdir()
    assert {item.name for item in folder.iterdir()} >= {"part.onnx", "inputs.npz", "expected.npz", "reproduce.py"}


# -- the same work, once --------------------------------------------------------------------------------------------


class Turns(nn.Module):
    """Makes a table of its positions, as each of its kind does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        table = torch.sin(positions.float()[..., None] * torch.linspace(0.1, 1.0, 8))
        return self.inner(x) * table + x


class TurnsTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Turns(), Turns()])

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        positions = ids.cumsum(-1) - 1
        for layer in self.layers:
            x = layer(x, positions + 0)
        return x


@BOTH
def test_work_that_is_done_once_for_several_is_each_ones(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args = TurnsTwice().eval(), (torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.long))
    path = write(model, args, tmp_path / "model.onnx", exporter)
    right = hieronnx.verify(path, model, args)
    assert right.passed
    assert {"layers.0", "layers.1"} <= {call.module for call in right.calls}
    found = hieronnx.verify(double(path, tmp_path / "wrong.onnx", "layers.1.inner"), model, args)
    assert [culprit.module for culprit in found.culprits] == ["layers.1.inner"]


@BOTH
def test_of_those_whose_work_is_done_once_the_first_is_blamed(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args = TurnsTwice().eval(), (torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.long))
    altered = onnx.load(write(model, args, tmp_path / "model.onnx", exporter))
    (node,) = [node for node in altered.graph.node if node.op_type == "Sin"]
    node.op_type = "Cos"
    onnx.save(altered, tmp_path / "wrong.onnx")
    (culprit,) = hieronnx.verify(tmp_path / "wrong.onnx", model, args).culprits
    assert (culprit.module, [call.module for call in culprit.fused_with]) == ("layers.0", ["layers.1"])


# -- sizes ----------------------------------------------------------------------------------------------------------


class Heads(nn.Module):
    """Divides into heads by sizes that it takes of what it is given: both layers read the same."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        count, length = x.shape[:2]
        heads = self.mix(x).reshape(count, length, 2, 4).transpose(1, 2)
        mixed = torch.softmax(heads @ heads.transpose(2, 3), -1) @ heads
        return mixed.transpose(1, 2).reshape(count, length, 8) + x


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Heads(), Heads()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@BOTH
def test_sizes_that_two_share_hide_neither(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = TwoHeads().eval(), torch.randn(2, 5, 8)
    axes = {"x": {0: "batch", 1: "length"}}
    path = write(model, (x,), tmp_path / "model.onnx", exporter, dynamic_axes=axes)
    altered = onnx.load(path)
    for fault in [f for f in find_faults(altered) if f.kind == "softmax axis"]:
        fault.plant(altered)
    onnx.save(altered, tmp_path / "wrong.onnx")
    found = hieronnx.verify(tmp_path / "wrong.onnx", model, (x,))
    assert {culprit.module for culprit in found.culprits} == {"layers.0", "layers.1"}


# -- where ----------------------------------------------------------------------------------------------------------


class Row(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), Row()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_it_is_told_where_a_tensor_differs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Rows().eval(), torch.randn(3, 5, 4)
    path = write(model, (x,), tmp_path / "model.onnx", "torchscript")
    altered = onnx.load(path)
    (product,) = [node for node in altered.graph.node if node.op_type == "Mul"]
    factor = np.full((3, 5, 1), 2.0, np.float32)
    factor[1, 2:4] = 3.0
    product.input[1] = "factor"
    altered.graph.initializer.append(numpy_helper.from_array(factor, "factor"))
    onnx.save(altered, tmp_path / "wrong.onnx")
    (culprit,) = hieronnx.verify(tmp_path / "wrong.onnx", model, (x,)).culprits
    assert (culprit.module, culprit.worst.where) == ("second", "1, 2:4, :")


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).square().mean()


def test_a_single_number_can_be_wrong(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Mean().eval(), torch.randn(3, 4)
    path = write(model, (x,), tmp_path / "model.onnx", "torchscript")
    assert hieronnx.verify(path, model, (x,)).passed
    found = hieronnx.verify(double(path, tmp_path / "wrong.onnx", "inner"), model, (x,))
    assert [culprit.module for culprit in found.culprits] == ["inner"]
    assert found.outputs[0].where == ""


# -- noise that hides -----------------------------------------------------------------------------------------------


class Angles(nn.Module):
    """Makes angles of positions that its caller counts; its first step becomes one with the last of that."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.tensor([1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003]))

    def forward(self, positions: Tensor) -> Tensor:
        return torch.cos(positions[:, None, :].float() * self.frequencies[:, None]).transpose(1, 2)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor, angles: Tensor, mask: Tensor) -> Tensor:
        x = self.inner(x + 1e-3 * angles)
        return torch.softmax((x @ x.transpose(1, 2)).masked_fill(mask, -1e4), -1) @ x


class Decodes(nn.Module):
    """Counts positions, and makes a mask of the same."""

    def __init__(self) -> None:
        super().__init__()
        self.angles, self.first, self.second = Angles(), Attends(), Attends()

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[1])
        angles, mask = self.angles(steps[None]), steps > steps[:, None]
        return self.second(self.first(x, angles, mask), angles, mask)


@BOTH
@pytest.mark.parametrize("tool", ["none", "dynamic", "int4", "fp16"])
def test_nobody_is_cleared_by_noise_that_hides_a_wrong_tensor(exporter: str, tool: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Decodes().eval(), torch.randn(2, 6, 8)
    axes = {"x": {0: "batch", 1: "length"}}
    path = right = write(model, (x,), tmp_path / "model.onnx", exporter, dynamic_axes=axes)
    if tool != "none":
        right = tmp_path / f"{tool}.onnx"
        hieronnx.quantize(path, output=right, tool=tool)
    assert hieronnx.verify(right, path).culprits == ()
    wrong = double(right, tmp_path / "wrong.onnx", "angles")
    assert [culprit.module for culprit in hieronnx.verify(wrong, path).culprits] == ["angles"]


# -- noise that is drawn --------------------------------------------------------------------------------------------


class Flags(nn.Module):
    """Compares its second input with numbers, which a rounding must not carry it across."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, flags: Tensor) -> Tensor:
        return self.inner(x) * (flags == 1) + x[flags[:, 0].long()]


@BOTH
def test_numbers_that_are_compared_are_no_noise(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args = Flags().eval(), (torch.randn(3, 4), torch.tensor([[1.0] * 4, [0.0] * 4, [2.0] * 4]))
    path = write(model, args, tmp_path / "model.onnx", exporter)
    assert hieronnx.verify(path, model, args).passed
    altered = onnx.load(path)
    for tensor in altered.graph.initializer:  # little enough to seem to be chance
        if list(tensor.dims) == [4, 4]:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.00001), tensor.name))
    onnx.save(altered, tmp_path / "wrong.onnx")
    found = hieronnx.verify(tmp_path / "wrong.onnx", model, args)
    assert [culprit.module for culprit in found.culprits] == ["inner"]


# -- several samples ------------------------------------------------------------------------------------------------


def test_a_call_that_cannot_be_told_on_one_sample_is_not_right_on_all(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args = Masks().eval(), (torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.long))
    path = write(model, args, tmp_path / "model.onnx", "torchscript")
    altered = onnx.load(path)
    softmax = [n for n, node in enumerate(altered.graph.node) if node.op_type == "Softmax"][1]
    next(f for f in find_faults(altered) if (f.kind, f.node) == ("softmax axis", softmax)).plant(altered)
    onnx.save(altered, tmp_path / "wrong.onnx")
    # On the first sample all rows are the same, so that it makes no difference along which axis they are weighed.
    x = torch.stack([torch.ones(2, 5, 8), args[0]]).numpy()
    inputs = {"x": x, "mask": np.ones((2, 2, 5), np.int64)}
    assert hieronnx.verify(tmp_path / "wrong.onnx", model, inputs={name: a[:1] for name, a in inputs.items()}).passed
    found = hieronnx.verify(tmp_path / "wrong.onnx", model, inputs=inputs)
    assert [(culprit.module, culprit.worst.sample) for culprit in found.culprits] == [("layers.1", 1)]
    assert "layers.1" not in {call.module for call in found.calls}


# -- one argument for two -------------------------------------------------------------------------------------------


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), Pairs()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.second(h, h)


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.inner(a) * b


def test_an_argument_that_is_given_twice_is_given(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Twice().eval(), torch.randn(3, 4)
    path = write(model, (x,), tmp_path / "model.onnx", "torchscript")
    altered = onnx.load(path)
    product = next(node for node in altered.graph.node if node.op_type == "Mul")
    product.op_type = "Sub"
    onnx.save(altered, tmp_path / "wrong.onnx")
    found = hieronnx.verify(tmp_path / "wrong.onnx", model, (x,))
    assert [culprit.module for culprit in found.culprits] == ["second"]
    assert "second" in {call.module for call in found.calls}


# -- half precision beside single floats ----------------------------------------------------------------------------


def write_last_in_float(folder: Path) -> Path:
    """Write a model in half precision whose last module stays in float, and is rounded before it is given back."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 1))
    path = write(model, (torch.randn(1, 3, 16, 16),), folder / "float.onnx", "dynamo")
    options = {"keep_io_types": True, "exclude": ["2"]}
    hieronnx.quantize(path, output=folder / "half.onnx", tool="fp16", **options)
    return path


def test_nobody_is_blamed_for_a_float_module_whose_result_is_rounded_to_the_format_of_the_file(tmp_path: Path) -> None:
    path = write_last_in_float(tmp_path)
    assert "Cast" in [node.op_type for node in onnx.load(tmp_path / "half.onnx").graph.node][-2:]
    assert hieronnx.verify(tmp_path / "half.onnx", path).culprits == ()
    wrong = double(tmp_path / "half.onnx", tmp_path / "wrong.onnx", "2")
    assert [culprit.module for culprit in hieronnx.verify(wrong, path).culprits] == ["2"]


def test_a_rounding_in_the_middle_of_a_float_file_is_blamed(tmp_path: Path) -> None:
    path = write_last_in_float(tmp_path)
    model = onnx.load(path)
    last = model.graph.node[-1]
    name, last.output[0] = last.output[0], "wide"
    model.graph.node.append(onnx.helper.make_node("Cast", ["wide"], ["narrow"], to=onnx.TensorProto.FLOAT16))
    model.graph.node.append(onnx.helper.make_node("Cast", ["narrow"], [name], to=onnx.TensorProto.FLOAT))
    onnx.save(model, tmp_path / "rounded.onnx")
    assert [culprit.module for culprit in hieronnx.verify(tmp_path / "rounded.onnx", path).culprits] == ["2"]
