"""What `python -m benchmarks matrix` writes: a short page of sums, and the lists of models and nodes beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.__main__ import main
from benchmarks.matrix import render_lists, render_page
from benchmarks.page import ROOT
from click.testing import CliRunner

from support.carry_matrix import Cell
from support.carrycheck import Verdicts
from support.exports import quiet

WRONG = "Gather :rows_quantized: attributed to embeddings@0, made by embeddings.position@0"
FAILED = "InvalidGraph: the tool made something else"
LONGEST = 120


def make_cells() -> dict[str, dict[str, Cell]]:
    right, wrong = Cell(Verdicts(4, (), (), 0), 5, 0, 5), Cell(Verdicts(3, (WRONG,), (), 0), 5, 0, 5)
    return {
        "simplifier": {"a-dynamo": right, "b-dynamo": right},
        "int8": {"a-dynamo": wrong, "b-dynamo": Cell(failure=FAILED)},
    }


def headings(page: str) -> list[str]:
    return re.findall(r"^#+ .*$", page, re.MULTILINE)


def test_single_nodes_are_listed_in_a_file_of_their_own() -> None:
    page, lists = render_page(make_cells()), render_lists(make_cells())
    for single in (WRONG, FAILED, "| a-dynamo | 100.0% (4) |"):
        assert single not in page
        assert single in lists
    assert "](carry-nodes.md)" in page
    assert "](carry.md)" in lists


def test_the_page_sums_up_and_names_what_is_not_right() -> None:
    rows = [line for line in render_page(make_cells()).splitlines() if line.startswith(("| simplifier", "| int8"))]
    assert rows == [
        "| simplifier | 100.00% | 8 | 0 | 0 | 0.00% | 10 | 1.00 | 0 |",
        "| int8 | 75.00% | 4 | 1 | 0 | 0.00% | 5 | 1.00 | 1 |",
        "| int8 | a-dynamo | 75.0% | 4 | 1 |",
        "| int8 | b-dynamo | failed | - | - |",
    ]


def test_where_all_is_right_the_page_says_so() -> None:
    cells = {"simplifier": make_cells()["simplifier"]}
    assert render_page(cells).endswith("## Where not all is right\n\nNowhere.\n")


@pytest.mark.parametrize(("name", "render"), [("carry.md", render_page), ("carry-nodes.md", render_lists)])
def test_the_written_pages_have_the_form_that_the_writer_gives_them(name: str, render: object) -> None:
    assert callable(render)
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert headings(written) == headings(render(make_cells()))


def test_the_written_page_is_short_and_names_no_node() -> None:
    written = (ROOT / "docs" / "carry.md").read_text(encoding="utf-8")
    assert len(written.splitlines()) <= LONGEST
    assert "attributed to" not in written


def test_the_command_writes_both_pages_into_a_folder(tmp_path: Path) -> None:
    with quiet():
        result = CliRunner().invoke(main, ["matrix", "half_inputs", "--into", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["carry-nodes.md", "carry.md"]
    assert "| half_inputs-dynamo |" in (tmp_path / "carry-nodes.md").read_text(encoding="utf-8")
