"""`min_confidence` decides what counts as attributed, and what is below it is told apart, by every command alike."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import hieronnx
from hieronnx.errors import InputError
from support.cli import run
from support.exports import quiet
from support.layered import write_layered

LEVELS = {"captured": "high", "name": "medium", "dataflow": "low"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a file of which every third node is known by capture, by name, by dataflow."""
    path = write_layered(tmp_path_factory.mktemp("confidence") / "model.onnx")
    evidence = list(LEVELS)
    proto = onnx.load(path)
    for number, node in enumerate(proto.graph.node):
        for entry in node.metadata_props:
            if entry.key == "hieronnx.evidence":
                entry.value = evidence[number % len(evidence)]
    onnx.save(proto, path)
    hieronnx.validate(path, fix_from="embedded")
    return path


def count(path: Path, *levels: str) -> int:
    return sum(node.confidence in levels for node in hieronnx.load(path).nodes)


@pytest.mark.parametrize("level", ["high", "medium", "low"])
def test_coverage_counts_what_is_known_well_enough(model: Path, level: str) -> None:
    hierarchy = hieronnx.load(model)
    expected = {"high": count(model, "high"), "medium": count(model, "high", "medium"), "low": len(hierarchy.nodes)}
    assert len(set(expected.values())) == 3
    assert hierarchy.require_confidence(level).coverage() == expected[level] / len(hierarchy.nodes)
    assert hierarchy.coverage() == 1.0


def test_every_command_counts_alike_and_tells_the_rest_apart(model: Path, tmp_path: Path) -> None:
    other = Path(shutil.copy(model, tmp_path / "other.onnx"))
    high, total = count(model, "high"), len(hieronnx.load(model).nodes)
    option = ("--min-confidence", "high")

    def read(*command: Any) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(run(*command, *option, "--json").stdout)
        return document

    analysis = read("analyze", model)
    assert (analysis["attributed"], analysis["min_confidence"]) == (high, "high")
    carried = read("carry", model, other, "-o", tmp_path / "carried.onnx")["hierarchy"]["summary"]
    assert (carried["attributed"], carried["below"], carried["min_confidence"]) == (high, total - high, "high")
    checked = read("validate", model)
    assert (sum(c["attributed"] for c in checked["categories"]), checked["min_confidence"]) == (high, "high")
    assert [item["check"] for item in checked["findings"] if item["severity"] == "error"] == ["coverage"]
    assert checked["below"] == total - high
    short = [item for item in checked["findings"] if item["check"] == "coverage"]
    assert all("more with less than high confidence" in item["message"] for item in short)
    assert f"{high} of {total} nodes attributed, with high confidence" in run("validate", model, *option).stdout
    text = run("carry", model, other, "-o", tmp_path / "carried.onnx", *option).stdout
    assert f"with high confidence at least ({total - high} more with less)" in text
    assert hieronnx.load(tmp_path / "carried.onnx").coverage() == 1.0  # what is written does not depend on it


def test_validate_says_nothing_of_confidence_where_all_that_is_known_counts(model: Path) -> None:
    assert hieronnx.validate(model).below == 0
    assert "confidence" not in run("validate", model).stdout


def test_an_unknown_level_is_refused_before_anything_is_done(model: Path, tmp_path: Path) -> None:
    for attempt in (
        lambda: hieronnx.analyze(model, min_confidence="sure"),
        lambda: hieronnx.validate(model, min_confidence="sure"),
        lambda: hieronnx.carry(model, model, output=tmp_path / "out.onnx", min_confidence="sure"),
        lambda: hieronnx.load(model).require_confidence("sure"),
    ):
        with pytest.raises(InputError, match="no level of confidence 'sure'"):
            attempt()
    assert list(tmp_path.iterdir()) == []


def test_an_export_and_an_annotation_count_as_asked(tmp_path: Path) -> None:
    net, inputs, path = nn.Sequential(nn.Linear(4, 4)).eval(), (torch.ones(1, 4),), tmp_path / "net.onnx"
    with quiet():
        made = hieronnx.export(net, inputs, path, exporter="torchscript", strategy="usage_based", min_confidence="high")
    found = hieronnx.annotate(path, net, strategy="usage_based", min_confidence="high")
    for result in (made, found):
        assert [node.evidence for node in result.hierarchy.nodes] == ["parameter"]
        assert result.hierarchy.coverage() == 0.0
        described = result.to_dict()
        assert (described["strategy"], described["hierarchy"]["strategy"]) == ("usage_based", "usage_based")
        assert described["hierarchy"]["summary"]["below"] == 1
    assert found.hierarchy.nodes[0].consumers == ()
