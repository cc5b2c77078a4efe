"""Measure how well the strategies attribute files without names: a model's, or those of the zoo for docs/strategies.md.

Not a matter of time but of right and wrong: truth is what the exporter recorded, and what each strategy sees is the
same file without any name.
"""

from __future__ import annotations

import logging
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.page import ROOT, describe_versions, render_table, today, use_zoo
from hieronnx.cli.options import exporter_option, input_options, trust_option

if TYPE_CHECKING:
    from hieronnx.hierarchy.hierarchy import Hierarchy

PAGE = ROOT / "docs" / "strategies.md"
MEASURED = re.compile(r"(<!-- begin: python -m benchmarks[. ]strategies -->).*?(<!-- end -->)", re.DOTALL)
STRATEGIES = ("htp", "usage_based")
VERSIONS = ("torch", "transformers", "onnx", "onnxruntime", "onnxsim", "onnxscript")
TRANSFORMED = ("bert", "gpt2", "t5", "vit", "resnet")
TOOLS: Mapping[str, str] = {
    "ONNX Runtime, extended": "ort-extended",
    "ONNX Runtime, all": "ort-all",
    "ONNX Runtime, transformers": "ort-transformers",
    "onnxsim": "onnxsim",
    "fp16": "fp16-keep-io",
    "int8, QOperator": "int8-operators",
    "int8, QDQ": "int8-static",
}
"""The tools of the second table, as the page and as the tests name them."""
OUTCOMES = ("exact", "origin", "coarse", "wrong", "none")
HEADER = ("nodes", *OUTCOMES, "wrong, nodes")

Counts = Counter[tuple[str, str, str]]


@click.command()
@click.argument("target", required=False)
@input_options
@exporter_option
@trust_option
@click.option("--json", "as_json", is_flag=True, help="Print the scores of TARGET as JSON.")
@click.option("--case", "cases", multiple=True, help="Without TARGET: only this case of the zoo. May be repeated.")
def strategies(target: str | None, exporter: str, as_json: bool, cases: tuple[str, ...], **given: Any) -> None:
    """Measure how well each strategy does on TARGET, a model as for `hieronnx export`; without one, on the zoo.

    The model is exported, with what the exporter records as the truth. All names and metadata are taken from a copy,
    and each strategy of `hieronnx annotate` attributes its nodes: high confidence should be right, and what is not
    known should be said to be so. Only the whole zoo writes anything: the tables of docs/strategies.md.
    """
    if target is None:
        measure_and_write(cases)
        return
    from benchmarks.score_report import render_scores, scores_to_json
    from benchmarks.scores import measure_strategies
    from hieronnx.cli.console import print_json, print_text, use_colour, working
    from hieronnx.cli.loading import read_loading

    loading = read_loading(target, given)
    with working(debug=False) as report:
        loaded = loading.load_with_inputs(report)
        scores = measure_strategies(loaded.model, loaded.args, loaded.kwargs, progress=report, exporter=exporter)
    if as_json:
        print_json({"target": target, **scores_to_json(scores)})
    else:
        print_text(render_scores(scores, colour=use_colour()))


def measure_and_write(cases: Sequence[str]) -> None:
    """Measure these cases of the zoo, or all; print the tables, and write them where all were measured."""
    use_zoo()
    from support.zoo import CASES

    names = list(cases or CASES)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="hieronnx-strategies-") as folder:
        rows = list(measure_zoo(names, Path(folder)))
        changed = list(measure_transformed([name for name in TRANSFORMED if name in names], Path(folder)))
    text = "\n\n".join(render(rows, changed))
    click.echo(text)
    if not cases:
        write_page(PAGE, text)


def write_page(page: Path, text: str) -> None:
    """Put the tables between the markers of the page."""
    before = page.read_text(encoding="utf-8")
    after, found = MEASURED.subn(lambda match: f"{match[1]}\n\n{text}\n\n{match[2]}", before, count=1)
    if not found:
        raise click.ClickException(f"{page} has no markers to write the tables between")
    page.write_text(after, encoding="utf-8")


# -- measuring ------------------------------------------------------------------------------------------------


def measure_zoo(names: Iterable[str], folder: Path) -> Iterator[tuple[str, str, str, Counts]]:
    """Yield for each model, exporter and strategy what became of the nodes."""
    import hieronnx
    from support.zoo import CASES

    for name in names:
        case = CASES[name]
        for exporter in case.exporters:
            print(f"{name}, {exporter}", file=sys.stderr)
            path = folder / f"{name}-{exporter}.onnx"
            model = case.build()
            truth = hieronnx.export(model, case.args(), path, case.kwargs(), exporter=exporter).hierarchy
            for strategy, counts in measure_file(path, truth, model, case):
                yield name, exporter, strategy, counts


def measure_file(path: Path, truth: Hierarchy, model: Any, case: Any, **options: Any) -> Iterator[tuple[str, Counts]]:
    """Yield for each strategy what it makes of a file without names."""
    from benchmarks.scores import score_file

    for score in score_file(path, truth, model, case.args(), case.kwargs(), strategies=STRATEGIES, **options):
        yield score.strategy, Counter(score.counts)


def measure_transformed(names: Iterable[str], folder: Path) -> Iterator[tuple[str, str, str, Counts]]:
    """Yield for each model, tool and strategy what became of the nodes; truth is what was carried through the tool."""
    import hieronnx
    from benchmarks.scores import is_carried
    from hieronnx.attribute.by_value.file_run import list_choices, name_arguments
    from hieronnx.runtime.inputs import read_inputs
    from hieronnx.tools.carry import carry
    from support.transformations import transform
    from support.zoo import CASES

    for name in names:
        case = CASES[name]
        model, path = case.build(), folder / f"{name}.onnx"
        hieronnx.export(model, case.args(), path, case.kwargs(), exporter="dynamo")
        arguments = name_arguments(model, case.args(), case.kwargs())
        feeds = list_choices(read_inputs(path), arguments, path.name)[0](arguments)
        for tool, column in TOOLS.items():
            print(f"{name}, {tool}", file=sys.stderr)
            made = folder / "made.onnx"
            transform(column, path, made, feeds)
            truth = carry(path, made).hierarchy
            for strategy, counts in measure_file(made, truth, model, case, counts_as_known=is_carried):
                yield name, tool, strategy, counts


# -- the page -------------------------------------------------------------------------------------------------


def render(
    rows: Sequence[tuple[str, str, str, Counts]], changed: Sequence[tuple[str, str, str, Counts]]
) -> Iterator[str]:
    """Yield the parts of the page that are measured."""
    versions = ", ".join(f"{name} {number}" for name, number in describe_versions(VERSIONS).items())
    files = len({row[:2] for row in rows})
    yield f"Measured on {today()} with {versions}, over {files} files of the zoo. Shares in percent."
    yield "### The whole zoo"
    yield render_table(("strategy", *HEADER), [(s, *_shares(_sum(rows, strategy=s))) for s in STRATEGIES])
    yield "By confidence:"
    yield render_table(("strategy", "confidence", *HEADER), _grouped(rows, 1, ("high", "medium", "low")))
    yield "By category of operator:"
    yield render_table(("strategy", "category", *HEADER), _grouped(rows, 0))
    yield "### After other tools"
    yield (
        "Five models, exported with dynamo and then optimized, fused, simplified, or converted to half precision or to "
        "8 bits; the truth is what `hieronnx carry` carries through the tool; what it cannot tell is left out."
    )
    yield render_table(("strategy", "tool", *HEADER, "exact or origin"), list(_by_tool(changed)))
    yield "### Model by model"
    yield render_table(
        ("model", "exporter", "nodes", "htp exact", "htp wrong", "usage_based exact", "usage_based wrong"),
        list(_by_model(rows)),
    )


def _sum(rows: Iterable[tuple[str, str, str, Counts]], *, strategy: str) -> Counts:
    total: Counts = Counter()
    for row in rows:
        if row[2] == strategy:
            total.update(row[3])
    return total


def _grouped(
    rows: Sequence[tuple[str, str, str, Counts]], place: int, order: Sequence[str] = ()
) -> list[tuple[str, ...]]:
    found = []
    for strategy in STRATEGIES:
        counts = _sum(rows, strategy=strategy)
        for group in order or sorted({key[place] for key in counts}):
            part = Counter({key: number for key, number in counts.items() if key[place] == group})
            if part:
                found.append((strategy, group, *_shares(part)))
    return found


def _by_tool(changed: Sequence[tuple[str, str, str, Counts]]) -> Iterator[tuple[str, ...]]:
    for strategy in STRATEGIES:
        for tool in TOOLS:
            counts = _sum((row for row in changed if row[1] == tool), strategy=strategy)
            if counts:
                yield strategy, tool, *_shares(counts), _share(counts, "exact", "origin")


def _by_model(rows: Sequence[tuple[str, str, str, Counts]]) -> Iterator[tuple[str, ...]]:
    for name, exporter in dict.fromkeys(row[:2] for row in rows):
        mine = [_sum((row for row in rows if row[:2] == (name, exporter)), strategy=s) for s in STRATEGIES]
        cells = [_share(counts, outcome) for counts in mine for outcome in ("exact", "wrong")]
        yield name, exporter, str(sum(mine[0].values())), *cells


def _shares(counts: Counts) -> tuple[str, ...]:
    wrong = sum(number for key, number in counts.items() if key[2] == "wrong")
    return f"{sum(counts.values())}", *(_share(counts, outcome) for outcome in OUTCOMES), str(wrong)


def _share(counts: Counts, *outcomes: str) -> str:
    total = sum(counts.values())
    return f"{100 * sum(n for key, n in counts.items() if key[2] in outcomes) / total:.1f}" if total else "-"
