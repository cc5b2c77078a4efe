"""The export as its users call it: options of torch passed on, inputs of every kind, results in one record."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn
from torch.onnx._internal.exporter import _capture_strategies

import hieronnx
from hieronnx.errors import InputError
from support.baseline import assert_same_as_baseline
from support.exports import exported, names_in, quiet
from support.valuecheck import check_values
from support.zoo import CASES

BOTH = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.dropout = nn.Dropout()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (f(x).view(batch, length, 2, 4).transpose(1, 2) for f in (self.query, self.key, self.value))
        weights = torch.softmax(q @ k.transpose(-1, -2) / 2.0, -1)
        return self.norm(x + self.dropout((weights @ v).transpose(1, 2).reshape(batch, length, 8)))


class Encoder(nn.Module):
    """Two layers of attention over a sequence, with shapes computed at run time."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor, scale: Tensor | None = None) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x if scale is None else x * scale)


@pytest.fixture(scope="module")
def encoder() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Encoder().eval()


def export_quietly(*args: Any, **options: Any) -> hieronnx.ExportResult:
    with quiet():
        return hieronnx.export(*args, **options)


def attributed(result: hieronnx.ExportResult) -> dict[tuple[str, str], frozenset[tuple[str, int]]]:
    nodes = result.hierarchy.nodes
    return {(n.graph, n.output): frozenset({tuple(n.scope), *map(tuple, n.origins)}) for n in nodes}


def run(path: Path, feeds: Mapping[str, Tensor]) -> np.ndarray:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {name: value.numpy() for name, value in feeds.items()})[0]


@BOTH
def test_dynamic_axes_stay_dynamic_and_attributed(encoder: nn.Module, exporter: str, tmp_path: Path) -> None:
    ids = torch.randint(0, 32, (2, 5))
    shapes = {"ids": {0: "batch", 1: "sequence"}}
    result = export_quietly(encoder, (), tmp_path / "m.onnx", {"ids": ids}, exporter=exporter, dynamic_shapes=shapes)
    assert result.hierarchy.model["dynamic_axes"]["ids"] == {"0": "batch", "1": "sequence"}
    other = torch.randint(0, 32, (3, 7))
    with torch.no_grad():
        expected = encoder(other).numpy()
    np.testing.assert_allclose(run(result.path, {"ids": other}), expected, atol=1e-5)
    report = check_values(encoder, (), {"ids": ids}, result.path, attributed(result))
    assert not report.wrong, report.summary()
    assert len(report.right) > 20
    assert result.hierarchy.coverage() == 1.0


def test_dynamic_shapes_give_torchs_own_file(encoder: nn.Module, tmp_path: Path) -> None:
    ids, shapes = torch.randint(0, 32, (2, 5)), {"ids": {0: "batch", 1: "sequence"}}
    options = {"dynamic_shapes": shapes, "input_names": ["tokens"], "output_names": ["clone"]}
    result = export_quietly(encoder, (), tmp_path / "m.onnx", {"ids": ids}, exporter="dynamo", **options)
    with quiet():
        torch.onnx.export(encoder, (), tmp_path / "b.onnx", kwargs={"ids": ids}, dynamo=True, **options)
    assert_same_as_baseline(result.path, tmp_path / "b.onnx")
    # The new name of the output is that of a dropout's copy in the raw graph, which the optimizer took away.
    report = check_values(encoder, (), {"ids": ids}, result.path, attributed(result))
    assert not report.wrong, report.summary()
    assert result.hierarchy.nodes[-1].scope == hieronnx.CallId("head", 0)


def test_dynamic_axes_give_torchs_own_file(encoder: nn.Module, tmp_path: Path) -> None:
    ids = torch.randint(0, 32, (2, 5))
    options = {"input_names": ["ids"], "output_names": ["y"], "dynamic_axes": {"ids": {0: "batch"}, "y": {0: "batch"}}}
    result = export_quietly(encoder, (ids,), output=tmp_path / "m.onnx", exporter="torchscript", **options)
    with quiet():
        torch.onnx.export(encoder, (ids,), str(tmp_path / "b.onnx"), dynamo=False, **options)
    assert_same_as_baseline(result.path, tmp_path / "b.onnx")


@pytest.mark.parametrize(
    "options",
    [
        {"external_data": False},
        {"optimize": False},
        {"export_params": False},
        {"keep_initializers_as_inputs": True},
        {"opset_version": 18, "external_data": False, "input_names": ["a"]},
    ],
    ids=str,
)
def test_torchs_options_are_passed_on(encoder: nn.Module, options: dict[str, Any], tmp_path: Path) -> None:
    ids = torch.randint(0, 32, (2, 5))
    result = export_quietly(encoder, (ids,), output=tmp_path / "m.onnx", exporter="dynamo", **options)
    with quiet():
        torch.onnx.export(encoder, (ids,), tmp_path / "b.onnx", dynamo=True, **{**names_in(result.path), **options})
    assert_same_as_baseline(result.path, tmp_path / "b.onnx")
    assert (tmp_path / "m.onnx.data").exists() == (tmp_path / "b.onnx.data").exists()
    assert result.hierarchy.coverage() == 1.0


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, pair: tuple[Tensor, Tensor], more: dict[str, Tensor], *, factor: Tensor) -> dict[str, Any]:
        left, right = pair
        return OrderedDict(a=self.linear(left) + more["x"], b=[right * factor, (more["y"] - 1.0,)])


@BOTH
def test_nested_inputs_and_outputs(exporter: str, tmp_path: Path) -> None:
    model = Nested().eval()
    left, right, x, y, factor = (torch.randn(2, 4) for _ in range(5))
    args, kwargs = ((left, right), {"x": x, "y": y}), {"factor": factor}
    result = export_quietly(model, args, tmp_path / "m.onnx", kwargs, exporter=exporter)
    scopes = {node.op_type: str(node.scope) for node in result.hierarchy.nodes}
    assert scopes["Gemm"] == "linear"
    assert {scopes["Add"], scopes["Mul"], scopes["Sub"]} == {""}
    outputs = onnx.load(result.path, load_external_data=False).graph.output
    assert len(outputs) == 3


def test_a_decoder_is_exported_with_its_past() -> None:
    for exporter in CASES["llama_with_past"].exporters:
        found = exported("llama_with_past", exporter)
        inputs = onnx.load(found.result.path, load_external_data=False).graph.input
        assert len(inputs) > 4
        assert not any("wrapper" in str(node).lower() for node in found.hierarchy.nodes)
    assert CASES["llama_with_past"].exporters == ("dynamo", "torchscript")


def test_auto_says_why_it_fell_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = CASES["scripted_if"]
    result = export_quietly(case.build(), case.args(), output=tmp_path / "m.onnx")
    assert result.exporter == "torchscript"
    assert result.fallback is not None
    assert "\n" not in result.fallback
    assert result.fallback in caplog.text


def test_strict_tracing_reads_torchs_own_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    strict = (_capture_strategies.TorchExportStrictStrategy,)
    monkeypatch.setattr(_capture_strategies, "CAPTURE_STRATEGIES", strict)
    for name in ("nested_repeated_calls", "sibling_borrowed", "shared_under_two_parents", "nested_cond"):
        case = CASES[name]
        model = case.build()
        result = export_quietly(model, case.args(), output=tmp_path / f"{name}.onnx", exporter="dynamo")
        report = check_values(model, case.args(), {}, result.path, attributed(result))
        assert not report.wrong, report.summary()
        assert report.right


@BOTH
def test_merged_computations_belong_to_all_their_calls(exporter: str) -> None:
    """A mask that three layers compute alike is in the file once, and belongs to all three."""
    hierarchy = exported("mask_in_every_layer", exporter).hierarchy
    shared = [node for node in hierarchy.nodes if len(node.origins) > 1]
    assert shared
    layers = {call.id for call in hierarchy.calls if call.id.module.count(".") == 1}
    assert any(len(layers & set(node.origins)) == 3 for node in shared)


@BOTH
def test_a_folded_batch_norm_is_an_origin_of_its_conv(exporter: str) -> None:
    hierarchy = exported("conv_batch_norm", exporter).hierarchy
    (conv,) = [node for node in hierarchy.nodes if node.op_type == "Conv"]
    assert [str(origin) for origin in conv.origins] == ["conv", "norm"]
    assert conv.evidence == "carried"
    assert str(conv.scope) == ""


@BOTH
def test_pairs_right_after_each_other_keep_to_themselves(exporter: str) -> None:
    hierarchy = exported("conv_batch_norm_chain", exporter).hierarchy
    origins = [[str(origin) for origin in node.origins] for node in hierarchy.nodes]
    pairs = [[f"pairs.{n}.conv", f"pairs.{n}.norm"] for n in range(3)]
    assert origins == [["flat.0", "flat.1"], ["flat.2", "flat.3"], *pairs]


@BOTH
def test_a_folded_conv_that_two_groups_read_is_shared_with_neither(exporter: str) -> None:
    hierarchy = exported("conv_batch_norm_bottlenecks", exporter).hierarchy
    convs = [node for node in hierarchy.nodes if node.op_type == "Conv"]
    pairs = [f"blocks.{n}.{name}" for n in range(3) for name in ("widen", "filter", "narrow")]
    origins = [[str(origin) for origin in node.origins] for node in convs]
    assert origins == [[f"{pair}.conv", f"{pair}.norm"] for pair in pairs]


def test_what_is_embedded_and_what_is_beside(encoder: nn.Module, tmp_path: Path) -> None:
    ids = torch.randint(0, 32, (2, 5))
    for embed, sidecar, strip in [(True, False, True), (False, True, False), (True, True, False)]:
        path = tmp_path / f"{embed}-{sidecar}.onnx"
        result = export_quietly(encoder, (ids,), output=path, embed=embed, sidecar=sidecar, strip_torch_metadata=strip)
        keys = {e.key for n in onnx.load(path, load_external_data=False).graph.node for e in n.metadata_props}
        assert ("hieronnx.tag" in keys) == embed
        assert any(key.startswith("pkg.torch") for key in keys) != strip
        assert (tmp_path / f"{path.stem}_hierarchy.json").exists() == sidecar
        assert (result.sidecar is not None) == sidecar
        assert result.hierarchy.coverage() == 1.0


def test_filtering_changes_tags_only(encoder: nn.Module, tmp_path: Path) -> None:
    ids = torch.randint(0, 32, (2, 5))
    found = {}
    for option in ("default", "all", "none", "Linear,LayerNorm"):
        result = export_quietly(encoder, (ids,), output=tmp_path / f"{len(found)}.onnx", torch_nn=option)
        found[option] = result.hierarchy
    assert len({tuple(node.scope for node in h.nodes) for h in found.values()}) == 1
    assert list(found["none"].tags) == ["/Encoder", "/Encoder/Layer.0", "/Encoder/Layer.1"]
    assert "/Encoder/Layer.1/Linear.query" in found["all"].tags
    assert "/Encoder/Embedding" in found["default"].tags
    assert "/Encoder/Linear" in found["Linear,LayerNorm"].tags


def test_the_class_exports_the_same(encoder: nn.Module, tmp_path: Path) -> None:
    ids = torch.randint(0, 32, (2, 5))
    exporter = hieronnx.HierarchyExporter(strategy="captured", exporter="torchscript")
    with quiet():
        by_position = exporter.export(encoder, (ids,), tmp_path / "a.onnx")
        by_keyword = exporter.export(encoder, {"ids": ids}, tmp_path / "b.onnx", opset_version=17)
    assert by_position.exporter == by_keyword.exporter == "torchscript"
    assert json.loads((tmp_path / "b_hierarchy.json").read_text())["model"]["opset"] == {"": 17}


def test_the_output_is_spelled_as_in_torch_too(encoder: nn.Module, tmp_path: Path) -> None:
    ids = torch.randint(0, 32, (2, 5))
    by_position = export_quietly(encoder, (ids,), tmp_path / "a.onnx", exporter="torchscript")
    by_keyword = export_quietly(encoder, (ids,), f=tmp_path / "b.onnx", exporter="torchscript")
    assert (by_position.path, by_keyword.path) == (tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert by_position.hierarchy.nodes == by_keyword.hierarchy.nodes


def test_one_output_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(InputError, match="output= and f= both say where to write; give one of them"):
        hieronnx.export(nn.ReLU(), (torch.ones(1),), path, f=path)
    with pytest.raises(InputError, match="nothing says where to write; give output="):
        hieronnx.export(nn.ReLU(), (torch.ones(1),))
    with pytest.raises(InputError, match="the output is a dict; give a path, and keyword inputs as kwargs="):
        hieronnx.export(nn.ReLU(), (), {"input": torch.ones(1)})  # type: ignore[arg-type]


def test_modules_have_their_own_arguments_whatever_the_exporter_takes(encoder: nn.Module, tmp_path: Path) -> None:
    kwargs = {"ids": torch.randint(0, 32, (2, 5))}
    result = export_quietly(encoder, (), tmp_path / "m.onnx", kwargs, exporter="torchscript")
    assert result.hierarchy.modules[""].forward_args == ("ids", "scale")
    assert result.hierarchy.modules[""].forward_defaults == {"scale": None}


NOT_TEXTS = [
    ({"strategy": None}, "no strategy None; choose one of captured"),
    ({"strategy": ["captured"]}, r"no strategy \['captured'\]; choose one of captured"),
    ({"exporter": 3}, "no exporter 3; choose one of auto, dynamo, torchscript"),
    ({"torch_nn": None}, "None is not a class name; use default, all, none, or names"),
    ({"torch_nn": [nn.Linear]}, "'torch.nn.modules.linear.Linear'> is not a class name; use default"),
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exporter": "onnx"}, "no exporter 'onnx'; choose one of auto, dynamo, torchscript"),
        ({"strategy": "guess"}, "no strategy 'guess'; choose one of captured"),
        ({"torch_nn": "Not a class"}, "'Not a class' is not a class name"),
        ({"dynamo": True}, "'dynamo' is set by hieronnx itself"),
        ({"torch_nn": "Lineer"}, "no class in torch.nn 'Lineer'; did you mean 'Linear'"),
        ({"opset_versoin": 17}, "no option 'opset_versoin'; did you mean 'opset_version'"),
        *NOT_TEXTS,
        ({"opset_version": "18"}, "no opset '18'; onnx has 1 to"),
        ({"min_confidence": None}, "no level of confidence None; choose one of high, medium, low"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        hieronnx.export(nn.Linear(2, 2), (torch.randn(1, 2),), output=tmp_path / "m.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_only_modules_are_exported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the model is a str; hieronnx exports a "):
        hieronnx.export("demo", output=tmp_path / "m.onnx")  # type: ignore[arg-type]


def test_another_opset_than_asked_for_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = CASES["layer_norm_by_hand"]
    result = export_quietly(case.build(), case.args(), output=tmp_path / "m.onnx", exporter="dynamo", opset_version=13)
    assert result.hierarchy.model["opset"][""] == 18
    assert "asked for opset 13, torch wrote 18" in caplog.text


def test_a_sidecar_of_another_file_is_not_believed(tmp_path: Path) -> None:
    one, other = CASES["called_in_loop"], CASES["conv_batch_norm"]
    export_quietly(one.build(), one.args(), output=tmp_path / "one.onnx")
    export_quietly(other.build(), other.args(), output=tmp_path / "other.onnx", embed=False, strip_torch_metadata=True)
    expected = hieronnx.load(tmp_path / "one.onnx").nodes
    for name in ("one", "other"):
        (tmp_path / f"{name}_hierarchy.json").rename(tmp_path / f"{name}.json")
    (tmp_path / "other.json").rename(tmp_path / "one_hierarchy.json")
    (tmp_path / "one.json").rename(tmp_path / "other_hierarchy.json")
    assert [node.scope for node in hieronnx.load(tmp_path / "one.onnx").nodes] == [node.scope for node in expected]
    with pytest.raises(hieronnx.HieronnxError, match="tells of another model"):
        hieronnx.load(tmp_path / "other.onnx")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "guess"}, "no strategy 'guess'"),
        ({"exporter": "fast"}, "no exporter 'fast'"),
        ({"torch_nn": "Lineer"}, "did you mean 'Linear'"),
        ({"options": {"opset_version": 99}}, "no opset 99"),
        ({"options": {"opset_versoin": 18}}, "did you mean 'opset_version'"),
        ({"options": {"strategy": "guess"}}, "no strategy 'guess'"),
        *NOT_TEXTS,
        ({"options": {"opset_version": "18"}}, "no opset '18'; onnx has 1 to"),
    ],
)
def test_the_class_refuses_wrong_options_when_it_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        hieronnx.HierarchyExporter(**options)
    assert isinstance(caught.value, InputError)
