"""What a candidate is said to reach is what many other samples give at least, about nineteen times of twenty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from hieronnx.tools.precision.measuring import Judge, Target

_DRAWN = 1000


@pytest.mark.parametrize("count", [3, 4, 12])
@pytest.mark.parametrize("name", ["snr", "cosine"])
def test_a_value_is_what_others_give_at_least_however_few_samples_there_are(
    name: str, count: int, tmp_path: Path
) -> None:
    for file, computed in (("float", "y = Identity (x)"), ("few_bits", "z = Mul (x, x)  y = Sub (x, z)")):
        text = f'<ir_version: 10, opset_import: ["" : 21]> g (float[8] x) => (float[8] y) {{ {computed} }}'
        onnx.save(parser.parse_model(text), tmp_path / f"{file}.onnx")
    random, target = np.random.default_rng(0), Target(name, 0.0)

    def measure(samples: int) -> float:
        drawn = [{"x": (0.1 + 0.01 * random.standard_normal(8)).astype(np.float32)} for _ in range(samples)]
        return Judge(tmp_path / "float.onnx", target, drawn, None).measure(tmp_path / "few_bits.onnx")

    many = measure(4000)
    # The errors of these samples are skewed, which leaves a little of one in twenty.
    assert 0.92 <= np.mean([measure(count) <= many for _ in range(_DRAWN)]) <= 0.97
