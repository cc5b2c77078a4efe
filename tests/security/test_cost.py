"""What a file costs is bounded by its size."""

from __future__ import annotations

import itertools
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper, parser

import hieronnx
from hieronnx.errors import HieronnxError
from hieronnx.files.wire import GRAPH_NODE, MODEL_GRAPH, NODE_ATTRIBUTE, frame
from support.forking import fork


def field(number: int, content: bytes) -> bytes:
    return frame(number, len(content)) + content


def nest(depth: int) -> bytes:
    """Return a model whose one node has a body, which has a node with a body, and so on."""
    graph = field(GRAPH_NODE, helper.make_node("Relu", ["x"], ["y"]).SerializeToString()) + field(2, b"g")
    for number in range(depth):
        body = onnx.AttributeProto(name="then_branch", type=onnx.AttributeProto.GRAPH).SerializeToString()
        node = onnx.NodeProto(op_type="If", input=["x"], output=[f"y{number}"]).SerializeToString()
        graph = field(GRAPH_NODE, node + field(NODE_ATTRIBUTE, body + field(6, graph))) + field(2, b"g")
    opset = helper.make_opsetid("", 20)
    return onnx.ModelProto(ir_version=10, opset_import=[opset]).SerializeToString() + field(MODEL_GRAPH, graph)


def test_a_megabyte_of_ones_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ones.onnx"
    path.write_bytes(b"\xff" * (1 << 20))
    for _ in range(2):  # the first one imports what is needed
        started = time.process_time()
        with pytest.raises(hieronnx.HieronnxError, match="a number of more than 10 bytes"):
            hieronnx.analyze(path)
    assert time.process_time() - started < 1


@pytest.mark.parametrize("depth", [33, 1000, 5000])
@pytest.mark.parametrize("command", [hieronnx.load, hieronnx.analyze, hieronnx.validate], ids=lambda f: f.__name__)
def test_bodies_that_are_nested_too_deep_are_one_line(command: object, depth: int, tmp_path: Path) -> None:
    path = tmp_path / "deep.onnx"
    path.write_bytes(nest(depth))
    assert callable(command)
    with pytest.raises(hieronnx.HieronnxError, match="nested more than 32 deep"):
        command(path)


# -- inference and folding -----------------------------------------------------------------------------------------

MEMORY, SECONDS = 1 << 30, 10
HEADER = '<ir_version: 10, opset_import: ["" : 21, "local" : 1]>'


def chain(first: str, step: str, times: int) -> str:
    """Return nodes each of which does the same to what the one before made; `{0}` is that."""
    made = [first, *(f"t{number}" for number in range(times))]
    return "\n".join(f"{after} = {step.format(before)}" for before, after in itertools.pairwise(made))


def double_functions(times: int) -> str:
    """Return a model whose functions each call the next one twice."""
    calls = [f"a = local.f{n + 1}(x) y = local.f{n + 1}(a)" for n in range(times)] + ["y = Relu(x)"]
    functions = [
        f'<domain: "local", opset_import: ["" : 21, "local" : 1]> f{number} (x) => (y) {{ {nodes} }}'
        for number, nodes in enumerate(calls)
    ]
    return "\n".join([f"{HEADER} g (float[2,2] x) => (y) {{ a = local.f0(x) y = MatMul(a, a) }}", *functions])


def graph(inputs: str, nodes: str, last: str) -> str:
    """Return a model in which a product of unknown shape needs all that comes before."""
    return f"{HEADER} g ({inputs}) => (y) {{ {nodes} m = Expand(x, {last}) y = MatMul(m, m) }}"


GREEDY = {
    "a range of a billion": graph(
        "float[2,2] x",
        "a = Constant<value = int64 {0}>() b = Constant<value = int64 {1000000000}>() "
        "c = Constant<value = int64 {1}>() r = Range(a, b, c)",
        "r",
    ),
    "a range without an end": graph(
        "float[2,2] x", "a = Constant<value = int64 {0}>() b = Constant<value = int64 {9}>() r = Range(a, b, a)", "r"
    ),
    "a list of a hundred million numbers": graph("float[2,2] x, int64[100000000] s", "a = Add(s, s)", "a"),
    "many lists of many numbers": graph("float[2,2] x, int64[200000] s", chain("s", "Add({0}, s)", 1000), "s"),
    "a list of a hundred million that is made": graph(
        "float[2,2] x",
        "n = Constant<value = int64[1] {100000000}>() s = ConstantOfShape<value = int64[1] {1}>(n) a = Add(s, s)",
        "a",
    ),
    "a list of a hundred million out of a table": graph(
        "float[2,2] x, int64[2,100000000] t", "s = ReduceMax<keepdims = 0>(t, z)\na = Add(s, s)", "a"
    ).replace("{", "<int64[1] z = {0}> {", 1),
    "functions that call the next one twice": double_functions(40),
    "sizes that are put together": graph(
        "float[2,2] x", "s = Shape(x)\n" + chain("s", "Concat<axis=0>({0}, {0})", 40), "t39"
    ),
    "axes that are added": graph("int64[2,2] x", chain("x", "Gather({0}, {0})", 40), "t39"),
    "literals that are spread out": graph(
        "float[2,2] x",
        "a = Constant<value = int64[2] {1, 2}>()\n"
        + "\n".join(
            f"s{n} = Constant<value = int64[{n + 1}] {{{','.join(['2'] + ['1'] * n)}}}>() b{n} = Reshape(a, s{n})"
            for n in range(32)
        )
        + f" m = Max({', '.join(f'b{n}' for n in range(32))}) n = Max({', '.join(f'b{n}' for n in range(32))}, m)",
        "n",
    ),
}


def run_limited(action: Callable[[], Any]) -> str:
    """Run something in a child that may not take more memory and time than a limit; return how it ended."""
    receiving, sending = os.pipe()
    child = fork()
    if child == 0:
        told = "a crash"
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            used = int(time.process_time())
            resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, used + SECONDS))
            action()
            told = "done"
        except HieronnxError as error:
            told = f"refused: {error}"
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        finally:
            os.write(sending, told.encode())
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, encoding="utf-8") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told or "killed"


@pytest.mark.parametrize("name", GREEDY)
def test_what_is_inferred_and_folded_is_bounded_by_the_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "greedy.onnx"
    onnx.save(parser.parse_model(GREEDY[name]), path)
    assert path.stat().st_size < 100_000
    for command in (hieronnx.analyze, hieronnx.validate, hieronnx.load):
        told = run_limited(
            lambda command=command: command(path).to_dict() if command is not hieronnx.load else command(path)
        )
        assert told == "done" or told.startswith("refused"), told
