"""Sizes of dynamic axes that fit one another: told by names, or found by trying."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import hieronnx
from hieronnx.errors import HieronnxError
from hieronnx.runtime.fitting import draw_fitting, fit_inputs
from hieronnx.runtime.inputs import Feeds, describe_inputs
from hieronnx.runtime.sessions import Session
from support.annotated import annotated

DECODER = '<ir_version: 10, opset_import: ["" : 21]> net (float[{x}] x, float[{past}] past, float[{mask}] mask)'
DECODER += " => (float[A,B,C] y) {{ k = Concat<axis = 1>(past, x)  t = Transpose<perm = [0, 2, 1]>(k)"
DECODER += " s = MatMul(x, t)  one = Constant<value_ints = [1]>()  m = Unsqueeze(mask, one)  a = Add(s, m)"
DECODER += " p = Softmax(a)  v = MatMul(p, k)  y = MatMul(v, w) }}"


def make_decoder(x: str, past: str, mask: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(DECODER.format(x=x, past=past, mask=mask))
    weight = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return annotated(model, ["m"] * len(model.graph.node))


def make_attempt(model: onnx.ModelProto, tried: list[Feeds]) -> Any:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

    def attempt(feeds: Feeds) -> None:
        tried.append(feeds)
        Session(Path("model"), session).run(feeds, ["y"])

    return attempt


FORMS = [
    ("b,s,4", "b,p,4", "b,p + s", 1),  # the name says it
    ("b,s,4", "b,p,4", "b,total", None),
    ("b,s,4", "b,p,4", "c,total", None),
    ("b,1,4", "b,p,4", "b,total", None),
    ("?,?,4", "?,?,4", "?,?", None),
    ("b,s,4", "b,4,4", "b,n", None),
]


def make_dim(size: str) -> onnx.TensorShapeProto.Dimension:
    if size.isdigit():
        return onnx.TensorShapeProto.Dimension(dim_value=int(size))
    return onnx.TensorShapeProto.Dimension(**({} if size == "?" else {"dim_param": size}))


def make_sized(x: str, past: str, mask: str) -> onnx.ModelProto:
    model = make_decoder("a,b,c", "d,e,f", "g,h")
    for value, form in zip(model.graph.input, (x, past, mask), strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, form.split(","), strict=True):
            dim.CopyFrom(make_dim(size))
    return model


@pytest.mark.parametrize(("x", "past", "mask", "trials"), FORMS)
def test_a_past_and_a_mask_fit(x: str, past: str, mask: str, trials: int | None) -> None:
    model = make_sized(x, past, mask)
    tried: list[Feeds] = []
    feeds = draw_fitting(describe_inputs(model.graph), make_attempt(model, tried), 2)
    assert len(feeds) == 2
    assert len(tried) == trials or (trials is None and len(tried) < 20)
    for one in feeds:
        assert one["mask"].shape[1] == one["x"].shape[1] + one["past"].shape[1] > 1


def test_what_cannot_be_fitted_is_told() -> None:
    def attempt(_feeds: Feeds) -> None:
        raise HieronnxError("it does not run")

    inputs = describe_inputs(make_decoder("b,s,4", "b,p,4", "b,t").graph)
    with pytest.raises(HieronnxError, match=r"it does not run; sizes of b, s, p, t .* give inputs of your own"):
        fit_inputs(inputs, attempt)


def test_every_tool_that_runs_a_file_finds_such_inputs(tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(make_sized("b,s,4", "b,p,4", "b,p + s"), path)
    result = hieronnx.profile(path, runs=1, roofline=False)
    assert result.inputs == {"x": "float32[4,4,4]", "past": "float32[4,4,4]", "mask": "float32[4,8]"}
    assert any("b 4, s 4, p 4; --dim b=SIZE --dim s=SIZE --dim p=SIZE sets them" in note for note in result.notes)
    sized = hieronnx.profile(path, runs=1, roofline=False, dims={"s": 1, "p": 6})
    assert sized.inputs == {"x": "float32[4,1,4]", "past": "float32[4,6,4]", "mask": "float32[4,7]"}


def test_an_axis_that_is_the_sum_of_others_is_no_axis_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(make_sized("b,s,4", "b,p,4", "b,p + s"), path)
    free = hieronnx.analyze(path)
    assert free.total.formula is not None
    assert {axis for term in free.total.formula.terms for axis in term.axes} <= {"b", "s", "p"}
    assert any(note.count("--dim") == 3 for note in free.notes)
    fixed = hieronnx.analyze(path, dims={"b": 2, "s": 3, "p": 5})
    assert fixed.total.multiply_adds == 2 * (3 * 8 * 4 + 3 * 8 * 4 + 3 * 4 * 4)
