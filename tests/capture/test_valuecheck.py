"""The value check and the baseline check: that they pass what is right, and find what is planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import hieronnx
from hieronnx.capture.calls import CallRecorder
from support.baseline import assert_same_as_baseline
from support.eager_oracle import run_model
from support.valuecheck import Made, ValueReport, Values, check_values, match_inputs, named_arrays
from support.zoo import case

Scope = tuple[str, int]
ROOT: Scope = ("", 0)


def attribute(path: Path, scopes: list[Scope], graph: str = "") -> dict[tuple[str, str], frozenset[Scope]]:
    """Give the nodes of the main graph these scopes, in their order."""
    nodes = onnx.load(path).graph.node
    return {(graph, n.output[0]): frozenset({s}) for n, s in zip(nodes, scopes, strict=True)}


def export(name: str, path: Path, **options: Any) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    chosen = case(name)
    model, args, kwargs = chosen.build(), chosen.args(), chosen.kwargs()
    torch.onnx.export(model, args, path, kwargs=kwargs, **{"dynamo": False, **options})
    return model, args, kwargs


def counts(report: ValueReport) -> tuple[int, int, int, int]:
    return len(report.right), len(report.wrong), len(report.unmatched), len(report.trivial)


LOOP_SCOPES: list[Scope] = [
    ("cell.linear", 0),
    ("cell", 0),
    ROOT,  # the 0.5 that is added
    ROOT,
    ("cell.linear", 1),
    ("cell", 1),
    ROOT,
    ROOT,
    ("cell.linear", 2),
    ("cell", 2),
    ROOT,
    ROOT,
]


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module, tuple[Any, ...]]:
    path = tmp_path_factory.mktemp("loop") / "model.onnx"
    model, args, _ = export("called_in_loop", path)
    return path, model, args


def test_a_right_attribution_is_right(looped: tuple[Path, nn.Module, tuple[Any, ...]]) -> None:
    path, model, args = looped
    report = check_values(model, args, None, path, attribute(path, LOOP_SCOPES))
    assert counts(report) == (9, 0, 0, 3), report.summary()
    assert report.summary().startswith("9 right, 0 wrong, 0 unmatched, 3 trivial; 1.00 calls")


@pytest.mark.parametrize("place", [0, 1, 3, 4, 5, 7, 8, 9, 11])
def test_each_planted_error_is_found(looped: tuple[Path, nn.Module, tuple[Any, ...]], place: int) -> None:
    path, model, args = looped
    planted = LOOP_SCOPES.copy()
    planted[place] = ("cell", 0) if LOOP_SCOPES[place] != ("cell", 0) else ROOT
    report = check_values(model, args, None, path, attribute(path, planted))
    assert [check.attributed for check in report.wrong] == [frozenset({planted[place]})]
    assert report.wrong[0].made_by == frozenset({LOOP_SCOPES[place]})


def test_repeated_calls_are_told_apart(looped: tuple[Path, nn.Module, tuple[Any, ...]]) -> None:
    path, model, args = looped
    blurred = [(module, 0) for module, _ in LOOP_SCOPES]
    report = check_values(model, args, None, path, attribute(path, blurred))
    assert len(report.wrong) == 4
    assert "attributed to cell.linear@0, made by cell.linear@1" in report.summary()


def test_a_node_without_attribution_is_wrong(looped: tuple[Path, nn.Module, tuple[Any, ...]]) -> None:
    path, model, args = looped
    report = check_values(model, args, None, path, {})
    assert len(report.wrong) == 9
    assert "attributed to no call" in report.summary()


def test_one_right_origin_is_enough_and_the_number_of_origins_is_reported(
    looped: tuple[Path, nn.Module, tuple[Any, ...]],
) -> None:
    path, model, args = looped
    every = frozenset(LOOP_SCOPES)
    report = check_values(model, args, None, path, dict.fromkeys(attribute(path, LOOP_SCOPES), every))
    assert not report.wrong
    assert "7.00 calls attributed" in report.summary()


def test_equal_computations_may_belong_to_either_call(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model, args, _ = export("replayed_on_same_input", path)
    kinds = {"Gemm": ("block.linear", 0), "Tanh": ("block", 1), "Relu": ROOT, "Add": ROOT}
    attributed = {("", n.output[0]): frozenset({kinds[n.op_type]}) for n in onnx.load(path).graph.node}
    report = check_values(model, args, None, path, attributed)
    assert not report.wrong
    assert report.right[0].made_by == {("block.linear", 0), ("block.linear", 1)}


class Chooses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 4)
        self.down = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.up(x).sin(), lambda x: self.down(x).cos(), (x,))


def body_attribution(path: Path, kinds: dict[str, Scope]) -> dict[tuple[str, str], frozenset[Scope]]:
    """Attribute the nodes of the main graph to the root, and those of its bodies by operator."""
    found = {}
    for node in onnx.load(path).graph.node:
        found["", node.output[0]] = frozenset({ROOT})
        for body in node.attribute:
            for inner in body.g.node:
                key = f"{node.output[0]}.{body.name}"
                found[key, inner.output[0]] = frozenset({kinds.get(inner.op_type, ROOT)})
    return found


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    path, model = tmp_path_factory.mktemp("cond") / "model.onnx", Chooses().eval()
    torch.onnx.export(model, (torch.rand(3, 4),), path, dynamo=True, verbose=False)
    return path, model


@pytest.mark.parametrize(("sign", "module", "other"), [(1, "up", "else"), (-1, "down", "then")])
def test_the_branch_taken_is_checked(chosen: tuple[Path, nn.Module], sign: int, module: str, other: str) -> None:
    path, model = chosen
    args = (sign * torch.rand(3, 4),)
    right = check_values(model, args, None, path, body_attribution(path, {"Gemm": (module, 0)}))
    assert not right.wrong, right.summary()
    assert {check.op_type for check in right.right} >= {"Gemm", "If"}
    assert any(f"{other}_branch: branch not taken" in reason for reason in right.unexposed)
    planted = check_values(model, args, None, path, body_attribution(path, {}))
    assert [(check.op_type, check.made_by) for check in planted.wrong] == [("Gemm", {(module, 0)})]


def test_bodies_inside_bodies_have_the_keys_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model, args, _ = export("nested_cond", path, dynamo=True, verbose=False)
    report = check_values(model, args, None, path, {})
    inner = {check.graph for check in report.wrong if check.graph.count("_branch") == 2}
    outer_if = next(node for node in onnx.load(path).graph.node if node.op_type == "If")
    bodies = {body.name: body.g for body in outer_if.attribute}
    inner_if = next(node for node in bodies["then_branch"].node if node.op_type == "If")
    expected = f"{outer_if.output[0]}.then_branch/{inner_if.output[0]}"
    assert len(inner) == 1
    assert inner <= {f"{expected}.then_branch", f"{expected}.else_branch"}


def test_the_body_of_a_loop_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model, args, _ = export("while_loop", path, dynamo=True, verbose=False)
    kinds = {"Gemm": ("block.linear", 0), "Tanh": ("block", 0)}
    right = check_values(model, args, None, path, body_attribution(path, kinds))
    assert not right.wrong, right.summary()
    gemm = next(check for check in right.right if check.op_type == "Gemm")
    assert gemm.made_by == {("block.linear", 0), ("block.linear", 1), ("block.linear", 2)}
    planted = check_values(model, args, None, path, body_attribution(path, {**kinds, "Tanh": ROOT}))
    assert [check.op_type for check in planted.wrong] == ["Tanh"]


def test_what_a_scripted_module_calls_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model, args, _ = export("scripted_root", path)
    attributed = {("", n.output[0]): frozenset({("after", 0)}) for n in onnx.load(path).graph.node}
    report = check_values(model, args, None, path, attributed)
    assert not [check for check in report.wrong if not check.graph]
    assert "calls inside the scripted module <root>" in report.unexposed


class Passes(nn.Module):
    """The child takes a tensor and computes with it; the other child never sees that tensor."""

    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

    def __init__(self) -> None:
        super().__init__()
        self.first = self.Square()
        self.second = self.Square()
        self.third = self.Square()

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x)))


@pytest.mark.parametrize(
    ("module", "verdict"),
    [("first", "right"), ("second", "unmatched"), ("", "unmatched"), ("third", "wrong")],
)
def test_a_node_that_only_moves_values_must_be_where_they_were(tmp_path: Path, module: str, verdict: str) -> None:
    path = tmp_path / "model.onnx"
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"]),
        helper.make_node("Transpose", ["a"], ["moved"]),
        helper.make_node("Pow", ["moved", "four"], ["y"]),
    ]
    four = numpy_helper.from_array(np.array(4.0, dtype=np.float32), "four")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3])
    graph = helper.make_graph(nodes, "g", [x], [y], [four])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    attributed = attribute(path, [("first", 0), (module, 0), ("third", 0)])
    report = check_values(Passes(), (torch.randn(3, 4),), None, path, attributed)
    assert "moved" in {check.output for check in getattr(report, verdict)}
    assert {"a", "y"} <= {check.output for check in report.right}


@pytest.mark.parametrize(
    "values",
    [
        [1.5, 2.5],
        [7.0] * 9,
        [0, 1, 1, 0, 1, 0, 0, 1],
        [2, 3, 4, 8],
        list(range(9)),
        [0.0, -3e38, 0.0, -np.inf],
    ],
    ids=["two", "all the same", "mask", "shape", "count", "additive mask"],
)
def test_plain_values_are_trivial(values: list[float]) -> None:
    assert Values(np.array(values)).is_trivial


@pytest.mark.parametrize("values", [[0.1, 0.2, 0.4], [3, 1, 4, 1, 5, 9, 2], [0.5, -np.inf, 0.25, 1.0]])
def test_other_values_are_not_trivial(values: list[float]) -> None:
    assert not Values(np.array(values)).is_trivial


def test_values_are_equal_in_any_layout_and_no_further() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4, 5))
    assert Values(values).equals(Values(values.transpose(2, 0, 1)))
    assert Values(values).equals(Values(values.reshape(12, 5) * (1 + 1e-6)))
    assert not Values(values).equals(Values(values * 1.01))
    assert not Values(values).equals(Values(values[:2]))


def test_a_mask_does_not_make_different_scores_equal() -> None:
    scores = np.random.default_rng(0).normal(size=(4, 8))
    for masked in (-np.inf, float(np.finfo(np.float32).min), -10000.0):
        one, other = scores.copy(), scores * 1.01
        one[:, 6:] = other[:, 6:] = masked
        assert not Values(one).equals(Values(other))
        assert Values(one).equals(Values(one * (1 + 1e-7)))


def test_what_a_call_only_received_is_no_evidence() -> None:
    model, x = Passes(), torch.randn(3, 4)
    made = Made(run_model(model, (x,)))
    assert made.makers(Values(x.numpy())) == frozenset()
    assert made.holders(Values(x.numpy())) == {ROOT, ("first", 0)}


def test_a_dropped_and_renamed_input_is_matched_by_the_models_outputs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model, args, kwargs = export("unused_input", path)
    (feed,) = match_inputs(onnx.load(path), named_arrays(model, args, kwargs), [model(*args)]).values()
    assert np.array_equal(feed, args[1].numpy())


def test_inputs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model, _, _ = export("linear_root", path)
    with pytest.raises(AssertionError, match="no arguments fit"):
        match_inputs(onnx.load(path), named_arrays(model, (torch.randn(5, 8),), {}), [])


# ---------------------------------------------------------------- the baseline


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path, onnx.ModelProto]:
    """Return two paths, the second with a model, and that model to be changed."""
    baseline = tmp_path / "baseline.onnx"
    chooser = case("scripted_if")
    torch.onnx.export(chooser.build(), chooser.args(), baseline, dynamo=False)
    return tmp_path / "ours.onnx", baseline, onnx.load(baseline)


def assert_differs(pair: tuple[Path, Path, onnx.ModelProto], match: str) -> None:
    path, baseline, model = pair
    onnx.save(model, path)
    with pytest.raises(AssertionError, match=match):
        assert_same_as_baseline(path, baseline)


def test_hieronnx_metadata_is_no_difference_in_bodies_either(
    pair: tuple[Path, Path, onnx.ModelProto],
) -> None:
    path, baseline, model = pair
    condition = next(node for node in model.graph.node if node.op_type == "If")
    for node in (*model.graph.node, *condition.attribute[0].g.node):
        for key in ("hieronnx.tag", "namespace"):
            node.metadata_props.add(key=key, value="/Model")
    onnx.save(model, path)
    assert_same_as_baseline(path, baseline)


def test_external_data_is_compared_by_contents(pair: tuple[Path, Path, onnx.ModelProto]) -> None:
    path, baseline, model = pair
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert_same_as_baseline(path, baseline)
    changed = onnx.load(baseline)
    array = numpy_helper.to_array(changed.graph.initializer[0]) + 1
    changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, changed.graph.initializer[0].name))
    onnx.save(changed, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    with pytest.raises(AssertionError, match=r"model\.graph\.initializer\[0\] .*raw_data"):
        assert_same_as_baseline(path, baseline)


def test_other_metadata_is_a_difference(pair: tuple[Path, Path, onnx.ModelProto]) -> None:
    pair[2].graph.node[0].metadata_props.add(key="other", value="x")
    assert_differs(pair, r"node\[0\].*metadata_props: 1 entries, baseline 0.*\(other\)")


def test_a_changed_namespace_is_a_difference(pair: tuple[Path, Path, onnx.ModelProto]) -> None:
    path, baseline, model = pair
    model.graph.node[0].metadata_props.add(key="namespace", value="torch's")
    onnx.save(model, baseline)
    model.graph.node[0].metadata_props[0].value = "ours"
    assert_differs((path, baseline, model), r"namespace.*value: 'ours', baseline \"torch's\"")


def test_an_added_node_is_a_difference(pair: tuple[Path, Path, onnx.ModelProto]) -> None:
    pair[2].graph.node.append(helper.make_node("Identity", ["x"], ["y"], name="extra"))
    assert_differs(pair, r"model\.graph\.node: \d entries, baseline \d.*\(Identity extra\)")


def test_a_renamed_tensor_in_a_body_is_a_difference(pair: tuple[Path, Path, onnx.ModelProto]) -> None:
    condition = next(node for node in pair[2].graph.node if node.op_type == "If")
    condition.attribute[1].g.node[0].output[0] = "renamed"
    assert_differs(pair, r"else_branch.*\.g\.node\[0\].*output\[0\]: 'renamed'")


@pytest.mark.parametrize("name", ["producer_name", "doc_string"])
def test_a_field_of_the_model_is_a_difference(pair: tuple[Path, Path, onnx.ModelProto], name: str) -> None:
    setattr(pair[2], name, "changed")
    assert_differs(pair, f"model.{name}: 'changed'")


def test_another_opset_is_a_difference(
    pair: tuple[Path, Path, onnx.ModelProto],
) -> None:
    pair[2].opset_import[0].version += 1
    assert_differs(pair, r"opset_import\[0\]\.version: \d+, baseline \d+")


def test_torchs_counter_in_stack_traces_can_be_left_out(tmp_path: Path) -> None:
    paths = [tmp_path / "one.onnx", tmp_path / "two.onnx"]
    for path in paths:
        export("cond", path, dynamo=True, verbose=False)
    with pytest.raises(AssertionError, match=r"pkg\.torch\.onnx\.stack_trace"):
        assert_same_as_baseline(*paths)
    assert_same_as_baseline(*paths, ignore_trace_counter=True)


# ---------------------------------------------------------------- independence


def test_an_error_in_the_numbering_of_calls_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder of the export counts each call of a module twice; the check has a counter of its own."""
    enter = CallRecorder.enter

    def enter_twice(self: CallRecorder, module: nn.Module, alias: str | None = None) -> Any:
        if isinstance(module, nn.Linear):
            self.leave(enter(self, module, alias))
        return enter(self, module, alias)

    monkeypatch.setattr(CallRecorder, "enter", enter_twice)
    chosen = case("called_in_loop")
    model, args = chosen.build(), chosen.args()
    result = hieronnx.export(model, args, output=tmp_path / "model.onnx", exporter="torchscript")
    attributed = {(n.graph, n.output): frozenset({tuple(n.scope)}) for n in result.hierarchy.nodes}
    report = check_values(model, args, None, result.path, attributed)
    expected = [("Gemm", {("cell.linear", number)}) for number in range(3)]
    assert [(check.op_type, check.made_by) for check in report.wrong] == expected
