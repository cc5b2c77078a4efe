"""`hieronnx place`: on which device the nodes of each module should run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hieronnx.cli.console import print_notes, show_written
from hieronnx.cli.options import path_argument, writing_options


@click.command("place", short_help="Say by module on which device ONNX Runtime should run nodes.")
@path_argument("model")
@writing_options
@click.option(
    "--on",
    required=True,
    multiple=True,
    metavar="DEVICE:PATTERN",
    help="Run the calls that match on a device (cpu, cuda, gpu:1, npu). May be repeated; the first that fits counts.",
)
@click.option("--providers", default="", metavar="NAME,NAME", help="Execution providers to try it with: cuda,cpu.")
@click.option("--no-check", is_flag=True, help="Do not load the file in ONNX Runtime to see what each node is given.")
def place_command(model: Path, providers: str, no_check: bool, as_json: bool, quiet: bool, **options: Any) -> None:
    """Write MODEL with ONNX Runtime's layer annotations, by module, and the session options to use.

    \b
    Examples:
      hieronnx place model.onnx -o placed.onnx --on 'cuda:encoder.*' --on 'cpu:*'
      hieronnx place model.onnx -o placed.onnx --on 'npu:*.mlp'
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.cli.syntax import parse_names
    from hieronnx.report.placement import render_placement
    from hieronnx.tools.place import place

    names = parse_names(providers) if providers else ()
    result = place(model, providers=names, check=not no_check, **options)
    print_notes(result.notes)
    show_written(result, render_placement, None, as_json=as_json, quiet=quiet)
