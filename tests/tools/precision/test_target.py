"""Which modules lose by 8 bits, and which are kept in float so that a target is met."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from benchmarks.target import Comparison
from torch import Tensor, nn

import hieronnx
from hieronnx.report.precision import render_search, render_sensitivity
from hieronnx.tools.precision.measuring import Judge, Target
from hieronnx.tools.verify.deviation import Deviation
from support.cli import run
from support.exports import quiet
from support.sensitive import CALIBRATED, MODELS, PRODUCTS, Sensitive

BLOCKS = 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Stack(nn.Module):
    """Blocks of which one has a weight that 8 bits cannot hold: one number is a thousand times as large as the others.

    It is multiplied by nothing but zero.
    """

    def __init__(self, sensitive: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        with torch.no_grad():
            block = self.blocks[sensitive]
            block.down.weight[0, 0] = 60.0
            block.up.weight[0] = 0
            block.up.bias[0] = 0

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def make_samples(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{"x": random.standard_normal((4, 16)).astype(np.float32)} for _ in range(count)]


@pytest.fixture(scope="module", params=[1, 4])
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    torch.manual_seed(request.param)
    path = tmp_path_factory.mktemp("stack") / "model.onnx"
    with quiet():
        hieronnx.export(Stack(request.param).eval(), (torch.zeros(4, 16),), path, exporter="torchscript")
    return path, request.param


def measure(path: Path, quantized: Path) -> float:
    """Return the ratio of signal to noise on samples that nobody has seen."""
    sessions = [ort.InferenceSession(p, providers=["CPUExecutionProvider"]) for p in (path, quantized)]
    runs = [np.concatenate([s.run(None, sample)[0] for sample in make_samples(12, seed=99)]) for s in sessions]
    return 10 * math.log10(float((runs[0] ** 2).sum() / ((runs[0] - runs[1]) ** 2).sum()))


@pytest.mark.parametrize("tool", ["dynamic", "static"])
def test_the_sensitive_module_is_ranked_first(tool: str, stack: tuple[Path, int]) -> None:
    path, sensitive = stack
    calibration = make_samples(4, seed=0) if tool == "static" else ()
    result = hieronnx.sensitivity(path, tool=tool, inputs=make_samples(3, seed=1), calibration=calibration)
    assert result.modules[0].module == f"blocks.{sensitive}.down"
    assert result.modules[0].introduced.relative > 2 * result.modules[1].introduced.relative
    assert len(result.modules) >= 2 * BLOCKS
    assert all(module.multiply_adds > 0 for module in result.modules)


def test_modules_are_ranked_on_what_the_calibration_has(stack: tuple[Path, int]) -> None:
    path, samples = stack[0], make_samples(5, seed=3)
    found = hieronnx.sensitivity(path, tool="static", calibration=iter(samples))
    stacked = {"x": np.stack([sample["x"] for sample in samples])}
    assert found.samples == 5
    assert found.modules == hieronnx.sensitivity(path, tool="static", calibration=samples, inputs=stacked).modules
    assert not found.notes
    assert "random inputs" in hieronnx.sensitivity(path).notes[-1]


class Mean(nn.Module):
    """The mean over so many words: NaN of none."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        mask = (torch.arange(x.shape[1]) < lengths[:, None]).float()[..., None]
        return self.out((self.words(x) * mask).sum(1) / mask.sum(1))


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_model_that_gives_nan_in_float_is_told_and_not_its_distance(exporter: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with quiet():
        hieronnx.export(Mean().eval(), (torch.randn(2, 7, 8), torch.tensor([3, 5])), path, exporter=exporter)
    x = np.random.default_rng(0).standard_normal((2, 7, 8)).astype(np.float32)
    lengths = [np.array(pair) for pair in ([3, 5], [0, 5], [0, 0])]
    good, half, none = ({"x": x, "lengths": pair} for pair in lengths)
    found = hieronnx.sensitivity(path, tool="static", calibration=[good], inputs=[good, half])
    assert (found.output.sample, found.output.nans) == (1, 4)
    assert "NaN on 1 of 2 samples" in found.notes[-1]
    said = render_sensitivity(found).splitlines()[-1]
    assert "cannot be compared ('output', sample 1: 4 elements NaN or infinite only in float" in said
    assert "NaN on 1 of 1 sample," in hieronnx.sensitivity(path, inputs=[none]).notes[-1]  # NaN in both, which is equal
    assert not hieronnx.sensitivity(path, inputs=[good]).notes
    other = replace(found, output=Deviation("output", mismatch="its shape is [1], not [2]"))
    assert "cannot be compared ('output', sample 0: its shape is [1], not [2])" in render_sensitivity(other)
    made_up = run("sensitivity", path, "--samples", 8)
    assert "of 8 random inputs" in made_up.stderr
    assert "--inputs takes others" in made_up.stderr
    assert "of their size apart" not in made_up.stdout


@pytest.mark.parametrize("tool", ["dynamic", "static"])
def test_the_target_is_met_with_little_in_float(tool: str, stack: tuple[Path, int], tmp_path: Path) -> None:
    path, sensitive = stack
    whole = tmp_path / "whole.onnx"
    hieronnx.quantize(path, output=whole, tool=tool, calibration=make_samples(6, 0) if tool == "static" else ())
    target = math.ceil(measure(path, whole)) + 3
    output = tmp_path / "int8.onnx"
    result = hieronnx.quantize(
        path, output=output, tool=tool, calibration=make_samples(9, seed=0), target=f"snr>={target}"
    )
    search = result.search
    assert search is not None
    assert search.met
    assert not search.trials[0].met  # or there was nothing to find
    assert f"blocks.{sensitive}.down" in search.chosen.kept
    assert search.chosen.multiply_adds > 0.5
    assert len(search.trials) <= 2 * math.sqrt(2 * BLOCKS + 1) + 4
    assert measure(path, output) >= target  # on samples that the search did not see either


QUICK = ("convnext", "distilbert")
ZOO = [
    pytest.param(m, id=f"{m.name}-{m.tool}", marks=() if m.name in QUICK else pytest.mark.long)
    for m in (*MODELS, CALIBRATED)
]


@pytest.mark.parametrize("model", ZOO)
def test_the_sensitive_module_of_a_zoo_model_is_found(model: Sensitive, tmp_path: Path) -> None:
    """With no more candidates than allowed; and the target holds on samples that nobody saw."""
    path, unseen = model.write(tmp_path), model.draw(40, seed=9)
    whole, without = (quantize_all_but(model, path, kept) for kept in ((), (model.module,)))
    judge = Judge(path, Target("snr", 0.0), unseen, None)
    target = (judge.measure(whole) + judge.measure(without)) / 2
    output = tmp_path / "int8.onnx"
    samples = model.draw(18, seed=0)
    result = hieronnx.quantize(
        path, output=output, tool=model.tool, calibration=samples, target=f"snr>={target:.2f}", **model.options
    )
    search, quantized = result.search, hieronnx.load(whole)
    kept = hieronnx.select(path, *search.chosen.kept).nodes
    wanted = [node for node in hieronnx.load(path).nodes_in(model.module) if node.op_type in PRODUCTS]
    assert wanted[0].key in {node.key for node in kept}
    assert not search.trials[0].met
    in_few = ("MatMulInteger", "ConvInteger", "DequantizeLinear", "QuantizeLinear")
    modules = {node.scope.module for node in quantized.nodes if node.op_type in in_few}
    depth = max(quantized.tree.depth(call.id) for call in quantized.calls)
    assert len(search.trials) <= 2 * math.sqrt(len(modules)) + depth
    assert judge.measure(output) >= target


def quantize_all_but(model: Sensitive, path: Path, kept: tuple[str, ...]) -> Path:
    made = path.with_name(f"all_but_{len(kept)}.onnx")
    calibration = model.draw(12, seed=0) if model.tool == "static" else ()
    hieronnx.quantize(path, output=made, tool=model.tool, exclude=kept, calibration=calibration, **model.options)
    return made


@pytest.mark.long
@pytest.mark.parametrize("model", [pytest.param(m, id=f"{m.name}-{m.tool}") for m in (*MODELS, CALIBRATED)])
def test_no_less_is_in_8_bits_than_a_greedy_search_by_nodes_leaves(model: Sensitive, tmp_path: Path) -> None:
    comparison = Comparison(model, tmp_path)
    for target in comparison.targets()[: 1 if model == CALIBRATED else 2]:
        assert comparison.search_modules(target).share >= comparison.search_nodes(target).share


@pytest.mark.parametrize("tool", ["dynamic", "static"])
def test_the_command_leaves_the_same_in_float(tool: str, stack: tuple[Path, int], tmp_path: Path) -> None:
    path, output, again = stack[0], tmp_path / "found.onnx", tmp_path / "again.onnx"
    result = hieronnx.quantize(path, output=output, tool=tool, weight_type="int8", target="snr>=200", best=True)
    program, *words = [str(again) if word == str(output) else word for word in result.search.command]
    assert (program, words[0]) == ("hieronnx", "quantize")
    assert "--exclude" in words
    assert run(*words).exit_code == 0
    made, known = ([node.op_type for node in hieronnx.load(p).nodes] for p in (again, output))
    assert made == known
    if tool == "dynamic":
        assert hieronnx.compare(output, again, values=True).same


def test_a_target_that_is_met_keeps_nothing(stack: tuple[Path, int], tmp_path: Path) -> None:
    path, _ = stack
    result = hieronnx.quantize(path, output=tmp_path / "int8.onnx", tool="dynamic", target="cosine>=0.1")
    assert result.search.chosen.kept == ()
    assert len(result.search.trials) == 1


def test_a_target_that_cannot_be_met_writes_nothing(stack: tuple[Path, int], tmp_path: Path) -> None:
    path, _ = stack
    output = tmp_path / "int8.onnx"
    with pytest.raises(hieronnx.HieronnxError, match=r"the target snr>=500 was not met .* --best"):
        hieronnx.quantize(path, output=output, tool="dynamic", target="snr>=500", budget=4)
    assert not list(tmp_path.iterdir())
    result = hieronnx.quantize(path, output=output, tool="dynamic", target="snr>=500", budget=4, best=True)
    assert not result.search.ended
    assert "--budget 8 may leave more in 8 bits" in render_search(result.search)
    assert not result.search.met
    assert output.is_file()


def test_a_metric_of_ones_own(stack: tuple[Path, int], tmp_path: Path) -> None:
    path, _ = stack
    samples = make_samples(4, seed=5)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    labels = [session.run(None, sample)[0].argmax(1) for sample in samples]

    def accuracy(model) -> float:
        output = session.get_outputs()[0].name
        right = [model(s)[output].argmax(1) == label for s, label in zip(samples, labels, strict=True)]
        return float(np.mean(right))

    result = hieronnx.quantize(path, output=tmp_path / "int8.onnx", tool="dynamic", target="drop<=0.0", metric=accuracy)
    assert result.search.met
    assert result.search.chosen.value <= 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "snr<=30"}, "cannot read the target"),
        ({"target": "good"}, "cannot read the target"),
        ({"target": "drop<=0.1"}, "give both, or neither"),
        ({"target": "snr>=1", "favour": "speed"}, "no cost 'speed'"),
        ({"metric": lambda _: 1.0}, "a metric is for a target"),
    ],
)
def test_mistakes_are_told(options: dict[str, object], said: str, stack: tuple[Path, int], tmp_path: Path) -> None:
    with pytest.raises(hieronnx.InputError, match=said):
        hieronnx.quantize(stack[0], output=tmp_path / "int8.onnx", tool="dynamic", **options)


def test_the_commands(stack: tuple[Path, int], tmp_path: Path) -> None:
    path, sensitive = stack
    ranked = run("sensitivity", path, "--top", 3)
    assert ranked.exit_code == 0, ranked.output
    assert f"blocks.{sensitive}.down" in ranked.stdout.splitlines()[1]
    printed = json.loads(run("sensitivity", path, "--json").stdout)
    assert printed["modules"][0]["module"] == f"blocks.{sensitive}.down"
    made = run("quantize", path, "-o", tmp_path / "int8.onnx", "--with", "dynamic", "--target", "snr>=1")
    assert made.exit_code == 0, made.output
    assert "snr>=1 is met" in made.output
    assert "is for --target" in run("quantize", path, "-o", "x.onnx", "--with", "dynamic", "--best").stderr
