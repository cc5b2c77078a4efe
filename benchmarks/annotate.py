"""`annotate` of a file of BERT-base size, by each strategy: time and peak memory beside one run of model and file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Section, Work, measure, median

_KINDS = ("run both", "usage_based", "htp")
_TEXT = (
    "A BERT of base size (110 million parameters, 0.4 GB, random weights), exported with torch alone, all names taken "
    "away; inputs of 1 × 32 tokens; written with its hierarchy. Run both: the model in PyTorch and the file in ONNX "
    "Runtime, once each, which no strategy that runs anything can do without. Peak memory is that of the process, "
    "imports and the model itself included. The ratio is to running both."
)


def run(repeats: int) -> Section:
    """Measure both strategies."""
    with tempfile.TemporaryDirectory(prefix="hieronnx-annotate-") as folder:
        path = str(Path(folder) / "model.onnx")
        measure({"make": Work("benchmarks.annotate:prepare_file", (path,))}, 1)
        works = {kind: Work("benchmarks.annotate:prepare", (kind, path)) for kind in _KINDS}
        costs = {kind: median(found) for kind, found in measure(works, repeats).items()}
    rows = []
    for kind, cost in costs.items():
        ratio = cost.ratio_to(costs["run both"])
        rows.append(
            (kind, f"{cost.seconds:.1f}", f"{cost.peak_mib:.0f}", f"{ratio.seconds:.1f}", f"{ratio.peak_mib:.2f}")
        )
    return Section("Annotate", _TEXT, ("strategy", "s", "peak, MiB", "time ratio", "memory ratio"), tuple(rows))


# -- in the child process -----------------------------------------------------------------------------------


def prepare_file(path: str) -> Callable[[], object]:
    """Return the making of the file, without names and without a hierarchy."""
    return lambda: _make_file(Path(path))


def prepare(kind: str, path: str) -> Callable[[], object]:
    """Build the model, import what is needed, and return the work to be measured."""
    import onnxruntime as ort
    import torch

    import hieronnx
    import hieronnx.attribute.same_model
    import hieronnx.tools.annotate

    torch.set_num_threads(1)
    model, inputs = _build()
    if kind != "run both":
        output = Path(path).with_name("annotated.onnx")
        return lambda: hieronnx.annotate(path, model, (), inputs, output=output, strategy=kind)

    def run_both() -> None:
        with torch.no_grad():
            model(**inputs)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        arrays = [value.numpy() for value in inputs.values()]
        session.run(None, {place.name: array for place, array in zip(session.get_inputs(), arrays, strict=True)})

    return run_both


def _build() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig()).eval()
    ids = torch.randint(1, 30_000, (1, 32))
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _make_file(path: Path) -> None:
    import torch

    from benchmarks.anonymize import anonymize_file

    model, inputs = _build()
    plain = path.with_name("plain.onnx")
    torch.onnx.export(model, (), plain, kwargs=inputs, dynamo=True, verbose=False)
    anonymize_file(plain, path)
    for file in path.parent.glob("plain.onnx*"):
        file.unlink()
