"""compare of two files with hierarchies: what is inside a module call is compared with what is inside that call."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import hieronnx
import support.cli
from hieronnx import compare
from hieronnx.report.comparison import comparison_to_markdown, render_comparison
from support.annotated import annotated
from support.exports import exported, quiet, shared_folder

WIDTH = 8


class Refine(nn.Module):
    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.linear(x))


class Shared(nn.Module):
    """A block that is called twice, and maybe a new layer behind it."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor], extra: nn.Module | None = None) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.refine = Refine(act)
        self.mid = nn.Linear(WIDTH, WIDTH)
        self.extra = extra
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.refine(torch.relu(self.enter(x)))
        x = self.refine(torch.tanh(self.mid(x)))
        return self.head(x if self.extra is None else self.extra(x))


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())


def export(model: nn.Module, exporter: str = "torchscript", shape: tuple[int, ...] = (1, 3, WIDTH)) -> Path:
    path = Path(mkdtemp(dir=shared_folder())) / "model.onnx"
    torch.manual_seed(0)
    with quiet():
        hieronnx.export(model.eval(), (torch.randn(shape),), path, exporter=exporter)
    return path


@cache
def shared(exporter: str) -> Path:
    return export(Shared(nn.ReLU()), exporter)


def told(a: Path, b: Path) -> dict[str, str]:
    """Return what was done in which calls."""
    return {", ".join(map(str, group.calls)): group.summary for group in compare(a, b).groups}


# -- modules pair first -----------------------------------------------------------------------------------


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_what_was_removed_from_a_shared_block_is_not_taken_for_a_new_layer_s(exporter: str) -> None:
    assert told(shared(exporter), export(Shared(nn.SiLU(), layer()), exporter)) == {
        "refine.act": "Relu → Sigmoid+Mul",
        "refine.act@1": "Relu → Sigmoid+Mul",
        "extra.0": "MatMul+Add added",
        "extra.1": "Relu added",
    }


def test_the_same_holds_for_functions_that_are_no_modules() -> None:
    before = export(Shared(torch.relu))
    assert told(before, export(Shared(torch.nn.functional.silu, layer()))) == {
        "refine": "Relu → Sigmoid+Mul",
        "refine@1": "Relu → Sigmoid+Mul",
        "extra.0": "MatMul+Add added",
        "extra.1": "Relu added",
    }
    # A module in place of a function is no change of the computation.
    assert compare(before, shared("torchscript")).same


def test_a_module_put_into_a_list_shifts_the_paths_and_is_still_all_that_was_added() -> None:
    def stack(*middle: nn.Module) -> Path:
        layers = [nn.Linear(WIDTH, WIDTH), *middle, nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Sigmoid()]
        return export(nn.Sequential(*layers))

    assert told(stack(), stack(nn.LayerNorm(WIDTH))) == {"1": "LayerNormalization added"}


class Holder(nn.Module):
    """A block by a name, in this module or in a child."""

    def __init__(self, name: str, block: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.other = other
        self.add_module(name, block)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, self.name)(self.other(x))


class Pair(nn.Module):
    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.right(self.left(x))


def test_a_renamed_module_is_the_same_computation_and_its_changes_are_still_found() -> None:
    before = export(Holder("block", Refine(nn.ReLU()), nn.Linear(WIDTH, WIDTH)))
    assert compare(before, export(Holder("renamed", Refine(nn.ReLU()), nn.Linear(WIDTH, WIDTH)))).same
    changed = export(Holder("renamed", Refine(nn.Tanh()), nn.Linear(WIDTH, WIDTH)))
    assert {(c.kind, c.node.op_type, str(c.scope)) for c in compare(before, changed).nodes} == {
        ("removed", "Relu", "block.act"),
        ("added", "Tanh", "renamed.act"),
    }


def test_a_module_that_was_moved_to_another_is_the_same() -> None:
    norm = lambda: nn.Sequential(nn.LayerNorm(WIDTH), nn.Tanh())  # noqa: E731
    before = export(Pair(nn.Sequential(nn.Linear(WIDTH, WIDTH), norm()), nn.Sequential(nn.Sigmoid())))
    moved = export(Pair(nn.Sequential(nn.Linear(WIDTH, WIDTH)), nn.Sequential(norm(), nn.Sigmoid())))
    assert compare(before, moved).same
    changed = export(Pair(nn.Sequential(nn.Linear(WIDTH, WIDTH)), nn.Sequential(norm(), nn.ReLU())))
    assert told(before, changed) == {"right.0": "Sigmoid removed", "right.1": "Relu added"}


def test_a_wrapped_model_is_the_same() -> None:
    assert compare(shared("torchscript"), export(nn.Sequential(Shared(nn.ReLU())))).same


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.last = nn.Conv2d(4, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.conv(x))))


def test_a_node_that_does_the_work_of_two_calls_is_still_the_one_that_it_was(tmp_path: Path) -> None:
    path = Path(mkdtemp(dir=shared_folder())) / "model.onnx"
    torch.manual_seed(0)
    with quiet():
        hieronnx.export(Normalized().eval(), (torch.randn(1, 3, 9, 9),), path, exporter="dynamo", optimize=False)
    fused = hieronnx.optimize(path, output=tmp_path / "fused.onnx", tool="ort-basic").path
    for a, b, kind in ((path, fused, "removed"), (fused, path, "added")):
        found = compare(a, b)
        assert all(change.kind in (kind, "changed") for change in found.nodes), found.describe()
        assert "Conv" not in {change.node.op_type for change in found.nodes if change.kind == kind}


# -- hierarchies that do not agree, or do not know --------------------------------------------------------


def rewrite_metadata(path: Path, output: Path, edit: Callable[[int, onnx.NodeProto], None]) -> Path:
    model = onnx.load(path)
    for index, node in enumerate(model.graph.node):
        edit(index, node)
    onnx.save(model, output)
    return output


def set_call(node: onnx.NodeProto, **values: str) -> None:
    for entry in list(node.metadata_props):
        if entry.key.startswith("hieronnx."):
            node.metadata_props.remove(entry)
    for key, value in values.items():
        node.metadata_props.add(key=f"hieronnx.{key}", value=value)


def test_the_same_computation_is_the_same_whatever_the_hierarchies_say(tmp_path: Path) -> None:
    def put_elsewhere(index: int, node: onnx.NodeProto) -> None:
        module = ("refine.linear", "head", "mid")[index % 3]
        set_call(node, tag="/Shared", module=module, call="0")

    other = rewrite_metadata(shared("torchscript"), tmp_path / "other.onnx", put_elsewhere)
    assert hieronnx.load(other).nodes[0].scope.module == "refine.linear"
    assert compare(shared("torchscript"), other).same


def test_a_node_whose_call_is_not_known_may_be_any(tmp_path: Path) -> None:
    changed = export(Shared(nn.SiLU(), layer()))

    def forget(index: int, node: onnx.NodeProto) -> None:
        if index % 2:
            set_call(node, tag="/Shared", module="", call="0", evidence="root")

    partly = rewrite_metadata(changed, tmp_path / "partly.onnx", forget)
    assert 0.3 < hieronnx.load(partly).coverage() < 0.7
    found = compare(shared("torchscript"), partly)
    assert sorted(change.node.op_type for change in found.nodes if change.kind == "added").count("Sigmoid") == 2
    assert found.size <= 9


# -- float against eight bits -----------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["dynamic", "static"])
@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_what_a_quantizer_did_to_each_call_of_a_shared_module_is_told_there(
    tool: str, exporter: str, tmp_path: Path
) -> None:
    options = {"random_calibration": True} if tool == "static" else {}
    quantized = hieronnx.quantize(shared(exporter), output=tmp_path / "int8.onnx", tool=tool, **options)
    found = compare(shared(exporter), tmp_path / "int8.onnx")
    inside = [change for change in found.nodes if change.scope is not None and change.scope.module.startswith("refine")]
    assert inside
    for group in found.groups:
        for change in group.changes:
            if change.scope is not None and change.scope.module:
                assert all(call.module for call in group.calls), (group.summary, change)
    groups = {", ".join(map(str, group.calls)): group.summary for group in found.groups}
    if tool == "dynamic":
        assert groups["refine.linear"].startswith("MatMul → DynamicQuantizeLinear")
    else:
        assert groups["refine.act"].startswith("Relu → ")
        assert groups["refine.act@1"].startswith("Relu → ")
        # What both calls share is of both, not of the whole model.
        biases = next(g for g in found.groups if any("refine.linear.bias" in c.node.output for c in g.changes))
        assert [str(call) for call in biases.calls] == ["refine", "refine@1"]
        assert "refine, refine@1: " in render_comparison(found)
        assert "| refine, refine@1 |" in comparison_to_markdown(found)
    assert quantized.hierarchy.coverage() > 0.9


def test_a_part_of_a_bert_in_eight_bits_is_told_by_layer(tmp_path: Path) -> None:
    path = exported("bert", "torchscript").result.path
    hieronnx.quantize(path, output=tmp_path / "int8.onnx", tool="dynamic")
    groups = compare(path, tmp_path / "int8.onnx").groups
    removed = {str(g.scope) for g in groups for c in g.changes if c.kind == "removed"}
    assert "encoder.layer.1.attention.self.query" in removed
    assert "" not in removed


# -- by how much weights differ ---------------------------------------------------------------------------


def change_weight(path: Path, output: Path, name: str, edit: Callable[[np.ndarray], np.ndarray]) -> Path:
    model = onnx.load(path)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    tensor.CopyFrom(numpy_helper.from_array(edit(numpy_helper.to_array(tensor).copy()), name))
    onnx.save(model, output)
    return output


def test_values_says_by_how_much_each_weight_differs_and_by_module(tmp_path: Path) -> None:
    path = shared("torchscript")
    before = next(numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer if t.name == "refine.linear.bias")

    def nudge(array: np.ndarray) -> np.ndarray:
        array[2] += 0.25
        array[5] -= 0.125
        return array

    other = change_weight(path, tmp_path / "other.onnx", "refine.linear.bias", nudge)
    assert compare(path, other).same
    found = compare(path, other, values=True)
    assert [(c.before, c.module) for c in found.values] == [("refine.linear.bias", "refine.linear")]
    amount = found.values[0].amount
    assert amount is not None
    assert (amount.elements, amount.different) == (WIDTH, 2)
    assert amount.max_absolute == pytest.approx(0.25)
    assert amount.relative == pytest.approx(0.25 / np.abs(before).max(), rel=1e-5)
    assert [(w.module, w.initializers, w.different) for w in found.weights] == [("refine.linear", 1, 2)]
    text, table = render_comparison(found), comparison_to_markdown(found)
    assert "2 of 8 elements differ by at most 0.25" in text
    assert "weights of" in text
    assert "| refine.linear | 1 | 2 | 8 | 0.25 |" in table
    entry = found.to_dict()
    assert entry["weights"][0]["max_absolute"] == pytest.approx(0.25)
    assert entry["values"][0]["amount"]["different"] == 2


def test_a_weight_that_is_no_number_any_more_differs_without_bound(tmp_path: Path) -> None:
    path = shared("torchscript")
    other = change_weight(path, tmp_path / "other.onnx", "mid.bias", lambda array: np.full_like(array, np.nan))
    found = compare(path, other, values=True)
    assert found.weights[0].max_absolute is None
    assert "differ without bound" in render_comparison(found)
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_weight_in_another_type_differs_by_what_was_rounded(tmp_path: Path) -> None:
    parts = ["<ir_version: 10, opset_import: ['' : 21]> agraph (float[2] x) => (float[2] y) <", "> { y = Mul (x, w) }"]
    a = onnx.parser.parse_model("float[2] w = {1.0, 2.0}".join(parts).replace("'", '"'))
    b = onnx.parser.parse_model("float16[2] w = {1, 2}".join(parts).replace("'", '"'))
    b.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([1.5, 2.0], np.float16), "w"))
    amount = compare(a, b, values=True).values[0].amount
    assert amount is not None
    assert (amount.max_absolute, amount.relative) == (0.5, 0.25)


def test_the_most_changed_come_first_and_the_verdict_can_stand_alone(tmp_path: Path) -> None:
    a, b = shared("torchscript"), export(Shared(nn.SiLU(), layer()))
    shown = support.cli.run("compare", a, b, "--values", "--top", "1")
    assert shown.exit_code == 1
    assert "refine.act: Relu → Sigmoid+Mul" in shown.stdout
    assert "extra.0" not in shown.stdout.partition("initializers\n")[0]
    assert "… and 3 more calls" in shown.stdout
    quietly = support.cli.run("compare", a, b, "--quiet")
    assert (quietly.exit_code, quietly.stdout) == (1, f"{compare(a, b).describe()}\n")


def test_whether_two_files_are_the_same_does_not_depend_on_their_hierarchies() -> None:
    text = "net (float[2] x) => (float[2] y, float[2] z) { y = Relu(x)  z = Relu(x) }"
    same = compare(annotated(text, ["a", "b"]), annotated(text, ["b", "a"]))
    assert same.same


# -- inserted nodes ---------------------------------------------------------------------------------------

RESIDUAL = "net (float[2] x) => (float[2] y) { a = Exp(x)  b = Add(x, a)  y = Tanh(b) }"


@pytest.mark.parametrize("inserted", ["a = Relu(new)", "t = Relu(new)  a = Abs(t)"], ids=["one", "two"])
def test_what_took_a_tensors_name_is_told_in_the_module_that_carry_gives_it(inserted: str) -> None:
    before = annotated(RESIDUAL, ["mlp.up", "mlp", "head"])
    text = RESIDUAL.replace("a = Exp(x)", f"new = Exp(x)  {inserted}")
    after = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    added = {change.node.output: change.scope for change in compare(before, after).nodes}
    carried = {node.output: node.scope for node in hieronnx.carry(before, after).hierarchy.nodes}
    assert added == {output: carried[output] for output in added}
    assert {str(scope) for scope in added.values()} == {"mlp.up"}
