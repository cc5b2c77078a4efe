"""`hieronnx carry`: the hierarchy of a model onto what a tool made of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hieronnx.cli.console import FOUND_SOMETHING, print_notes, show_written, working
from hieronnx.cli.options import confidence_option, path_argument, writing_options

if TYPE_CHECKING:
    from hieronnx.runtime.runs import Inputs
    from hieronnx.tools.carry import CarryResult
    from hieronnx.tools.verify.result import VerifyResult


def show_carried(
    result: CarryResult,
    original: Path,
    *,
    as_json: bool,
    quiet: bool = False,
    verified: VerifyResult | None = None,
    depth: int = 1,
) -> None:
    """Print what was carried, notes apart; they are for people."""
    from hieronnx.report.summary import render_carry

    print_notes(() if as_json else result.notes)
    render = partial(render_carry, depth=depth)
    show_written(result, render, "compare", original, as_json=as_json, quiet=quiet, verified=verified)


def finish_tool(
    context: click.Context,
    run: Callable[..., CarryResult],
    model: Path,
    *,
    verified: bool,
    as_json: bool,
    quiet: bool,
    depth: int | None = None,
    make_inputs: Callable[[], Inputs | None] = lambda: None,
    **options: Any,
) -> None:
    """Run a tool on a model, verify what it wrote against that if asked, and print it all.

    `make_inputs` gives what to verify it on; nothing for inputs that are made up.
    """
    with working(debug=context.obj) as report:
        result, verification = run(model, progress=report, **options), None
        if verified:
            from hieronnx.tools.verify.verifying import verify

            verification = verify(options["output"], model, inputs=make_inputs(), progress=report)
    is_wrong = verification is not None and not verification.passed
    depth = 1 if depth is None else depth
    show_carried(result, model, as_json=as_json, quiet=quiet and not is_wrong, verified=verification, depth=depth)
    if is_wrong:
        context.exit(FOUND_SOMETHING)


@click.command("carry", short_help="Put the hierarchy back on what another tool made of a model.")
@path_argument("original")
@path_argument("transformed")
@writing_options
@confidence_option
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
    debug: bool,
    /,
    original: Path,
    transformed: Path,
    inputs: Path | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
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
    show_carried(result, original, as_json=as_json, quiet=quiet)
