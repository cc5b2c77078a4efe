"""`hieronnx optimize`: run an optimizer, and keep the hierarchy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hieronnx.cli.carried import carried_options, show_carried
from hieronnx.cli.console import working

if TYPE_CHECKING:
    from hieronnx.tools.adapters.optimizers import Optimizer


@click.command("optimize", short_help="Run an optimizer or simplifier, and keep the hierarchy.")
@click.argument("model", type=click.Path(path_type=Path))
@carried_options
@click.option(
    "--with",
    "tool",
    required=True,
    type=click.Choice(["ort-basic", "ort-extended", "ort-all", "onnxsim", "onnxslim", "onnxscript"]),
    help="The tool; ort is ONNX Runtime, at one of its levels.",
)
@click.pass_context
def optimize_command(
    context: click.Context,
    /,
    model: Path,
    output: Path,
    tool: Optimizer,
    no_embed: bool,
    no_sidecar: bool,
    as_json: bool,
) -> None:
    """Run an optimizer on MODEL and write what it made, with the hierarchy of MODEL.

    \b
    Examples:
      hieronnx optimize model.onnx -o fast.onnx --with ort-extended
      hieronnx optimize model.onnx -o simple.onnx --with onnxsim
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.tools.optimize import optimize

    with working(debug=context.obj) as report:
        result = optimize(model, output=output, tool=tool, embed=not no_embed, sidecar=not no_sidecar, progress=report)
    show_carried(result, model, as_json=as_json)
