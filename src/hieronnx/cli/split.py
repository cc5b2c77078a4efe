"""`hieronnx split`: a model cut into stages at module calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hieronnx.cli.console import FOUND_SOMETHING, print_notes, show
from hieronnx.cli.options import path_argument, report_options


@click.command("split", short_help="Cut a model into stages that run one after the other.")
@path_argument("model")
@click.option("--at", multiple=True, metavar="TARGET", help="Cut before this call. May be repeated.")
@click.option("--stages", type=click.IntRange(min=1), metavar="N", help="Choose the cuts, for N stages.")
@click.option(
    "--balance",
    type=click.Choice(["time", "multiply-adds", "bytes"]),
    help="What a stage costs; multiply-adds if no profile is given.",
)
@click.option(
    "--profile", type=click.Path(path_type=Path), metavar="FILE", help="What 'hieronnx profile --json' printed."
)
@click.option("--memory-limit", metavar="SIZE", help="The most weights that a stage may have, as in 2GB or 500MiB.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="The size of a dynamic axis. May be repeated.")
@click.option(
    "--into",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where the stages and pipeline.json go: a new folder, or one of an earlier split.",
)
@click.option(
    "--triton",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write a model repository for NVIDIA Triton, too: the stages, and an ensemble of them.",
)
@click.option("--check", is_flag=True, help="Run the model and the stages on the same inputs, and compare.")
@click.option(
    "--inputs", type=click.Path(path_type=Path), metavar="FILE.npz", help="For --check: arrays by name; else random."
)
@report_options
@click.pass_context
def split_command(
    context: click.Context,
    /,
    model: Path,
    memory_limit: str | None,
    dims: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Cut MODEL into stages, each a model with its own hierarchy, and say what crosses each cut.

    With --at, cuts are before the calls given. With --stages, the slowest stage is made as fast as can be, and then the
    fewest bytes cross; with --memory-limit alone, there are as few stages as the limit allows.

    Exit code 0: done; 1: with --check, the stages give something else than the model; 2: it could not be done.

    \b
    Examples:
      hieronnx split model.onnx --at encoder.layer.4 --at encoder.layer.8 --into stages
      hieronnx split model.onnx --stages 3 --dim batch=1 --into stages --check
      hieronnx split model.onnx --stages 2 --profile profile.json --into stages
      hieronnx split model.onnx --memory-limit 2GB --into stages
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.cli.syntax import parse_bytes, parse_dim
    from hieronnx.report.splitting import render_split
    from hieronnx.tools.split.splitting import split

    limit = None if memory_limit is None else parse_bytes(memory_limit)
    result = split(model, memory_limit=limit, dims=dict(map(parse_dim, dims)), **options)
    print_notes(result.notes)
    show(result, render_split, as_json=as_json, quiet=quiet and result.passed)
    if not result.passed:
        context.exit(FOUND_SOMETHING)
