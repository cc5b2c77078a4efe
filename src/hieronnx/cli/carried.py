"""What `carry`, `optimize` and `quantize` have in common: options, and how their result is shown."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hieronnx.cli.console import print_json, print_text, use_colour
from hieronnx.cli.files import list_model_files

if TYPE_CHECKING:
    from hieronnx.tools.carry import CarryResult

_Command = TypeVar("_Command", bound=Callable[..., Any])


def carried_options(command: _Command) -> _Command:
    """Add the options of the commands that write a carried file."""
    options = (
        click.option(
            "-o",
            "--output",
            required=True,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="The ONNX file to write.",
        ),
        click.option("--no-embed", is_flag=True, help="Write no hierarchy into the ONNX file."),
        click.option("--no-sidecar", is_flag=True, help="Write no _hierarchy.json beside it."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def show_carried(result: CarryResult, original: Path, *, as_json: bool) -> None:
    """Print what was carried, notes apart; they are for people."""
    from hieronnx.report.carrying import carry_to_json, render_carry
    from hieronnx.report.clean import clean_line
    from hieronnx.report.summary import render_files

    assert result.path is not None  # the commands always write
    files = list_model_files(result.path, result.sidecar)
    command = _suggest_next(result, original)
    if as_json:
        listed = [{"path": str(file.path), "bytes": file.size} for file in files]
        print_json({"model": str(result.path), "files": listed, **carry_to_json(result), "next": command})
        return
    for note in result.notes:
        click.echo(f"note: {clean_line(note)}", err=True)
    colour = use_colour()
    print_text(render_files(files, colour=colour), render_carry(result, colour=colour), f"next: {command}")


def _suggest_next(result: CarryResult, original: Path) -> str:
    return f"hieronnx compare {shlex.quote(str(original))} {shlex.quote(str(result.path))}"
