"""`split` of a large model into stages against `onnx.utils.extract_model` for each stage: time and peak memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from benchmarks.extract import make_rows
from benchmarks.measure import Section, Work, measure, median
from benchmarks.stack import SIZES, make_stack

_STAGES = 3
_TEXT = (
    f"A generated stack of transformer layers in {_STAGES} stages, each written to a file with its weights. "
    "`onnx.utils.extract_model` runs once for each stage, is told the names of the tensors to cut at, and does no "
    "shape inference and no checks. Peak memory is that of the process, imports included. Ratios are ours over theirs."
)


def run(repeats: int) -> Section:
    """Measure both on every size."""
    rows: list[tuple[str, ...]] = []
    for name, sizes in SIZES.items():
        with tempfile.TemporaryDirectory(prefix="hieronnx-split-") as folder:
            model = Path(folder) / "model.onnx"
            measure({"make": Work("benchmarks.stack:prepare_files", (str(model), *map(str, sizes)))}, 1)
            works = {
                kind: Work("benchmarks.split:prepare", (kind, str(model), str(sizes[0])))
                for kind in ("hieronnx", "extract_model, no checks")
            }
            rows += make_rows(name, {kind: median(found) for kind, found in measure(works, repeats).items()})
    return Section("Split", _TEXT, ("model", "with", "s", "peak, MiB", "time ratio", "memory ratio"), tuple(rows))


# -- in the child process -----------------------------------------------------------------------------------


def prepare(kind: str, path: str, layers: str) -> Callable[[], object]:
    """Import what is needed, warm up on a small model, and return the splitting to be measured."""
    folder = Path(path).parent
    small = folder / "small.onnx"
    make_stack(small, _STAGES, 8, 10)
    _splitting(kind, small, _STAGES, folder / "warm")()
    return _splitting(kind, Path(path), int(layers), folder / "stages")


def _splitting(kind: str, model: Path, layers: int, folder: Path) -> Callable[[], object]:
    cuts = [layers * number // _STAGES for number in range(1, _STAGES)]
    if kind == "hieronnx":
        import hieronnx

        return lambda: hieronnx.split(model, at=[f"layers.{cut}" for cut in cuts], into=folder)
    from onnx.utils import extract_model

    folder.mkdir(exist_ok=True)
    ends = ["ids", *(f"h{cut}" for cut in cuts), f"h{layers}"]

    def extract_all() -> None:
        for number, (first, last) in enumerate(pairwise(ends)):
            output = str(folder / f"{number}.onnx")
            extract_model(str(model), output, [first], [last], check_model=False, infer_shapes=False)

    return extract_all
