"""Trace-and-project: nodes get the call that made their values, with no names to go by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from benchmarks.anonymize import anonymize_file
from torch import Tensor, nn
from torch.nn import functional

from hieronnx.attribute.by_value.file_run import list_choices, name_arguments
from hieronnx.attribute.by_value.htp import attribute_htp
from hieronnx.attribute.by_value.trace import trace_runs, vary
from hieronnx.attribute.carried import carry_scopes
from hieronnx.attribute.request import Projected, Request
from hieronnx.capture.eager import log_eager
from hieronnx.errors import HieronnxError
from hieronnx.files.opening import open_model
from hieronnx.graph.building import view_model
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import Attribution, CallId
from hieronnx.runtime.inputs import FileInput, read_inputs
from support.exports import exported, quiet
from support.transformations import transform
from support.zoo import CASES


class Exported:
    """A module exported by the TorchScript exporter, all names taken from the file, and what `htp` says of it."""

    def __init__(self, model: nn.Module, args: tuple[Any, ...], folder: Path) -> None:
        torch.manual_seed(0)
        with quiet():
            torch.onnx.export(model.eval(), args, str(folder / "named.onnx"), dynamo=False)
        anonymize_file(folder / "named.onnx", folder / "bare.onnx")
        request = Request(open_model(folder / "bare.onnx"), model, args)
        self.view: View = request.view
        self.projected: Projected = attribute_htp(request)

    def all(self, op: str) -> list[Attribution | None]:
        """Return the attributions of an operator's nodes."""
        return [self.projected.nodes[n] for n, node in enumerate(self.view.nodes) if node.op == op]

    def scopes(self, op: str) -> list[str]:
        return [str(found.scope) for found in self.all(op) if found is not None]


class Scales(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Masks(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask[..., None]


class HidesNothing(nn.Module):
    """A product that changes nothing on the inputs given: only others show who made what."""

    def __init__(self) -> None:
        super().__init__()
        self.scales, self.masks, self.last = Scales(), Masks(), Scales()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.last(self.masks(self.scales(x), mask))


def test_a_mask_of_ones_does_not_hide_who_multiplied(tmp_path: Path) -> None:
    found = Exported(HidesNothing(), (torch.randn(2, 4, 6), torch.ones(2, 4)), tmp_path)
    assert found.scopes("Mul") == ["scales", "masks", "last"]
    assert [a.evidence for a in found.all("Mul") if a] == ["value"] * 3


class Turns(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(2, 6, 2, 2)


class TurnsAround(nn.Module):
    """The parent and its child move the same values, each in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.scales, self.turns = Scales(), Turns()

    def forward(self, x: Tensor) -> Tensor:
        return self.turns(self.scales(x).reshape(2, 4, 6)).permute(0, 2, 3, 1).tanh()


def test_who_moved_values_is_told_by_their_order_and_shape(tmp_path: Path) -> None:
    found = Exported(TurnsAround(), (torch.randn(8, 6),), tmp_path)
    assert found.scopes("Mul") == ["scales"]
    assert found.scopes("Reshape") == ["", "turns"]
    assert found.scopes("Transpose") == ["turns", ""]
    assert found.scopes("Tanh") == [""]


class Flattens(nn.Module):
    """The child computes in two axes and gives three; the parent makes them two again."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).flatten(0, 1).tanh()


def test_who_moved_values_is_not_who_computed_them_in_that_shape(tmp_path: Path) -> None:
    found = Exported(Flattens(), (torch.randn(2, 4, 6),), tmp_path)
    assert found.scopes("MatMul") == ["linear"]
    assert [*found.scopes("Flatten"), *found.scopes("Reshape")] == [""]


class Vanishes(nn.Module):
    """From here on all numbers are zero, and those of one operation are like those of any other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x - x).reshape(2, 2, 2, 6).transpose(1, 2).reshape(2, 4, 6))


def test_numbers_that_all_became_one_tell_nothing(tmp_path: Path) -> None:
    found = Exported(Vanishes(), (torch.randn(2, 4, 6),), tmp_path)
    assert set(found.scopes("Reshape")) <= {""}
    assert set(found.scopes("MatMul")) <= {"first", "second", ""}


class AddsNothing(nn.Module):
    """A bias of zeros is added in one child, and the next one multiplies by ones."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 6))
        self.linear, self.scales = nn.Linear(6, 6), Scales()
        nn.init.zeros_(self.linear.bias)
        nn.init.ones_(self.scales.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.scales(self.linear(torch.cat([self.token.expand(2, 1, 6), x], 1))).tanh()


def test_a_node_that_changes_nothing_belongs_to_who_read_its_operand(tmp_path: Path) -> None:
    found = Exported(AddsNothing(), (torch.randn(2, 4, 6),), tmp_path)
    assert found.scopes("MatMul") == found.scopes("Add") == ["linear"]
    assert found.scopes("Mul")[-1] == "scales"


class Rolls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = Scales()

    def forward(self, x: Tensor) -> Tensor:
        return torch.roll(self.scales(x), (1, 2), (0, 1)).tanh()


def test_numbers_in_another_order_belong_to_who_reordered_them(tmp_path: Path) -> None:
    found = Exported(Rolls(), (torch.randn(4, 6),), tmp_path)
    assert found.scopes("Mul") == ["scales"]
    assert set(found.scopes("Slice")) == set(found.scopes("Concat")) == {""}


class SharesWork(nn.Module):
    """Two children compute the same from one input, then each something of its own."""

    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = Scales()

        def forward(self, x: Tensor) -> Tensor:
            return self.scales(x.sigmoid())

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = SharesWork.Child(), SharesWork.Child()

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) - self.other(x)


def test_equal_values_go_to_the_call_whose_readers_have_them(tmp_path: Path) -> None:
    found = Exported(SharesWork(), (torch.randn(3, 6),), tmp_path)
    assert found.scopes("Mul") == ["one.scales", "other.scales"]
    assert found.scopes("Sigmoid") in (["one", "other"], ["one"])


def test_what_was_computed_twice_and_is_there_once_has_both_calls_as_origins(tmp_path: Path) -> None:
    found = Exported(SharesWork(), (torch.randn(3, 6),), tmp_path)
    (kept,) = found.all("Sigmoid")  # the exporter merges equal nodes
    assert kept is not None
    assert kept.origins == (CallId("one", 0), CallId("other", 0))


class Gates(nn.Module):
    """What a child made is joined with other numbers, and the file takes the two apart again."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = Scales()

    def forward(self, x: Tensor) -> Tensor:
        return functional.glu(torch.cat([self.scales(x), x], 1), 1)


def test_numbers_that_are_there_once_more_are_not_made_where_they_were_before(tmp_path: Path) -> None:
    found = Exported(Gates(), (torch.randn(3, 6),), tmp_path)
    assert found.scopes("Mul") == ["scales", ""]
    assert found.scopes("Split") == [""]


class LooksBack(nn.Module):
    """Two children hide what comes later by a mask of the sizes that each has: the masks are equal."""

    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x).view(-1, 2, 3).transpose(0, 1)
            return functional.scaled_dot_product_attention(y, y, y, is_causal=True).reshape(x.shape)

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = self.Child(), self.Child()

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x))


def test_what_has_the_sizes_of_what_was_made_later_is_not_of_an_earlier_call(tmp_path: Path) -> None:
    found = Exported(LooksBack(), (torch.randn(4, 6),), tmp_path)
    assert found.scopes("Expand") == ["one", "other"]


class Normalizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.norm.running_mean.normal_()  # type: ignore[union-attr,operator]
        self.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr,operator]

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu()


def test_a_fused_node_does_the_work_of_all_that_was_fused(tmp_path: Path) -> None:
    found = Exported(Normalizes(), (torch.randn(1, 3, 8, 8),), tmp_path)
    (conv,) = found.all("Conv")
    assert conv is not None
    assert set(conv.origins) == {CallId("conv", 0), CallId("norm", 0)}
    assert conv.scope == CallId("", 0)
    assert found.projected.unmatched == ()


def test_nodes_between_matches_belong_to_the_call_that_they_are_in(tmp_path: Path) -> None:
    class Groups(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales, self.norm = Scales(), nn.GroupNorm(2, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.scales(x)).relu()

    found = Exported(Groups(), (torch.randn(2, 4, 6),), tmp_path)
    assert set(found.scopes("InstanceNormalization")) == {"norm"}
    assert found.scopes("Relu") == [""]


def test_the_calls_have_the_attribute_paths_that_they_went_through(tmp_path: Path) -> None:
    found = Exported(SharesWork(), (torch.randn(3, 6),), tmp_path)
    assert [site.via for site in found.projected.sites] == ["", "one", "one.scales", "other", "other.scales"]


def test_initializers_are_known_by_their_values(tmp_path: Path) -> None:
    found = Exported(nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 9)), (torch.randn(2, 3, 5),), tmp_path)
    held = {known.parameters: known.how for known in found.projected.initializers.values()}
    assert held[("0.weight",)] == held[("1.weight",)] == "transposed"
    assert held[("1.bias",)] == "value"


# -- names ------------------------------------------------------------------------------------------------------


class Steps(nn.Sequential):
    """Three linear maps of a batch, none like the other."""

    def __init__(self) -> None:
        super().__init__(*(nn.Linear(6, 6) for _ in range(3)))


def project_renamed(names: dict[str, str], folder: Path) -> tuple[View, Projected]:
    """Export a model and give nodes other names; return what is said of them."""
    torch.manual_seed(0)
    model, x = Steps().eval(), torch.randn(2, 3, 6)
    with quiet():
        torch.onnx.export(model, (x,), str(folder / "named.onnx"), dynamo=False)
    proto = onnx.load(folder / "named.onnx")
    for node in proto.graph.node:
        node.name = names.get(node.name, node.name)
    onnx.save(proto, folder / "renamed.onnx")
    request = Request(open_model(folder / "renamed.onnx"), model, (x,))
    return request.view, attribute_htp(request)


def test_values_win_over_names_and_the_contradiction_is_told(tmp_path: Path) -> None:
    view, found = project_renamed({"/0/MatMul": "/2/MatMul", "/2/MatMul": "/0/MatMul"}, tmp_path)
    products = [n for n, node in enumerate(view.nodes) if node.op == "MatMul"]
    assert [str(a.scope) for n in products if (a := found.nodes[n]) is not None] == ["0", "1", "2"]
    assert list(found.contradictions) == [
        (products[0], (("value", CallId("0", 0)), ("name", CallId("2", 0)))),
        (products[2], (("value", CallId("2", 0)), ("name", CallId("0", 0)))),
    ]


def test_names_that_fit_are_no_contradiction(tmp_path: Path) -> None:
    _, found = project_renamed({"/1/MatMul": "/7/MatMul", "/1/Add": "Add"}, tmp_path)
    assert found.contradictions == ()


class CastsInside(nn.Module):
    """A child begins with a cast that does nothing, so that no value tells whose it is."""

    class Child(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to(torch.float32).sin()

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Scales(), CastsInside.Child()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class CastsOutside(nn.Module):
    """The same in the parent, before it calls the child: the two files are alike."""

    class Child(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin()

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Scales(), CastsOutside.Child()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).to(torch.float32))


@pytest.mark.parametrize("model", [CastsInside(), CastsOutside()])
def test_whose_a_node_is_that_does_nothing_is_left_open(model: nn.Module, tmp_path: Path) -> None:
    found = Exported(model, (torch.randn(2, 6),), tmp_path)
    assert [node.op for node in found.view.nodes] == ["Mul", "Cast", "Sin"]
    assert found.all("Cast") == [None]
    assert found.scopes("Sin") == ["second"]


def test_a_name_tells_of_a_node_that_does_nothing(tmp_path: Path) -> None:
    model, x = CastsInside().eval(), torch.randn(2, 6)
    bare = Exported(model, (x,), tmp_path)
    opened = open_model(tmp_path / "named.onnx")
    named = attribute_htp(Request(opened, model, (x,)))
    casts = [n for n, node in enumerate(bare.view.nodes) if node.op == "Cast"]
    assert [bare.projected.nodes[n] for n in casts] == [None]
    assert [named.nodes[n] for n in casts] == [Attribution(CallId("second", 0), (CallId("second", 0),), "name", "name")]


# -- files that went through other tools -----------------------------------------------------------------------


TOOLS = ("ort-extended", "ort-all", "ort-transformers", "onnxsim", "fp16", "int8-operators", "int8-static")


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(("name", "exporter"), [("bert", "dynamo"), ("resnet", "torchscript")])
def test_other_tools_change_little(name: str, exporter: str, tool: str, tmp_path: Path) -> None:
    right, made, bare = exported(name, exporter), tmp_path / "made.onnx", tmp_path / "bare.onnx"
    case = CASES[name]
    arguments = name_arguments(right.model, case.args(), case.kwargs())
    (feed, *_) = list_choices(read_inputs(right.result.path), arguments, name)
    transform(tool, right.result.path, made, feed(arguments))
    anonymize_file(made, bare)
    before, after = view_model(open_model(right.result.path).model), view_model(open_model(made).model)
    nodes = {(node.graph, node.output): node for node in right.hierarchy.nodes}
    known = [nodes[before.node_key(n)] for n in range(len(before.nodes))]
    scopes = [Attribution(node.scope, node.origins, node.evidence) for node in known]
    truth = carry_scopes(before, scopes, after, right.hierarchy.tree).nodes
    found = attribute_htp(Request(open_model(bare), right.model, case.args(), case.kwargs())).nodes
    pairs = [(a, b) for a, b in zip(truth, found, strict=True) if a is not None]
    wrong = [(a, b) for a, b in pairs if b is None or not {a.scope, *a.origins} & {b.scope, *b.origins}]
    assert len(wrong) <= 0.03 * len(pairs), wrong
    if tool == "fp16":
        assert not any(b.evidence == "value" for _, b in pairs if b is not None)


# -- a model that differs ---------------------------------------------------------------------------------------


def test_calls_of_which_nothing_is_in_the_file_are_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    short = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
    x = torch.randn(3, 4)
    with quiet():
        torch.onnx.export(short, (x,), str(tmp_path / "short.onnx"), dynamo=False)
    longer = nn.Sequential(*short, nn.Linear(4, 4), nn.Tanh())
    opened = open_model(tmp_path / "short.onnx")
    found = attribute_htp(Request(opened, longer, (x,)))
    assert found.unmatched == (CallId("4", 0), CallId("5", 0))
    other = attribute_htp(Request(opened, nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (x,)))
    assert other.agreement < 0.5


def test_inputs_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with quiet():
        torch.onnx.export(nn.Linear(4, 4), (torch.randn(3, 4),), str(tmp_path / "model.onnx"), dynamo=False)
    opened = open_model(tmp_path / "model.onnx")
    with pytest.raises(HieronnxError, match="do not fit those of"):
        attribute_htp(Request(opened, nn.Linear(4, 4), (torch.randn(5, 4),)))


# -- inputs -----------------------------------------------------------------------------------------------------


class Subtracts(nn.Module):
    def forward(self, a: Tensor, b: Tensor, unused: Tensor) -> Tensor:
        return a - 2 * b


def test_of_several_ways_to_feed_a_file_the_outputs_choose(tmp_path: Path) -> None:
    found = Exported(Subtracts(), (torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4)), tmp_path)
    assert found.projected.agreement == 1.0
    assert found.scopes("Sub") == [""]


def test_inputs_without_names_may_be_in_another_order() -> None:
    arguments = name_arguments(Subtracts(), (torch.ones(2), torch.zeros(2)), {"unused": torch.ones(2)})
    inputs = [FileInput(name, np.dtype(np.float32), (2,)) for name in ("t0", "t1")]
    ways = [feed(list(zip("abc", np.arange(3), strict=True))) for feed in list_choices(inputs, arguments, "file")]
    assert [(int(way["t0"]), int(way["t1"])) for way in ways] == [(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)]


def test_inputs_are_found_by_name_first() -> None:
    arguments = name_arguments(Subtracts(), (torch.ones(2), torch.zeros(2)), {"unused": torch.ones(2)})
    inputs = [FileInput("b", np.dtype(np.float16), (2,)), FileInput("a", np.dtype(np.float32), (None,))]
    (feed,) = list_choices(inputs, arguments, "file")
    assert {name: (array.dtype.name, array.tolist()) for name, array in feed(arguments).items()} == {
        "b": ("float16", [0.0, 0.0]),
        "a": ("float32", [1.0, 1.0]),
    }


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 5),
        torch.randint(3, 50, (2, 8)),
        torch.rand(3, 4),
        torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]),
        torch.randn(3, 4, dtype=torch.complex64),
        torch.tensor([[True, False, True], [True, True, True]]),
    ],
    ids=["normal", "ids", "positive", "mask", "complex", "flags"],
)
def test_a_second_set_of_inputs_is_of_the_same_kind_and_other_values(tensor: Tensor) -> None:
    varied = vary(((tensor,), {}))[0][0]
    assert (varied.shape, varied.dtype) == (tensor.shape, tensor.dtype)
    assert not torch.equal(varied, tensor)
    if not tensor.is_floating_point() and not tensor.is_complex():
        assert set(varied.unique().tolist()) <= set(tensor.unique().tolist())
    elif not tensor.is_complex() and tensor.min() >= 0:
        assert varied.min() >= 0


def test_a_mask_of_ones_gets_a_place_that_is_hidden_and_numbers_stay() -> None:
    varied = vary(((torch.ones(2, 4, dtype=torch.int64), torch.tensor(3), 7), {}))[0]
    assert varied[0].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert (varied[1].item(), varied[2]) == (3, 7)


class Refuses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x[0, 0] != 1.5:
            raise ValueError("not these")
        return x + 1


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin() if x[0, 0] == 1.5 else x.cos()


@pytest.mark.parametrize("model", [Refuses(), Branches()])
def test_inputs_on_which_the_model_does_something_else_are_left_out(model: nn.Module) -> None:
    x = torch.randn(3, 3)
    x[0, 0] = 1.5
    sets = [((x,), {}), vary(((x,), {}))]
    assert trace_runs(model, sets).sets == 1


# -- the log ----------------------------------------------------------------------------------------------------


class WritesToView(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y[:, 0] = 5.0
        return y.sin()


def test_a_tensor_whose_view_was_written_to_has_a_new_value() -> None:
    log = log_eager(WritesToView(), (torch.randn(2, 3),))
    ops = {op.op: op for op in log.ops}
    (before,), (read,) = ops["aten.mul.Tensor"].gives, ops["aten.sin.default"].reads
    assert read != before
    seen = next(op for op in log.ops if read in op.gives)
    assert before in seen.reads
    assert seen.outputs[0][:, 0].tolist() == [5.0, 5.0]


def test_values_lead_from_operation_to_operation() -> None:
    log = log_eager(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), (torch.randn(2, 3),))
    turn, linear, tanh = log.ops
    assert log.parameters[turn.reads[0]] == "0.weight"
    assert turn.gives[0] in linear.reads
    assert log.calls[0].reads[0] in linear.reads
    assert linear.gives == tanh.reads
    assert log.calls[0].gives == log.calls[-1].gives == tanh.gives
    assert (turn.views, linear.views) == (True, False)
