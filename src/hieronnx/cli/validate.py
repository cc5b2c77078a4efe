"""`hieronnx validate`: whether a file and its hierarchy can be believed."""

from __future__ import annotations

from pathlib import Path

import click

from hieronnx.cli.console import print_json, print_text, use_colour

_FOUND_SOMETHING = 1


@click.command("validate", short_help="Is a hierarchy whole, and true to its file?")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Let warnings fail, too.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="OTHER",
    help="Make sure that the graph is that of another ONNX file.",
)
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="CATEGORY=PERCENT",
    help="How much of a category of operators must be attributed, as in type_conversion=90. May be repeated.",
)
@click.option(
    "--fix", is_flag=True, help="Write the sidecar from the metadata inside, or the reverse; never the graph."
)
@click.option(
    "--fix-from",
    type=click.Choice(["sidecar", "embedded"]),
    help="The same, and the one to trust where both are there and disagree.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON, all of them.")
@click.pass_context
def validate_command(
    context: click.Context,
    /,
    model: Path,
    strict: bool,
    baseline: Path | None,
    thresholds: tuple[str, ...],
    fix: bool,
    fix_from: str | None,
    as_json: bool,
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
    from hieronnx.report.findings import findings_to_json, render_findings
    from hieronnx.tools.validate.repair import repair
    from hieronnx.tools.validate.validating import validate

    required = dict(map(parse_threshold, thresholds))
    fixed = repair(model, trust=fix_from) if fix or fix_from else ()
    findings = validate(model, strict=strict, baseline=baseline, thresholds=required)
    if as_json:
        print_json(findings_to_json(findings, fixed=fixed))
    else:
        print_text(render_findings(findings, fixed=fixed, colour=use_colour()))
    context.exit(0 if findings.passed else _FOUND_SOMETHING)
