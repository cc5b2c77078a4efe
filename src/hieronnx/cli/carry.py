"""`hieronnx carry`, `optimize` and `quantize`: the hierarchy of a model onto what a tool made of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hieronnx.cli.console import print_note, show_written, working
from hieronnx.cli.options import path_argument, writing_options

if TYPE_CHECKING:
    from hieronnx.tools.carry import CarryResult

_OF_QUANTIZERS = {"calibration", "random_calibration", "per_channel", "keep_io_types"}


def _show(result: CarryResult, original: Path, *, as_json: bool) -> None:
    """Print what was carried, notes apart; they are for people."""
    from hieronnx.report.summary import render_carry

    for note in () if as_json else result.notes:
        print_note(note)
    show_written(result, render_carry, "compare", original, as_json=as_json)


@click.command("carry", short_help="Put the hierarchy back on what another tool made of a model.")
@path_argument("original")
@path_argument("transformed")
@writing_options
@click.option(
    "--by-value", is_flag=True, help="Run both models and match what computes the same: for tools that rename."
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="For --by-value: an array for each input of ORIGINAL, by name, in a .npz file; random ones if not given.",
)
@click.pass_obj
def carry_command(
    debug: bool, /, original: Path, transformed: Path, inputs: Path | None, as_json: bool, **options: Any
) -> None:
    """Carry the hierarchy of ORIGINAL onto TRANSFORMED, which a tool made of it.

    Graph and weights of TRANSFORMED stay as they are, whatever the tool was; nodes are matched by structure and names,
    and by what they compute if --by-value runs both models. FILE may be TRANSFORMED itself.

    \b
    Examples:
      hieronnx carry model.onnx optimized.onnx -o carried.onnx
      hieronnx carry carried.onnx quantized.onnx -o quantized.onnx
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.runtime.inputs import read_feeds, read_inputs
    from hieronnx.tools.carry import carry

    if inputs and not options["by_value"]:
        raise click.UsageError("--inputs is for --by-value.")
    feeds = read_feeds(inputs, read_inputs(original))[0] if inputs else None
    with working(debug=debug) as report:
        report("carrying the hierarchy")
        result = carry(original, transformed, inputs=feeds, **options)
    _show(result, original, as_json=as_json)


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
@click.pass_obj
def optimize_command(debug: bool, /, model: Path, as_json: bool, **options: Any) -> None:
    """Run an optimizer on MODEL and write what it made, with the hierarchy of MODEL.

    \b
    Examples:
      hieronnx optimize model.onnx -o fast.onnx --with ort-extended
      hieronnx optimize model.onnx -o simple.onnx --with onnxsim
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.tools.optimize import optimize

    with working(debug=debug) as report:
        result = optimize(model, progress=report, **options)
    _show(result, model, as_json=as_json)


@click.command("quantize", short_help="Run a quantizer, all but chosen modules, and keep the hierarchy.")
@path_argument("model")
@writing_options
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
@click.pass_obj
def quantize_command(debug: bool, /, model: Path, as_json: bool, **options: Any) -> None:
    """Quantize MODEL, all but the modules that are excluded, and write it with its hierarchy.

    \b
    Examples:
      hieronnx quantize model.onnx -o int8.onnx --with dynamic --exclude 'encoder.layer.0.*'
      hieronnx quantize model.onnx -o int8.onnx --with static --calibration inputs.npz
      hieronnx quantize model.onnx -o half.onnx --with fp16 --exclude '*.LayerNorm'
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.tools.quantize import quantize

    tool = options["tool"]
    # What was not given is not passed on: not every tool has these.
    given = {name: value for name, value in options.items() if value or name not in _OF_QUANTIZERS}
    if "calibration" in given and "random_calibration" in given:
        raise click.UsageError("Give one of --calibration and --random-calibration.")
    if ("calibration" in given or "random_calibration" in given) and tool != "static":
        raise click.UsageError("Only --with static takes calibration inputs.")
    if "per_channel" in given and tool == "fp16":
        raise click.UsageError("--per-channel is for --with dynamic and --with static.")
    if "keep_io_types" in given and tool != "fp16":
        raise click.UsageError("--keep-io-types is for --with fp16.")
    with working(debug=debug) as report:
        result = quantize(model, progress=report, **given)
    _show(result, model, as_json=as_json)
