"""The hierarchy at other opsets: below 18 torch converts down after the translation, and drops all metadata."""

from __future__ import annotations

import onnx
import pytest

from support.baseline import assert_same_as_baseline
from support.exports import export_baseline, exported
from support.valuecheck import check_values
from support.zoo import CASES

NEWEST = {"dynamo": 23, "torchscript": 20}
"""torch.onnx._constants: the newest opset that each exporter writes."""

FEW = ("bert", "called_in_loop", "cond", "conv_batch_norm_residual", "tied_weights")
# Where torch's own conversion to 17 writes what ONNX Runtime refuses (an attribute that 17 does not have), and an
# Attention of opset 23 with a mask of a shape that ONNX Runtime does not take.
UNRUNNABLE = {
    ("gpt2", 17),
    ("mask_in_every_layer", 23),
    ("modernbert", 17),
    ("nested_cond", 17),
    ("returns_nested", 17),
}
# Copies of an input or an output as another output, of which torch says nothing.
NOTHING_KNOWN = {"input_as_output", "same_output_twice"}


def exports(names: tuple[str, ...]) -> list[tuple[str, str, int]]:
    return [
        (name, exporter, opset)
        for name in names
        for exporter in CASES[name].exporters
        for opset in (17, 18, NEWEST[exporter])
    ]


def check(name: str, exporter: str, opset: int) -> None:
    case, found = CASES[name], exported(name, exporter, opset_version=opset)
    baseline = export_baseline(name, exporter, found.result.path, opset_version=opset)
    assert_same_as_baseline(found.result.path, baseline, ignore_trace_counter=True)
    assert found.hierarchy.coverage() == 1.0 or name in NOTHING_KNOWN
    if exporter != "dynamo" or (name, opset) not in UNRUNNABLE:
        report = check_values(found.model, case.args(), case.kwargs(), found.result.path, found.attributed)
        assert not report.wrong, report.summary()


@pytest.mark.parametrize(("name", "exporter", "opset"), exports(FEW))
def test_hierarchy_is_right_at_opset(name: str, exporter: str, opset: int) -> None:
    check(name, exporter, opset)


@pytest.mark.parametrize("name", ["bert", "called_in_loop", "cond"])
def test_torch_does_convert_down(name: str) -> None:
    """Where it cannot, it keeps 18 without a word, and the tests above would not have tested the conversion."""
    model = onnx.load(exported(name, "dynamo", opset_version=17).result.path, load_external_data=False)
    assert [entry.version for entry in model.opset_import if not entry.domain] == [17]
    assert not any(entry.key.startswith("pkg.torch") for node in model.graph.node for entry in node.metadata_props)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "exporter", "opset"), exports(tuple(n for n in CASES if n not in FEW and n != "scripted_root"))
)
def test_hierarchy_is_right_at_opset_for_the_rest_of_the_zoo(name: str, exporter: str, opset: int) -> None:
    check(name, exporter, opset)
