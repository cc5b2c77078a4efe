"""What this machine reaches in ONNX Runtime: operations a second by a matrix product, bytes a second by a copy."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from hieronnx.tools.profile.result import Machine

_SECONDS = 0.2
"""For each of the two."""
_SIZE = 768
_ELEMENTS = 1 << 23
_OVERHEAD = 0.2
"""Where neither work explains more of the time than this, something else takes it."""


def measure_machine(threads: int | None) -> Machine:
    """Measure what this machine reaches, with as many threads; the best of what fits into a fraction of a second."""
    product = _time_best(_make_model("MatMul", ("a", "b"), (_SIZE, _SIZE)), ("a", "b"), (_SIZE, _SIZE), threads)
    copy = _time_best(_make_model("Identity", ("a",), (_ELEMENTS,)), ("a",), (_ELEMENTS,), threads)
    return Machine(gflops=2e-9 * _SIZE**3 / product, gbytes_per_second=2e-9 * 4 * _ELEMENTS / copy)


def _make_model(op_type: str, inputs: tuple[str, ...], shape: tuple[int, ...]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op_type, inputs, ["y"])],
        "measure",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _time_best(model: onnx.ModelProto, inputs: tuple[str, ...], shape: tuple[int, ...], threads: int | None) -> float:
    """Return the seconds of the fastest run; what it gives is written to the same memory each time."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    arrays: dict[str, Any] = {name: np.ones(shape, np.float32) for name in (*inputs, "y")}
    binding = session.io_binding()
    for name in inputs:
        binding.bind_cpu_input(name, arrays[name])
    binding.bind_output("y", "cpu", 0, np.float32, shape, arrays["y"].ctypes.data)
    best, end = float("inf"), perf_counter() + _SECONDS
    while (begin := perf_counter()) < end:
        session.run_with_iobinding(binding)
        best = min(best, perf_counter() - begin)
    return best


def find_bound(us: float, multiply_adds: int, moved: int, machine: Machine | None) -> str | None:
    """Say what limits work that took so long: computing, memory, or neither; None where that cannot be said."""
    if machine is None or us <= 0:
        return None
    computing = 2e-3 * multiply_adds / machine.gflops
    moving = 1e-3 * moved / machine.gbytes_per_second
    if max(computing, moving) < _OVERHEAD * us:
        return "overhead"
    return "compute" if computing >= moving else "memory"
