"""Run the benchmarks: `python -m benchmarks [NAME...] [--repeats N]`. All of them together write the report."""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks._measure import Section

_NAMES = ("export", "carry", "tools", "extract", "annotate")
_PACKAGES = ("hieronnx", "torch", "onnx", "onnxruntime", "onnxscript", "onnx-ir", "transformers")
_REPORT = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def main() -> None:
    """Run the benchmarks that were named, or all; print the report, and write it where all were run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"{', '.join(_NAMES)}; none: all, and the report")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="runs of each side (default 5)")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in _NAMES]:
        parser.error(f"no benchmark {unknown[0]!r}; choose from {', '.join(_NAMES)}")
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    sections = []
    for name in options.names or _NAMES:
        print(f"running {name}", file=sys.stderr)
        sections.append(importlib.import_module(f"benchmarks.{name}").run(options.repeats))
    report = _render(sections, options.repeats)
    print(report, end="")
    if not options.names:
        _REPORT.write_text(report, encoding="utf-8")


def _render(sections: Sequence[Section], repeats: int) -> str:
    today = datetime.date.today().isoformat()
    versions = [("python", platform.python_version()), *((name, version(name)) for name in _PACKAGES)]
    parts = [
        "# Benchmarks",
        f"Written by `make bench` on {today}. Every figure is the median of {repeats} runs, each in a process of its "
        "own on one thread, the sides of a comparison in turn; imports, building the model and a warm-up do not count. "
        "Compare the ratios: the times themselves depend on the machine.",
        _render_table(("cores", *(name for name, _ in versions)), [(str(_cores()), *(v for _, v in versions))]),
    ]
    for section in sections:
        parts += [f"## {section.title}", section.text, _render_table(section.header, section.rows)]
    return "\n\n".join(parts) + "\n"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    numeric = [all(row[column][:1].isdigit() for row in rows) for column in range(len(header))]
    rule = ["---:" if right else "---" for right in numeric]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])


if __name__ == "__main__":
    main()
