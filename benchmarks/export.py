"""`hieronnx.export` beside `torch.onnx.export`: same model, same arguments, same exporter, written to disk."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Cost, Section, Work, measure, median

if TYPE_CHECKING:
    from torch import Tensor, nn

_SIDES = ("torch.onnx.export", "hieronnx.export")
_ROUNDS = {("demo", "dynamo"): 6, ("demo", "torchscript"): 20}
_TEXT = (
    "`hieronnx.export` (embedded metadata and sidecar, the defaults) beside `torch.onnx.export` with the same "
    "arguments. The demo model has 0.1 million parameters and the BERT, `BertModel(BertConfig())`, 110 million; "
    "weights are random. On the TorchScript side both take the inputs by position, without which torch cannot trace "
    "this BERT. Memory is the peak of the whole process, what it imported included. "
    "The ratio is that of the medians; beside it the least and the most of two runs in turn: where these are far "
    "apart, the machine was busy. "
    "The aim: ratios of at most 1.10 (dynamo) and 1.15 (TorchScript)."
)


def run(repeats: int) -> Section:
    """Measure both sides for both models and both exporters."""
    rows = []
    for exporter in ("dynamo", "torchscript"):
        for model in ("demo", "bert-base"):
            rounds = _ROUNDS.get((model, exporter), 1)
            works = {side: Work("benchmarks.export:prepare", (side, exporter, model), rounds) for side in _SIDES}
            rows.append(_row(exporter, model, measure(works, repeats)))
    header = ("exporter", "model", "torch, s", "hieronnx, s", "time ratio", "of single pairs")
    return Section("Export", _TEXT, (*header, "torch, MiB", "hieronnx, MiB", "memory ratio"), tuple(rows))


def _row(exporter: str, model: str, costs: dict[str, list[Cost]]) -> tuple[str, ...]:
    peer, ours = (median(costs[side]) for side in _SIDES)
    ratio = ours.ratio_to(peer)
    paired = [b.ratio_to(a).seconds for a, b in zip(*(costs[side] for side in _SIDES), strict=True)]
    spread = f"{min(paired):.2f}–{max(paired):.2f}"
    times = (f"{peer.seconds:.3f}", f"{ours.seconds:.3f}", f"{ratio.seconds:.2f}", spread)
    return exporter, model, *times, f"{peer.peak_mib:.0f}", f"{ours.peak_mib:.0f}", f"{ratio.peak_mib:.2f}"


# -- in the child process -----------------------------------------------------------------------------------


def prepare(side: str, exporter: str, model_name: str) -> Callable[[], None]:
    """Build the model, warm the exporter up on one linear layer, and return the export to be measured."""
    import torch

    warnings.simplefilter("ignore")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    export = _export_hieronnx if side == "hieronnx.export" else _export_torch
    model, inputs = _build_demo() if model_name == "demo" else build_bert()
    folder = TemporaryDirectory(prefix="benchmark-")  # held by what is returned; removed when the process ends
    warm_up = torch.nn.Linear(4, 4).eval()
    export(warm_up, {"input": torch.zeros(2, 4)}, Path(folder.name, "warm_up.onnx"), exporter)

    def work() -> None:
        export(model, inputs, Path(folder.name, "model.onnx"), exporter)

    return work


def _export_torch(model: nn.Module, inputs: dict[str, Any], path: Path, exporter: str) -> None:
    import torch

    from hieronnx.capture.captured import ExportRequest
    from hieronnx.capture.torchscript.positional import by_position

    if exporter == "dynamo":
        torch.onnx.export(model, (), path, kwargs=inputs, dynamo=True, verbose=False)
        return
    with by_position(ExportRequest(model, (), inputs, path, path)) as args:
        torch.onnx.export(model, args, str(path), dynamo=False)


def _export_hieronnx(model: nn.Module, inputs: dict[str, Any], path: Path, exporter: str) -> None:
    import hieronnx

    hieronnx.export(model, (), path, inputs, exporter=exporter)


def _build_demo() -> tuple[nn.Module, dict[str, Tensor]]:
    from hieronnx.capture.demo import build_demo, demo_inputs

    return build_demo(), demo_inputs()


def build_bert() -> tuple[nn.Module, dict[str, Tensor]]:
    """Build a BERT of base size with random weights, and inputs for it."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig()
    tokens = torch.randint(config.vocab_size, (1, 128))
    return BertModel(config).eval(), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
