"""Carry onto small graphs under other names: what weights, the ends of the graph and what is read next to them tell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper, parser

import hieronnx
from support.annotated import annotated

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
Arrays = Mapping[str, npt.NDArray[Any]]


def draw(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def make(text: str, weights: Arrays) -> onnx.ModelProto:
    model = parser.parse_model(HEAD + text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return model


def carry(before: onnx.ModelProto, after: onnx.ModelProto, scopes: list[str]) -> dict[str, tuple[list[str], str]]:
    """Return for each output after the modules that are its origins, and how well that is known."""
    nodes = hieronnx.carry(annotated(before, list(scopes)), after).hierarchy.nodes
    return {node.output: ([origin.module for origin in node.origins], node.confidence) for node in nodes}


def test_weights_of_one_size_are_told_apart_by_what_they_hold() -> None:
    v, w = draw(64, 64), draw(64, 64) + 1
    before = "main (float[2, 64] x) => (float[2, 64] y) { a = MatMul (x, v) b = MatMul (x, w) y = Add (a, b) }"
    after = "main (float[2, 64] i) => (float[2, 64] o) { t1 = MatMul (i, p) t2 = MatMul (i, q) o = Add (t2, t1) }"
    found = carry(make(before, {"v": v, "w": w}), make(after, {"p": v, "q": w}), ["first", "second", "sum"])
    assert found == {"t1": (["first"], "high"), "t2": (["second"], "high"), "o": (["sum"], "high")}


def test_outputs_that_kept_their_names_are_known_by_these_whatever_their_order() -> None:
    def tower(inner: str, output: str) -> str:
        steps = "".join(f"{inner}{i} = Neg ({inner}{i - 1}) " for i in range(1, 12))
        return f"{inner}0 = Exp (x) {steps} {output} = Neg ({inner}11) "

    head = "main (float[2] x) => (float[2] {}, float[2] {})"
    before = f"{head.format('left', 'right')} {{ {tower('a', 'left')} {tower('b', 'right')} }}"
    after = f"{head.format('right', 'left')} {{ {tower('s', 'left')} {tower('t', 'right')} }}"
    found = carry(make(before, {}), make(after, {}), ["l"] * 13 + ["r"] * 13)
    assert {name: origins for name, (origins, _) in found.items()} == {
        **{f"s{i}": ["l"] for i in range(12)},
        **{f"t{i}": ["r"] for i in range(12)},
        "left": ["l"],
        "right": ["r"],
    }


def test_a_weight_that_took_up_a_scale_is_not_what_it_was() -> None:
    w, s = draw(8, 4, 3, 3), np.abs(draw(8, 1, 1)) + 0.5
    ends = "(float[1, 4, 8, 8] {}) => (float[1, 8, 6, 6] {})"
    before = f"main {ends.format('x', 'y')} {{ c = Conv (x, w) m = Mul (c, s) r = Relu (m) y = Neg (r) }}"
    after = f"main {ends.format('i', 'o')} {{ t1 = Conv (i, p) t2 = Relu (t1) o = Neg (t2) }}"
    found = carry(make(before, {"w": w, "s": s}), make(after, {"p": w * s[:, None]}), ["conv", "scale", "act", "neg"])
    assert found["t1"] == (["conv", "scale"], "high")
    assert found["t2"] == (["act"], "high")


def test_what_is_computed_with_a_weight_is_another_tensor_if_something_else_is_read_with_it() -> None:
    ends, gain = "(float[2, 64] {}) => (float[2, 64] {})", draw(64)
    before = f"main {ends.format('x', 'y')} {{ r = Exp (x) n = Mul (x, r) w = Mul (n, g) a = Tanh (w) y = Neg (a) }}"
    after = (
        f"main {ends.format('i', 'o')} {{ t1 = Exp (i) t2 = Mul (t1, h) t3 = Mul (i, t2) t4 = Tanh (t3) o = Neg (t4) }}"
    )
    found = carry(make(before, {"g": gain}), make(after, {"h": gain}), ["norm", "norm", "gain", "act", "neg"])
    assert found["t4"] == (["act"], "high")
    assert found["t3"][0] != ["act"] or found["t3"][1] == "low"


SCALED = """
    main (float[2, 32] x) => (float[2, 32] y) { c = MatMul (x, v) n = Mul (c, k) d = MatMul (n, w) y = Relu (d) }
"""
FOLDED = "main (float[2, 32] x) => (float[2, 32] y) { c = MatMul (x, v) d = MatMul (c, w) y = Relu (d) }"


@pytest.mark.parametrize(
    ("into", "in_c", "in_d"), [("v", ["product", "scale"], ["product1"]), ("w", ["product"], ["scale", "product1"])]
)
def test_a_scale_went_into_the_large_weight_that_holds_other_numbers_under_its_name(
    tmp_path: Path, into: str, in_c: list[str], in_d: list[str]
) -> None:
    """Both weights are too large to be at hand: they are read."""
    weights = {"v": draw(32, 32), "w": draw(32, 32) + 1, "k": np.array(2, np.float32)}
    after = {name: weights[name] * (2 if name == into else 1) for name in "vw"}
    onnx.save(make(FOLDED, after), tmp_path / "after.onnx", save_as_external_data=True, location="after.data")
    before = annotated(make(SCALED, weights), ["product", "scale", "product1", "act"])
    nodes = hieronnx.carry(before, tmp_path / "after.onnx").hierarchy.nodes
    found = [(node.output, [origin.module for origin in node.origins], node.confidence) for node in nodes]
    assert found == [("c", in_c, "high"), ("d", in_d, "high"), ("y", ["act"], "high")]


def test_without_the_weights_it_is_a_guess_which_of_them_a_scale_went_into(tmp_path: Path) -> None:
    weights = {"v": draw(32, 32), "w": draw(32, 32) + 1, "k": np.array(2, np.float32)}
    after = make(FOLDED, {"v": weights["v"] * 2, "w": weights["w"]})
    onnx.save(after, tmp_path / "after.onnx", save_as_external_data=True, location="after.data", size_threshold=0)
    (tmp_path / "after.data").unlink()
    before = annotated(make(SCALED, weights), ["product", "scale", "product1", "act"])
    nodes = hieronnx.carry(before, tmp_path / "after.onnx").hierarchy.nodes
    assert [node.confidence for node in nodes] == ["medium", "medium", "high"]
