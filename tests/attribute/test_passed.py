"""What calls received and returned is found by value in files without names: each tensor is the very one, or none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from benchmarks.anonymize import anonymize_file
from torch import Tensor, nn

import hieronnx
from hieronnx.hierarchy.records import CallId
from support.boundaries import Boundaries, check_boundaries
from support.exports import exported, feeds_of, quiet
from support.extracted import PartCheck
from support.marks import over
from support.passing import MODELS, Affine, X
from support.transformations import transform
from support.zoo import CASES

BOTH = ("dynamo", "torchscript")
both_exporters = pytest.mark.parametrize("exporter", BOTH)


def annotate_bare(model: nn.Module, args: tuple[Any, ...], folder: Path, exporter: str = "torchscript") -> Path:
    """Export a model, take all names from the file, and annotate it; return the file."""
    with quiet():
        torch.onnx.export(model.eval(), args, str(folder / "named.onnx"), dynamo=exporter == "dynamo")
        anonymize_file(folder / "named.onnx", folder / "bare.onnx")
        hieronnx.annotate(folder / "bare.onnx", model, args, output=folder / "annotated.onnx")
    return folder / "annotated.onnx"


def find_passed(path: Path) -> dict[str, tuple[list[str | None], list[str | None]]]:
    """Return by call the tensors that it received and returned."""
    return {
        str(call.id): ([i.tensor for i in call.received or ()], [i.tensor for i in call.returned or ()])
        for call in hieronnx.load(path).calls
    }


# -- all ways to hand tensors over ------------------------------------------------------------------------------

# Tensors that the file does not have, or has in another order. Of memory that is written to through another tensor the
# TorchScript exporter knows nothing: that file computes something else.
ABSENT: Mapping[str, set[str]] = {
    "Extremes": {"both gives 1"},
    "Gives": {"takes gives parts.0"},
    "Alias-torchscript": {
        " gives ",
        "inner gives ",
        "inner.linear gives ",
        "inner@1 takes x",
        "inner@1 gives ",
        "inner.linear@1 takes input",
        "inner.linear@1 gives ",
    },
    "Cancelled": {"there gives ", "back takes x"},
}


@pytest.mark.parametrize(
    ("name", "exporter"),
    [(name, exporter) for name in MODELS for exporter in BOTH if (name, exporter) != ("Branches", "torchscript")],
)  # TorchScript traces no torch.cond
def test_tensors_are_those_that_the_calls_received_and_returned(name: str, exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = MODELS[name]().eval()
    found = check_boundaries(annotate_bare(model, (X.clone(),), tmp_path, exporter), model, (X.clone(),), {})
    assert found.right
    assert found.wrong == found.missing == found.unrecorded == []
    assert set(found.absent) == ABSENT.get(f"{name}-{exporter}", ABSENT.get(name, set()))


# -- the zoo ----------------------------------------------------------------------------------------------------

EXPORTS = [(name, exporter) for name, case in CASES.items() for exporter in case.exporters]
QUICK = """
    bert called_in_loop cond conv_batch_norm_residual in_place_ops input_as_output llama_with_past mask_in_every_layer
    returns_nested shared_under_two_names unused_input while_loop
"""
# What the export knows and values do not tell: numbers that are all the same.
UNTOLD = {"roberta": 1, "t5-dynamo": 9}


def check_zoo(name: str, exporter: str, folder: Path) -> Boundaries:
    case, known = CASES[name], exported(name, exporter)
    anonymize_file(known.result.path, folder / "bare.onnx")
    hieronnx.annotate(folder / "bare.onnx", known.model, case.args(), case.kwargs(), output=folder / "annotated.onnx")
    return check_boundaries(folder / "annotated.onnx", known.model, case.args(), case.kwargs())


@over(EXPORTS, QUICK.split())
def test_as_much_is_found_by_value_as_export_records(name: str, exporter: str, tmp_path: Path) -> None:
    case, known = CASES[name], exported(name, exporter)
    found = check_zoo(name, exporter, tmp_path)
    assert found.wrong == found.missing == []
    recorded = check_boundaries(known.result.path, known.model, case.args(), case.kwargs())
    assert found.right >= recorded.right - UNTOLD.get(f"{name}-{exporter}", UNTOLD.get(name, 0))


# -- values that are equal, and values that say little ----------------------------------------------------------


class Pair(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left.sin() - right.cos()


class EqualBranches(nn.Module):
    """Two modules with the same weights compute the same from one input, and a third takes both."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.pair = Affine(), Affine(), Pair()
        self.right.load_state_dict(self.left.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        return self.pair(self.left(x), self.right(x))


def test_of_equal_tensors_each_call_has_its_own(tmp_path: Path) -> None:
    passed = find_passed(annotate_bare(EqualBranches(), (X,), tmp_path))
    (_, [left]), (_, [right]), (received, _) = passed["left"], passed["right"], passed["pair"]
    assert None not in (left, right)
    assert left != right
    assert received == [left, right]


class Doubles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class EqualInside(nn.Module):
    """Doubles a tensor twice, and hands on the second one alone: both are equal, and who reads them tells."""

    def __init__(self) -> None:
        super().__init__()
        self.doubles, self.pair = Doubles(), Pair()

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.doubles(x), self.doubles(x)
        return self.pair(second, x) + first.exp()


def test_of_equal_tensors_a_call_received_the_one_that_it_reads(tmp_path: Path) -> None:
    path = annotate_bare(EqualInside(), (X,), tmp_path)
    (sine,) = (node for node in onnx.load(path).graph.node if node.op_type == "Sin")
    assert find_passed(path)["pair"][0][0] == sine.input[0]


class Extends(nn.Module):
    """A child that is given no rows, and returns them beside the others."""

    class Joins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
            return torch.cat([self.linear(x), more]).sin(), more

    def __init__(self) -> None:
        super().__init__()
        self.joins, self.makes = self.Joins(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        joined, more = self.joins(x, self.makes(x[2:]))
        return torch.cat([joined.cos(), more])


@both_exporters
def test_a_tensor_without_elements_is_no_tensor_of_the_file(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = annotate_bare(Extends(), (torch.randn(2, 8),), tmp_path, exporter)
    for tensors in find_passed(path)["joins"]:
        assert [tensor is None for tensor in tensors] == [False, True]
    assert hieronnx.validate(path).passed


class Positions(nn.Module):
    """Hands counts, a mask and numbers that are all the same to modules."""

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4)

        def forward(self, positions: Tensor) -> Tensor:
            return self.table(positions)

    class Hides(nn.Module):
        def forward(self, x: Tensor, mask: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
            return torch.where(mask, x, x - 3) * scale + offset

    def __init__(self) -> None:
        super().__init__()
        self.looks, self.hides = Positions.Looks(), Positions.Hides()
        self.register_buffer("positions", torch.arange(5)[None])
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.register_buffer("offset", torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        looked = x + self.looks(self.positions + (x[..., 0] > 99))
        return self.hides(looked, x[..., :1] > 0, self.scale, self.offset)


@both_exporters
def test_values_that_say_little_are_told_by_their_place_or_not_at_all(exporter: str, tmp_path: Path) -> None:
    x = torch.linspace(-1, 2, 20).reshape(1, 5, 4)
    torch.manual_seed(1)
    model = Positions().eval()
    path = annotate_bare(model, (x,), tmp_path, exporter)
    passed = find_passed(path)
    assert passed["looks"][0] == passed["looks.table"][0] != [None]
    x_name, mask, scale, offset = passed["hides"][0]
    assert None not in (x_name, mask)
    assert scale is offset is None
    assert not check_boundaries(path, model, (x,), {}).wrong


# -- files in other precisions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["ort-extended", "ort-all", "fp16", "int8-dynamic", "int8-static", "int8-operators"])
@pytest.mark.parametrize(("name", "exporter"), [("bert", "dynamo"), ("resnet", "torchscript")])
def test_files_of_other_tools_have_what_carry_finds_there(name: str, exporter: str, tool: str, tmp_path: Path) -> None:
    """Carry goes by names; here it is the tensor of the same name, or one that it is turned into and back from."""
    case, known = CASES[name], exported(name, exporter)
    made, bare = tmp_path / "made.onnx", tmp_path / "bare.onnx"
    transform(tool, known.result.path, made, feeds_of(name, exporter))
    anonymize_file(made, bare)
    found = hieronnx.annotate(bare, known.model, case.args(), case.kwargs()).hierarchy
    carried = hieronnx.carry(known.result.path, made).hierarchy.call_by_id
    named = onnx.load(made, load_external_data=False)
    names = dict(zip(_list_names(onnx.load(bare, load_external_data=False)), _list_names(named), strict=True))
    bound = 0
    for call in found.calls:
        for end in ("received", "returned"):
            truth = {item.name: item.tensor for item in getattr(carried[call.id], end)}
            for item in getattr(call, end):
                if item.tensor is not None and truth[item.name] is not None:
                    plain = names[item.tensor].removesuffix("_DequantizeLinear_Output")
                    assert truth[item.name].removesuffix("_DequantizeLinear_Output") == plain
                    bound += 1
    assert bound >= (20 if name == "resnet" and tool in ("ort-all", "int8-operators") else 70) - 12


def _list_names(model: onnx.ModelProto) -> list[str]:
    graph = model.graph
    nodes = (name for node in graph.node for name in (*node.input, *node.output))
    return [*(value.name for value in (*graph.input, *graph.output, *graph.initializer)), *nodes]


@pytest.mark.parametrize("form", ["int8-static", "int8-operators"])
def test_a_tensor_in_few_bits_is_not_what_a_call_passed_on(form: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh()).eval()
    x = torch.randn(16, 8)
    with quiet():
        torch.onnx.export(model, (x,), str(tmp_path / "model.onnx"), dynamo=False, input_names=["x"])
        transform(form, tmp_path / "model.onnx", tmp_path / "made.onnx", {"x": x.numpy()})
        found = hieronnx.annotate(tmp_path / "made.onnx", model, (x,)).hierarchy
    inferred = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "made.onnx")).graph
    types = {value.name: value.type.tensor_type.elem_type for value in inferred.value_info}
    bound = {item.tensor for call in found.calls for item in (*(call.received or ()), *(call.returned or ()))}
    assert len(bound - {None}) >= 2
    assert {types.get(name, 1) for name in bound - {None}} == {onnx.TensorProto.FLOAT}


class AddsLittle(nn.Module):
    """Adds less to its input than half precision shows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(16, 16), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x + 1e-4 * torch.tanh(self.linear(x)))


def test_values_that_less_precision_makes_one_are_not_taken_for_each_other(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*(AddsLittle() for _ in range(4)), nn.Linear(16, 4)).eval(), torch.randn(4, 8, 16)
    with quiet():
        known = hieronnx.export(model, (x,), tmp_path / "model.onnx", exporter="torchscript").hierarchy
    transform("fp16", tmp_path / "model.onnx", tmp_path / "made.onnx", {})
    found = hieronnx.annotate(tmp_path / "made.onnx", model, (x,)).hierarchy
    compared = [
        (item.tensor, true.tensor)
        for call in found.calls
        for end in ("received", "returned")
        for item, true in zip(getattr(call, end), getattr(known.call_by_id[call.id], end), strict=True)
    ]
    assert {(ours, theirs) for ours, theirs in compared if ours not in (None, theirs)} == set()
    assert any(ours is not None for ours, _ in compared)


# -- what the other tools make of it ----------------------------------------------------------------------------


def test_without_running_anything_nothing_is_known(tmp_path: Path) -> None:
    path = exported("two_module_lists", "dynamo").result.path
    found = hieronnx.annotate(path, CASES["two_module_lists"].build(), strategy="usage_based").hierarchy
    assert all(call.received is None and call.returned is None for call in found.calls)


def test_what_is_written_is_what_was_found(tmp_path: Path) -> None:
    case, known = CASES["returns_nested"], exported("returns_nested", "dynamo")
    anonymize_file(known.result.path, tmp_path / "bare.onnx")
    found = hieronnx.annotate(tmp_path / "bare.onnx", known.model, case.args(), case.kwargs()).hierarchy
    for options in ({"sidecar": False}, {"embed": False}):
        output = tmp_path / f"{next(iter(options))}.onnx"
        hieronnx.annotate(tmp_path / "bare.onnx", known.model, case.args(), case.kwargs(), output=output, **options)
        loaded = hieronnx.load(output)
        assert [(c.received, c.returned) for c in loaded.calls] == [(c.received, c.returned) for c in found.calls]


def test_verify_blames_the_call_that_differs(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = MODELS["PassedOn"]().eval()
    path = annotate_bare(model, (X,), tmp_path)
    right = hieronnx.verify(path, model, (X,))
    assert right.passed
    assert {"", "inner", "inner.linear"} <= {call.module for call in right.calls}
    with torch.no_grad():
        model.inner.linear.bias += 0.1
    wrong = hieronnx.verify(path, model, (X,))
    assert [culprit.module for culprit in wrong.culprits] == ["inner.linear"]


@over(
    [pair for pair in EXPORTS if pair[0] not in ("mamba", "while_loop")], ["called_in_loop", "cond", "returns_nested"]
)
def test_parts_of_an_annotated_file_give_what_their_calls_returned(name: str, exporter: str, tmp_path: Path) -> None:
    """Not where one body of a loop is that of several calls, nor where a cast that does nothing is in a call above."""
    case, known = CASES[name], exported(name, exporter)
    check_zoo(name, exporter, tmp_path)
    verdicts = PartCheck(tmp_path / "annotated.onnx", known.model, case.args(), case.kwargs()).check_all()
    assert verdicts.equal
    assert verdicts.wrong == {}


def test_a_part_has_the_arguments_of_its_call(tmp_path: Path) -> None:
    torch.manual_seed(1)
    path = annotate_bare(MODELS["Gives"]().eval(), (X,), tmp_path)
    part = hieronnx.extract(path, "takes", output=tmp_path / "part.onnx")
    assert part.recorded
    assert [item.arguments for item in part.inputs] == [("x", "rest.1"), ("y", "rest.0"), ("pair.0",), ("pair.1.deep",)]
    assert not part.undeclared_inputs


def test_calls_in_a_loop_tell_nothing(tmp_path: Path) -> None:
    found = check_zoo("while_loop", "dynamo", tmp_path)
    calls = hieronnx.load(tmp_path / "annotated.onnx").call_by_id
    assert calls[CallId("block", 0)].received is calls[CallId("block", 0)].returned is None
    assert found.right == 2


class Unread(nn.Module):
    """What `pooler` is given is gone from the file with it; `head` makes the same for itself, later."""

    def __init__(self) -> None:
        super().__init__()
        self.pooler, self.head = nn.Linear(4, 4), First()

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sin(x)
        self.pooler(hidden[:, 0])
        return self.head(hidden)


class First(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x[:, 0])


@both_exporters
def test_what_a_later_call_makes_was_not_received_by_an_earlier_one(exporter: str, tmp_path: Path) -> None:
    path = annotate_bare(Unread(), (torch.randn(2, 5, 4),), tmp_path, exporter)
    assert find_passed(path)["pooler"] == ([None], [None])
    assert hieronnx.validate(path).passed


class Pools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = Affine()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.linear(x))
        return y, y.mean(1)


class PoolsAgain(nn.Module):
    """Computes by itself what a module returned as well, and leaves that unread."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Pools(), Affine()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0].mean(1))


@both_exporters
def test_what_is_computed_after_a_call_was_not_returned_by_it(exporter: str, tmp_path: Path) -> None:
    path = annotate_bare(PoolsAgain(), (torch.randn(2, 5, 4),), tmp_path, exporter)
    received, returned = find_passed(path)["body"]
    assert None not in received
    assert [name is None for name in returned] == [False, True]
    assert hieronnx.validate(path).passed
