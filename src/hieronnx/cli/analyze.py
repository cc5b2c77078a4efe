"""`hieronnx analyze`: what an ONNX file is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hieronnx.cli.console import check_reports, print_json, print_notes, print_text, use_colour, write_report
from hieronnx.cli.options import (
    all_calls_option,
    confidence_option,
    depth_option,
    json_option,
    markdown_option,
    path_argument,
    quiet_option,
    threshold_option,
    top_option,
)


@click.command("analyze", short_help="Count nodes, parameters and multiply-adds by module.")
@path_argument("model")
@click.option("--category", metavar="NAME", help="Count only nodes of this category of operators.")
@click.option("--module", metavar="PATTERN", help="Count only these nodes; patterns as for 'hieronnx select'.")
@click.option("--op", metavar="TYPE", help="Count only nodes of this operator.")
@click.option("--evidence", metavar="NAME", help="Count only nodes whose call is known by this evidence.")
@threshold_option("How much of a category should be attributed. May be repeated.")
@confidence_option
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="The size of a dynamic axis. May be repeated.")
@click.option(
    "--sort",
    type=click.Choice(["nodes", "parameters", "bytes", "multiply-adds"]),
    help="List the modules in this order, not as a tree.",
)
@depth_option("Levels of modules below the root or each match.")
@top_option("List only N modules and operators: the first by --sort, or by multiply-adds.")
@quiet_option("Print the totals alone, and notes to stderr.")
@all_calls_option
@click.option("--detailed", is_flag=True, help="List the nodes.")
@click.option("--tensors", is_flag=True, help="List the tensors: the call that makes each, and those that read it.")
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print the modules (the nodes, the tensors if listed) as CSV.")
@markdown_option
@click.option(
    "--modules-json",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the module table, too: classes, forward arguments, parameters, children, tags.",
)
def analyze_command(
    model: Path,
    sort: str | None,
    depth: int | None,
    top: int | None,
    quiet: bool,
    detailed: bool,
    as_json: bool,
    as_csv: bool,
    markdown: Path | None,
    modules_json: Path | None,
    thresholds: tuple[str, ...],
    dims: tuple[str, ...],
    **options: Any,
) -> None:
    """Count what MODEL is made of: nodes by evidence, category and module, parameters, multiply-adds.

    Any ONNX file will do; no weights are read. Categories with less attributed than their threshold are marked.
    Filters restrict which nodes are counted; parameters and bytes are those of the modules and the file.
    Multiply-adds are those of matrix products, convolutions, recurrent layers and attention; where axes are dynamic,
    formulas of these.

    \b
    Examples:
      hieronnx analyze model.onnx --depth 2
      hieronnx analyze model.onnx --sort parameters --dim batch=1
      hieronnx analyze model.onnx --all --top 10
      hieronnx analyze model.onnx --module '*.0.*' --op MatMul --detailed
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.cli.syntax import parse_dim, parse_threshold
    from hieronnx.errors import InputError
    from hieronnx.report.analysis import analysis_to_csv, analysis_to_markdown, render_analysis, render_totals
    from hieronnx.report.names import clean_name
    from hieronnx.tools.analyze.counting import analyze

    if as_json and as_csv:
        raise InputError("--json and --csv are two forms of the same output; give one of them")
    check_reports((markdown, modules_json), (model,))
    percents, sizes = dict(map(parse_threshold, thresholds)), dict(map(parse_dim, dims))
    result = analyze(model, thresholds=percents, dims=sizes, **options)
    shown: dict[str, Any] = {"sort": sort, "depth": depth, "top": top, "detailed": detailed}
    csv = analysis_to_csv(result, detailed=detailed, tensors=options["tensors"]) if as_csv else ""
    if modules_json is not None:
        write_report(modules_json, json.dumps(result.make_module_table(), indent=1) + "\n")
    if markdown is not None:
        write_report(markdown, analysis_to_markdown(result, **shown))
    if not as_json and (as_csv or quiet):  # which have no place for them
        print_notes(result.notes)
    if as_json:
        print_json(result.to_dict(detailed=detailed))
    elif as_csv:
        print_text(csv)
    elif quiet:
        print_text(render_totals(result, colour=use_colour()))
    else:
        written = "\n".join(f"wrote {clean_name(str(path))}" for path in (modules_json, markdown) if path is not None)
        print_text(render_analysis(result, colour=use_colour(), **shown), written)
