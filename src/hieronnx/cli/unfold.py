"""`hieronnx unfold`: functions written out."""

from __future__ import annotations

from pathlib import Path

import click

from hieronnx.cli.console import print_notes, show
from hieronnx.cli.options import output_option, path_argument, report_options


@click.command("unfold", short_help="Write functions out, with all names and scopes as they were.")
@path_argument("model")
@output_option
@report_options
def unfold_command(model: Path, output: Path, as_json: bool, quiet: bool) -> None:
    """Write out the functions of MODEL. Of what 'hieronnx fold' made, it gives the same graph back.

    Of any other file all functions are written out; where it has no hierarchy, it gets one from their names.

    \b
    Examples:
      hieronnx unfold folded.onnx -o flat.onnx
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.report.folding import render_unfold
    from hieronnx.tools.fold.unfolding import unfold

    result = unfold(model, output=output)
    print_notes(result.notes)
    show(result, render_unfold, as_json=as_json, quiet=quiet)
