"""`hieronnx carry`: the hierarchy of a model onto what another tool made of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hieronnx.cli.carried import carried_options, show_carried
from hieronnx.cli.console import working


@click.command("carry", short_help="Put the hierarchy back on what another tool made of a model.")
@click.argument("original", type=click.Path(path_type=Path))
@click.argument("transformed", type=click.Path(path_type=Path))
@carried_options
@click.option(
    "--by-value", is_flag=True, help="Run both models and match what computes the same: for tools that rename."
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="For --by-value: an array for each input of ORIGINAL, by name, in a .npz file; random ones if not given.",
)
@click.pass_context
def carry_command(
    context: click.Context,
    /,
    original: Path,
    transformed: Path,
    output: Path,
    by_value: bool,
    inputs: Path | None,
    no_embed: bool,
    no_sidecar: bool,
    as_json: bool,
) -> None:
    """Carry the hierarchy of ORIGINAL onto TRANSFORMED, which a tool made of it.

    Graph and weights of TRANSFORMED stay as they are, whatever the tool was; nodes are matched by structure and names,
    and by what they compute if --by-value runs both models. FILE may be TRANSFORMED itself.

    \b
    Examples:
      hieronnx carry model.onnx optimized.onnx -o carried.onnx
      hieronnx carry carried.onnx quantized.onnx -o quantized.onnx
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.tools.carry import carry

    if inputs and not by_value:
        raise click.UsageError("--inputs is for --by-value.")
    feeds = _read_inputs(inputs, original) if inputs else None
    with working(debug=context.obj) as report:
        report("carrying the hierarchy")
        result = carry(
            original,
            transformed,
            output=output,
            by_value=by_value,
            inputs=feeds,
            embed=not no_embed,
            sidecar=not no_sidecar,
        )
    show_carried(result, original, as_json=as_json)


def _read_inputs(file: Path, model: Path) -> Mapping[str, Any]:
    from hieronnx.tools.adapters.calibration import read_feeds, read_inputs

    return read_feeds(file, read_inputs(model))[0]
