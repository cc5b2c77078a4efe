"""`hieronnx annotate`: an ONNX file from elsewhere gets the hierarchy of its model."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from hieronnx.cli.console import print_json, print_text, use_colour, working
from hieronnx.cli.files import list_model_files
from hieronnx.cli.model import input_options, load_target, load_with_inputs, read_specs, torch_nn_option, trust_option
from hieronnx.report.clean import clean_line

if TYPE_CHECKING:
    from hieronnx.capture.specs import InputSpec
    from hieronnx.report.summary import WrittenFile
    from hieronnx.tools.annotate import AnnotateResult


@click.command("annotate", short_help="Give an ONNX file from elsewhere the hierarchy of its PyTorch model.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--model", "target", required=True, metavar="TARGET", help="The PyTorch model, as for export.")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The ONNX file to write; FILE itself to add the hierarchy to it.",
)
@input_options
@click.option(
    "--strategy",
    type=click.Choice(["htp", "usage_based"]),
    default="htp",
    show_default=True,
    help="htp: by the values that model and file compute; usage_based: by parameters and dataflow, nothing is run.",
)
@torch_nn_option
@click.option("--no-embed", is_flag=True, help="Write no hierarchy into the ONNX file.")
@click.option("--no-sidecar", is_flag=True, help="Write no _hierarchy.json beside it.")
@trust_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def annotate_command(
    context: click.Context,
    /,
    file: Path,
    target: str,
    output: Path,
    inputs: tuple[str, ...],
    input_specs: Path | None,
    trust_remote_code: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Give FILE the hierarchy of its PyTorch model, every node with how that is known.

    FILE may come from any exporter, with any names, and through optimizers. The model must have its weights. The graph
    stays as it is. Exit code 1 if FILE is not of this model: then nothing is written.

    \b
    TARGET is one of
      demo                    the built-in model
      package.module:object   an nn.Module, a class or a function that makes one
      file.py:object          the same, from a file
      FOLDER or HUB_ID        a Hugging Face model

    \b
    Examples:
      hieronnx annotate model.onnx --model ./bert -o annotated.onnx
      hieronnx annotate net.onnx --model net.py:load_net -o net.onnx --input 'x=float32[1,3,64,64]'
      hieronnx annotate model.onnx --model net.py:load_net -o annotated.onnx --strategy usage_based
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.errors import MismatchError
    from hieronnx.report.annotation import mismatch_to_json

    try:
        with working(debug=context.obj) as report:
            load = _Loading(target, read_specs(inputs, input_specs), trust_remote_code)
            result = _run(file, output, load, report, **options)
    except MismatchError as error:
        if as_json:
            print_json(mismatch_to_json(error))
        else:
            click.echo(clean_line(str(error)), err=True)
        context.exit(1)
    if as_json:
        print_json(_to_json(result))
    else:
        _print_result(result)


@dataclass(frozen=True, slots=True)
class _Loading:
    """What is needed to get the model."""

    target: str
    specs: list[InputSpec]
    trust_remote_code: bool


def _run(
    file: Path,
    output: Path,
    loading: _Loading,
    report: Callable[[str], None],
    *,
    strategy: Literal["htp", "usage_based"],
    torch_nn: str,
    no_embed: bool,
    no_sidecar: bool,
) -> AnnotateResult:
    """Load the model, make its inputs if it is to be run, and annotate the file."""
    from hieronnx.errors import HieronnxError
    from hieronnx.hierarchy.tags import TagPolicy
    from hieronnx.tools.annotate import annotate

    TagPolicy.parse(torch_nn)
    if not file.is_file():  # before the model is loaded, which may take long
        raise HieronnxError(f"no ONNX file at '{file}'")
    if strategy == "htp":
        model, kwargs = load_with_inputs(loading.target, loading.specs, loading.trust_remote_code, report)
    else:
        model, kwargs = load_target(loading.target, loading.trust_remote_code, report), {}
    return annotate(
        file,
        model,
        (),
        kwargs,
        output=output,
        strategy=strategy,
        torch_nn=torch_nn,
        embed=not no_embed,
        sidecar=not no_sidecar,
        progress=report,
    )


def _suggest_next(result: AnnotateResult) -> str:
    return f"hieronnx tree {shlex.quote(str(result.path))}"


def _files(result: AnnotateResult) -> list[WrittenFile]:
    assert result.path is not None  # the command always writes
    return list_model_files(result.path, result.sidecar)


def _print_result(result: AnnotateResult) -> None:
    from hieronnx.report.annotation import render_annotation
    from hieronnx.report.summary import render_files

    colour = use_colour()
    files = render_files(_files(result), colour=colour)
    print_text(files, render_annotation(result, colour=colour), f"next: {_suggest_next(result)}")


def _to_json(result: AnnotateResult) -> dict[str, Any]:
    from hieronnx.report.annotation import annotation_to_json

    return {
        "model": str(result.path),
        "sidecar": None if result.sidecar is None else str(result.sidecar),
        "files": [{"path": str(file.path), "bytes": file.size} for file in _files(result)],
        **annotation_to_json(result),
        "next": _suggest_next(result),
    }
