"""Multiply-adds with dynamic axes are formulas, and these give at any size what is counted at that size."""

from __future__ import annotations

import csv
import json
import re
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser
from torch import nn
from torch.nn import functional

import hieronnx
import support.cli
from hieronnx import Formula, analyze
from hieronnx.report.analysis import analysis_to_markdown, render_analysis
from hieronnx.tools.analyze.formulas import Size, broadcast, read_size, shorten
from support.exports import quiet

AXES = ("batch", "seq")
SIZES = st.fixed_dictionaries({name: st.integers(1, 50) for name in AXES})


def evaluate(size: Size | None, sizes: dict[str, int]) -> int:
    assert size is not None
    if isinstance(size, int):
        return size
    return sum(t.coefficient * prod(sizes[name] ** power for name, power in t.axes.items()) for t in size.terms)


def read(text: str) -> Size | None:
    return read_size(text, AXES, {})


# -- calculating ------------------------------------------------------------------------------------------

POLYNOMIALS = st.recursive(
    st.sampled_from([*AXES, "1", "2", "7"]),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda p: f"({p[0]}{p[1]}{p[2]})"),
    max_leaves=6,
)


@given(POLYNOMIALS, SIZES)
@settings(max_examples=200, deadline=None)
def test_a_formula_has_the_value_of_the_expression_that_it_was_read_from(text: str, sizes: dict[str, int]) -> None:
    assert evaluate(read(text), sizes) == eval(text, {}, sizes)


@given(POLYNOMIALS, st.integers(1, 4), SIZES)
@settings(max_examples=200, deadline=None)
def test_a_quotient_is_exact_or_none_at_all(text: str, by: int, sizes: dict[str, int]) -> None:
    size = read(f"({text})//{by}")
    if size is not None:
        assert evaluate(size, sizes) == eval(text, {}, sizes) // by


def test_what_is_no_polynomial_of_known_axes_is_none() -> None:
    for text in (
        "unk__7",
        "batch//2",
        "batch/2",
        "Max(batch, 2)",
        "batch**seq",
        "u0 + 1",
        "2 +",
        "",
        "batch if 1 else 2",
    ):
        assert read(text) is None, text
    assert read("batch - batch + 3") == 3
    assert str(read("2*batch*seq**2 + seq - 1")) == "2 × batch × seq² + seq - 1"
    assert read_size("batch*seq", AXES, {"batch": 4}) == read_size("4*seq", AXES, {})
    assert isinstance(read_size("a name with blanks", ("a name with blanks",), {}), Formula)


def test_axes_together_are_told_only_where_they_can_be() -> None:
    batch, seq = read("batch"), read("seq")
    assert batch is not None
    assert seq is not None
    assert broadcast(batch, 1) == broadcast(1, batch) == broadcast(batch, batch) == batch
    assert broadcast(batch, 8) == 8
    with pytest.raises(ValueError, match="do not fit"):
        broadcast(batch, seq)


def test_large_numbers_are_short() -> None:
    assert [shorten(n) for n in (7, 1024, 99_999, 72_194_304, 1_000_000_000)] == ["7", "1,024", "99,999", "72.2M", "1G"]


# -- models -----------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        scores = torch.softmax(query @ key.transpose(2, 3), -1)
        return (scores @ value).transpose(1, 2).flatten(2)


class Transformer(nn.Module):
    """Words and attention over them, and a pooler that reads the first word alone."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.layers = nn.Sequential(Attention(), Attention())
        self.pooler = nn.Linear(16, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.pooler(self.layers(self.words(ids))[:, 0])


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("formulas") / "transformer.onnx"
    ids, shapes = torch.ones(2, 7, dtype=torch.int64), ({0: "batch", 1: "seq"},)
    with quiet():
        hieronnx.export(Transformer().eval(), (ids,), path, exporter="dynamo", dynamic_shapes=shapes)
    return path


@pytest.mark.parametrize("sizes", [{"batch": 1, "seq": 1}, {"batch": 3, "seq": 11}])
def test_the_formulas_of_a_transformer_give_what_is_counted_at_each_size(
    transformer: Path, sizes: dict[str, int]
) -> None:
    free, fixed = analyze(transformer, all_calls=True), analyze(transformer, all_calls=True, dims=sizes)
    assert (free.total.uncounted, fixed.total.uncounted, fixed.total.formula) == (0, 0, None)
    assert {name for term in free.total.formula.terms for name in term.axes} == set(AXES)
    assert max(sum(term.axes.values()) for term in free.total.formula.terms) == 3  # batch × seq² of the attention
    for line, other in zip(free.modules, fixed.modules, strict=True):
        assert evaluate(line.total.formula or line.total.multiply_adds, sizes) == other.total.multiply_adds
    for node, other in zip(free.nodes, fixed.nodes, strict=True):
        assert evaluate(node.formula or node.multiply_adds, sizes) == other.multiply_adds


def test_an_axis_that_is_fixed_is_no_part_of_the_formula(transformer: Path) -> None:
    formula = analyze(transformer, dims={"batch": 2}).total.formula
    assert {name for term in formula.terms for name in term.axes} == {"seq"}


def test_formulas_are_in_text_markdown_json_and_csv(transformer: Path) -> None:
    found = analyze(transformer)
    text = found.total.formula.write(shorten)
    assert " × batch × seq² + " in text
    assert text in render_analysis(found)
    assert text in analysis_to_markdown(found)
    entry = json.loads(support.cli.run("analyze", transformer, "--json").stdout)["total"]["formula"]
    assert entry["text"] == str(found.total.formula)
    assert entry["terms"][0] == {
        "coefficient": found.total.formula.terms[0].coefficient,
        "axes": {"batch": 1, "seq": 2},
    }
    rows = list(csv.DictReader(support.cli.run("analyze", transformer, "--csv").stdout.splitlines()))
    assert rows[0]["formula"] == str(found.total.formula)
    assert "--dim batch=SIZE --dim seq=SIZE counts" in render_analysis(found)


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_a_convolutional_net_counts_by_its_batch(exporter: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 15 * 15, 10)).eval()
    options = {"dynamic_axes": {"x": {0: "batch"}}, "input_names": ["x"]}
    if exporter == "dynamo":
        options = {"dynamic_shapes": ({0: "batch"},)}
    with quiet():
        hieronnx.export(model, (torch.randn(2, 3, 32, 32),), tmp_path / "m.onnx", exporter=exporter, **options)
    total = analyze(tmp_path / "m.onnx").total
    work = 8 * 15 * 15 * 3 * 9 + 8 * 15 * 15 * 10
    assert (str(total.formula), total.uncounted) == (f"{work:,} × batch", 0)


class Padded(nn.Module):
    """Pads of convolutions, and by a function, more on one side than on the other."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.first = nn.Conv2d(3, 8, 3, padding=1, padding_mode=mode)
        self.second = nn.Conv2d(8, 4, 3, stride=2, padding=(2, 1), padding_mode=mode)
        self.last = nn.Conv2d(4, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mode = "constant" if self.mode == "zeros" else self.mode
        return self.last(functional.pad(self.second(self.first(x).relu()), (1, 2, 1, 0), mode=mode))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_a_net_counts_the_same_whatever_it_pads_with(exporter: str, dynamic: bool, tmp_path: Path) -> None:
    options: dict[str, object] = {}
    if dynamic and exporter == "dynamo":
        options = {"dynamic_shapes": ({0: "batch"},)}
    elif dynamic:
        options = {"dynamic_axes": {"x": {0: "batch"}}, "input_names": ["x"]}
    totals = []
    for mode in ("zeros", "reflect", "replicate"):
        path = tmp_path / f"{mode}.onnx"
        with quiet():
            hieronnx.export(Padded(mode).eval(), (torch.randn(2, 3, 16, 20),), path, exporter=exporter, **options)
        totals.append(analyze(path).total)
    work = 8 * 16 * 20 * 3 * 9 + 4 * 9 * 10 * 8 * 9 + 2 * 8 * 11 * 4 * 9
    formula = f"{work:,} × batch" if dynamic else "None"
    expected = (0 if dynamic else 2 * work, formula, 0)
    assert [(t.multiply_adds, str(t.formula), t.uncounted) for t in totals] == [expected] * 3


def test_what_cannot_be_told_as_a_formula_is_not_counted_and_said() -> None:
    ends = "(float[1, 3, h, h] x, float[4, 3, 3, 3] w) => (float[a, b, c, d] y)"
    graph = f'<ir_version: 10, opset_import: ["" : 21]> main {ends}'
    found = analyze(parser.parse_model(f"{graph} {{ y = Conv<strides = [2, 2]> (x, w) }}"))
    assert (found.total.formula, found.total.uncounted) == (None, 1)
    assert "at least: not known of 1 node" in render_analysis(found)
    even = analyze(parser.parse_model(f"{graph} {{ y = Conv<pads = [1, 1, 1, 1]> (x, w) }}"))
    assert str(even.total.formula) == "108 × h²"


# -- what is shown ----------------------------------------------------------------------------------------


def test_the_most_work_comes_first_and_totals_can_stand_alone(transformer: Path) -> None:
    shown = support.cli.run("analyze", transformer, "--all", "--top", "3").stdout
    lines = re.split(r"multiply-adds +operators\n", shown)[1].splitlines()[:3]
    largest = sorted(analyze(transformer, all_calls=True).modules, key=lambda line: -line.total.weight)[:3]
    assert [line.split()[0] for line in lines] == [line.call.tag for line in largest]
    assert "3 calls shown" in shown
    quietly = support.cli.run("analyze", transformer, "--quiet").stdout
    assert "multiply-adds" in quietly
    assert "operator" not in quietly


def test_extract_can_be_quiet(transformer: Path, tmp_path: Path) -> None:
    done = support.cli.run("extract", transformer, "pooler", "-o", tmp_path / "part.onnx", "--quiet")
    assert (done.exit_code, done.stdout) == (0, "")
    assert (tmp_path / "part.onnx").exists()
    done = support.cli.run("extract", transformer, "layers.*", "--all", tmp_path / "parts", "-q")
    assert (done.exit_code, done.stdout) == (0, "")
