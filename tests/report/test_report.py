"""Reports are pure: the same record gives the same text, its numbers add up, and rows stay whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.text import Text

from hieronnx.errors import InputError
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, CallId, Module, Node
from hieronnx.hierarchy.tags import CallSite, TagPolicy, build_calls
from hieronnx.report.summary import render_coverage, render_files
from hieronnx.report.text import make_table, to_text
from hieronnx.report.tree import Branch, grow_tree, render_tree, tree_to_json
from hieronnx.tools.results import WrittenFile, summary_to_dict

CLASSES = {
    "": "zoo.Net",
    "stem": "zoo.Stem",
    "stem.conv": "torch.nn.modules.conv.Conv2d",
    "cells.0": "zoo.Cell",
    "cells.0.norm": "torch.nn.LayerNorm",
    "cells.1": "zoo.Cell",
}


def make_module(path: str, qualified: str) -> Module:
    return Module(path, qualified.rpartition(".")[2], qualified, (), {}, (), (), 1000 + len(path), (), 0)


def make_node(number: int, op_type: str, module: str, call: int = 0, evidence: str = "captured") -> Node:
    scope = CallId(module, call)
    return Node("", f"node_{number}", op_type, "", f"value_{number}", scope, (scope,), evidence)


def make_hierarchy() -> Hierarchy:
    """Return a hierarchy with a cell called twice, the second time by another name, and two nodes unknown."""
    sites = [
        CallSite(ROOT, None, ""),
        CallSite(CallId("stem", 0), ROOT, "stem"),
        CallSite(CallId("stem.conv", 0), CallId("stem", 0), "stem.conv"),
        CallSite(CallId("cells.0", 0), ROOT, "cells.0"),
        CallSite(CallId("cells.0.norm", 0), CallId("cells.0", 0), "cells.0.norm"),
        CallSite(CallId("cells.1", 0), ROOT, "cells.1"),
        CallSite(CallId("cells.0", 1), ROOT, "last"),
    ]
    nodes = [
        make_node(0, "Conv", "stem.conv"),
        make_node(1, "Relu", "stem"),
        make_node(2, "LayerNormalization", "cells.0.norm", evidence="carried"),
        make_node(3, "Add", "cells.0"),
        make_node(4, "Add", "cells.1", evidence="dataflow"),
        make_node(5, "Add", "cells.0", 1),
        make_node(6, "Mul", "", evidence="root"),
        make_node(7, "Cast", "", evidence="root"),
    ]
    modules = {path: make_module(path, qualified) for path, qualified in CLASSES.items()}
    return Hierarchy(modules, build_calls(sites, CLASSES, TagPolicy()), tuple(nodes), model={"class": "Net"})


def walk(branch: Branch) -> Iterator[Branch]:
    yield branch
    for child in branch.children:
        yield from walk(child)


def labels(branch: Branch) -> list[str]:
    return [line.label for line in walk(branch)]


def test_the_tree_as_it_is_printed() -> None:
    assert (
        render_tree(grow_tree(make_hierarchy()))
        == """\
call             module             nodes  own  parameters
Net                                     8    2       1,000
├─ Stem          stem                   2    2       1,004
├─ Cell.0        cells.0                2    1       1,007
│  └─ LayerNorm  cells.0.norm           1    1       1,012
├─ Cell.1        cells.1                1    1       1,007
└─ Cell.0@1      cells.0 (as last)      1    1       1,007

8 nodes, 6 calls shown"""
    )


def test_nodes_come_under_their_calls_with_their_exact_scope() -> None:
    tree = grow_tree(make_hierarchy(), pattern="stem")
    assert (
        render_tree(tree, nodes=True)
        == """\
call                module     nodes  own  parameters  evidence
Net                                8    2       1,000
└─ Stem             stem           2    2       1,004
   ├─ Conv  node_0  stem.conv                          captured
   └─ Relu  node_1                                     captured

8 nodes, 2 calls shown"""
    )


@pytest.mark.parametrize("all_calls", [False, True])
@pytest.mark.parametrize("pattern", [None, "*conv", "*"])
def test_own_nodes_add_up_to_the_total(pattern: str | None, all_calls: bool) -> None:
    hierarchy = make_hierarchy()
    tree = grow_tree(hierarchy, pattern=pattern, all_calls=all_calls)
    assert tree.total == len(hierarchy.nodes)
    whole = [line for line in walk(tree) if not line.context]
    assert all(line.total == len(line.own) + sum(child.total for child in line.children) for line in whole)


def test_calls_without_a_tag_are_listed_on_demand() -> None:
    assert labels(grow_tree(make_hierarchy(), all_calls=True))[:3] == ["Net", "Stem", "Conv2d.conv"]
    assert labels(grow_tree(make_hierarchy(), pattern="stem.conv")) == ["Net", "Stem", "Conv2d.conv"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("cells.1", ["Net", "Cell.1"]),
        ("/Net/Cell.0/*", ["Net", "Cell.0", "LayerNorm"]),
        ("cells.0", ["Net", "Cell.0", "LayerNorm", "Cell.0@1"]),
        ("*@1", ["Net", "Cell.0@1"]),
        ("last", ["Net", "Cell.0@1"]),
    ],
)
def test_a_pattern_shows_what_matches_and_the_way_there(pattern: str, expected: list[str]) -> None:
    tree = grow_tree(make_hierarchy(), pattern=pattern)
    assert labels(tree) == expected
    assert tree.context


def test_a_pattern_that_matches_nothing_suggests_one() -> None:
    with pytest.raises(InputError, match=r"no module call 'Cell'; did you mean '\*Cell\*'"):
        grow_tree(make_hierarchy(), pattern="Cell")
    with pytest.raises(InputError, match=r"no module call 'zzz'; 'hieronnx tree --all' lists"):
        grow_tree(make_hierarchy(), pattern="zzz")


def test_depth_counts_from_the_root_or_from_each_match() -> None:
    hierarchy = make_hierarchy()
    assert labels(grow_tree(hierarchy, depth=0)) == ["Net"]
    assert "LayerNorm" not in labels(grow_tree(hierarchy, depth=1))
    assert labels(grow_tree(hierarchy, pattern="cells.0", depth=1)) == labels(grow_tree(hierarchy, pattern="cells.0"))
    assert labels(grow_tree(hierarchy, pattern="cells.0", depth=0)) == ["Net", "Cell.0", "Cell.0@1"]
    assert render_tree(grow_tree(hierarchy, depth=0)).endswith("8 nodes, 1 call shown, 5 deeper")


def test_without_the_sidecar_parameters_are_unknown_not_zero() -> None:
    tree = grow_tree(replace(make_hierarchy(), model={}))
    text = render_tree(tree)
    assert "1,000" not in text
    assert text.endswith("parameters unknown without the sidecar of the export")
    assert tree_to_json(tree)["parameters"] is None


def test_colours_change_nothing_else() -> None:
    tree = grow_tree(make_hierarchy(), pattern="*cells*")
    coloured = render_tree(tree, nodes=True, colour=True)
    plain = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert coloured != plain
    assert [line.rstrip() for line in plain.splitlines()] == render_tree(tree, nodes=True).splitlines()


def test_names_are_printed_as_they_are() -> None:
    """rich reads [brackets] as markup, :words: as emoji, and would break long lines."""
    odd = "[bold]:smile:" + "x" * 500
    hierarchy = make_hierarchy()
    nodes = (replace(hierarchy.nodes[0], name=odd), *hierarchy.nodes[1:])
    text = render_tree(grow_tree(replace(hierarchy, nodes=nodes)), nodes=True)
    assert f"Conv  {odd}  stem.conv" in text


def test_the_tree_as_json() -> None:
    tree = json.loads(json.dumps(tree_to_json(grow_tree(make_hierarchy(), pattern="stem"), nodes=True)))
    assert tree["context"]
    assert "nodes" not in tree
    stem = tree["children"][0]
    assert (stem["call"]["tag"], stem["total"], stem["own"]) == ("/Net/Stem", 2, 2)
    assert stem["call"]["id"] == {"module": "stem", "call": 0}
    assert [node["scope"]["module"] for node in stem["nodes"]] == ["stem.conv", "stem"]


# --- the summary ---


def test_the_coverage_as_it_is_printed() -> None:
    assert (
        render_coverage(make_hierarchy())
        == """\
6 of 8 nodes attributed (75.0 %)

evidence  confidence  nodes  percent
captured  high            4     50.0
carried   high            1     12.5
dataflow  low             1     12.5
root      low             2     25.0

category               nodes  attributed  percent  threshold
mathematical               4           3     75.0         95  under
neural_network_layers      1           1    100.0         95  ok
activation                 1           1    100.0         95  ok
normalization              1           1    100.0         95  ok
type_conversion            1           0      0.0         60  under"""
    )


def test_a_share_that_only_rounds_up_to_the_threshold_is_under_it() -> None:
    hierarchy = make_hierarchy()
    adds = [make_node(n, "Add", "", evidence="root" if n < 5001 else "captured") for n in range(100_000)]
    values = summary_to_dict(replace(hierarchy, nodes=tuple(adds)))
    assert values["category_statistics"]["mathematical"]["percent"] == 95.0
    assert values["category_statistics"]["mathematical"]["under"]


def test_the_summary_as_json_is_that_of_the_sidecar_with_thresholds() -> None:
    values = json.loads(json.dumps(summary_to_dict(make_hierarchy())))
    assert values["coverage"] == 75.0
    assert values["by_evidence"]["root"] == 2
    assert values["category_statistics"]["type_conversion"] == {
        "total": 1,
        "attributed": 0,
        "percent": 0.0,
        "threshold": 60,
        "critical": False,
        "under": True,
    }


def test_a_file_without_nodes_has_nothing_to_attribute() -> None:
    assert render_coverage(Hierarchy({}, (), ())) == "no nodes to attribute"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_960, "1.0 MB"), (2_500_000_000, "2.5 GB")],
)
def test_sizes(size: int, text: str) -> None:
    assert render_files([WrittenFile(Path("a.onnx"), size)]).splitlines()[1].split(maxsplit=1) == [
        "a.onnx",
        text,
    ]


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "bell\x07", "line\nbreak", "\u202eright to left", "x" * 1_000_000])
def test_a_name_cannot_command_the_terminal_or_flood_it(name: str) -> None:
    for cell in (name, Text(name), Text.assemble(("├─ ", "dim"), name)):
        table = make_table("name", "n")
        table.add_row(cell, "1")
        line = to_text(table, colour=True).splitlines()[-1]
        assert len(line) < 1100
        assert all(character.isprintable() for character in line.replace("\x1b[2m", "").replace("\x1b[0m", ""))
