"""What the README says is what happens: its code runs, and its output is what is printed."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import support.cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(found["kind"], found["text"]) for found in BLOCK.finditer(README)]
OTHER_PROGRAMS = ("make", "pip")


@pytest.fixture
def in_folder(tmp_path: Path) -> Iterator[Path]:
    with contextlib.chdir(tmp_path):
        yield tmp_path


def python_blocks() -> list[str]:
    return [text for kind, text in BLOCKS if kind == "python"]


def commands() -> list[list[str]]:
    lines = "".join(text for kind, text in BLOCKS if kind == "bash").replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [command for command in words if command and command[0] not in OTHER_PROGRAMS]


def run(*arguments: str) -> str:
    result = support.cli.run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_python_code_runs_and_prints_what_is_shown(in_folder: Path) -> None:
    printed = io.StringIO()
    namespace: dict[str, object] = {"__name__": "readme"}
    with contextlib.redirect_stdout(printed):
        for text in python_blocks():
            exec(compile(text, "README.md", "exec"), namespace)
    shown = [text for kind, text in BLOCKS if kind == "text"]
    assert printed.getvalue() in shown


def test_the_commands_run(in_folder: Path) -> None:
    (in_folder / "my_models.py").write_text(python_blocks()[0].partition("model = ")[0], encoding="utf-8")
    found = commands()
    assert len(found) >= 3
    for program, *arguments in found:
        assert program == "hieronnx"
        run(*arguments)


def test_the_demo_prints_what_is_shown(in_folder: Path) -> None:
    marker = "<!-- output of: hieronnx demo -->\n```text\n"
    shown = README.partition(marker)[2].partition("```")[0]
    size = re.compile(r" +[\d.]+ k?B$", re.MULTILINE)  # paths in torch's stack traces make the sizes differ
    assert size.sub("", run("demo")) == size.sub("", shown)


def test_the_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target
