"""Files appear whole or not at all: killed at any moment, and with two writers to one output."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import hieronnx
from hieronnx.cli import cli
from hieronnx.cli.console import write_report
from hieronnx.errors import ExportError
from hieronnx.files.opening import open_model, sidecar_path
from hieronnx.files.staging import swap_folders
from hieronnx.files.writing import write
from support.annotated import annotated
from support.exports import quiet
from support.forking import fork

NET = """<ir_version: 10, opset_import: ["" : 21]>
    net (float[2,300] x) => (float[2,4] y) { h = MatMul(x, w)  y = Add(h, b) }"""
MOVING = ("replace", "rename", "link", "unlink", "rmdir")
WRITERS: dict[str, Callable[[Path, Path], Any]] = {
    "annotate": lambda new, output: hieronnx.annotate(new, Net(), output=output, strategy="usage_based"),
    "carry": lambda new, output: hieronnx.carry(new, new, output=output),
    "carry without a sidecar": lambda new, output: hieronnx.carry(new, new, output=output, sidecar=False),
    "carry without metadata": lambda new, output: hieronnx.carry(new, new, output=output, embed=False),
    "export": lambda _, output: export(output),
    "extract": lambda new, output: hieronnx.extract(new, "a", output=output),
    "fold": lambda new, output: hieronnx.fold(new, output=output),
    "optimize": lambda new, output: hieronnx.optimize(new, output=output, tool="ort-basic"),
    "place": lambda new, output: hieronnx.place(new, output=output, on=["cpu:*"]),
    "quantize": lambda new, output: hieronnx.quantize(new, output=output, tool="fp16"),
    "replace": lambda new, output: hieronnx.replace(new, "a", hieronnx.extract(new, "a").model, output=output),
    "unfold": lambda new, output: hieronnx.unfold(new, output=output),
    "validate": lambda new, _: hieronnx.validate(new, fix=True),
}
"""What each command that writes a model does, its name first."""
REPORTS = {"analyze", "compare", "profile", "verify", "view"}
"""The commands that write a report and no model."""
FOLDERS = {"split"}
"""Those that write a folder."""
READ = {"baseline", "calibration", "input_specs", "inputs"}
"""The options whose files are read."""


class Net(nn.Module):
    """Has the weights of the model in the file, named as there."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(300, 4)), nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w + self.b


def export(output: Path) -> object:
    with quiet():
        return hieronnx.export(Net().eval(), (torch.ones(2, 300),), output, exporter="torchscript")


def is_writer(command: click.Command) -> bool:
    paths = (p for p in command.params if isinstance(p, click.Option) and isinstance(p.type, click.Path))
    return any(p.name not in READ for p in paths) or any(p.name == "fix" for p in command.params)


def test_every_command_that_writes_is_in_the_table() -> None:
    writers = {name for name, command in cli.commands.items() if is_writer(command)}
    # The demo is an export.
    assert writers == {name.partition(" ")[0] for name in WRITERS} | REPORTS | FOLDERS | {"demo"}, (
        "add the command to WRITERS or REPORTS"
    )


def save(path: Path, seed: int) -> Path:
    """Write a model with external data and a hierarchy, with weights of its own."""
    bare, rng = onnx.parser.parse_model(NET), np.random.default_rng(seed)
    for name, shape in (("w", (300, 4)), ("b", (4,))):
        bare.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    plain = path.with_name(f"plain{seed}.onnx")
    onnx.save(annotated(bare, ["a", "b"]), plain, save_as_external_data=True, location=f"{seed}.bin", size_threshold=0)
    hierarchy = open_model(plain).hierarchy
    assert hierarchy is not None
    modules = {
        name: replace(module, class_name=name or "Net", qualified_class=f"nets.{name or 'Net'}")
        for name, module in hierarchy.modules.items()
    }
    write(plain, replace(hierarchy, modules=modules), path, temporary=True)
    plain.unlink()
    return path


def contents(path: Path) -> bytes:
    """Return the whole model as it loads: graph, metadata and all weights."""
    model = onnx.load(path)
    return bytes(model.SerializeToString(deterministic=True))


def die_at(moment: int, action: Callable[[], Any]) -> bool:
    """Run something in a child that is killed before its nth change of names; say whether it was."""
    child = fork()
    if child == 0:
        torch.set_num_threads(1)  # the threads that torch had did not come along
        left = moment

        def count(real: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return real(*args, **kwargs)

            return counted

        for name in MOVING:
            setattr(os, name, count(getattr(os, name)))
        action()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("command", WRITERS)
def test_whenever_a_writer_is_killed_a_whole_model_is_there(command: str, tmp_path: Path) -> None:
    moment = killed = 0
    while True:
        folder = tmp_path / str(moment)
        folder.mkdir()
        new, output = save(folder / "new.onnx", 1), save(folder / "out.onnx", 0)
        if command == "validate":
            sidecar_path(new).unlink()
        before = {contents(output), contents(new)} if command == "validate" else {contents(output)}
        dead = die_at(moment, lambda new=new, output=output: WRITERS[command](new, output))
        WRITERS[command](new, folder / "reference.onnx")
        after = contents(new if command == "validate" else folder / "reference.onnx")
        target = new if command == "validate" else output
        assert contents(target) in {*before, after}, moment
        if not dead:
            assert contents(target) == after
            assert killed >= 1
            return
        WRITERS[command](new, output)  # the next one is not held up, and cleans up
        assert contents(target) == after
        if command != "validate":  # which has nothing more to do once the sidecar is there
            assert not [path for path in folder.iterdir() if path.name.startswith(".")]
        moment += 1
        killed += 1


def read_stages(folder: Path) -> dict[str, bytes]:
    """Return what a folder of stages holds, each of which loads."""
    return {path.name: contents(path) for path in sorted(folder.glob("*.onnx"))}


def test_whenever_split_is_killed_a_whole_pipeline_is_there(tmp_path: Path) -> None:
    old, new = save(tmp_path / "old.onnx", 0), save(tmp_path / "new.onnx", 1)
    stages, wanted, moment = tmp_path / "stages", [], 0
    for model in (old, new):
        hieronnx.split(model, at="b", into=tmp_path / model.stem)
        wanted.append(read_stages(tmp_path / model.stem))
    assert wanted[0] != wanted[1]
    assert all(len(found) == 2 for found in wanted)
    while True:
        hieronnx.split(old, at="b", into=stages)
        dead = die_at(moment, lambda: hieronnx.split(new, at="b", into=stages))
        assert read_stages(stages) in wanted, moment
        hieronnx.Pipeline(stages)
        if not dead:
            break
        moment += 1
    assert moment >= 4
    assert read_stages(stages) == wanted[1]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_folders_change_places_also_where_the_system_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    swap_folders(tmp_path / "a", tmp_path / "b")
    assert [(tmp_path / name / "file").read_text() for name in ("a", "b")] == ["b", "a"]
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    swap_folders(tmp_path / "a", tmp_path / "b")
    assert [(tmp_path / name / "file").read_text() for name in ("a", "b")] == ["a", "b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_whenever_a_report_is_killed_a_whole_one_is_there(tmp_path: Path) -> None:
    path, moment = tmp_path / "report.md", 0
    path.write_text("old")
    while die_at(moment, lambda: write_report(path, "new")):
        assert path.read_text() in ("old", "new")
        moment += 1
    assert path.read_text() == "new"
    assert moment >= 2
    assert [item.name for item in tmp_path.iterdir()] == ["report.md"]


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.long)])
def test_of_two_writers_one_wins_and_nothing_is_mixed(rounds: int, tmp_path: Path) -> None:
    sources = [save(tmp_path / f"new{seed}.onnx", seed) for seed in range(2)]
    hierarchies = [open_model(source).hierarchy for source in sources]
    output, expected = tmp_path / "out.onnx", []
    for source, hierarchy in zip(sources, hierarchies, strict=True):
        assert hierarchy is not None
        write(source, hierarchy, output)
        expected.append((contents(output), sidecar_path(output).read_bytes()))
    for _ in range(rounds):
        children = [_fork(source, hierarchy, output) for source, hierarchy in zip(sources, hierarchies, strict=True)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert set(codes) <= {0, 3}
        assert 0 in codes
        state = (contents(output), sidecar_path(output).read_bytes())
        assert state in expected
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def _fork(source: Path, hierarchy: Any, output: Path) -> int:
    child = fork()
    if child == 0:
        try:
            write(source, hierarchy, output)
        except ExportError as error:
            os._exit(3 if "another process is writing" in str(error) else 4)
        except BaseException:
            os._exit(5)
        os._exit(0)
    return child
