"""Profiles of real models in ONNX Runtime: sums are exact, every kernel has its owner, slow modules are found."""

from __future__ import annotations

import json
import random
from math import fsum
from pathlib import Path
from time import process_time

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import hieronnx
from support.exports import exported
from support.nets import export_stack
from support.profiles import check_sums, make_event
from support.zoo import CASES

LEVELS = ("none", "basic", "extended", "all")
QUICK = ("bert", "conv_batch_norm_bottlenecks", "norm_stack")


def check_owners(result: hieronnx.ProfileResult, path: Path, level: str, folder: Path) -> None:
    """Make sure that kernels are of the calls that carrying the hierarchy onto ONNX Runtime's own file says."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(
        ort.GraphOptimizationLevel, "ORT_DISABLE_ALL" if level == "none" else f"ORT_ENABLE_{level.upper()}"
    )
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / f"{level}.onnx")
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    carried = {node.key: node for node in hieronnx.carry(path, folder / f"{level}.onnx").hierarchy.nodes}
    for kernel in result.kernels:
        assert kernel.node is not None, kernel.name
        same = carried[kernel.node.key]
        assert (same.scope, set(same.origins)) == (kernel.node.scope, set(kernel.origins)), kernel


def check_model(name: str, exporter: str, levels: tuple[str, ...], folder: Path) -> None:
    path = exported(name, exporter).result.path
    for level in levels:
        result = hieronnx.profile(path, runs=2, warmup=1, optimization=level, roofline=False)
        check_sums(result)
        check_owners(result, path, level, folder)


@pytest.mark.parametrize("name", QUICK)
def test_sums_are_exact_and_every_kernel_is_owned(name: str, tmp_path: Path) -> None:
    check_model(name, "torchscript", LEVELS, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_sums_are_exact_over_the_zoo(name: str, exporter: str, tmp_path: Path) -> None:
    if exporter in CASES[name].exporters:
        check_model(name, exporter, LEVELS, tmp_path)


# -- the slow module --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["wide", "repeating"])
def test_a_slow_module_is_ranked_first_wherever_it_is(kind: str, tmp_path: Path) -> None:
    places = random.Random(15)
    for number in range(10):
        place = places.randrange(6)
        inner = [64] * 6
        if kind == "wide":
            inner[place] = 2048
        path = export_stack(tmp_path / f"{number}.onnx", inner, repeating=place if kind == "repeating" else None)
        result = hieronnx.profile(path, runs=9, roofline=False, threads=1)
        blocks = [call for call in result.calls if call.module.count(".") == 1]
        assert max(blocks, key=lambda call: call.total_us).module == f"blocks.{place}"


# -- what fused kernels are divided into --------------------------------------------------------------------


class Convs(nn.Module):
    """Convolutions of different sizes, each with its norm and activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.first_norm, self.first_act = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
        self.second, self.second_act = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second_act(self.second(self.first_act(self.first_norm(self.first(x)))))


def profile_module(model: nn.Module, example: torch.Tensor, path: Path, **options: object) -> hieronnx.ProfileResult:
    hieronnx.export(model.eval(), (example,), path, exporter="torchscript")
    return hieronnx.profile(path, runs=5, roofline=False, **options)


def test_a_fused_convolution_is_the_convolutions_for_all_others_multiply_nothing(tmp_path: Path) -> None:
    model, example = Convs(), torch.randn(1, 3, 16, 16)
    for level in ("extended", "all"):  # FusedConv, and blocks of channels with their reorders
        result = profile_module(model, example, tmp_path / f"{level}.onnx", optimization=level)
        check_sums(result)
        fused = [kernel for kernel in result.kernels if kernel.op_type in ("Conv", "FusedConv")]
        assert len(fused) == 2
        for kernel, (conv, act) in zip(fused, (("first", "first_act"), ("second", "second_act")), strict=True):
            parts = {share.module: share.us for share in kernel.shares}
            assert {conv, act} <= parts.keys()
            assert parts[act] == 0
            assert parts[conv] == pytest.approx(kernel.us)  # also where torch folded a norm into it as it exported
            assert fsum(parts.values()) == pytest.approx(kernel.us)
            assert kernel.shared
        if level == "all":
            assert {k.kind for k in result.kernels if k.op_type.startswith("Reorder")} == {"inserted"}
        told = {call.module: call.elsewhere for call in result.calls}
        assert told["second_act"] == "its node runs in 'second'"
        assert told["first_act"] == told["first_norm"] == "its node runs in 'first'"
        assert told["first"] == told["second"] == ""


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_work_that_is_done_once_for_two_calls_is_told_where_it_is_not(exporter: str) -> None:
    result = hieronnx.profile(exported("replayed_on_same_input", exporter).result.path, runs=2, roofline=False)
    assert {str(call.id): call.elsewhere for call in result.calls} == {
        "": "",
        "block": "its node runs in 'block.linear'",
        "block.linear": "",
        "block@1": "its work is done once, in 'block'",
        "block.linear@1": "its work is done once, in 'block.linear'",
    }


def test_a_skip_with_its_norm_is_divided_equally_for_neither_multiplies(tmp_path: Path) -> None:
    path = export_stack(tmp_path / "stack.onnx", [64, 64])
    result = hieronnx.profile(path, runs=3, optimization="extended", roofline=False)
    check_sums(result)
    skips = [kernel for kernel in result.kernels if kernel.op_type == "SkipLayerNormalization"]
    assert len(skips) == 2
    for number, kernel in enumerate(skips):
        parts = {share.module: share.us for share in kernel.shares}
        assert {f"blocks.{number}", f"blocks.{number}.norm"} <= parts.keys()
        # The bias of the layer before is fused as well; that layer has its product still.
        assert parts[f"blocks.{number}.norm"] == pytest.approx(kernel.us / len(parts))


class Attention(nn.Module):
    """Attention as models wrote it before torch had an operator for it, with a skip and a norm behind it."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.size(0), x.size(1), self.heads, self.size).permute(0, 2, 1, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(-1, -2)) / self.size**0.5
        scores = torch.softmax(scores + (1.0 - mask[:, None, None, :].float()) * -10000.0, -1)
        mixed = torch.matmul(scores, value).permute(0, 2, 1, 3).contiguous()
        return self.norm(self.out(mixed.view(x.size(0), x.size(1), -1)) + x)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention = nn.LayerNorm(64), Attention()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.attention(self.first(x), mask)


def test_fused_attention_is_divided_by_the_products_in_it(tmp_path: Path) -> None:
    from onnxruntime.transformers import optimizer

    path, fused = tmp_path / "encoder.onnx", tmp_path / "fused.onnx"
    example = torch.randn(2, 8, 64), torch.ones(2, 8, dtype=torch.long)
    names, axes = ["x", "mask"], {0: "batch", 1: "length"}
    dynamic = dict.fromkeys(names, axes)
    options = {"exporter": "torchscript", "input_names": names, "dynamic_axes": dynamic, "opset_version": 14}
    hieronnx.export(Encoder().eval(), example, path, **options)
    optimizer.optimize_model(str(path), "bert", num_heads=4, hidden_size=64, opt_level=0).save_model_to_file(str(fused))
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.enable_profiling, settings.profile_file_prefix = True, str(tmp_path / "trace")
    session = ort.InferenceSession(str(fused), settings, providers=["CPUExecutionProvider"])
    session.run(None, {"x": example[0].numpy(), "mask": example[1].numpy()})
    result = hieronnx.profile(path, trace_from=session.end_profiling(), optimized=fused)
    check_sums(result)
    assert any(kernel.node is not None and not kernel.node.name for kernel in result.kernels)  # by its operator
    assert result.by_kind["runtime"] == 0
    (kernel,) = (kernel for kernel in result.kernels if kernel.op_type == "Attention")
    parts = {share.module.rpartition(".")[2]: share.us for share in kernel.shares}
    assert set(parts) == {"query", "key", "value", "attention"}
    layer, products = 2 * 8 * 64 * 64, 2 * (2 * 8 * 8 * 64)
    for name in ("query", "key", "value"):
        assert parts[name] == pytest.approx(kernel.us * layer / (3 * layer + products))
    assert parts["attention"] == pytest.approx(kernel.us * products / (3 * layer + products))


class Merged(nn.Module):
    """Two layers that read the same, of which one is three times as wide."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(32, 32, bias=False), nn.Linear(32, 96, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.narrow(x), self.wide(x)], -1)


def test_merged_products_are_divided_by_their_multiply_adds(tmp_path: Path) -> None:
    hieronnx.export(Merged().eval(), (torch.randn(8, 32),), tmp_path / "two.onnx", exporter="torchscript")
    two = hieronnx.extract(tmp_path / "two.onnx", "/Merged").model
    # What an optimizer that merges products would make: one with the weights side by side.
    product = [node for node in two.graph.node if node.op_type in ("MatMul", "Gemm")]
    weights = [next(t for t in two.graph.initializer if t.name == node.input[1]) for node in product]
    arrays = [numpy_helper.to_array(tensor) for tensor in weights]
    flips = [any(a.name == "transB" and a.i for a in node.attribute) for node in product]
    joined = np.concatenate([a.T if flip else a for a, flip in zip(arrays, flips, strict=True)], axis=1)
    merged = type(two)()
    merged.CopyFrom(two)
    del merged.graph.node[:], merged.graph.initializer[:]
    merged.graph.initializer.append(helper.make_tensor("both", TensorProto.FLOAT, joined.shape, joined.ravel()))
    merged.graph.node.append(
        helper.make_node("MatMul", [two.graph.input[0].name, "both"], [two.graph.output[0].name], name="both")
    )
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps([make_event("model_run", 0, 100, "Session"), make_event("both_kernel_time", 1, 80)]))
    (tmp_path / "merged.onnx").write_bytes(merged.SerializeToString())
    result = hieronnx.profile(tmp_path / "two.onnx", trace_from=trace, optimized=tmp_path / "merged.onnx")
    (kernel,) = result.kernels
    parts = {share.module: share.us for share in kernel.shares}
    assert parts["narrow"] == pytest.approx(20)
    assert parts["wide"] == pytest.approx(60)


# -- inputs, notes, traces from elsewhere -------------------------------------------------------------------


def test_dynamic_axes_have_the_sizes_that_are_given(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    hieronnx.export(
        nn.Sequential(nn.Linear(8, 8)).eval(),
        (torch.randn(2, 8),),
        path,
        exporter="torchscript",
        input_names=["x"],
        dynamic_axes={"x": {0: "batch"}},
    )
    assert hieronnx.profile(path, runs=1, dims={"batch": 7}, roofline=False).inputs == {"x": "float32[7,8]"}
    made = hieronnx.profile(path, runs=1, roofline=False)
    assert any("--dim batch=SIZE" in note for note in made.notes)
    given = hieronnx.profile(path, runs=1, inputs={"x": np.zeros((3, 8), np.float32)}, roofline=False)
    assert given.inputs == {"x": "float32[3,8]"}
    (work,) = {kernel.multiply_adds for kernel in given.kernels if kernel.multiply_adds}
    assert work == 3 * 8 * 8
    with pytest.raises(hieronnx.InputError, match="no dynamic axis 'length'"):
        hieronnx.profile(path, dims={"length": 7})


def test_a_trace_from_elsewhere_gets_its_modules(tmp_path: Path) -> None:
    path = export_stack(tmp_path / "stack.onnx", [64, 256])
    options = ort.SessionOptions()
    options.enable_profiling, options.log_severity_level = True, 4
    options.profile_file_prefix = str(tmp_path / "elsewhere")
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for _ in range(4):
        session.run(None, {session.get_inputs()[0].name: np.zeros((4, 32, 64), np.float32)})
    trace = session.end_profiling()
    result = hieronnx.profile(path, trace_from=trace, optimized=tmp_path / "optimized.onnx")
    check_sums(result)
    assert result.runs == 3
    assert result.plain_us is None
    assert result.by_kind["runtime"] == 0
    times = {call.module: call.total_us for call in result.calls}
    assert times["blocks.1"] > 0
    # Without the graph that ran, what it has other names for is named, and counts at the root.
    blind = hieronnx.profile(path, trace_from=trace)
    check_sums(blind)
    assert blind.by_kind["runtime"] > 0
    assert any("no node of the graph has the name" in note for note in blind.notes)


def test_a_file_that_is_no_trace_is_told(tmp_path: Path) -> None:
    path = export_stack(tmp_path / "stack.onnx", [64])
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(hieronnx.HieronnxError, match="not a trace of ONNX Runtime's profiler"):
        hieronnx.profile(path, trace_from=tmp_path / "bad.json")
    (tmp_path / "empty.json").write_text("[]")
    with pytest.raises(hieronnx.HieronnxError, match="no run with kernels"):
        hieronnx.profile(path, trace_from=tmp_path / "empty.json")
    with pytest.raises(hieronnx.InputError, match="give trace_from, too"):
        hieronnx.profile(path, optimized=path)


def test_a_call_is_timed_alone_on_what_it_receives(tmp_path: Path) -> None:
    path = export_stack(tmp_path / "stack.onnx", [64, 64])
    result = hieronnx.profile(path, runs=3, roofline=False, in_isolation="blocks.*")
    assert [item.module for item in result.isolated] == ["blocks.0", "blocks.1"]
    for item in result.isolated:
        assert not item.problem
        assert item.alone_us
        assert item.context_us == pytest.approx(item.in_model_us - item.alone_us)


def test_classes_and_operators_add_up(tmp_path: Path) -> None:
    path = export_stack(tmp_path / "stack.onnx", [64, 64])
    result = hieronnx.profile(path, runs=2, roofline=False)
    assert fsum(group.us for group in result.by_operator) == pytest.approx(result.total_us)
    assert fsum(group.own_us for group in result.by_class) == pytest.approx(result.total_us)
    block = next(group for group in result.by_class if group.name == "Block")
    assert block.members == 2
    assert block.us == pytest.approx(fsum(c.total_us for c in result.calls if c.class_name == "Block"))


def test_what_limits_a_product_is_computing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.Sigmoid())
    hieronnx.export(model.eval(), (torch.randn(512, 512),), tmp_path / "net.onnx", exporter="torchscript")
    result = hieronnx.profile(tmp_path / "net.onnx", runs=5)
    assert result.machine is not None
    product = next(call for call in result.calls if call.module == "0")
    assert product.multiply_adds == 512**3
    assert product.bytes == 4 * (3 * 512 * 512 + 512)
    assert product.gflops == pytest.approx(2e-3 * 512**3 / product.total_us)
    assert product.bound in ("compute", "overhead")  # on a machine that does other work it may reach little
    assert result.peak_memory is not None
    assert result.peak_memory >= 512 * 512 * 4


@pytest.mark.long
def test_ten_thousand_nodes_are_reported_in_three_seconds(tmp_path: Path) -> None:
    from hieronnx.report.profile import render_profile

    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3400))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for cell in self.cells:
                x = x + cell(x)
            return x

    path = tmp_path / "many.onnx"
    hieronnx.export(Many().eval(), (torch.randn(1, 4),), path, exporter="torchscript")
    result = hieronnx.profile(path, runs=5, optimization="none", roofline=False)
    assert len(result.kernels) >= 10_000
    check_sums(result)
    begin = process_time()  # what else runs here does not count
    render_profile(result)
    json.dumps(result.to_dict())
    assert process_time() - begin < 3
