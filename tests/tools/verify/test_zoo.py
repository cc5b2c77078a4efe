"""Verify on the zoo: nobody is blamed for a right file; whoever is altered is; introduced errors are those of parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state

import hieronnx
from hieronnx.hierarchy.records import CallId
from support.dynamic import export_dynamic
from support.exports import Exported, exported, feeds_of, quiet
from support.faults import draw_faults, find_faults
from support.zoo import CASES

UNSEEN = {"scripted_root"}  # its modules are not called from Python: there is no run to compare with
ALL = [(name, exporter) for name, case in CASES.items() for exporter in case.exporters if name not in UNSEEN]
FEW = [
    ("called_in_loop", "dynamo"),
    ("called_in_loop", "torchscript"),
    ("conv_batch_norm_residual", "dynamo"),
    ("conv_batch_norm_residual", "torchscript"),
    ("in_place_ops", "torchscript"),
    ("lstm", "torchscript"),
    ("cond", "dynamo"),
    ("bert", "dynamo"),
    ("bert", "torchscript"),
    ("gpt2", "torchscript"),
    ("llama_with_past", "torchscript"),
    ("t5", "torchscript"),
    ("swin", "torchscript"),
]
FORMATS = ["plain", "ort-extended", "fp16", "dynamic", "static"]
REFUSALS = tuple(vars(onnxruntime_pybind11_state)[name] for name in ("Fail", "InvalidGraph", "NotImplemented"))
"""What ONNX Runtime says to a file that a quantizer wrote wrong."""


def verify(case: Exported, path: Path) -> hieronnx.VerifyResult:
    with quiet():
        return hieronnx.verify(path, case.model, tuple(case.case.args()), case.case.kwargs())


def transform(source: Path, kind: str, output: Path, feeds: dict[str, Any]) -> Path | None:
    """Optimize or quantize a file; None where the tool cannot."""
    if kind == "plain":
        return source
    try:
        with quiet():
            if kind.startswith("ort"):
                hieronnx.optimize(source, output=output, tool=kind)
            else:
                hieronnx.quantize(source, output=output, tool=kind, calibration=[feeds] if kind == "static" else ())
            options = ort.SessionOptions()  # at its highest level it crashes on a GPT-2 in half precision
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            session = ort.InferenceSession(output, options, providers=["CPUExecutionProvider"])
            halves = {item.name for item in session.get_inputs() if item.type == "tensor(float16)"}
            session.run(None, {n: a.astype(np.float16) if n in halves else a for n, a in feeds.items()})
    except (hieronnx.HieronnxError, *REFUSALS):
        return None
    return output


def check_right(name: str, exporter: str, kind: str, folder: Path) -> hieronnx.VerifyResult | None:
    case = exported(name, exporter)
    path = transform(case.result.path, kind, folder / "made.onnx", feeds_of(name, exporter))
    if path is None:
        return None
    result = verify(case, path)
    assert result.passed, [(str(c.id), c.introduced, c.noise, c.excess) for c in result.culprits]
    # ONNX Runtime computes half precision in single floats from node to node, where nobody looks between.
    assert result.undisturbed or kind == "fp16"
    return result


@pytest.mark.parametrize("kind", ["plain", "fp16"])
@pytest.mark.parametrize(("name", "exporter"), FEW)
def test_nobody_is_blamed_for_a_right_file(name: str, exporter: str, kind: str, tmp_path: Path) -> None:
    result = check_right(name, exporter, kind, tmp_path)
    if kind == "plain":
        assert result is not None
        assert result.calls


@pytest.mark.long
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("name", "exporter"), ALL)
def test_nobody_is_blamed_for_any_right_file(name: str, exporter: str, kind: str, tmp_path: Path) -> None:
    check_right(name, exporter, kind, tmp_path)


def test_layers_with_sizes_from_elsewhere_are_compared(tmp_path: Path) -> None:
    """Positions are not in the file any more; what is computed of them, the layers are given as well."""
    model, inputs = export_dynamic("llama", "dynamo", tmp_path / "model.onnx")
    result = hieronnx.verify(tmp_path / "model.onnx", model, (), inputs)
    assert result.passed
    assert {call.module for call in result.skipped if call.live} <= {"model.rotary_emb"}
    assert "model.layers.1.self_attn" in {call.module for call in result.calls}


def check_right_against_file(name: str, exporter: str, kind: str, folder: Path) -> None:
    case, feeds = exported(name, exporter), feeds_of(name, exporter)
    path = transform(case.result.path, kind, folder / "made.onnx", feeds)
    if path is not None:
        result = hieronnx.verify(path, case.result.path, inputs=feeds)
        assert result.passed, [(str(c.id), c.introduced, c.noise, c.excess) for c in result.culprits]


@pytest.mark.parametrize("kind", ["dynamic", "ort-extended", "fp16"])
@pytest.mark.parametrize(
    ("name", "exporter"),
    [
        ("llama", "dynamo"),
        ("bert", "torchscript"),
        ("conv_batch_norm_residual", "torchscript"),  # takes floats
        ("half_inputs", "torchscript"),  # is in half precision itself
    ],
)
def test_nobody_is_blamed_beside_the_float_file(name: str, exporter: str, kind: str, tmp_path: Path) -> None:
    check_right_against_file(name, exporter, kind, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", FORMATS[1:])
@pytest.mark.parametrize(("name", "exporter"), ALL)
def test_nobody_is_blamed_beside_any_float_file(name: str, exporter: str, kind: str, tmp_path: Path) -> None:
    check_right_against_file(name, exporter, kind, tmp_path)


@pytest.mark.long
def test_most_live_calls_of_the_zoo_are_compared() -> None:
    live = compared = 0
    for name, exporter in ALL:
        case = exported(name, exporter)
        result = verify(case, case.result.path)
        live += result.live
        compared += len(result.calls)
    assert live > 2500
    assert compared / live >= 0.97


# --- planted faults ---


def check_faults(name: str, exporter: str, kind: str, folder: Path, faults: int) -> tuple[int, list[str]]:
    """Plant faults; return how many exceed the noise of the format, and what went wrong with these."""
    case = exported(name, exporter)
    feeds, hierarchy = feeds_of(name, exporter), case.hierarchy
    clean_path = transform(case.result.path, kind, folder / "clean.onnx", feeds)
    if clean_path is None:
        return 0, []
    before = {call.id: call.introduced.relative for call in verify(case, clean_path).calls}
    base, seen, missed = onnx.load(case.result.path), 0, []
    for number, fault in enumerate(draw_faults(base, faults, f"{name} {exporter} {kind}")):
        altered = onnx.ModelProto()
        altered.CopyFrom(base)
        fault.plant(altered)
        source = folder / f"{number}.onnx"
        onnx.save(altered, source)
        path = transform(source, kind, folder / f"{number}-made.onnx", feeds)
        if path is None:
            continue
        result = verify(case, path)
        output = next(filter(None, base.graph.node[fault.node].output))
        scope = hierarchy.node_by_key["", output].scope
        after = {call.id: call for call in result.calls}
        above = list(hierarchy.tree.ancestors(scope))
        nearest = next(call for call in above if call in after)
        noise = max(before.get(nearest, 0.0), after[nearest].noise or 0.0, 1e-6)
        if after[nearest].introduced.severity > 10 * noise:
            seen += 1
            first = result.culprits[0].id if result.culprits else None
            if first not in above[: above.index(nearest) + 1]:
                missed.append(f"{name} {exporter} {kind} {fault.kind} in '{scope}': '{first}', not '{nearest}'")
    return seen, missed


@pytest.mark.parametrize("kind", ["plain", "dynamic"])
@pytest.mark.parametrize(("name", "exporter"), [("bert", "torchscript"), ("gpt2", "torchscript")])
def test_whoever_is_altered_is_blamed(name: str, exporter: str, kind: str, tmp_path: Path) -> None:
    seen, missed = check_faults(name, exporter, kind, tmp_path, 4)
    assert seen
    assert not missed


def test_nobody_is_blamed_for_inputs_that_were_made_up(tmp_path: Path) -> None:
    """A position that a mask leaves nothing to see has no value that two precisions agree on."""
    source = exported("llama", "dynamo").result.path
    made = hieronnx.quantize(source, output=tmp_path / "half.onnx", tool="fp16")
    assert hieronnx.verify(made.path, source, samples=4).passed


def test_a_fault_is_found_where_most_weights_are_in_modules_that_the_model_does_not_tell_of(tmp_path: Path) -> None:
    case = exported("unregistered_module", "dynamo")
    model = onnx.load(case.result.path)
    for fault in draw_faults(model, 3, "unregistered_module dynamo plain"):
        fault.plant(model)
    onnx.save(model, tmp_path / "altered.onnx")
    assert verify(case, tmp_path / "altered.onnx").culprits


def test_a_call_whose_work_is_one_with_that_of_another_is_not_compared_alone(tmp_path: Path) -> None:
    """ONNX Runtime makes one of the root's scale and the product; what is left of the call would tell of both."""
    case = exported("t5", "torchscript")
    model = onnx.load(case.result.path)
    (index,) = (n for n, node in enumerate(model.graph.node) if node.name == "/lm_head/MatMul")
    next(f for f in find_faults(model) if (f.kind, f.node) == ("half", index)).plant(model)
    onnx.save(model, tmp_path / "altered.onnx")
    hieronnx.optimize(tmp_path / "altered.onnx", output=tmp_path / "made.onnx", tool="ort-extended")
    result = verify(case, tmp_path / "made.onnx")
    assert [culprit.module for culprit in result.culprits] == [""]
    assert "lm_head" in {call.module for call in result.skipped if call.live}


@pytest.mark.parametrize(("altered", "blamed"), [("first/out", "first.out"), ("first/qkv", "first")])
def test_an_argument_of_another_shape_is_known_by_its_numbers(altered: str, blamed: str, tmp_path: Path) -> None:
    """ONNX Runtime gives `out` its argument as a matrix, and nothing of what `qkv` returned is left."""
    case = exported("scaled_dot_product_attention", "torchscript")
    model = onnx.load(case.result.path)
    (product,) = (node for node in model.graph.node if node.name == f"/{altered}/MatMul")
    (weight,) = (tensor for tensor in model.graph.initializer if tensor.name == product.input[1])
    weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), weight.name))
    onnx.save(model, tmp_path / "altered.onnx")
    hieronnx.optimize(tmp_path / "altered.onnx", output=tmp_path / "made.onnx", tool="ort-extended")
    assert [culprit.module for culprit in verify(case, tmp_path / "made.onnx").culprits] == [blamed]


@pytest.mark.long
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("name", "exporter"), ALL)
def test_whoever_is_altered_is_blamed_on_the_zoo(
    name: str, exporter: str, kind: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seen, missed = check_faults(name, exporter, kind, tmp_path, 3)
    record_property("seen", seen)
    assert not missed


# --- an introduced error is that of the part ---


@pytest.mark.parametrize(
    ("name", "exporter"), [("bert", "torchscript"), ("vit", "torchscript"), ("gpt2", "torchscript")]
)
def test_introduced_errors_are_those_of_extracted_parts(name: str, exporter: str, tmp_path: Path) -> None:
    case = exported(name, exporter)
    model = onnx.load(case.result.path)
    faults = [fault for fault in draw_faults(model, 9, name) if fault.kind in ("weight", "bias")]
    faults[0].plant(model)
    path = tmp_path / "altered.onnx"
    onnx.save(model, path)
    result = verify(case, path)
    checked = 0
    with quiet():
        dumped = hieronnx.verify(path, case.model, tuple(case.case.args()), case.case.kwargs(), dump=tmp_path / "dump")
    for culprit in dumped.culprits:
        folder = next((tmp_path / "dump").iterdir())
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(folder / "part.onnx", options, providers=["CPUExecutionProvider"])
        expected = np.load(folder / "expected.npz")
        found = session.run(expected.files, dict(np.load(folder / "inputs.npz")))
        apart = {
            name: float(np.abs(a.astype(np.float64) - expected[name]).max())
            for name, a in zip(expected.files, found, strict=True)
        }
        assert apart[culprit.introduced.tensor] == culprit.introduced.max_abs
        checked += 1
    assert checked == len(result.culprits) == 1


def test_calls_of_a_shared_module_are_told_apart(tmp_path: Path) -> None:
    case = exported("called_in_loop", "dynamo")
    nodes = [node for node in case.hierarchy.nodes if node.scope == CallId("cell", 2) and node.op_type != "Constant"]
    assert nodes
    model = onnx.load(case.result.path)
    (index,) = [i for i, node in enumerate(model.graph.node) if nodes[-1].output in node.output]
    node = model.graph.node[index]
    renamed, node.output[0] = node.output[0], "altered"
    double = onnx.helper.make_node("Add", ["altered", "altered"], [renamed])
    double.metadata_props.extend(node.metadata_props)
    model.graph.node.insert(index + 1, double)
    path = tmp_path / "altered.onnx"
    onnx.save(model, path)
    assert [culprit.id for culprit in verify(case, path).culprits] == [CallId("cell", 2)]
