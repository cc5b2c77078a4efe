"""`profile` of a large model against the runs alone, in the same session of ONNX Runtime: time and peak memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Section, Work, measure, median
from benchmarks.stack import SIZES, make_stack

_RUNS, _WARM = 20, 2
_SHAPE = (1, 128)
_TEXT = (
    f"A generated stack of transformer layers of BERT-base's size on {_SHAPE[1]} tokens: loading, {_WARM} runs to warm "
    f"up and {_RUNS} that count. Beside that, `hieronnx profile` reads the hierarchy, carries it onto the graph that "
    "ONNX Runtime made, runs with the profiler on, and a few times with it off; and measures what the machine reaches, "
    "unless told not to (`--no-roofline`). Ratios are over the runs alone."
)


def run(repeats: int) -> Section:
    """Measure both."""
    name, sizes = next(iter(SIZES.items()))
    with tempfile.TemporaryDirectory(prefix="hieronnx-profile-") as folder:
        model = Path(folder) / "model.onnx"
        measure({"make": Work("benchmarks.stack:prepare_files", (str(model), *map(str, sizes)))}, 1)
        works = {
            kind: Work("benchmarks.profiling:prepare", (kind, str(model)))
            for kind in ("hieronnx", "hieronnx, no roofline", "the runs alone")
        }
        found = {kind: median(costs) for kind, costs in measure(works, repeats).items()}
    rows = []
    for kind, cost in found.items():
        ratio = cost.ratio_to(found["the runs alone"])
        figures = (f"{cost.seconds:.2f}", f"{cost.peak_mib:.0f}", f"{ratio.seconds:.2f}", f"{ratio.peak_mib:.2f}")
        rows.append((name, kind, *figures))
    return Section("Profile", _TEXT, ("model", "with", "s", "peak, MiB", "time ratio", "memory ratio"), tuple(rows))


# -- in the child process -----------------------------------------------------------------------------------


def prepare(kind: str, path: str) -> Callable[[], object]:
    """Import what is needed, warm up on a small model, and return what is to be measured."""
    small = Path(path).with_name("small.onnx")
    make_stack(small, 1, 8, 10)
    _profiling(kind, small)()
    return _profiling(kind, Path(path))


def _profiling(kind: str, model: Path) -> Callable[[], object]:
    if kind.startswith("hieronnx"):
        import hieronnx

        options = {"runs": _RUNS, "warmup": _WARM, "threads": 1, "roofline": kind == "hieronnx"}
        return lambda: hieronnx.profile(model, dims={"batch": _SHAPE[0], "sequence": _SHAPE[1]}, **options)
    import numpy as np
    import onnxruntime as ort

    def run_alone() -> None:
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = 1
        session = ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
        feeds = {"ids": np.zeros(_SHAPE, np.int64)}
        for _ in range(_WARM + _RUNS):
            session.run(None, feeds)

    return run_alone
