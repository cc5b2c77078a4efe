"""`hieronnx quantize`: run a quantizer, leave chosen modules in float, and keep the hierarchy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hieronnx.cli.carried import carried_options, show_carried
from hieronnx.cli.console import working

if TYPE_CHECKING:
    from hieronnx.tools.adapters.quantizers import Quantizer


@click.command("quantize", short_help="Run a quantizer, all but chosen modules, and keep the hierarchy.")
@click.argument("model", type=click.Path(path_type=Path))
@carried_options
@click.option(
    "--with",
    "tool",
    required=True,
    type=click.Choice(["dynamic", "static", "fp16"]),
    help="The tool of ONNX Runtime: to int8, ranges found as it runs or before; or to half precision.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave a module in float, and all below it: a path, path@n, a tag, or a glob. May be repeated.",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    metavar="FILE|FOLDER",
    help="For static: inputs by name in a .npz file, or a folder of such files.",
)
@click.option(
    "--random-calibration",
    type=click.IntRange(min=1),
    metavar="N",
    help="For static, if there are no inputs: run on N random ones.",
)
@click.option("--per-channel", is_flag=True, help="For dynamic and static: a scale for each channel of a weight.")
@click.option("--keep-io-types", is_flag=True, help="For fp16: leave the model's inputs and outputs in float.")
@click.pass_context
def quantize_command(
    context: click.Context,
    /,
    model: Path,
    output: Path,
    tool: Quantizer,
    exclude: tuple[str, ...],
    calibration: Path | None,
    random_calibration: int | None,
    per_channel: bool,
    keep_io_types: bool,
    no_embed: bool,
    no_sidecar: bool,
    as_json: bool,
) -> None:
    """Quantize MODEL, all but the modules that are excluded, and write it with its hierarchy.

    \b
    Examples:
      hieronnx quantize model.onnx -o int8.onnx --with dynamic --exclude 'encoder.layer.0.*'
      hieronnx quantize model.onnx -o int8.onnx --with static --calibration inputs.npz
      hieronnx quantize model.onnx -o half.onnx --with fp16 --exclude '*.LayerNorm'
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.tools.quantize import quantize

    _check(tool, calibration, random_calibration, per_channel, keep_io_types)
    options: dict[str, Any] = {"per_channel": True} if per_channel else {}
    options |= {"keep_io_types": True} if keep_io_types else {}
    with working(debug=context.obj) as report:
        result = quantize(
            model,
            output=output,
            tool=tool,
            exclude=exclude,
            calibration=calibration or (),
            random_calibration=random_calibration or 0,
            embed=not no_embed,
            sidecar=not no_sidecar,
            progress=report,
            **options,
        )
    show_carried(result, model, as_json=as_json)


def _check(tool: str, calibration: Path | None, drawn: int | None, per_channel: bool, keep_io_types: bool) -> None:
    """Refuse options that the tool does not have."""
    if calibration and drawn:
        raise click.UsageError("Give one of --calibration and --random-calibration.")
    if (calibration or drawn) and tool != "static":
        raise click.UsageError("Only --with static takes calibration inputs.")
    if per_channel and tool == "fp16":
        raise click.UsageError("--per-channel is for --with dynamic and --with static.")
    if keep_io_types and tool != "fp16":
        raise click.UsageError("--keep-io-types is for --with fp16.")
