"""What people ask a hierarchy: the nodes in a call, the node of a name, the tag of a path, the calls that match."""

from __future__ import annotations

import pytest

from hieronnx.errors import AmbiguousTargetError, InputError
from hieronnx.hierarchy.hierarchy import CallTree, Hierarchy, select_rows
from hieronnx.hierarchy.records import ROOT, CallId, Module, Node
from hieronnx.hierarchy.tags import CallSite, TagPolicy, build_calls

CLASSES = {"": "nets.Net", "body": "nets.Body", "body.cell": "nets.Cell", "body.cell.linear": "torch.nn.Linear"}
CLASSES |= {"head": "nets.Head", "unused": "nets.Unused"}


@pytest.fixture
def hierarchy() -> Hierarchy:
    """Return a net that calls a cell twice in its body, and once more in its head, where it has another name."""
    body, cell, again, shared = (CallId("body", 0), *(CallId("body.cell", number) for number in range(3)))
    sites = [
        CallSite(ROOT, None, ""),
        CallSite(body, ROOT, "body"),
        CallSite(cell, body, "body.cell"),
        CallSite(CallId("body.cell.linear", 0), cell, "body.cell.linear"),
        CallSite(again, body, "body.cell"),
        CallSite(CallId("head", 0), ROOT, "head"),
        CallSite(shared, CallId("head", 0), "head.cell"),
    ]
    modules = {
        path: Module(path, name.rpartition(".")[2], name, (), {}, (), (), 0, (), 0) for path, name in CLASSES.items()
    }
    scopes = {"m": CallId("body.cell.linear", 0), "a": cell, "b": again, "s": body, "t": shared, "y": ROOT}
    nodes = [Node("", f"node_{out}", "Add", "", out, scope, (scope,), "captured") for out, scope in scopes.items()]
    return Hierarchy(modules, build_calls(sites, CLASSES, TagPolicy()), tuple(nodes))


def outputs(nodes: tuple[Node, ...]) -> list[str]:
    return [node.output for node in nodes]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("", ["m", "a", "b", "s", "t", "y"]),
        ("body", ["m", "a", "b", "s"]),
        ("body.cell", ["m", "a", "b", "t"]),
        ("body.cell@0", ["m", "a"]),
        ("body.cell@1", ["b"]),
        ("head.cell", ["t"]),
        ("/Net/Body/Cell@1", ["b"]),
        ("body.*", ["m", "a", "b", "s", "t"]),
        ("/Net/Head/*", ["t"]),
        ("*.linear", ["m"]),
        ("class:Cell", ["m", "a", "b", "t"]),
        ("class:nets.Head or class:Lin*", ["m", "t"]),
        ("body and not body.cell", ["s"]),
        ("not (body or head)", ["y"]),
        ("body and not class:Linear and not body.cell@1", ["a", "s"]),
        ("op:Add and head", ["t"]),
        ("category:mathematical and not body", ["t", "y"]),
        ("category:normalization", []),
    ],
)
def test_the_nodes_in_a_call_are_those_of_its_region(hierarchy: Hierarchy, target: str, expected: list[str]) -> None:
    assert outputs(hierarchy.nodes_in(target)) == expected


def test_a_target_that_names_no_call_is_refused_with_a_hint(hierarchy: Hierarchy) -> None:
    with pytest.raises(InputError, match="no module call 'bodi'; did you mean 'body'"):
        hierarchy.nodes_in("bodi")
    with pytest.raises(InputError, match="is never called itself"):
        hierarchy.find_calls("unused")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("body and", "a module, tag or pattern is missing before 'the end'"),
        ("(body or head and not x", "a bracket is open"),
        ("body or head) and x", r"'\)' has no beginning"),
        ("body and hed", "no module call 'hed'; did you mean 'head'"),
        ("class:Cel", "no class 'Cel'; did you mean 'Cell'"),
        ("op:Ad", "no operator 'Ad'; did you mean 'Add'|the model has Add"),
        ("category:nothing", "no category 'nothing'"),
        ("body and head", "'body and head' selects no node"),
    ],
)
def test_a_selection_that_cannot_be_read_or_names_nothing_is_refused(
    hierarchy: Hierarchy, target: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        hierarchy.nodes_in(target)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("body.*", ["body.cell", "body.cell@1", "body.cell@2"]),
        ("class:Cell and body", ["body.cell", "body.cell@1"]),
        ("not body.cell", []),
        ("not body", ["head"]),
        ("not class:Linear", ["body.cell@1", "head"]),
        ("op:Add and head", ["head"]),
    ],
)
def test_calls_are_selected_whole(hierarchy: Hierarchy, target: str, expected: list[str]) -> None:
    if expected:
        assert [str(call.id) for call in hierarchy.find_calls(target)] == expected
    else:
        with pytest.raises(InputError, match="selects no module call"):
            hierarchy.find_calls(target)


def test_a_node_is_found_by_its_name_or_its_first_output(hierarchy: Hierarchy) -> None:
    assert hierarchy.find("node_a") == hierarchy.find("a") == hierarchy.nodes[1]
    with pytest.raises(InputError, match="no node or tensor 'node_q'; did you mean"):
        hierarchy.find("node_q")


def test_of_nodes_with_one_name_the_first_is_found(hierarchy: Hierarchy) -> None:
    inner = Node("loop.body", "node_a", "Mul", "", "q", ROOT, (ROOT,), "captured")
    several = Hierarchy(hierarchy.modules, hierarchy.calls, (*hierarchy.nodes, inner))
    assert several.find("node_a") == hierarchy.nodes[1]
    assert several.find("q") == inner == several.node_by_key["loop.body", "q"]


def test_the_tag_of_a_call_by_id_or_path(hierarchy: Hierarchy) -> None:
    assert hierarchy.tag_of("body.cell@1") == hierarchy.tag_of(CallId("body.cell", 1)) == "/Net/Body/Cell@1"
    assert hierarchy.tag_of("body.cell.linear") == hierarchy.tag_of("body.cell") == "/Net/Body/Cell"
    assert hierarchy.tag_of("head.cell") == "/Net/Head/Cell"
    with pytest.raises(InputError, match=r"no call 'body\.cell@3'.*the last is 'body\.cell@2'"):
        hierarchy.tag_of("body.cell@3")


def test_calls_are_found_exactly_or_by_a_glob_the_outermost_alone(hierarchy: Hierarchy) -> None:
    def found(target: str) -> list[str]:
        return [str(call.id) for call in hierarchy.find_calls(target)]

    assert found("body.cell") == ["body.cell"]
    assert found("*cell*") == ["body.cell", "body.cell@1", "body.cell@2"]
    assert found("body*") == ["body", "body.cell@2"]
    with pytest.raises(AmbiguousTargetError, match="matches 3 calls"):
        hierarchy.find_call("*cell*")


def test_what_a_pattern_selects_has_all_calls_of_a_module(hierarchy: Hierarchy) -> None:
    assert hierarchy.select_calls("body.cell") == {CallId("body.cell", number) for number in range(3)}
    assert hierarchy.select_calls("body.cell@0") == {CallId("body.cell", 0)}
    assert hierarchy.select_calls("head.cell") == {CallId("body.cell", 2)}
    with pytest.raises(InputError, match="no module call"):
        hierarchy.select_calls("tail")


def test_the_tree_prints_a_line_for_each_call(hierarchy: Hierarchy) -> None:
    assert str(hierarchy.tree).splitlines() == [
        "Net",
        "├─ Body  body",
        "│  ├─ Cell  body.cell",
        "│  │  └─ Linear.linear  body.cell.linear",
        "│  └─ Cell@1  body.cell@1",
        "└─ Head  head",
        "   └─ Cell  body.cell@2",
    ]


def test_the_tree_knows_what_is_above_and_below(hierarchy: Hierarchy) -> None:
    tree, cell = hierarchy.tree, CallId("body.cell", 0)
    assert list(tree.ancestors(cell)) == [cell, CallId("body", 0), ROOT]
    assert tree.below(CallId("head", 0)) == [CallId("head", 0), CallId("body.cell", 2)]
    assert tree.depth(cell) == 2
    assert tree.lowest_above([cell, CallId("body.cell", 1)]) == CallId("body", 0)
    assert tree.lowest_above([cell, CallId("head", 0)]) == ROOT
    assert str(CallTree({ROOT: None, cell: ROOT})) == "\n└─ body.cell"


def test_rows_have_tagged_calls_or_all_and_what_was_asked_for(hierarchy: Hierarchy) -> None:
    linear, cell = CallId("body.cell.linear", 0), CallId("body.cell", 0)
    assert select_rows(hierarchy).nearest[linear] == cell
    assert select_rows(hierarchy, all_calls=True).nearest[linear] == linear
    asked = select_rows(hierarchy, pattern="*.linear")
    assert (asked.nearest[linear], asked.matches) == (linear, {linear})
    assert asked.ways == {linear, cell, CallId("body", 0), ROOT}
    assert set(asked.walk(cell)) == {cell, linear}


def test_the_tag_of_an_unknown_call_is_a_mistake_of_the_user(hierarchy: Hierarchy) -> None:
    with pytest.raises(InputError, match=r"no (module )?call 'nowhere@7'"):
        hierarchy.tag_of(CallId("nowhere", 7))
