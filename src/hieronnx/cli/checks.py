"""`hieronnx compare` and `validate`: the commands that check files; exit code 1 says that something was found."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from hieronnx.cli.console import FOUND_SOMETHING, show, write_report
from hieronnx.cli.options import json_option, markdown_option, path_argument, threshold_option


@click.command("compare", short_help="Are two ONNX files the same computation? What was done, by module.")
@path_argument("a")
@path_argument("b")
@click.option("--names", is_flag=True, help="Let the names of nodes, tensors and dynamic axes count, too.")
@click.option("--values", is_flag=True, help="Let the contents of initializers count, too: reads all weights.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    metavar="N",
    help="How many nodes to list; the rest is counted.",
)
@json_option
@markdown_option
@click.pass_context
def compare_command(
    context: click.Context, /, a: Path, b: Path, limit: int, as_json: bool, markdown: Path | None, **options: Any
) -> None:
    """Tell whether A and B are the same computation graph, and if not, what was added, removed and changed.

    Operators and their versions, attributes, connections, inputs and outputs with their types and dynamic axes, and
    the types of initializers count; names and the order of independent nodes do not. Changes are grouped by module
    where one of the files has a hierarchy.

    Exit code 0: the same; 1: different; 2: they could not be compared.

    \b
    Examples:
      hieronnx compare model.onnx optimized.onnx
      hieronnx compare before.onnx after.onnx --values --markdown changes.md
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.report.checks import comparison_to_markdown, render_comparison
    from hieronnx.tools.compare import compare

    result = compare(a, b, **options)
    if markdown is not None:
        write_report(markdown, comparison_to_markdown(result))
    show(result, partial(render_comparison, limit=limit), as_json=as_json)
    context.exit(0 if result.same else FOUND_SOMETHING)


@click.command("validate", short_help="Is a hierarchy whole, and true to its file?")
@path_argument("model")
@click.option("--strict", is_flag=True, help="Let warnings fail, too.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="OTHER",
    help="Make sure that the graph is that of another ONNX file.",
)
@threshold_option("How much of a category of operators must be attributed, as in type_conversion=90. May be repeated.")
@click.option(
    "--fix", is_flag=True, help="Write the sidecar from the metadata inside, or the reverse; never the graph."
)
@click.option(
    "--fix-from",
    type=click.Choice(["sidecar", "embedded"]),
    help="The same, and the one to trust where both are there and disagree.",
)
@json_option
@click.pass_context
def validate_command(
    context: click.Context, /, model: Path, thresholds: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Check MODEL, its hierarchy, and whether the two belong together.

    The hierarchy is read from the sidecar and from the metadata inside, and both are checked: that they are whole,
    agree, and tell of this file; that scopes fit the dataflow; that enough nodes are attributed. The ONNX checker runs
    on any file. No weights are read. Exit code 1: something was found.

    \b
    Examples:
      hieronnx validate model.onnx --strict
      hieronnx validate model.onnx --baseline plain.onnx
      hieronnx validate model.onnx --fix
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.cli.syntax import parse_threshold
    from hieronnx.report.checks import render_findings
    from hieronnx.tools.validate.validating import validate

    result = validate(model, thresholds=dict(map(parse_threshold, thresholds)), **options)
    show(result, render_findings, as_json=as_json)
    context.exit(0 if result.passed else FOUND_SOMETHING)
