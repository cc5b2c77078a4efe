"""`hieronnx sensitivity`: which modules lose most by 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hieronnx.cli.console import print_notes, show, working
from hieronnx.cli.options import json_option, path_argument, quantizer_options, top_option


@click.command("sensitivity", short_help="Rank the modules by what quantization does to them.")
@path_argument("model")
@click.option(
    "--with",
    "tool",
    type=click.Choice(["dynamic", "static", "int4"]),
    default="dynamic",
    show_default=True,
    help="The quantizer of ONNX Runtime.",
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="FILE|FOLDER",
    help="What to run on: inputs by name in a .npz file, or a folder of such; random ones if not given.",
)
@click.option("--samples", type=click.IntRange(min=1), default=1, show_default=True, help="How many random samples.")
@quantizer_options
@top_option("List only the N most sensitive modules.")
@json_option
@click.pass_obj
def sensitivity_command(debug: bool, /, model: Path, top: int | None, as_json: bool, **options: Any) -> None:
    """Rank the modules of MODEL by the error that each makes when it is quantized; nothing is written.

    \b
    Examples:
      hieronnx sensitivity model.onnx --inputs samples.npz --top 10
      hieronnx sensitivity model.onnx --with static --calibration inputs.npz
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.report.precision import render_sensitivity
    from hieronnx.tools.precision.sensitivity import sensitivity

    given = {name: value for name, value in options.items() if value}
    with working(debug=debug) as report:
        result = sensitivity(model, progress=report, **given)
    print_notes(result.notes)
    show(result, lambda found, colour: render_sensitivity(found, top=top, colour=colour), as_json=as_json)
