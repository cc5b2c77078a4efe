"""The matrix of carry: `python -m benchmarks matrix` takes the zoo through every tool and writes what came out.

docs/carry.md has the sums and what they mean, docs/carry-nodes.md every model and every single node.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.page import ROOT, describe_versions, render_table, today, use_zoo

if TYPE_CHECKING:
    from support.carry_matrix import Cell, Total

_PAGE, _LISTS = "carry.md", "carry-nodes.md"
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
Failed: models on which the tool itself failed, or made a file that ONNX Runtime refuses."""
_LINKS = """\
How to carry: [the command](tools.md#carry), [optimize](tools.md#optimize) and [quantize](tools.md#quantize), which \
carry by themselves; [how it is done](how-it-works.md#carry). \
[Every model, every output that came out wrong, and what the tools said where they failed](carry-nodes.md)."""
_NOT_ALL = """\
The exports on which a tool failed, or of which an output came out wrong; \
all others came out right, as far as judged."""


Cells = Mapping[str, Mapping[str, "Cell"]]
"""For each column the cell of each model."""


@click.command()
@click.argument("names", metavar="[CASE]...", nargs=-1)
@click.option("--exports", type=click.Path(path_type=Path), help="A folder with exports as CASE-EXPORTER/model.onnx.")
@click.option(
    "--into",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder to write carry.md and carry-nodes.md to; docs, where no case is named.",
)
def matrix(names: tuple[str, ...], exports: Path | None, into: Path | None) -> None:
    """Carry hierarchies through every tool, for cases of the zoo; without a name for all, and write docs/carry.md."""
    use_zoo()
    import torch

    from support.zoo import CASES

    # What a script calls no hook sees: there is nothing to hold its nodes to.
    seen = [name for name in CASES if not isinstance(CASES[name].build(), torch.jit.ScriptModule)]
    pairs = [(name, exporter) for name in names or seen for exporter in CASES[name].exporters]
    cells = _measure(pairs, exports)
    pages = {_PAGE: render_page(cells), _LISTS: render_lists(cells)}
    click.echo("\n".join(pages.values()), nl=False)
    folder = into or (None if names else ROOT / "docs")
    if folder is not None:
        for name, text in pages.items():
            (folder / name).write_text(text, encoding="utf-8")


def _measure(exports: Sequence[tuple[str, str]], folder: Path | None) -> dict[str, dict[str, Cell]]:
    """Return for each column the cell of each model."""
    from support.carry_matrix import make_subject, measure, measure_export, subject
    from support.transformations import COLUMNS

    cells: dict[str, dict[str, Cell]] = {column: {} for column in ("torch's optimizer", *COLUMNS)}
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


def render_page(cells: Cells) -> str:
    """Render the sums over all models, what they mean, and which models have something that is not right."""
    parts = ["# Carry, measured", _introduce(cells), _TEXT, _render_sums(cells), _LEGEND, _LINKS]
    rows = list(_list_not_right(cells))
    table = render_table(("tool", "model", "right", "judged", "wrong"), rows, texts=2)
    parts += ["## Where not all is right", *([_NOT_ALL, table] if rows else ["Nowhere."])]
    return "\n\n".join(parts) + "\n"


def render_lists(cells: Cells) -> str:
    """Render what the page sums up: every output that came out wrong, every failure, every model."""
    totals = _add_up(cells)
    wrong = [f"- {column}, {line}" for column, total in totals.items() for line in total.wrong]
    failures = [f"- {column}, {name}: {text}" for column, t in totals.items() for name, text in t.failures.items()]
    parts = ["# Carry, by model and by node", _introduce(cells), "What the columns mean: [carry, measured](carry.md)."]
    parts += ["## What came out wrong", "\n".join(wrong) or "Nothing."]
    parts += ["## What the tools said where they failed", "\n".join(failures) or "Nothing."]
    parts += ["## By model", "Share right; in brackets the outputs judged.", _by_model(cells)]
    return "\n\n".join(parts) + "\n"


def _introduce(cells: Cells) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in describe_versions(_PACKAGES).items())
    models = len(next(iter(cells.values())))
    return f"Written by `python -m benchmarks matrix` on {today()}: {models} exports, with {versions}."


def _add_up(cells: Cells) -> dict[str, Total]:
    from support.carry_matrix import add_up

    return {column: add_up(found.items()) for column, found in cells.items()}


def _render_sums(cells: Cells) -> str:
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
        for column, total in _add_up(cells).items()
    ]
    return render_table(header, rows, texts=1)


def _list_not_right(cells: Cells) -> Iterator[tuple[str, ...]]:
    """List the models on which a tool failed, or of which carry got an output wrong."""
    for column, found in cells.items():
        for name, cell in found.items():
            verdicts = cell.verdicts
            if verdicts is None:
                yield column, name, "failed", "-", "-"
            elif verdicts.wrong:
                judged = verdicts.right + len(verdicts.wrong)
                yield column, name, f"{verdicts.share:.1%}", f"{judged}", f"{len(verdicts.wrong)}"


def _by_model(cells: Cells) -> str:
    names = list(next(iter(cells.values())))
    rows = [(name, *(_cell_text(found[name]) for found in cells.values())) for name in names]
    return render_table(("model", *cells), rows, texts=1)


def _cell_text(cell: Cell) -> str:
    if cell.verdicts is None:
        return "failed"
    judged = cell.verdicts.right + len(cell.verdicts.wrong)
    return f"{cell.verdicts.share:.1%} ({judged})" if judged else "none"
