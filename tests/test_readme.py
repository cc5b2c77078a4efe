"""What the README says is what happens: its code runs, and its output is what is printed."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import support.cli

ROOT = Path(__file__).parent.parent
README, HOW_TO = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/how-to.md"))
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(found["kind"], found["text"]) for found in BLOCK.finditer(README)]
OTHER_PROGRAMS = ("make", "pip")
LONGEST = 150


@pytest.fixture
def in_folder(tmp_path: Path) -> Iterator[Path]:
    with contextlib.chdir(tmp_path):
        yield tmp_path


def python_blocks() -> list[str]:
    return [text for kind, text in BLOCKS if kind == "python"]


def commands(page: str) -> list[list[str]]:
    blocks = [found["text"] for found in BLOCK.finditer(page) if found["kind"] == "bash"]
    words = [shlex.split(line, comments=True) for line in "".join(blocks).replace("\\\n", " ").splitlines()]
    return [command for command in words if command and command[0] not in OTHER_PROGRAMS]


def check_exit(program: str, *arguments: str) -> str:
    """Run a command; of those that compare, a difference is an answer."""
    assert program == "hieronnx"
    result = support.cli.run(*arguments)
    assert result.exit_code == 0 or (result.exit_code == 1 and arguments[0] == "compare"), result.output
    return result.stdout


def test_the_python_code_runs_and_prints_what_is_shown(in_folder: Path) -> None:
    printed = io.StringIO()
    namespace: dict[str, object] = {"__name__": "readme"}
    with contextlib.redirect_stdout(printed):
        for text in python_blocks():
            exec(compile(text, "README.md", "exec"), namespace)
    shown = [text for kind, text in BLOCKS if kind == "text"]
    assert printed.getvalue() in shown


def test_the_commands_run_and_print_what_is_shown(in_folder: Path) -> None:
    printed = {" ".join(command): check_exit(*command) for command in commands(README)}
    shown = re.findall(r"<!-- output of: (.*?) -->\n```text\n(.*?)```", README, re.DOTALL)
    assert shown
    for command, text in shown:
        assert printed[command] == text


def test_the_questions_have_the_answers_that_are_shown(in_folder: Path) -> None:
    check_exit("hieronnx", "export", "demo", "-o", "demo.onnx")
    model = onnx.load("demo.onnx")
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "blocks.1.mlp.up.bias")
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(0.1), bias.name))
    onnx.save(model, "broken.onnx")
    (block,) = [text for kind, text in BLOCKS if kind == "text" and text.startswith("$ ")]
    asked = []
    for command, *answer in (part.splitlines() for part in block.split("$ ")[1:]):
        program, verb, *arguments = shlex.split(command, comments=True)
        assert program == "hieronnx"
        printed = [line.split() for line in support.cli.run(verb, *arguments).stdout.splitlines()]
        shown = answer[:1] if verb == "profile" else answer  # which has times in all other lines
        assert [line for line in shown if line.split() not in printed] == []
        asked.append(verb)
    assert asked == ["profile", "verify", "sensitivity"]


def test_the_commands_of_the_how_tos_run(in_folder: Path) -> None:
    classes = python_blocks()[0].partition("model = ")[0]
    load = "def load_classifier():\n    torch.manual_seed(0)\n    return Classifier()\n"
    (in_folder / "my_models.py").write_text(classes + load, encoding="utf-8")
    with torch.random.fork_rng():
        save_models(in_folder)
    for command in commands(HOW_TO):
        check_exit(*command)


def save_models(folder: Path) -> None:
    """Save the Hugging Face folders that the how-tos speak of."""
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

    small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    BertModel(BertConfig(**small, intermediate_size=32)).save_pretrained(folder / "my-bert")
    LlamaForCausalLM(LlamaConfig(**small, intermediate_size=32)).save_pretrained(folder / "my-llm")


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LONGEST


def test_the_readme_says_what_it_is_then_how_to_begin_then_what_one_may_want_then_the_rest() -> None:
    outside_blocks = BLOCK.sub("", README)
    before, *sections = re.split(r"^#+ ", outside_blocks, flags=re.MULTILINE)
    titles = [section.splitlines()[0] for section in sections]
    assert before == ""
    assert titles == [
        "hieronnx",
        "Two commands",
        "You want to …",
        "Which layer is slow, which is wrong, which must stay in float",
        "From Python",
        "Map of the sources",
        "Links",
    ]
    assert len(sections[0].strip().splitlines()) <= 5  # the title, an empty line, and what it is in three lines


def test_the_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
            linked = page.parent / target if target else page
            assert linked.exists(), (page, target)
            if anchor:
                assert anchor in list_anchors(linked), (page, target, anchor)


def list_anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
