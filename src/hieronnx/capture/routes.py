"""Running torch's two exporters: observed, to capture what they do; or torch alone, with the same arguments."""

from __future__ import annotations

import warnings

import torch

from hieronnx.capture.captured import Captured, ExportRequest
from hieronnx.capture.dynamo import capture_dynamo
from hieronnx.capture.torchscript.positional import by_position, torchscript_options
from hieronnx.capture.torchscript.route import capture_torchscript


def capture_export(request: ExportRequest, exporter: str) -> Captured:
    """Export through `dynamo` or `torchscript`, up to the model that is to be written."""
    return capture_dynamo(request) if exporter == "dynamo" else capture_torchscript(request)


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
