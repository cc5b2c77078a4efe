"""`hieronnx validate`: checks that a hierarchy is whole, and true to its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hieronnx.cli.console import FOUND_SOMETHING, show
from hieronnx.cli.options import json_option, path_argument, threshold_option


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
    from hieronnx.report.findings import render_findings
    from hieronnx.tools.validate.validating import validate

    result = validate(model, thresholds=dict(map(parse_threshold, thresholds)), **options)
    show(result, render_findings, as_json=as_json)
    context.exit(0 if result.passed else FOUND_SOMETHING)
