"""`hieronnx annotate`: the hierarchy of a PyTorch model for an ONNX file from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hieronnx.cli.console import FOUND_SOMETHING, print_json, show_written, working
from hieronnx.cli.loading import Loaded, read_loading
from hieronnx.cli.options import confidence_option, model_options, path_argument, writing_options
from hieronnx.report.names import clean_line


@click.command("annotate", short_help="Give an ONNX file from elsewhere the hierarchy of its PyTorch model.")
@path_argument("file")
@click.option("--model", "target", required=True, metavar="TARGET", help="The PyTorch model, as for export.")
@writing_options
@confidence_option
@model_options
@click.option(
    "--strategy",
    type=click.Choice(["htp", "usage_based"]),
    default="htp",
    show_default=True,
    help="htp: by the values that model and file compute; usage_based: by parameters and dataflow, nothing is run.",
)
@click.pass_context
def annotate_command(
    context: click.Context, /, file: Path, target: str, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Give FILE the hierarchy of its PyTorch model, every node with how that is known.

    FILE may come from any exporter, with any names, and through optimizers. The model must have its weights. Both are
    run on inputs of FILE's own types and sizes; --input gives others. The graph stays as it is; -o may be FILE itself.
    Exit code 1 if FILE is not of this model: then nothing is written.

    \b
    TARGET is one of
      demo                    the built-in model
      package.module:object   an nn.Module, a class or a function that makes one
      file.py:object          the same, from a file
      FOLDER or HUB_ID        a Hugging Face model; hf://HUB_ID where a folder has nearly that name

    \b
    Examples:
      hieronnx annotate model.onnx --model ./bert -o annotated.onnx
      hieronnx annotate net.onnx --model net.py:load_net -o net.onnx --input 'x=float32[1,3,64,64]'
      hieronnx annotate model.onnx --model net.py:load_net -o annotated.onnx --strategy usage_based
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.errors import HieronnxError, MismatchError, check_folder
    from hieronnx.report.summary import render_annotation

    loading = read_loading(target, options)
    if not file.is_file():  # before the model is loaded, which may take long
        raise HieronnxError(f"no ONNX file at '{file}'")
    check_folder(options["output"])
    try:
        with working(debug=context.obj) as report:
            from hieronnx.tools.annotate import annotate

            run = options["strategy"] == "htp"
            given = run and (loading.specs or loading.gives_all)
            loaded = loading.load_for_file(file, report) if given else Loaded(loading.load(report))
            result = annotate(file, loaded.model, loaded.args, loaded.kwargs, progress=report, **options)
    except MismatchError as error:
        if as_json:
            print_json(error.to_dict())
        else:
            click.echo(clean_line(str(error)), err=True)
        context.exit(FOUND_SOMETHING)
    show_written(result, render_annotation, "tree", as_json=as_json, quiet=quiet)
