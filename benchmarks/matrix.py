"""The matrix of carry: `python -m benchmarks.matrix [--exports FOLDER]` takes the zoo through every tool."""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_REPORT = _ROOT / "docs" / "carry.md"
_PACKAGES = ("torch", "onnx", "onnxruntime", "onnxscript", "onnxsim", "onnxslim", "transformers")
_TEXT = """\
Every model of the test zoo goes through every tool; the hierarchy is then carried from the file before to the file \
after, by structure and names alone. Whether a node came out right is checked by value, without any name: the file \
after runs in ONNX Runtime with all its tensors exposed, the model runs in PyTorch with all its operations logged, and \
a node whose output is what some operation gave must have one of the calls that gave it as its scope or an origin. \
In half precision and int8 an output is what it is clearly nearest to; of a static quantization the rounding of \
activations is left out of that run, since it can leave nothing of a tensor. What is equal to nothing, or to too \
much (a mask, a shape), is not judged."""
_LEGEND = """\
Right: the share of judged outputs. Sibling: outputs in a call that is not above any that made them; none is allowed. \
Root: the share of nodes of which nothing is known. Origins: how many a node has on average. \
Failed: models on which the tool itself failed, or made a file that ONNX Runtime refuses; see below."""


def main() -> None:
    """Measure all and write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix", description=__doc__)
    parser.add_argument("--exports", type=Path, metavar="FOLDER", help="exports as FOLDER/CASE-EXPORTER/model.onnx")
    parser.add_argument("models", nargs="*", metavar="CASE", help="cases of the zoo; all by default, and the report")
    options = parser.parse_args()
    sys.path.insert(0, str(_ROOT / "tests"))
    from support.zoo import CASES

    names = options.models or list(CASES)
    exports = [(name, exporter) for name in names for exporter in CASES[name].exporters]
    report = _render(_measure(exports, options.exports))
    print(report, end="")
    if not options.models:
        _REPORT.write_text(report, encoding="utf-8")


def _measure(exports: Sequence[tuple[str, str]], folder: Path | None) -> dict[str, dict[str, object]]:
    """Return for each column the cell of each model."""
    from support.carry_matrix import make_subject, measure, measure_export, subject
    from support.transformations import COLUMNS

    cells: dict[str, dict[str, object]] = {column: {} for column in ("torch's optimizer", *COLUMNS)}
    for name, exporter in exports:
        print(f"{name}-{exporter}", file=sys.stderr)
        path = None if folder is None else folder / f"{name}-{exporter}" / "model.onnx"
        of = make_subject(name, exporter, path) if path is not None and path.is_file() else subject(name, exporter)
        exported = measure_export(of)
        if exported.verdicts is not None and exported.verdicts.wrong:
            # Some models run their layers in the order of a set, which changes with the process.
            of = subject(name, exporter)
            exported = measure_export(of)
        cells["torch's optimizer"][of.name] = exported
        for column in COLUMNS:
            cells[column][of.name] = measure(of, column)
        subject.cache_clear()
    return cells


def _render(cells: Mapping[str, Mapping[str, object]]) -> str:
    from support.carry_matrix import Cell, add_up

    totals = {
        column: add_up((name, cell) for name, cell in found.items() if isinstance(cell, Cell))
        for column, found in cells.items()
    }
    header = ("tool", "right", "judged", "wrong", "sibling", "root", "nodes", "origins", "failed")
    rows = [
        (
            column,
            f"{total.share:.2%}",
            f"{total.right + len(total.wrong)}",
            f"{len(total.wrong)}",
            f"{len(total.sibling)}",
            f"{total.root_share:.2%}",
            f"{total.nodes}",
            f"{total.origins_per_node:.2f}",
            f"{len(total.failures)}",
        )
        for column, total in totals.items()
    ]
    failures = [f"- {column}, {name}: {text}" for column, t in totals.items() for name, text in t.failures.items()]
    wrong = [f"- {column}, {line}" for column, total in totals.items() for line in total.wrong]
    parts = ["# Carry, measured", _introduce(cells), _TEXT, _table(header, rows), _LEGEND]
    parts += ["## What came out wrong", "\n".join(wrong) or "Nothing."]
    parts += ["## What the tools said where they failed", "\n".join(failures) or "Nothing."]
    parts += ["## By model", "Share right; in brackets the outputs judged.", _by_model(cells)]
    return "\n\n".join(parts) + "\n"


def _introduce(cells: Mapping[str, Mapping[str, object]]) -> str:
    versions = ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in _PACKAGES)])
    models = len(next(iter(cells.values())))
    today = datetime.date.today().isoformat()
    return f"Written by `python -m benchmarks.matrix` on {today}: {models} exports, with {versions}."


def _by_model(cells: Mapping[str, Mapping[str, object]]) -> str:
    names = list(next(iter(cells.values())))
    rows = [(name, *(_cell_text(found[name]) for found in cells.values())) for name in names]
    return _table(("model", *cells), rows)


def _cell_text(cell: object) -> str:
    from support.carry_matrix import Cell

    if not isinstance(cell, Cell) or cell.verdicts is None:
        return "failed"
    judged = cell.verdicts.right + len(cell.verdicts.wrong)
    return f"{cell.verdicts.share:.1%} ({judged})" if judged else "none"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])


if __name__ == "__main__":
    main()
