"""`hieronnx compare`: tells whether two ONNX files are the same computation, and what was done if not."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from hieronnx.cli.console import FOUND_SOMETHING, check_reports, print_notes, print_text, show, write_report
from hieronnx.cli.options import json_option, markdown_option, path_argument, quiet_option, top_option
from hieronnx.report.names import clean_line


@click.command("compare", short_help="Are two ONNX files the same computation? What was done, by module.")
@path_argument("a")
@path_argument("b")
@click.option("--names", is_flag=True, help="Let the names of nodes, tensors and dynamic axes count, too.")
@click.option(
    "--values",
    is_flag=True,
    help="Let contents of initializers count, too, and say by how much they differ.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    metavar="N",
    help="How many nodes to list; the rest is counted.",
)
@top_option("List only the N calls with the most changes, and the N modules whose weights differ most.")
@quiet_option("Print the verdict alone, one line.")
@json_option
@markdown_option
@click.pass_context
def compare_command(
    context: click.Context,
    /,
    a: Path,
    b: Path,
    limit: int,
    top: int | None,
    quiet: bool,
    as_json: bool,
    markdown: Path | None,
    **options: Any,
) -> None:
    """Tell whether A and B are the same computation graph, and if not, what was added, removed and changed.

    Operators and their versions, attributes, connections, inputs and outputs with their types and dynamic axes, and
    the types of initializers count; names and the order of independent nodes do not. Changes are grouped by module
    where one of the files has a hierarchy; where both have one, modules are compared with modules of the same path.

    Exit code 0: the same; 1: different; 2: they could not be compared.

    \b
    Examples:
      hieronnx compare model.onnx optimized.onnx
      hieronnx compare before.onnx after.onnx --values --markdown changes.md
      hieronnx compare before.onnx after.onnx --quiet
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.files.torch_scopes import note_torch_scopes
    from hieronnx.report.comparison import comparison_to_markdown, render_comparison
    from hieronnx.tools.compare import compare

    check_reports((markdown,), (a, b))
    result = compare(a, b, **options)
    for path, strategy in zip((a, b), result.strategies, strict=True):
        print_notes(note_torch_scopes(str(path), strategy))
    if markdown is not None:
        write_report(markdown, comparison_to_markdown(result))
    if quiet and not as_json:
        print_text(clean_line(result.describe()))
    else:
        show(result, partial(render_comparison, limit=limit, top=top), as_json=as_json)
    context.exit(0 if result.same else FOUND_SOMETHING)
