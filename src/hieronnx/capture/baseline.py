"""The export that torch makes alone, with the same arguments, to compare with."""

from __future__ import annotations

import warnings

import torch

from hieronnx.capture.captured import ExportRequest
from hieronnx.capture.torchscript.positional import by_position, torchscript_options


def export_baseline(request: ExportRequest, exporter: str) -> None:
    """Export with torch alone, to where the request says."""
    model, output, options = request.model, request.output, request.options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the export that this is compared with has said it all
        if exporter == "dynamo":
            kwargs = dict(request.kwargs)
            torch.onnx.export(model, request.args, output, kwargs=kwargs, dynamo=True, verbose=False, **options)
        else:
            with by_position(request) as args:
                torch.onnx.export(model, args, str(output), dynamo=False, **torchscript_options(request))
