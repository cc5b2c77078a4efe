"""Every command that takes a file, given every file of a stranger: a table, so that a new command is attacked, too.

Whatever is in the file: one line or a result, no traceback; nothing outside the output folder is written or deleted,
nothing outside the model's folder gets into the output, and a command that fails leaves nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import onnx
import pytest
from click.testing import Result
from onnx import TensorProto, helper, numpy_helper, parser

import hieronnx
import support.cli
from hieronnx.cli import cli
from hieronnx.files.opening import sidecar_path
from support.layered import make_hierarchy, make_model, record_boundaries, write

SECRET = b"a secret of somebody else's" * 40
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e]")
SECONDS = 20
NET = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x + self.weight + self.weight + self.weight


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(Layer() for _ in range(3)))

    def forward(self, x):
        return self.layers(x)
"""
"""The model that the file is of."""


@dataclass(frozen=True)
class Place:
    """Where a stranger's model is, with a sound one, an output folder, and what is none of the model's business."""

    root: Path

    @property
    def model(self) -> Path:
        return self.root / "models" / "model.onnx"

    @property
    def data(self) -> Path:
        return self.root / "models" / "model.onnx.data"

    @property
    def good(self) -> Path:
        return self.root / "good" / "good.onnx"

    @property
    def part(self) -> Path:
        return self.root / "good" / "part.onnx"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def secret(self) -> Path:
        return self.root / "secret" / "secret.bin"


# -- the commands ---------------------------------------------------------------------------------------------------

COMMANDS: dict[str, list[Callable[[Place], list[object]]]] = {
    "analyze": [lambda p: [p.model], lambda p: [p.model, "--detailed", "--json"]],
    "tree": [lambda p: [p.model], lambda p: [p.model, "t0_0"]],
    "validate": [lambda p: [p.model, "--baseline", p.good], lambda p: [p.good, "--baseline", p.model]],
    "compare": [lambda p: [p.model, p.good], lambda p: [p.good, p.model, "--values"]],
    "extract": [
        lambda p: [p.model, "layers.0", "-o", p.out / "part.onnx"],
        lambda p: [p.model, "layers.*", "--all", p.out / "parts"],
    ],
    "carry": [
        lambda p: [p.model, p.good, "-o", p.out / "carried.onnx"],
        lambda p: [p.good, p.model, "-o", p.out / "carried.onnx"],
        lambda p: [p.good, p.model, "-o", p.out / "carried.onnx", "--by-value"],
    ],
    "optimize": [
        lambda p: [p.model, "-o", p.out / "fast.onnx", "--with", "ort-basic"],
        lambda p: [p.model, "-o", p.out / "fast.onnx", "--with", "onnxscript"],
        lambda p: [p.model, "-o", p.out / "fast.onnx", "--with", "onnxsim"],
    ],
    "quantize": [
        lambda p: [p.model, "-o", p.out / "small.onnx", "--with", "dynamic"],
        lambda p: [p.model, "-o", p.out / "small.onnx", "--with", "fp16"],
    ],
    "profile": [
        lambda p: [p.model, "--runs", 1, "--warmup", 0, "--no-roofline"],
        lambda p: [p.model, "--runs", 1, "--warmup", 0, "--no-roofline", "--in-isolation", "layers.0"],
    ],
    "place": [lambda p: [p.model, "-o", p.out / "placed.onnx", "--on", "cpu:*"]],
    "sensitivity": [lambda p: [p.model]],
    "select": [lambda p: [p.model, "layers.*", "--for", "ort"]],
    "split": [
        lambda p: [p.model, "--at", "layers.1", "--into", p.out / "stages"],
        lambda p: [p.model, "--stages", 2, "--into", p.out / "stages", "--check"],
    ],
    "replace": [
        lambda p: [p.model, "layers.0", p.part, "-o", p.out / "replaced.onnx"],
        lambda p: [p.good, "layers.0", p.model, "-o", p.out / "replaced.onnx"],
    ],
    "fold": [lambda p: [p.model, "-o", p.out / "folded.onnx"]],
    "unfold": [lambda p: [p.model, "-o", p.out / "flat.onnx"]],
    "verify": [
        lambda p: [p.model, "--against", p.good],
        lambda p: [p.good, "--against", p.model, "--optimization", "basic"],
        lambda p: [p.model, "--model", f"{p.root / 'net.py'}:Net"],
    ],
    "view": [
        lambda p: [p.model, "-o", p.out / "page.html"],
        lambda p: [p.good, "-o", p.out / "page.html", "--against", p.model],
        lambda p: [p.model, "-o", p.out / "page.html", "--statistics"],
        lambda p: [p.model, "-o", p.out / "net.svg", "--svg", "/Net"],
        lambda p: [p.model, "--model-explorer", p.out / "explorer"],
    ],
    "annotate": [  # the demo is another model, of which the nodes have nothing
        lambda p: [p.model, "--model", "demo", "--strategy", "usage_based", "-o", p.out / "named.onnx"],
        lambda p: [p.model, "--model", f"{p.root / 'net.py'}:Net", "-o", p.out / "named.onnx"],
    ],
}
"""For each command the ways in which it is given the stranger's file."""
TAKE_NO_FILE = {"export", "demo"}
WRITE_NOTHING = {"analyze", "tree", "validate", "compare", "profile", "select", "sensitivity", "verify"}
CASES = [(name, number) for name, ways in COMMANDS.items() for number in range(len(ways))]


def takes_file(command: click.Command) -> bool:
    """Say whether a command has an argument that is a path."""
    return any(isinstance(p, click.Argument) and isinstance(p.type, click.Path) for p in command.params)


def test_every_command_that_takes_a_file_is_in_the_table() -> None:
    takers = {name for name, command in cli.commands.items() if takes_file(command)}
    assert takers == set(COMMANDS), "add the command to COMMANDS, each way in which it is given a file"
    assert set(cli.commands) - takers == TAKE_NO_FILE, "say that it takes no file, or declare it with path_argument"


# -- the attacks: files ---------------------------------------------------------------------------------------------


def relocate(**entries: str) -> Callable[[Place], None]:
    """Return an attack that changes where the first weight says that it is; `{root}` is the folder above all."""

    def attack(place: Place) -> None:
        model = onnx.load(place.model, load_external_data=False)
        tensor = model.graph.initializer[0]
        for key, value in entries.items():
            for entry in [entry for entry in tensor.external_data if entry.key == key]:
                tensor.external_data.remove(entry)
            tensor.external_data.add(key=key, value=value.format(root=place.root))
        place.model.write_bytes(model.SerializeToString())

    return attack


def replace_data(make: Callable[[Place], object]) -> Callable[[Place], None]:
    def attack(place: Place) -> None:
        place.data.unlink()
        make(place)

    return attack


def replace_sidecar(make: Callable[[Path, Place], object]) -> Callable[[Place], None]:
    def attack(place: Place) -> None:
        sidecar_path(place.model).unlink()
        make(sidecar_path(place.model), place)

    return attack


def link_folder(place: Place) -> None:
    (place.model.parent / "inside").symlink_to(place.secret.parent)
    relocate(location="inside/secret.bin")(place)


FILES: dict[str, Callable[[Place], None]] = {
    "data above": relocate(location="../secret/secret.bin", offset="0"),
    "data far above": relocate(location="../../../../../../../../../../../etc/passwd", offset="0"),
    "data at an absolute path": relocate(location="{root}/secret/secret.bin", offset="0"),
    "data above, by a way through": relocate(location="inside/../../secret/secret.bin", offset="0"),
    "data by a Windows path": relocate(location="..\\secret\\secret.bin"),
    "data in a linked folder": link_folder,
    "data is a link out": replace_data(lambda p: p.data.symlink_to(p.secret)),
    "data is a device": replace_data(lambda p: p.data.symlink_to("/dev/zero")),
    "data is a pipe": replace_data(lambda p: os.mkfifo(p.data)),
    "data is a folder": replace_data(lambda p: p.data.mkdir()),
    "data is missing": replace_data(lambda p: None),
    "data is short": replace_data(lambda p: p.data.write_bytes(b"")),
    "data is the model itself": relocate(location="model.onnx"),
    "data is a name with a NUL": relocate(location="a\0b"),
    "data is a very long name": relocate(location="a" * 5000),
    "data is nowhere": relocate(location=""),
    "an offset of thirty digits": relocate(offset="9" * 30),
    "an offset below zero": relocate(offset="-1"),
    "an offset that is no number": relocate(offset="x"),
    "a length of thirty digits": relocate(length="9" * 30),
    "a length below zero": relocate(length="-4"),
    "an offset behind the end": relocate(offset="1000000"),
    "sidecar is a pipe": replace_sidecar(lambda path, _: os.mkfifo(path)),
    "sidecar is a device": replace_sidecar(lambda path, _: path.symlink_to("/dev/zero")),
    "sidecar is a folder": replace_sidecar(lambda path, _: path.mkdir()),
    "sidecar is a link out": replace_sidecar(lambda path, place: path.symlink_to(place.secret)),
}
LEAVING = {"data above", "data far above", "data at an absolute path", "data above, by a way through"}
LEAVING |= {"data in a linked folder", "data is a link out", "data is a device"}
"""The attacks by which data would be read from outside the model's folder."""


# -- the attacks: one line ------------------------------------------------------------------------------------------


def change(edit: Callable[[onnx.ModelProto], object]) -> Callable[[Place], None]:
    """Return an attack that changes the model."""

    def attack(place: Place) -> None:
        model = onnx.load(place.model, load_external_data=False)
        edit(model)
        place.model.write_bytes(model.SerializePartialToString())

    return attack


def add_attribute(**fields: Any) -> Callable[[Place], None]:
    return change(lambda m: m.graph.node[0].attribute.append(onnx.AttributeProto(name="a", **fields)))


def add_tensor(**fields: Any) -> Callable[[Place], None]:
    return change(lambda m: m.graph.initializer.append(TensorProto(name="odd", **fields)))


def add_node(op: str, inputs: list[str], outputs: list[str]) -> Callable[[Place], None]:
    return change(lambda m: m.graph.node.append(helper.make_node(op, inputs, outputs)))


def recursive_functions(model: onnx.ModelProto) -> None:
    for name, other in (("f", "g"), ("g", "f")):
        called = helper.make_node(other, ["x"], ["y"], domain="local")
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
        model.functions.append(helper.make_function("local", name, ["x"], ["y"], [called], opsets))
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.graph.node.append(helper.make_node("f", ["x"], ["z"], domain="local"))


def range_without_end(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(helper.make_tensor("zero", TensorProto.INT64, [], [0]))
    model.graph.node.append(helper.make_node("Range", ["zero", "zero", "zero"], ["r"]))
    model.graph.node.append(helper.make_node("MatMul", ["r", "r"], ["rr"]))


def input_without_end(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 40


def loop_without_body(model: onnx.ModelProto) -> None:
    model.graph.node[4].op_type = "Loop"


def no_nodes(model: onnx.ModelProto) -> None:
    del model.graph.node[:]


def replace_bytes(old: bytes, new: bytes) -> Callable[[Place], None]:
    return lambda place: void(place.model.write_bytes(place.model.read_bytes().replace(old, new)))


def whole(content: bytes) -> Callable[[Place], None]:
    return lambda place: void(place.model.write_bytes(content))


def void(_: object) -> None:
    return None


EVIL = "\x1b[2J\x1b]0;owned\x07\u202e\x9b31m\r\n\t"
ONE_LINE: dict[str, Callable[[Place], None]] = {
    "an attribute without a type": add_attribute(i=1),
    "an attribute that is not there": add_attribute(type=onnx.AttributeProto.TENSOR),
    "an attribute of a function": add_attribute(ref_attr_name="b", type=onnx.AttributeProto.INT),
    "an attribute twice": change(lambda m: m.graph.node[0].attribute.extend([helper.make_attribute("a", 1)] * 2)),
    "strings of the wrong number": add_tensor(data_type=TensorProto.STRING, dims=[9], string_data=[b"a"]),
    "elements of another type": add_tensor(data_type=TensorProto.UINT8, dims=[1], float_data=[1.0]),
    "elements of the wrong number": add_tensor(data_type=TensorProto.FLOAT, dims=[9], float_data=[1.0]),
    "a data type that ONNX has not": add_tensor(data_type=999, dims=[1]),
    "a size below zero": add_tensor(data_type=TensorProto.FLOAT, dims=[-1]),
    "sizes without end": add_tensor(data_type=TensorProto.FLOAT, dims=[2**40, 2**40]),
    "an opset that ONNX has not": change(lambda m: setattr(m.opset_import[0], "version", 2**40)),
    "no opset": change(lambda m: m.ClearField("opset_import")),
    "a node without inputs": add_node("Add", [], ["lone"]),
    "a node without outputs": add_node("Add", ["x", "x"], []),
    "too few inputs": add_node("Add", ["x"], ["lone"]),
    "too many inputs": add_node("Add", ["x", "x", "x"], ["lone"]),
    "an input left out": add_node("Add", ["", "x"], ["lone"]),
    "a node that makes what another makes": add_node("Add", ["x", "x"], ["t0_0"]),
    "a node that reads itself": add_node("Add", ["lone", "x"], ["lone"]),
    "an input that nothing makes": add_node("Add", ["nothing", "x"], ["lone"]),
    "functions that call each other": change(recursive_functions),
    "a range without an end": change(range_without_end),
    "an input without an end": change(input_without_end),
    "a loop without a body": change(loop_without_body),
    "no nodes": change(no_nodes),
    "text that is no UTF-8": replace_bytes(b"add1_1", b"add\xff_1"),
    "names that a terminal obeys": change(lambda m: [setattr(node, "name", EVIL) for node in m.graph.node]),
    "an input of an unknown type": change(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 999)),
    "an input without a type": change(lambda m: m.graph.input[0].ClearField("type")),
    "no graph": change(lambda m: m.ClearField("graph")),
    "no bytes": whole(b""),
    "half of the bytes": lambda p: void(p.model.write_bytes(p.model.read_bytes()[: p.model.stat().st_size // 2])),
    "ones": whole(b"\xff" * (1 << 20)),
    "text": whole(b"this is no model\n" * 100),
    "another model": whole(
        parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 21]> g (float x) => (float y) { y = Relu(x) }'
        ).SerializeToString()
    ),
}
ATTACKS = {**FILES, **ONE_LINE}


# -- the test -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a place before any attack."""
    place = Place(tmp_path_factory.mktemp("template"))
    for folder in (place.model.parent, place.good.parent, place.out, place.secret.parent):
        folder.mkdir()
    place.secret.write_bytes(SECRET)
    (place.root / "net.py").write_text(NET)
    for path in (place.good, place.model):
        write(path, make_model(), record_boundaries(make_hierarchy()))
    hieronnx.extract(place.good, "layers.0", output=place.part)
    model = onnx.load(place.model)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, place.model, save_as_external_data=True, location=place.data.name, size_threshold=0)
    return place.root


def snapshot(folder: Path) -> dict[str, object]:
    """Return all that is in a folder: what files hold, and where links lead."""
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Let something that hangs end in an error."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"it takes more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def assert_told(result: Result) -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in (0, 1, 2)
    assert "Traceback" not in result.output
    assert not CONTROL.search(result.output)
    if result.exit_code == 2:
        lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
        assert len(lines) == 1
        assert lines[0].startswith("error: ")


@pytest.mark.parametrize(("command", "way"), CASES)
def test_a_sound_file_is_read(command: str, way: int, template: Path, tmp_path: Path) -> None:
    """Or no attack would show anything."""
    place = Place(shutil.copytree(template, tmp_path / "place"))
    result = support.cli.run(command, *COMMANDS[command][way](place))
    assert_told(result)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_strangers_file_does_nothing_that_it_should_not(
    command: str, attack: str, template: Path, tmp_path: Path
) -> None:
    for way, arguments in enumerate(COMMANDS[command]):
        place = Place(shutil.copytree(template, tmp_path / str(way)))
        ATTACKS[attack](place)
        before = snapshot(place.root)
        with within(SECONDS):
            result = support.cli.run(command, *arguments(place))
        assert_told(result)
        after = snapshot(place.root)
        written = {name: after[name] for name in after if name not in before}
        assert {name: after.get(name) for name in before} == before
        assert all(name.startswith("out") for name in written)
        assert not any(isinstance(content, bytes) and SECRET[:27] in content for content in written.values())
        if result.exit_code == 2 or command in WRITE_NOTHING:
            assert list(place.out.iterdir()) == []
        if attack in LEAVING and command not in WRITE_NOTHING:
            reads_data = (command, way) not in {("carry", 0), ("view", 0), ("view", 1), ("view", 3), ("view", 4)}
            assert result.exit_code == 2 or not reads_data
