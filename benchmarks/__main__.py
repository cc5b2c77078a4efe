"""Measure hieronnx: `python -m benchmarks [NAME]`; without a name all that is timed, for docs/benchmarks.md."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence

import click

from benchmarks.matrix import matrix
from benchmarks.measure import Section
from benchmarks.page import ROOT, describe_versions, render_table, today
from benchmarks.strategies import strategies

TIMED: Mapping[str, str] = {
    "export": "Time what hieronnx adds to torch's own export.",
    "carry": "Time carrying a hierarchy through other tools.",
    "tools": "Time the commands that read a file.",
    "extract": "Time extraction beside its peers.",
    "split": "Time splitting into stages beside its peers.",
    "annotate": "Time annotating a file by value.",
    "profiling": "Time profiling beside the runs alone.",
    "verify": "Time comparing every module call of a file with PyTorch.",
    "target": "Count what a search for a target leaves in 8 bits, beside a greedy one by nodes.",
    "view": "Time making a page, and using it in a browser.",
}
_PACKAGES = ("hieronnx", "torch", "onnx", "onnxruntime", "onnxscript", "onnx-ir", "transformers")
_REPORT = ROOT / "docs" / "benchmarks.md"


@click.group(invoke_without_command=True)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Runs of each side.")
@click.pass_context
def main(context: click.Context, repeats: int) -> None:
    """Measure hieronnx; without a command all that is timed, and write docs/benchmarks.md."""
    context.obj = repeats
    if context.invoked_subcommand is None:
        report = time_sections(list(TIMED), repeats)
        click.echo(report, nl=False)
        _REPORT.write_text(report, encoding="utf-8")


def _timed_command(name: str, text: str) -> click.Command:
    @click.command(name, help=text)
    @click.pass_obj
    def command(repeats: int) -> None:
        click.echo(time_sections([name], repeats), nl=False)

    return command


for _name, _text in TIMED.items():
    main.add_command(_timed_command(_name, _text))
main.add_command(strategies)
main.add_command(matrix)


def time_sections(names: Sequence[str], repeats: int) -> str:
    """Run these benchmarks; return the report."""
    sections = []
    for name in names:
        print(f"running {name}", file=sys.stderr)
        sections.append(importlib.import_module(f"benchmarks.{name}").run(repeats))
    return _render(sections, repeats)


def _render(sections: Sequence[Section], repeats: int) -> str:
    versions = describe_versions(_PACKAGES)
    parts = [
        "# Benchmarks",
        f"Written by `make bench` on {today()}. Every figure is the median of {repeats} runs, each in a process of its "
        "own on one thread, the sides of a comparison in turn; imports, building the model and a warm-up do not count. "
        "Compare the ratios: the times themselves depend on the machine.",
        render_table(("cores", *versions), [(str(_cores()), *versions.values())]),
    ]
    for section in sections:
        parts += [f"## {section.title}", section.text, render_table(section.header, section.rows)]
    return "\n\n".join(parts) + "\n"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
