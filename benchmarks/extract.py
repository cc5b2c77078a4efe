"""`extract` of one layer of a large model against `onnx.utils.extract_model`: time and peak memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import Cost, Section, Work, measure, median
from benchmarks.stack import SIZES, make_stack

_TEXT = (
    "One layer out of a generated stack of transformer layers, written to a file with its weights. "
    "`onnx.utils.extract_model` is told the names of the layer's input and output, which it cannot find itself, "
    "and runs once as it is and once without its shape inference and checks. Peak memory is that of the process, "
    "imports included. Ratios are ours over theirs."
)


def run(repeats: int) -> Section:
    """Measure both on every size."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="hieronnx-extract-") as folder:
        for name, sizes in SIZES.items():
            model = Path(folder) / "model.onnx"
            measure({"make": Work("benchmarks.stack:prepare_files", (str(model), *map(str, sizes)))}, 1)
            works = {
                kind: Work("benchmarks.extract:prepare", (kind, str(model), str(sizes[0] // 2)))
                for kind in ("hieronnx", "extract_model", "extract_model, no checks")
            }
            costs = {kind: median(found) for kind, found in measure(works, repeats).items()}
            rows += make_rows(name, costs)
            for path in Path(folder).iterdir():
                path.unlink()
    return Section("Extract", _TEXT, ("model", "with", "s", "peak, MiB", "time ratio", "memory ratio"), tuple(rows))


def make_rows(name: str, costs: dict[str, Cost]) -> Iterator[tuple[str, ...]]:
    """Return a row for each tool; ratios are ours over theirs."""
    ours = costs["hieronnx"]
    for kind, cost in costs.items():
        ratio = ours.ratio_to(cost)
        yield name, kind, f"{cost.seconds:.3f}", f"{cost.peak_mib:.0f}", f"{ratio.seconds:.3f}", f"{ratio.peak_mib:.3f}"


# -- in the child process -----------------------------------------------------------------------------------


def prepare(kind: str, path: str, layer: str) -> Callable[[], object]:
    """Import what is needed, warm up on a small model, and return the extraction to be measured."""
    folder = Path(path).parent
    small = folder / "small.onnx"
    make_stack(small, 1, 8, 10)
    _extraction(kind, small, 0, folder / "warm.onnx")()
    return _extraction(kind, Path(path), int(layer), folder / "part.onnx")


def _extraction(kind: str, model: Path, layer: int, output: Path) -> Callable[[], object]:
    if kind == "hieronnx":
        import hieronnx

        return lambda: hieronnx.extract(model, f"layers.{layer}", output=output)
    from onnx.utils import extract_model

    options = {} if kind == "extract_model" else {"check_model": False, "infer_shapes": False}
    names = [f"h{layer}"], [f"h{layer + 1}"]
    return lambda: extract_model(str(model), str(output), *names, **options)
