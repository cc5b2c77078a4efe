"""Every model of the zoo through every exporter that can export it: the promises of an export, one by one."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from benchmarks.anonymize import anonymize_file

import hieronnx
from support.baseline import assert_same_as_baseline
from support.exports import export_baseline, export_ours, exported, largest_difference, run_in_new_process
from support.literals import misplaced_literals, stray_literals
from support.valuecheck import check_values
from support.zoo import CASES

# Copies of an input as an output; and a cast that torch puts into the root's own code where it simplifies a script.
NOTHING_KNOWN = {"input_as_output", "same_output_twice", "scripted_root"}

EXPORTS = [(name, exporter) for name, case in CASES.items() for exporter in case.exporters]

pytestmark = pytest.mark.parametrize(("name", "exporter"), EXPORTS, ids=["-".join(pair) for pair in EXPORTS])


def test_checker_passes(name: str, exporter: str) -> None:
    onnx.checker.check_model(exported(name, exporter).result.path, full_check=True)


def test_onnx_runtime_matches_pytorch(name: str, exporter: str) -> None:
    assert largest_difference(exported(name, exporter)) <= CASES[name].tolerance


def test_file_is_what_torch_writes(name: str, exporter: str) -> None:
    ours = exported(name, exporter)
    if isinstance(ours.model, torch.jit.ScriptModule):
        # torch names the nodes of scripted modules by what the process has scripted before.
        path = run_in_new_process(export_ours, name, exporter)
        baseline = run_in_new_process(export_baseline, name, exporter, str(path))
    else:
        path, baseline = ours.result.path, export_baseline(name, exporter, ours.result.path)
    assert_same_as_baseline(path, baseline, ignore_trace_counter=True)


def test_every_node_has_a_scope(name: str, exporter: str) -> None:
    hierarchy = exported(name, exporter).hierarchy
    for node in hierarchy.nodes:
        assert node.scope in hierarchy.call_by_id
        assert set(node.origins) <= set(hierarchy.call_by_id)
        assert node.origins
        assert hierarchy.tag_of(node.scope).startswith("/")
        assert node.evidence != "root" or name in NOTHING_KNOWN


def test_values_agree_with_the_calls(name: str, exporter: str) -> None:
    case, found = CASES[name], exported(name, exporter)
    report = check_values(found.model, case.args(), case.kwargs(), found.result.path, found.attributed)
    assert not report.wrong, report.summary()


def test_literals_belong_to_those_who_read_them(name: str, exporter: str) -> None:
    found = exported(name, exporter)
    assert misplaced_literals(found.result.path, found.hierarchy) == []
    assert stray_literals(found.result.path, found.hierarchy) == []


def test_carry_knows_the_same_graph_under_other_names(name: str, exporter: str, tmp_path: Path) -> None:
    found = exported(name, exporter)
    anonymize_file(found.result.path, tmp_path / "renamed.onnx")
    before, after = found.hierarchy, hieronnx.carry(found.result.path, tmp_path / "renamed.onnx").hierarchy
    for node, renamed in zip(before.nodes, after.nodes, strict=True):  # node i is still node i
        assert (node.op_type, node.scope, node.origins) == (renamed.op_type, renamed.scope, renamed.origins)
        assert renamed.evidence == node.evidence
    for call, renamed in zip(before.calls, after.calls, strict=True):
        for tensors, others in ((call.received, renamed.received), (call.returned, renamed.returned)):
            assert [t.tensor is None for t in tensors or ()] == [t.tensor is None for t in others or ()]


def test_validate_finds_nothing_wrong(name: str, exporter: str) -> None:
    found = exported(name, exporter).result
    findings = hieronnx.validate(found.path, strict=True)
    assert [item for item in findings if item.check != "coverage" or name not in NOTHING_KNOWN] == []
    assert found.findings == ()
