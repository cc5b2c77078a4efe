"""What notebooks show of hierarchies and results."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

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
