"""The mode that a model is exported in, and everything left as it was afterwards."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.onnx import TrainingMode

from hieronnx.capture.captured import ExportRequest
from hieronnx.capture.guard import EXCLUSIVE

_LOG = logging.getLogger("hieronnx")


@contextmanager
def undisturbed(model: nn.Module, *, train: bool) -> Iterator[None]:
    """Export alone, in training mode if asked to; leave mode, buffers and the random state as they were in any case."""
    modes = [(m, m.training) for m in model.modules() if hasattr(m, "training")]  # TorchScript that is frozen has none
    devices = list(range(torch.cuda.device_count()))
    try:
        if train and not getattr(model, "training", True):
            model.train()
        with EXCLUSIVE, torch.random.fork_rng(devices=devices), _kept_buffers(model):
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _kept_buffers(model: nn.Module) -> Iterator[None]:
    """Put back what `forward` writes into buffers, in place or by a new tensor."""
    held = (buffer for buffer in model.buffers() if buffer.layout is torch.strided and not buffer.is_meta)
    copies = [(buffer, buffer.detach().clone()) for buffer in held]
    modules = [module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
    tables = [(module._buffers, dict(module._buffers)) for module in modules]
    try:
        yield
    finally:
        for table, buffers in tables:
            if any(table.get(name) is not buffer for name, buffer in buffers.items()) or table.keys() != buffers.keys():
                table.clear()
                table.update(buffers)
        for buffer, copy in copies:
            with torch.inference_mode(buffer.is_inference()), torch.no_grad():
                if not torch.equal(buffer, copy):
                    buffer.copy_(copy)


def take_mode(request: ExportRequest, exporter: str) -> TrainingMode:
    """Put the model into the mode that an exporter exports it in; return the one that was asked of torch."""
    mode: TrainingMode = request.options.get("training", TrainingMode.EVAL)
    if exporter == "torchscript" and mode != TrainingMode.PRESERVE and hasattr(request.model, "training"):
        request.model.train(mode == TrainingMode.TRAINING)
    return mode


def settle_mode(request: ExportRequest, exporter: str, *, train: bool) -> bool:
    """Say whether the export is of a model that trains, with a warning where nobody asked for that.

    torch's TorchScript exporter exports in eval mode unless it is told otherwise; what is run afterwards is run so.
    """
    mode = take_mode(request, exporter)
    training = [path for path, module in request.model.named_modules() if getattr(module, "training", False)]
    if training and not train and mode == TrainingMode.EVAL:
        what = "the model is" if training[0] == "" else f"'{training[0]}' is"
        _LOG.warning(
            "%s in training mode and exported so, with what works only there, such as dropout; call model.eval() "
            "first, or pass train=True (--train) if that is meant",
            what,
        )
    return bool(training)
