"""`hieronnx analyze`: what an ONNX file is made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hieronnx.cli.console import print_json, print_text, use_colour

if TYPE_CHECKING:
    from hieronnx.tools.analyze.result import AnalysisResult


@click.command("analyze", short_help="Count nodes, parameters and multiply-adds by module.")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--category", metavar="NAME", help="Count only nodes of this category of operators.")
@click.option("--module", metavar="PATTERN", help="Count only nodes in calls that match: a glob over paths and tags.")
@click.option("--op", metavar="TYPE", help="Count only nodes of this operator.")
@click.option("--evidence", metavar="NAME", help="Count only nodes whose call is known by this evidence.")
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="CATEGORY=PERCENT",
    help="How much of a category should be attributed. May be repeated.",
)
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="The size of a dynamic axis. May be repeated.")
@click.option(
    "--sort",
    type=click.Choice(["nodes", "parameters", "bytes", "multiply-adds"]),
    help="List the modules in this order, not as a tree.",
)
@click.option(
    "--depth", type=click.IntRange(min=0), metavar="N", help="Levels of modules below the root or each match."
)
@click.option("--all", "all_calls", is_flag=True, help="List the calls without a tag of their own, too.")
@click.option("--detailed", is_flag=True, help="List the nodes.")
@click.option("--tensors", is_flag=True, help="List the tensors: the call that makes each, and those that read it.")
@click.option("--json", "as_json", is_flag=True, help="Print the analysis as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the modules (the nodes, the tensors if listed) as CSV.")
@click.option(
    "--markdown", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a report, too."
)
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
    detailed: bool,
    as_json: bool,
    as_csv: bool,
    markdown: Path | None,
    modules_json: Path | None,
    **options: Any,
) -> None:
    """Count what MODEL is made of: nodes by evidence, category and module, parameters, multiply-adds.

    Any ONNX file will do; no weights are read. Categories with less attributed than their threshold are marked.
    Filters restrict which nodes are counted; parameters and bytes are those of the modules and the file.
    Multiply-adds are those of matrix products, convolutions, recurrent layers and attention.

    \b
    Examples:
      hieronnx analyze model.onnx --depth 2
      hieronnx analyze model.onnx --sort parameters --dim batch=1
      hieronnx analyze model.onnx --module '*.0.*' --op MatMul --detailed
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.errors import InputError

    if as_json and as_csv:
        raise InputError("--json and --csv are two forms of the same output; give one of them")
    analysis = _run(model, **options)
    show = {"sort": sort, "depth": depth, "detailed": detailed}
    lists = {"detailed": detailed, "tensors": options["tensors"]}
    result = _to_json(analysis, lists) if as_json else _to_csv(analysis, lists) if as_csv else _to_text(analysis, show)
    written = _write_files(analysis, markdown, modules_json, show)
    if as_json:
        print_json(result)
    else:
        print_text(result, *([] if as_csv or not written else ["\n".join(f"wrote {path}" for path in written)]))


def _run(model: Path, *, thresholds: Sequence[str], dims: Sequence[str], **options: Any) -> AnalysisResult:
    from hieronnx.cli.syntax import parse_dim, parse_threshold
    from hieronnx.tools.analyze import analyze

    percents, sizes = dict(map(parse_threshold, thresholds)), dict(map(parse_dim, dims))
    return analyze(model, thresholds=percents, dims=sizes, **options)


def _write_files(
    analysis: AnalysisResult, markdown: Path | None, modules_json: Path | None, show: Mapping[str, Any]
) -> list[Path]:
    from hieronnx.cli.files import write_text
    from hieronnx.report.analysis import analysis_to_markdown
    from hieronnx.report.analysis_data import modules_to_json

    if modules_json is not None:
        write_text(modules_json, json.dumps(modules_to_json(analysis), indent=1) + "\n")
    if markdown is not None:
        write_text(markdown, analysis_to_markdown(analysis, **show))
    return [path for path in (modules_json, markdown) if path is not None]


def _to_json(analysis: AnalysisResult, lists: Mapping[str, bool]) -> Any:
    from hieronnx.report.analysis_data import analysis_to_json

    return analysis_to_json(analysis, **lists)


def _to_csv(analysis: AnalysisResult, lists: Mapping[str, bool]) -> str:
    from hieronnx.report.analysis_data import analysis_to_csv

    return analysis_to_csv(analysis, **lists)


def _to_text(analysis: AnalysisResult, show: Mapping[str, Any]) -> str:
    from hieronnx.report.analysis import render_analysis

    return render_analysis(analysis, colour=use_colour(), **show)
