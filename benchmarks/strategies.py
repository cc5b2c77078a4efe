"""How good the strategies are over the zoo: `python -m benchmarks.strategies` writes the tables of docs/strategies.md.

Not a matter of time but of right and wrong: truth is what the exporter recorded, and what each strategy sees is the
same file without any name.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "strategies.md"
BEGIN, END = "<!-- begin: python -m benchmarks.strategies -->", "<!-- end -->"
STRATEGIES = ("htp", "usage_based")
VERSIONS = ("python", "torch", "transformers", "onnx", "onnxruntime", "onnxsim", "onnxscript")
TRANSFORMED = ("bert", "gpt2", "t5", "vit", "resnet")
OUTCOMES = ("exact", "origin", "coarse", "wrong", "none")
HEADER = ("nodes", *OUTCOMES, "wrong, nodes")

Counts = Counter[tuple[str, str, str]]


def main() -> None:
    """Measure the cases that were named, or all; print the tables, and write them where all were measured."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.zoo import CASES

    parser = argparse.ArgumentParser(prog="python -m benchmarks.strategies", description=__doc__)
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="models of the zoo; none: all, and the page is written"
    )
    names = parser.parse_args().names or list(CASES)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="hieronnx-strategies-") as folder:
        rows = list(measure_zoo(names, Path(folder)))
        changed = list(measure_transformed([n for n in TRANSFORMED if n in names], Path(folder)))
    text = "\n\n".join(render(rows, changed))
    print(text)
    if len(names) == len(CASES):
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


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
            truth = hieronnx.export(model, case.args(), case.kwargs(), output=path, exporter=exporter).hierarchy
            for strategy, counts in measure_file(path, truth, model, case, folder):
                yield name, exporter, strategy, counts


def measure_file(path: Path, truth: object, model: object, case: object, folder: Path) -> Iterator[tuple[str, Counts]]:
    """Yield for each strategy what it makes of a file without names."""
    from benchmarks.anonymize import anonymize_file
    from benchmarks.scores import score
    from hieronnx.attribute.file import attribute_file
    from hieronnx.attribute.request import Request
    from hieronnx.files.opening import open_model
    from hieronnx.hierarchy.tags import TagPolicy

    bare = folder / "bare.onnx"
    anonymize_file(path, bare)
    for strategy in STRATEGIES:
        opened = open_model(bare)
        request = Request(opened, model, case.args(), case.kwargs())
        found = attribute_file(request, strategy=strategy, policy=TagPolicy())
        yield strategy, Counter(score(strategy, truth, found.hierarchy).counts)


def measure_transformed(names: Iterable[str], folder: Path) -> Iterator[tuple[str, str, str, Counts]]:
    """Yield for each model, tool and strategy what became of the nodes; truth is what was carried through the tool."""
    import hieronnx
    from hieronnx.tools.carry import carry
    from support.zoo import CASES

    for name in names:
        case = CASES[name]
        model, path = case.build(), folder / f"{name}.onnx"
        hieronnx.export(model, case.args(), case.kwargs(), output=path, exporter="dynamo")
        for tool, transform in TOOLS.items():
            print(f"{name}, {tool}", file=sys.stderr)
            made = transform(path, folder / "made.onnx")
            truth = carry(path, made).hierarchy
            for strategy, counts in measure_file(made, truth, model, case, folder):
                yield name, tool, strategy, counts


def optimize(path: Path, output: Path) -> Path:
    """Optimize with ONNX Runtime, extended level."""
    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(output)
    options.log_severity_level = 4
    ort.InferenceSession(onnx.load(path).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return output


def simplify(path: Path, output: Path) -> Path:
    """Simplify with onnxsim."""
    import onnx
    import onnxsim

    onnx.save(onnxsim.simplify(onnx.load(path))[0], output)
    return output


def halve(path: Path, output: Path) -> Path:
    """Convert to half precision with ONNX Runtime's tool, inputs and outputs as they were."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True), output)
    return output


TOOLS: Mapping[str, Callable[[Path, Path], Path]] = {
    "ONNX Runtime, extended": optimize,
    "onnxsim": simplify,
    "fp16": halve,
}


# -- the page -------------------------------------------------------------------------------------------------


def render(
    rows: Sequence[tuple[str, str, str, Counts]], changed: Sequence[tuple[str, str, str, Counts]]
) -> Iterator[str]:
    """Yield the parts of the page that are measured."""
    import platform

    versions = {name: platform.python_version() if name == "python" else version(name) for name in VERSIONS}
    told = ", ".join(f"{name} {number}" for name, number in versions.items())
    files = len({row[:2] for row in rows})
    today = datetime.date.today().isoformat()
    yield f"Measured on {today} with {told}, over {files} files of the zoo. Shares in percent."
    yield "### The whole zoo"
    yield _table(("strategy", *HEADER), [(s, *_shares(_sum(rows, strategy=s))) for s in STRATEGIES])
    yield "By confidence:"
    yield _table(("strategy", "confidence", *HEADER), _grouped(rows, 1, ("high", "medium", "low")))
    yield "By category of operator:"
    yield _table(("strategy", "category", *HEADER), _grouped(rows, 0))
    yield "### After other tools"
    yield (
        "Five models, exported with dynamo and then optimized, simplified, or converted to half precision; the truth "
        "is what `hieronnx carry` carries through the tool."
    )
    yield _table(("strategy", "tool", *HEADER, "exact or origin"), list(_by_tool(changed)))
    yield "### Model by model"
    yield _table(
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


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    numeric = [all(row[column][:1].isdigit() or row[column] == "-" for row in rows) for column in range(len(header))]
    rule = ["---:" if right else "---" for right in numeric]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])


if __name__ == "__main__":
    main()
