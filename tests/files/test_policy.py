"""The tag policy is kept in both forms of a hierarchy, and inferred for files that do not have it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import hieronnx
from hieronnx.errors import HieronnxError
from hieronnx.files.opening import load, open_model, sidecar_path
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.tags import TagPolicy
from support.layered import at, drop, make_hierarchy, make_model, set_entry, spoil, spoil_metadata, write

POLICIES = {"default": "default", "all": "all", "none": "none", "Conv2d,Linear": ["Conv2d", "Linear"]}


def make(policy: TagPolicy, layer: str = "nets.Layer") -> Hierarchy:
    """Return the hierarchy of the layers, each of this class."""
    hierarchy = make_hierarchy()
    name = layer.rpartition(".")[2]
    modules = {
        path: replace(m, qualified_class=layer, class_name=name) if path else m for path, m in hierarchy.modules.items()
    }
    calls = tuple(replace(call, tag=call.tag.replace("Layer", name)) for call in hierarchy.calls)
    return replace(hierarchy, modules=modules, calls=calls, policy=policy)


@pytest.mark.parametrize("text", POLICIES)
def test_both_forms_keep_the_policy(text: str, tmp_path: Path) -> None:
    policy = TagPolicy.parse(text)
    path = write(tmp_path / "model.onnx", make_model(), make(policy))
    assert json.loads(sidecar_path(path).read_bytes())["model"]["torch_nn"] == POLICIES[text]
    assert load(path).policy == policy
    assert {e.key: e.value for e in onnx.load(path).metadata_props}["hieronnx.torch_nn"] == text
    assert hieronnx.validate(path, strict=True).passed
    sidecar_path(path).unlink()
    assert load(path).policy == policy
    hieronnx.validate(path, fix=True)
    assert json.loads(sidecar_path(path).read_bytes())["model"]["torch_nn"] == POLICIES[text]


@pytest.mark.parametrize(
    ("layer", "inferred"),
    [("torch.nn.modules.linear.Linear", {"Linear"}), ("nets.Linear", set()), ("torch.nnet.Linear", set())],
)
def test_the_policy_of_an_older_file_is_that_of_its_tags(layer: str, inferred: set[str], tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", make_model(), make(TagPolicy.parse("all"), layer))
    spoil(path, at("format_version", to="1.1"))
    spoil(path, drop("model", "torch_nn"))
    assert load(path).policy == TagPolicy(frozenset(inferred))
    assert hieronnx.validate(path).passed
    sidecar_path(path).unlink()
    spoil_metadata(path, lambda m: set_entry(m, "hieronnx.torch_nn", None))
    assert load(path).policy == TagPolicy(frozenset(inferred))


def test_what_is_no_policy_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", make_model(), make(TagPolicy()))
    spoil(path, at("model", "torch_nn", to="every one"))
    spoil_metadata(path, lambda m: set_entry(m, "hieronnx.torch_nn", "every one"))
    with pytest.raises(HieronnxError, match=r"model_hierarchy.json' is not a hierarchy .*torch_nn: 'every one' is"):
        load(path)
    places = {item.place for item in hieronnx.validate(path) if item.severity == "error"}
    assert places == {"sidecar: $.model.torch_nn", "metadata: hieronnx.torch_nn"}
    sidecar_path(path).unlink()
    with pytest.raises(HieronnxError, match=r"the metadata in .* is not a hierarchy .*torch_nn: 'every one' is"):
        open_model(path)


def test_the_policy_goes_with_the_tags_that_are_trusted(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", make_model(), make(TagPolicy.parse("all")))
    spoil(path, at("model", "torch_nn", to="none"))
    spoil(path, at("nodes", 1, "module", to="layers.2"))
    assert hieronnx.validate(path, fix_from="embedded").fixed
    assert load(path).policy == TagPolicy.parse("all")


def test_a_list_of_names_is_a_policy() -> None:
    assert TagPolicy.parse(["Conv2d", "Linear"]) == TagPolicy.parse("Conv2d,Linear")
    with pytest.raises(HieronnxError, match="did you mean 'Linear'"):
        TagPolicy.parse(["Linaer"], known=["Linear", "Conv2d"])


def test_tags_are_those_of_the_policy(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", make_model(), make(TagPolicy.parse("none"), "torch.nn.modules.linear.Linear"))
    findings = hieronnx.validate(path).findings
    assert {f.check for f in findings} == {"tags"}
    assert "the tag policy ('torch_nn') gives none to 'Linear'" in findings[0].message


def test_a_module_without_the_tag_that_the_policy_gives_is_found(tmp_path: Path) -> None:
    hierarchy = make(TagPolicy.parse("all"), "torch.nn.modules.linear.Linear")
    root = hierarchy.calls[0].tag
    calls = tuple(replace(call, tag=root, tagged=call.parent is None) for call in hierarchy.calls)
    path = write(tmp_path / "model.onnx", make_model(), replace(hierarchy, calls=calls))
    findings = hieronnx.validate(path).findings
    assert {f.check for f in findings} == {"tags"}
    assert "gives one to 'Linear'" in findings[0].message


def test_both_forms_must_name_one_policy(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", make_model(), make(TagPolicy.parse("none")))
    spoil_metadata(path, lambda m: set_entry(m, "hieronnx.torch_nn", "Conv2d"))
    assert [(f.check, f.place) for f in hieronnx.validate(path).findings] == [("agreement", "torch_nn")]
