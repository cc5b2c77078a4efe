"""What notebooks and terminals show of hierarchies and results, and the tables that pandas gets."""

from __future__ import annotations

from io import StringIO
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

import hieronnx
from support.annotated import annotated
from support.exports import exported

NET = "net (float[2] x) => (float[2] y) { h = Relu(x)  y = Tanh(h) }"


def parse(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(f"<div>{html.replace(' open>', '>')}</div>")


def test_a_notebook_shows_every_call_with_its_nodes() -> None:
    hierarchy = exported("bert", "torchscript").hierarchy
    tree = parse(hierarchy._repr_html_())
    assert [b.text for b in tree.iter("b")] == [hierarchy.modules[c.id.module].class_name for c in hierarchy.calls]
    assert next(tree.iter("i")).text == str(len(hierarchy.nodes))
    assert [*tree.iter("script")] == []


def test_a_call_is_inside_the_one_that_made_it() -> None:
    tree = parse(exported("bert", "torchscript").hierarchy._repr_html_())
    inside = tree.find("div/details/details/details/summary")
    assert inside is not None
    assert "encoder.layer.0" in "".join(inside.itertext())


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a&b", "\u202eevil", "x" * 10_000])
def test_names_do_no_harm_in_notebooks(name: str) -> None:
    html = hieronnx.analyze(annotated(NET, [name, "b"]))._repr_html_()
    tree = parse(html)
    assert [*tree.iter("script")] == []
    assert "\u202e" not in html
    assert len(html) < 20_000


def test_a_result_shows_its_line_and_its_hierarchy() -> None:
    result = exported("bert", "torchscript").result
    tree = parse(result._repr_html_())
    pre = tree.find("pre")
    assert pre is not None
    assert pre.text == repr(result)
    assert len([*tree.iter("b")]) == len(result.hierarchy.calls)


# -- terminals ------------------------------------------------------------------------------------------------------


def printed(thing: Any) -> str:
    console = Console(file=StringIO(), width=120)
    console.print(thing)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_rich_prints_the_tree_of_calls() -> None:
    hierarchy = exported("bert", "torchscript").hierarchy
    lines = printed(hierarchy).splitlines()
    assert lines[0] == repr(hierarchy)
    assert len(lines) == 1 + len(hierarchy.calls)
    assert lines[1] == f"└── BertModel  {len(hierarchy.nodes)}"
    assert any(line.startswith("    │   ├── BertLayer encoder.layer.0 ") for line in lines)


def test_rich_prints_a_result_with_its_hierarchy() -> None:
    result = exported("bert", "torchscript").result
    assert printed(result).replace("\n", " ").startswith(repr(result)[:60])
    assert "BertPooler pooler" in printed(result)


@pytest.mark.parametrize("name", ["[bold red]x[/]", "\u202eevil", "x" * 10_000])
def test_names_do_no_harm_in_terminals(name: str) -> None:
    text = printed(hieronnx.analyze(annotated(NET, [name, "b"])))
    assert "\u202e" not in text
    assert name[:8] in text or "\\u202eevil" in text
    assert len(text) < 5_000


# -- tables ---------------------------------------------------------------------------------------------------------


def test_a_hierarchy_is_tables_of_nodes_and_calls() -> None:
    hierarchy = exported("bert", "torchscript").hierarchy
    nodes, calls = hierarchy.to_pandas(), hierarchy.to_pandas("calls")
    assert list(nodes["output"]) == [node.output for node in hierarchy.nodes]
    assert nodes.groupby("module").size()["pooler.dense"] == len(hierarchy.nodes_in("pooler.dense"))
    assert list(calls["tag"]) == [call.tag for call in hierarchy.calls]
    root = calls[calls["parent"].isna()].iloc[0]
    assert (root["nodes"], root["parameters"]) == (len(nodes), hierarchy.modules[""].parameter_count)
    with pytest.raises(hieronnx.InputError, match="no table 'modules'; did you mean 'nodes'"):
        hierarchy.to_pandas("modules")


def test_a_result_is_a_table_of_what_it_found() -> None:
    model = annotated(NET, ["a", "b"])
    analysis = hieronnx.analyze(model)
    assert list(analysis.to_pandas()["total.nodes"]) == [line.total.nodes for line in analysis.modules]
    assert list(analysis.to_pandas("nodes")["op_type"]) == ["Relu", "Tanh"]
    carried = hieronnx.carry(model, model)
    assert list(carried.to_pandas()["op_type"]) == ["Relu", "Tanh"]  # of its hierarchy
    assert list(carried.to_pandas("calls")["module"]) == ["", "a", "b"]
    changed = hieronnx.compare(model, annotated(NET.replace("Tanh", "Neg"), ["a", "b"]))
    assert list(changed.to_pandas()["kind"]) == [node.kind for node in changed.nodes] != []
    with pytest.raises(hieronnx.InputError, match="no table 'x'"):
        analysis.to_pandas("x")


def test_without_pandas_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    result = hieronnx.carry(annotated(NET, ["a", "b"]), annotated(NET, ["a", "b"]))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for shown in (result, result.hierarchy):
        with pytest.raises(hieronnx.MissingExtraError, match=r"pip install 'hieronnx\[pandas\]'"):
            shown.to_pandas()
