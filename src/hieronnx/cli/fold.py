"""`hieronnx fold`: modules as ONNX functions."""

from __future__ import annotations

from pathlib import Path

import click

from hieronnx.cli.console import show
from hieronnx.cli.options import output_option, path_argument, report_options


@click.command("fold", short_help="Make modules functions, one for all that compute the same.")
@path_argument("model")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@output_option
@click.option(
    "--depth", type=click.IntRange(min=1), metavar="N", help="Only calls so deep; 1: what the model itself calls."
)
@click.option("--classes", metavar="NAME,...", help="Only modules of these classes.")
@click.option(
    "--take-in",
    is_flag=True,
    help="Let a function have nodes of other calls where data leaves its call and comes back.",
)
@report_options
def fold_command(
    model: Path,
    patterns: tuple[str, ...],
    output: Path,
    depth: int | None,
    classes: str | None,
    take_in: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make the module calls of MODEL functions: one for all that compute the same, weights as arguments.

    PATTERN selects calls, with all below them; all by default. What is computed stays the same. Calls whose nodes
    cannot be one node stay as they are, and are listed with the reason. 'hieronnx unfold' gives the same graph back.

    \b
    Examples:
      hieronnx fold model.onnx -o folded.onnx
      hieronnx fold model.onnx -o folded.onnx --classes BertLayer
      hieronnx fold model.onnx 'encoder.layer.*' -o folded.onnx --depth 3
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.report.folding import render_fold
    from hieronnx.tools.fold.folding import fold

    names = [name.strip() for name in (classes or "").split(",") if name.strip()]
    result = fold(model, *patterns, output=output, depth=depth, classes=names, take_in=take_in)
    show(result, render_fold, as_json=as_json, quiet=quiet)
