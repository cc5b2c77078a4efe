"""The matrix of carry: `python -m benchmarks matrix` takes the zoo through every tool and writes docs/carry.md."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from benchmarks.page import ROOT, describe_versions, render_table, today, use_zoo

_REPORT = ROOT / "docs" / "carry.md"
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


@click.command()
@click.argument("names", metavar="[CASE]...", nargs=-1)
@click.option("--exports", type=click.Path(path_type=Path), help="A folder with exports as CASE-EXPORTER/model.onnx.")
def matrix(names: tuple[str, ...], exports: Path | None) -> None:
    """Carry hierarchies through every tool, for cases of the zoo; without a name for all, and write docs/carry.md."""
    use_zoo()
    import torch

    from support.zoo import CASES

    # What a script calls no hook sees: there is nothing to hold its nodes to.
    seen = [name for name in CASES if not isinstance(CASES[name].build(), torch.jit.ScriptModule)]
    pairs = [(name, exporter) for name in names or seen for exporter in CASES[name].exporters]
    report = _render(_measure(pairs, exports))
    click.echo(report, nl=False)
    if not names:
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
    parts = ["# Carry, measured", _introduce(cells), _TEXT, render_table(header, rows, texts=1), _LEGEND]
    parts += ["## What came out wrong", "\n".join(wrong) or "Nothing."]
    parts += ["## What the tools said where they failed", "\n".join(failures) or "Nothing."]
    parts += ["## By model", "Share right; in brackets the outputs judged.", _by_model(cells)]
    return "\n\n".join(parts) + "\n"


def _introduce(cells: Mapping[str, Mapping[str, object]]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in describe_versions(_PACKAGES).items())
    models = len(next(iter(cells.values())))
    return f"Written by `python -m benchmarks matrix` on {today()}: {models} exports, with {versions}."


def _by_model(cells: Mapping[str, Mapping[str, object]]) -> str:
    names = list(next(iter(cells.values())))
    rows = [(name, *(_cell_text(found[name]) for found in cells.values())) for name in names]
    return render_table(("model", *cells), rows, texts=1)


def _cell_text(cell: object) -> str:
    from support.carry_matrix import Cell

    if not isinstance(cell, Cell) or cell.verdicts is None:
        return "failed"
    judged = cell.verdicts.right + len(cell.verdicts.wrong)
    return f"{cell.verdicts.share:.1%} ({judged})" if judged else "none"
