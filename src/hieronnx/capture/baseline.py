"""The baseline: what torch.onnx.export writes by itself, with the same arguments and nobody watching."""

from __future__ import annotations

import warnings

import torch

from hieronnx.capture.captured import ExportRequest
from hieronnx.capture.positional import by_position, torchscript_options


def export_baseline(request: ExportRequest, exporter: str) -> None:
    """Export with torch alone, to where the request says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the export that this is compared with has said it all
        if exporter == "dynamo":
            torch.onnx.export(
                request.model,
                request.args,
                request.output,
                kwargs=dict(request.kwargs),
                dynamo=True,
                verbose=False,
                **request.options,
            )
        else:
            options = torchscript_options(request)
            with by_position(request) as args:
                torch.onnx.export(request.model, args, str(request.output), dynamo=False, **options)
