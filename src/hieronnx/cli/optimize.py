"""`hieronnx optimize`: an optimizer or simplifier, and the hierarchy carried through it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hieronnx.cli.carry import finish_tool
from hieronnx.cli.options import path_argument, verify_option, writing_options


@click.command("optimize", short_help="Run an optimizer or simplifier, and keep the hierarchy.")
@path_argument("model")
@writing_options
@click.option(
    "--with",
    "tool",
    required=True,
    type=click.Choice(["ort-basic", "ort-extended", "ort-all", "onnxsim", "onnxslim", "onnxscript"]),
    help="The tool; ort is ONNX Runtime, at one of its levels.",
)
@verify_option
@click.pass_context
def optimize_command(context: click.Context, /, model: Path, **options: Any) -> None:
    """Run an optimizer on MODEL and write what it made, with the hierarchy of MODEL.

    \b
    Examples:
      hieronnx optimize model.onnx -o fast.onnx --with ort-extended
      hieronnx optimize model.onnx -o simple.onnx --with onnxsim
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.tools.optimize import optimize

    finish_tool(context, optimize, model, **options)
