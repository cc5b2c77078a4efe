"""`hieronnx demo`: the built-in model, exported and shown."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hieronnx.cli.console import print_text, use_colour, working
from hieronnx.cli.files import list_files

if TYPE_CHECKING:
    from hieronnx.tools.export import ExportResult


@click.command("demo")
@click.option(
    "-o",
    "--output",
    default="demo",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="The folder to write into; it is made if need be.",
)
@click.pass_obj
def demo_command(debug: bool, output: Path) -> None:
    """Export the built-in model and show its tree and coverage."""
    from hieronnx.report.summary import render_coverage, render_files
    from hieronnx.report.tree import grow_tree, render_tree

    result = _export_demo(output, debug)
    colour = use_colour()
    print_text(
        render_tree(grow_tree(result.hierarchy), colour=colour),
        render_coverage(result.hierarchy, colour=colour),
        render_files(list_files(result), colour=colour),
        _suggest_next(result.path),
    )


def _export_demo(folder: Path, debug: bool) -> ExportResult:
    from hieronnx.capture.inputs import make_inputs
    from hieronnx.capture.load import load_model
    from hieronnx.errors import ExportError
    from hieronnx.tools.export import export

    with working(debug=debug) as report:
        report("building the demo model")
        model = load_model("demo")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExportError(f"cannot make the folder '{folder}': {error.strerror}") from error
        return export(model, (), folder / "demo.onnx", make_inputs(model), progress=report)


def _suggest_next(path: Path) -> str:
    name = shlex.quote(str(path))
    commands = {
        f"hieronnx tree {name} '*Attention' --nodes": "the nodes of each attention",
        f"hieronnx tree {name} --all": "calls inside torch.nn too",
        f"hieronnx analyze {name} --depth 1": "what each module costs",
        f"hieronnx validate {name}": "is it true to the file?",
        "hieronnx export --help": "export a model of your own",
    }
    width = max(map(len, commands))
    return "\n".join(["try next:", *(f"  {command:{width}}  {what}" for command, what in commands.items())])
