"""Sizes of dynamic axes that fit one another: told by names, or found by trying."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

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


@pytest.mark.parametrize(("x", "past", "mask", "trials"), FORMS)
def test_a_past_and_a_mask_fit(x: str, past: str, mask: str, trials: int | None) -> None:
    model = make_decoder("a,b,c", "d,e,f", "g,h")
    for value, form in zip(model.graph.input, (x, past, mask), strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, form.split(","), strict=True):
            dim.CopyFrom(make_dim(size))
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
