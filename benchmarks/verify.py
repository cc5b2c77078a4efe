"""`verify` of BERTs: time and peak memory beside loading and running both once, and beside torch's own check."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Section, Work, measure, median

_SIZES = {"2 layers of 128": (2, 128), "base": (12, 768)}
_KINDS = ("load and run both", "hieronnx", "torch")
_SLOW = {("base", "torch")}
_TEXT = (
    "Every module call of a BERT with random weights compared, on inputs of 1 × 128 tokens. Load and run both: the "
    "model is read from a file of its weights and run in PyTorch, the ONNX file is loaded and run in ONNX Runtime, "
    "once each. hieronnx: the same reading, and `hieronnx.verify`. torch: `verify_onnx_program` of its own, with "
    "`compare_intermediates=True`, of the small one only, for it takes minutes; it compares the values whose names "
    "survived. The ratio is to loading and running both; the aim for hieronnx is 5 in time and 2 in memory."
)


def run(repeats: int) -> Section:
    """Measure all sides for both sizes."""
    rows = []
    for size in _SIZES:
        with tempfile.TemporaryDirectory(prefix="hieronnx-verify-") as folder:
            measure({"make": Work("benchmarks.verify:prepare_files", (size, folder))}, 1)
            kinds = [kind for kind in _KINDS if (size, kind) not in _SLOW]
            works = {kind: Work("benchmarks.verify:prepare", (kind, size, folder)) for kind in kinds}
            costs = {kind: median(found) for kind, found in measure(works, repeats).items()}
        for kind, cost in costs.items():
            ratio = cost.ratio_to(costs["load and run both"])
            figures = f"{cost.seconds:.1f}", f"{cost.peak_mib:.0f}", f"{ratio.seconds:.1f}", f"{ratio.peak_mib:.2f}"
            rows.append((size, kind, *figures))
    return Section("Verify", _TEXT, ("BERT", "with", "s", "peak, MiB", "time ratio", "memory ratio"), tuple(rows))


# -- in the child process -----------------------------------------------------------------------------------


def prepare_files(size: str, folder: str) -> Callable[[], object]:
    """Return the making of the ONNX file and the file of weights."""

    def make() -> None:
        import torch

        import hieronnx

        model, inputs = _build(size)
        torch.save(model.state_dict(), Path(folder) / "weights.pt")
        hieronnx.export(model, (), Path(folder) / "model.onnx", inputs, exporter="dynamo")

    return make


def prepare(kind: str, size: str, folder: str) -> Callable[[], object]:
    """Build the model, import what is needed, and return the work to be measured."""
    import onnxruntime as ort
    import torch

    import hieronnx
    import hieronnx.tools.verify.verifying

    torch.set_num_threads(1)
    model, inputs = _build(size)
    path = Path(folder) / "model.onnx"

    def load() -> None:
        model.load_state_dict(torch.load(Path(folder) / "weights.pt", weights_only=True))

    def run_both() -> None:
        load()
        with torch.no_grad():
            model(**inputs)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        session.run(None, {item.name: inputs[item.name].numpy() for item in session.get_inputs()})

    def run_hieronnx() -> None:
        load()
        assert hieronnx.verify(path, model, (), inputs).passed

    if kind == "torch":
        from torch.onnx import verification

        program = torch.onnx.export(model, (), kwargs=inputs, dynamo=True, verbose=False)
        return lambda: verification.verify_onnx_program(program, kwargs=inputs, compare_intermediates=True)
    return run_hieronnx if kind == "hieronnx" else run_both


def _build(size: str) -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import BertConfig, BertModel

    layers, hidden = _SIZES[size]
    torch.manual_seed(0)
    heads = hidden // 64
    config = BertConfig(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=4 * hidden
    )
    tokens = torch.ones(1, 128, dtype=torch.long)
    return BertModel(config).eval(), {"input_ids": tokens, "attention_mask": tokens}
