"""Orders that a file leaves open: seen where they reach, not where the numbers stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import parser
from torch import Tensor, nn

import hieronnx
from hieronnx.runtime.orders import find_reversed_axis, has_open_orders, reverse_open_orders
from support.exports import quiet
from support.faults import find_faults

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
picks (float[4, 5] x) => (float[4, 3] values, int64[4, 3] places, float[4, 3, 1] deep, float[4] total)
<int64[1] k = {3}, int64[1] last = {-1}> {
    values, places = TopK <axis = 1, sorted = SORTED> (x, k)
    halves = Add (values, values)
    deep = Unsqueeze (halves, last)
    total = ReduceSum <keepdims = 0> (values, last)
}"""


@pytest.mark.parametrize(("is_sorted", "axes"), [("0", [1, 1, 1, None]), ("1", [None] * 4)])
def test_an_order_is_open_up_to_where_it_does_not_matter(is_sorted: str, axes: list[int | None]) -> None:
    model = parser.parse_model(TEXT.replace("SORTED", is_sorted))
    assert has_open_orders(model) == (is_sorted == "0")
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)}
    turned = reverse_open_orders(model)
    onnx.checker.check_model(turned)
    runs = [ort.InferenceSession(made.SerializeToString()).run(None, feeds) for made in (model, turned)]
    assert [find_reversed_axis(a, b) for a, b in zip(*runs, strict=True)] == axes


class Router(nn.Module):
    """Chooses experts in any order, and makes their shares add up to one."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        chosen, places = torch.topk(self.scores(x).softmax(-1), 3, dim=-1, sorted=False)
        return chosen / chosen.sum(-1, keepdim=True), places


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = Router()
        self.experts = nn.Parameter(torch.randn(6, 8))

    def forward(self, x: Tensor) -> Tensor:
        shares, places = self.router(x)
        return (shares[..., None] * self.experts[places]).sum(-2)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_nobody_is_blamed_for_an_order_that_is_open(exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args = Routed().eval(), (torch.randn(40, 8),)
    with quiet():
        hieronnx.export(model, args, tmp_path / "model.onnx", exporter=exporter)
    result = hieronnx.verify(tmp_path / "model.onnx", model, args)
    assert result.passed
    assert {"", "router", "router.scores"} <= {call.module for call in result.calls}
    altered = onnx.load(tmp_path / "model.onnx")
    fault = next(f for f in find_faults(altered) if f.kind == "softmax axis")
    fault.plant(altered)
    onnx.save(altered, tmp_path / "wrong.onnx")
    found = hieronnx.verify(tmp_path / "wrong.onnx", model, args)
    assert [culprit.module for culprit in found.culprits] == ["router"]
