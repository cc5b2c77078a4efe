"""`hieronnx quantize`: a quantizer on all but chosen modules, and the hierarchy carried through it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hieronnx.cli.carry import finish_tool
from hieronnx.cli.options import depth_option, path_argument, quantizer_options, verify_option, writing_options

_OF_QUANTIZERS = {"calibration", "random_calibration", "per_channel", "keep_io_types", "operators", "symmetric"}
_OF_QUANTIZERS |= {"weight_type", "activation_type", "calibration_method", "block_size"}
_VERIFIED = 4
"""So many inputs of the calibration are what is verified on."""
_OF_TARGETS = {"target", "metric", "budget", "favour", "best"}


@click.command("quantize", short_help="Run a quantizer, all but chosen modules, and keep the hierarchy.")
@path_argument("model")
@writing_options
@click.option(
    "--with",
    "tool",
    required=True,
    type=click.Choice(["dynamic", "static", "fp16", "int4"]),
    help="The tool of ONNX Runtime: to int8, ranges found as it runs or before; to half precision; or the weights of "
    "MatMuls to 4 bits.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave a module in float, and all below it; patterns as for 'hieronnx select'. May be repeated.",
)
@quantizer_options
@click.option("--keep-io-types", is_flag=True, help="For fp16: leave the model's inputs and outputs in float.")
@click.option(
    "--target",
    metavar="TARGET",
    help="Keep as few modules in float as need be: 'snr>=30', 'cosine>=0.999', or 'drop<=0.01' of the --metric.",
)
@click.option(
    "--metric",
    metavar="FILE.PY:FUNCTION",
    help="How good a model is: called with a function that runs it, inputs by name to outputs by name.",
)
@click.option("--budget", type=click.IntRange(min=1), metavar="N", help="For --target: how many candidates to build.")
@click.option(
    "--favour",
    type=click.Choice(["multiply-adds", "bytes"]),
    help="For --target: what is to be in 8 bits as far as possible; multiply-adds if not given.",
)
@click.option("--best", is_flag=True, help="For a --target that cannot be met: write the best that was found.")
@depth_option("How many levels of calls the report of what is in 8 bits shows; 1 if not given.")
@verify_option
@click.pass_context
def quantize_command(context: click.Context, /, model: Path, **options: Any) -> None:
    """Quantize MODEL, all but the modules that are excluded, and write it with its hierarchy.

    \b
    Examples:
      hieronnx quantize model.onnx -o int8.onnx --with dynamic --exclude 'encoder.layer.0.*'
      hieronnx quantize model.onnx -o int8.onnx --with static --calibration inputs.npz
      hieronnx quantize model.onnx -o int8.onnx --with static --calibration inputs.npz --target 'snr>=30'
      hieronnx quantize model.onnx -o int4.onnx --with int4 --block-size 64 --exclude lm_head
      hieronnx quantize model.onnx -o half.onnx --with fp16 --exclude '*.LayerNorm'
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.tools.precision.quantizing import quantize
    from hieronnx.tools.quantize import stack_samples

    tool = options["tool"]
    # What was not given is not passed on: not every tool has these.
    given = {name: value for name, value in options.items() if value or name not in _OF_QUANTIZERS | _OF_TARGETS}
    if "target" not in given and (left := sorted(_OF_TARGETS & given.keys())):
        raise click.UsageError(f"--{left[0]} is for --target.")
    if "calibration" in given and "random_calibration" in given:
        raise click.UsageError("Give one of --calibration and --random-calibration.")
    if ("calibration" in given or "random_calibration" in given) and tool != "static" and "target" not in given:
        raise click.UsageError("Only --with static takes calibration inputs.")
    if "per_channel" in given and tool not in ("dynamic", "static"):
        raise click.UsageError("--per-channel is for --with dynamic and --with static.")
    if "keep_io_types" in given and tool != "fp16":
        raise click.UsageError("--keep-io-types is for --with fp16.")
    if "metric" in given:
        from hieronnx.capture.load import load_reference

        given["metric"] = load_reference(given["metric"])
    calibration = given.get("calibration")
    # On made-up inputs, numbers are outside of the ranges of real ones.
    made = (lambda: stack_samples(model, calibration, _VERIFIED)) if calibration else (lambda: None)
    finish_tool(context, quantize, model, make_inputs=made, **given)
