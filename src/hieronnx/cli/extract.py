"""`hieronnx extract`: module calls out of an ONNX file, as a model of its own."""

from __future__ import annotations

from pathlib import Path

import click

from hieronnx.cli.console import print_json, print_notes, print_text, show, use_colour
from hieronnx.cli.options import path_argument, report_options


@click.command("extract", short_help="Cut a module call out as a model of its own.")
@path_argument("model")
@click.argument("targets", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Where to write the part.")
@click.option(
    "--all",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write every call that matches into FOLDER, each as a file named after it.",
)
@click.option("--relative-names", is_flag=True, help="Name parameters as the module itself does.")
@report_options
def extract_command(
    model: Path,
    targets: tuple[str, ...],
    output: Path | None,
    folder: Path | None,
    relative_names: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Extract the module call TARGET from MODEL, or several together, as an ONNX model of its own.

    Its inputs are what the module received, its outputs what it returned; an input that it did not receive is told,
    and so is what it returned and the file does not hold any more.
    It has the weights that it needs, and the hierarchy below the module.

    \b
    TARGET is one of
      encoder.layer.0             a module path: its first call
      cell@2                      a later call
      /Model/Encoder/Layer.0      a tag
      'encoder.layer.*'           a glob over these; of calls inside one another the outermost
      encoder.layer.0..encoder.layer.5
                                  a range, in the order of execution
      'class:Block and not head'  or any selection, as for 'hieronnx select'

    Of several calls, what lies between them comes along, and is told.

    \b
    Examples:
      hieronnx extract model.onnx encoder.layer.0 -o layer.onnx
      hieronnx extract model.onnx encoder.layer.0..encoder.layer.5 -o half.onnx
      hieronnx extract model.onnx 'encoder.layer.*' --all layers
    """  # noqa: D301  click wants the backspace itself
    if (output is None) == (folder is None):
        raise click.UsageError("Give one of -o FILE and --all FOLDER.")
    if folder is not None:
        if len(targets) > 1:
            raise click.UsageError("--all takes one TARGET; write several as 'a or b'.")
        _extract_all(model, targets[0], folder, relative_names, quiet, as_json)
        return
    from hieronnx.files.torch_scopes import note_torch_scopes
    from hieronnx.report.extraction import render_extraction
    from hieronnx.tools.extract.extracting import extract

    result = extract(model, *targets, output=output, relative_names=relative_names)
    print_notes(note_torch_scopes(str(model), result.hierarchy.strategy))
    show(result, render_extraction, as_json=as_json, quiet=quiet)


def _extract_all(model: Path, target: str, folder: Path, relative_names: bool, quiet: bool, as_json: bool) -> None:
    from hieronnx.errors import count
    from hieronnx.files.torch_scopes import note_torch_scopes
    from hieronnx.report.extraction import render_extractions
    from hieronnx.tools.extract.extracting import extract_all

    skipped: list[str] = []
    results = extract_all(model, target, folder, relative_names=relative_names, skipped=skipped.append)
    print_notes(skipped)
    print_notes(note_torch_scopes(str(model), results[0].hierarchy.strategy))
    if as_json:
        print_json({"extracted": [result.to_dict() for result in results], "skipped": skipped})
    elif not quiet:
        notes = f", {len(skipped):,} without nodes" if skipped else ""
        print_text(render_extractions(results, colour=use_colour()), f"{count(len(results), 'part')} written{notes}")
