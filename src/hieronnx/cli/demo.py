"""`hieronnx demo`: the built-in model, exported, with its tree and coverage."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hieronnx.cli.console import print_text, use_colour, working
from hieronnx.report.names import clean_line


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

    with working(debug=debug) as report:
        from hieronnx.capture.inputs import make_inputs
        from hieronnx.capture.load import load_model
        from hieronnx.errors import ExportError
        from hieronnx.tools.export import export

        report("building the demo model")
        model = load_model("demo")
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExportError(f"cannot make the folder '{output}': {error.strerror}") from error
        result = export(model, kwargs=make_inputs(model), output=output / "demo.onnx", progress=report)
    colour = use_colour()
    print_text(
        render_tree(grow_tree(result.hierarchy), colour=colour),
        render_coverage(result.hierarchy, colour=colour),
        render_files(result.files, colour=colour),
        _suggest_next(result.path),
    )


def _suggest_next(path: Path) -> str:
    name = clean_line(shlex.quote(str(path)))
    commands = {
        f"hieronnx tree {name} '*Attention' --nodes": "the nodes of each attention",
        f"hieronnx tree {name} --all": "calls inside torch.nn too",
        f"hieronnx analyze {name} --depth 1": "what each module costs",
        f"hieronnx validate {name}": "is it true to the file?",
        "hieronnx export --help": "export a model of your own",
    }
    width = max(map(len, commands))
    return "\n".join(["try next:", *(f"  {command:{width}}  {what}" for command, what in commands.items())])
