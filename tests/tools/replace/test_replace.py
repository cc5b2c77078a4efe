"""Parts in the places of module calls."""

from __future__ import annotations

from pathlib import Path

import pytest

import hieronnx
from hieronnx import HieronnxError
from support.exports import Exported, exported
from support.zoo import CASES

EXPORTERS = ["dynamo", "torchscript"]


def replace_every_call(whole: Exported, folder: Path) -> int:
    """Extract every call that can be and put it back; return how many there are."""
    path, done = whole.result.path, 0
    for call in whole.hierarchy.calls:
        try:
            hieronnx.extract(path, str(call.id), output=folder / "part.onnx")
        except HieronnxError:
            continue  # it has no nodes
        try:
            result = hieronnx.replace(path, str(call.id), folder / "part.onnx", output=folder / "out.onnx")
        except HieronnxError as error:
            assert "inside the body" in str(error), (call.id, error)
            continue
        compared = hieronnx.compare(path, folder / "out.onnx", values=True)
        assert compared.same, (call.id, compared.differences, result)
        old, new = (sorted(n.key for n in hieronnx.load(p).nodes) for p in (path, folder / "out.onnx"))
        assert old == new, call.id
        scopes = {node.key: (node.scope, node.evidence) for node in hieronnx.load(folder / "out.onnx").nodes}
        moved = [n.key for n in whole.hierarchy.nodes if scopes[n.key] != (n.scope, n.evidence) and len(n.origins) == 1]
        assert not moved, (call.id, moved)
        done += 1
    return done


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ["bert", "conv_batch_norm_residual", "called_in_loop"])
def test_what_was_extracted_and_put_back_is_the_same_model(name: str, exporter: str, tmp_path: Path) -> None:
    assert replace_every_call(exported(name, exporter), tmp_path) > 1


@pytest.mark.long
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", CASES)
def test_so_it_is_for_every_call_of_the_zoo(name: str, exporter: str, tmp_path: Path) -> None:
    if exporter in CASES[name].exporters:
        replace_every_call(exported(name, exporter), tmp_path)
