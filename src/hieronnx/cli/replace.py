"""`hieronnx replace`: a part in the place of a module call."""

from __future__ import annotations

from pathlib import Path

import click

from hieronnx.cli.console import print_notes, show
from hieronnx.cli.options import output_option, path_argument, report_options


@click.command("replace", short_help="Put a part in the place of a module call.")
@path_argument("model")
@click.argument("target")
@path_argument("part")
@output_option
@report_options
def replace_command(model: Path, target: str, part: Path, output: Path, as_json: bool, quiet: bool) -> None:
    """Put PART in the place of the module call TARGET of MODEL: what 'extract' gave, optimized, quantized or corrected.

    Inputs and outputs are matched by name, by argument or by position; types and sizes must fit, and what differs is
    told. Where TARGET names several calls, each is replaced, and keeps its own weights where PART has the same
    parameters.

    \b
    Examples:
      hieronnx replace model.onnx encoder.layer.3 layer.onnx -o out.onnx
      hieronnx replace model.onnx 'encoder.layer.*' layer.onnx -o out.onnx
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.report.replacement import render_replacement
    from hieronnx.tools.replace.replacing import replace

    result = replace(model, target, part, output=output)
    print_notes(result.notes)
    show(result, render_replacement, as_json=as_json, quiet=quiet)
