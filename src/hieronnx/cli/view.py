"""`hieronnx view`: a page that shows a model by its modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hieronnx.cli.console import print_notes, print_text, show
from hieronnx.cli.options import json_option, path_argument


@click.command("view", short_help="See a model by its modules, in a page.")
@path_argument("model")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file to write; a page by default beside MODEL, with .html for its ending.",
)
@click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--profile",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show times: what 'hieronnx profile … --json' printed.",
)
@click.option(
    "--verify",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show errors: what 'hieronnx verify … --json' printed.",
)
@click.option(
    "--against",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show another form of MODEL beside it, optimized or quantized, and what differs. May be repeated.",
)
@click.option("--statistics", is_flag=True, help="Have statistics of the weights in the page; they are read for that.")
@click.option("--svg", metavar="MODULE", help="Write the picture of this call alone, as SVG.")
@click.option("--png", metavar="MODULE", help="Write it as PNG, drawn by a browser that is installed here.")
@click.option("--mermaid", metavar="MODULE", help="Write it as a Mermaid flowchart, which Markdown shows.")
@click.option("--unfold", is_flag=True, help="Show long repeats in that picture one by one.")
@click.option(
    "--model-explorer",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write the graph, nested by calls, and data of its nodes for Model Explorer into this folder.",
)
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="The size of a dynamic axis. May be repeated.")
@json_option
def view_command(
    model: Path, output: Path | None, opened: bool, dims: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Write a page that shows MODEL by its modules: one HTML file, which needs no network and no server.

    On the left the tree of calls, with nodes, parameters and multiply-adds; on the right the picture of one call:
    the calls that it makes, its own nodes, and what comes in and goes out. Below, all that is known of what was
    clicked. The page's address names the call that is open (page.html#/Model/Block.0) and can be shared.

    With --svg, --png or --mermaid, the picture of one call alone is written to FILE, or printed where none is given.

    \b
    Examples:
      hieronnx view model.onnx --open
      hieronnx view model.onnx -o page.html --profile profile.json --verify verify.json
      hieronnx view model.onnx --against optimized.onnx --against quantized.onnx
      hieronnx view model.onnx --svg encoder.layer.0.attention -o attention.svg
      hieronnx view model.onnx --model-explorer explorer --profile profile.json
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.cli.syntax import parse_dim
    from hieronnx.report.viewing import render_view
    from hieronnx.tools.view.viewing import view

    asked = any(options[name] is not None for name in ("svg", "png", "mermaid", "model_explorer"))
    page = model.with_suffix(".html") if output is None and not asked else output
    if output is None and options["png"] is not None:
        raise click.UsageError("a PNG picture is not printed; say with -o where to write it")
    if opened and asked:
        raise click.UsageError("--open opens a page; leave it out, or the form that you asked for")
    if as_json and page is None and options["model_explorer"] is None:
        raise click.UsageError("--json tells what was written; say with -o where to write the picture")
    result = view(model, output=page, dims=dict(map(parse_dim, dims)), **options)
    print_notes(result.notes)
    if isinstance(result.content, str) and result.path is None:
        print_text(result.content.rstrip())
        return
    show(result, render_view, as_json=as_json)
    if opened and page is not None:
        click.launch(page.resolve().as_uri())
