"""Several calls, and ranges of them, as one part."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import hieronnx
from hieronnx import InputError
from support.annotated import annotated
from support.cli import run
from support.exports import exported
from support.whole import assert_equal, feeds_of, run_file

CASES = [
    ("bert", ("encoder.layer.0", "encoder.layer.1")),
    ("bert", ("encoder.layer.[01]",)),
    ("bert", ("encoder.layer.0..encoder.layer.1",)),
    ("bert", ("embeddings..encoder.layer.0.attention",)),
    ("bert", ("encoder.layer.0.attention", "encoder.layer.1.output")),
    ("gpt2", ("transformer.h.0..transformer.h.1",)),
    ("gpt2", ("transformer.h.0.mlp", "transformer.ln_f")),
]


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize(("name", "targets"), CASES, ids=lambda value: value if isinstance(value, str) else None)
def test_a_part_of_several_calls_gives_what_the_whole_model_has_there(
    name: str, targets: tuple[str, ...], exporter: str, tmp_path: Path
) -> None:
    whole = exported(name, exporter)
    part = hieronnx.extract(whole.result.path, *targets, output=tmp_path / "part.onnx")
    tensors = dict.fromkeys((*part.input_names, *part.output_names))
    feeds = feeds_of(whole)
    seen = {**feeds, **run_file(whole.result.path, feeds, [t for t in tensors if t not in feeds])}
    assert_equal(run_file(tmp_path / "part.onnx", seen), seen, part.output_names)
    onnx.checker.check_model(tmp_path / "part.onnx", full_check=True)
    assert hieronnx.validate(tmp_path / "part.onnx", strict=True).findings == ()
    inside = {below for call in part.targets for below in whole.hierarchy.tree.below(call)}
    assert not {node for node in part.between_nodes if node.scope in inside}
    assert set(part.nodes) >= {n for n in whole.hierarchy.nodes if n.scope in inside and n.op_type not in ("Constant",)}


def test_layers_in_a_row_are_named_as_one_call_is() -> None:
    path = exported("bert", "dynamo").result.path
    both = hieronnx.extract(path, "encoder.layer.0..encoder.layer.1")
    first, last = hieronnx.extract(path, "encoder.layer.0"), hieronnx.extract(path, "encoder.layer.1")
    assert [item.arguments for item in both.inputs] == [item.arguments for item in first.inputs]
    assert both.outputs == last.outputs
    assert (both.module, [str(call) for call in both.targets]) == ("encoder", ["encoder.layer.0", "encoder.layer.1"])
    assert {call.id.module for call in both.hierarchy.calls} >= {"", "layer.0", "layer.1.output.dense"}


def test_modules_that_are_not_in_the_part_are_not_in_its_hierarchy() -> None:
    part = hieronnx.extract(exported("bert", "torchscript").result.path, "embeddings", "encoder.layer.0.attention")
    modules = part.hierarchy.modules
    assert {"embeddings", "encoder", "encoder.layer", "encoder.layer.0", "encoder.layer.0.attention.self"} <= set(
        modules
    )
    assert not {"encoder.layer.1", "pooler", "encoder.layer.0.output"} & set(modules)
    assert modules[""].children == ("embeddings", "encoder")
    assert modules[""].parameter_count is None
    assert modules["embeddings"].parameter_count
    assert all(name.startswith(("embeddings.", "encoder.layer.0.attention.")) for name in modules[""].parameters)


def test_what_lies_between_comes_along_and_is_listed(tmp_path: Path) -> None:
    text = "net (float[2] x, float[2] z) => (float[2] y, float[2] u) "
    text += "{ a = Relu(x)  b = Neg(a)  c = Abs(b)  d = Mul(c, z)  u = Sqrt(z)  y = Exp(d) }"
    onnx.save(annotated(text, ["p", "", "q", "r", "s", ""]), tmp_path / "m.onnx")
    part = hieronnx.extract(tmp_path / "m.onnx", "p", "r")
    assert [node.op_type for node in part.nodes] == ["Relu", "Neg", "Abs", "Mul"]
    assert [node.op_type for node in part.between_nodes] == ["Neg", "Abs"]
    assert (part.input_names, part.output_names) == (("x", "z"), ("d",))
    assert repr(part) == "ExtractResult('p', 'r': 4 nodes, 2 inputs, 1 outputs)"
    apart = hieronnx.extract(tmp_path / "m.onnx", "p", "s")
    assert [node.op_type for node in apart.nodes] == ["Relu", "Sqrt"]
    done = run("extract", tmp_path / "m.onnx", "p", "r", "-o", tmp_path / "p.onnx")
    assert "2 of other calls that lie between these" in done.stdout


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ((), "extract takes a target"),
        (("encoder.layer.1..encoder.layer.0",), "'encoder.layer.0' runs before 'encoder.layer.1'"),
        (("encoder.layer.0..encoder",), "'encoder' runs before 'encoder.layer.0', or is around it"),
        (("encoder.layer.0..",), "write the first and the last call"),
        (("encoder.layer.0..pooller",), "no module call 'pooller'; did you mean 'pooler'"),
    ],
)
def test_what_is_no_range_is_refused(targets: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        hieronnx.extract(exported("bert", "torchscript").result.path, *targets)
