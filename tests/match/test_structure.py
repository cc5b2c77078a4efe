"""Matching by names and structure: fixed points, regions, groups, bodies and functions, on graphs of a few nodes."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from onnx import parser

from hieronnx.graph.building import view_model
from hieronnx.graph.view import View, ViewGraph, ViewNode
from hieronnx.match.structure import Matcher
from support.onnx_text import match, regions

BEFORE = """
    main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4] b> {
        a = MatMul (x, v)
        c = Add (a, b)
        y = Relu (c)
    }
"""


def test_a_node_stands_for_all_between_the_fixed_points_that_it_reads_and_makes() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4] b> {
            c = Gemm (x, v, b)
            y = Relu (c)
        }
    """
    assert regions(match(BEFORE, after)) == {"c": {"a", "c"}, "y": {"y"}}


def test_where_all_names_are_new_structure_finds_the_node() -> None:
    after = """
        main (float[2, 4] in) => (float[2, 4] out) <float[4, 4] v, float[4] b> {
            t1 = MatMul (in, v)
            t2 = Add (t1, b)
            out = Relu (t2)
        }
    """
    assert regions(match(BEFORE, after)) == {"t1": {"a"}, "t2": {"c"}, "out": {"y"}}


def test_structure_tells_equal_operators_apart_by_their_constants() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float one = {1.0}, float two = {2.0}> {
            a = Mul (x, one)
            b = Mul (x, two)
            y = Add (a, b)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float q = {2.0}, float p = {1.0}> {
            t1 = Mul (x, q)
            t2 = Mul (x, p)
            y = Add (t2, t1)
        }
    """
    assert regions(match(before, after)) == {"t1": {"b"}, "t2": {"a"}, "y": {"y"}}


def test_a_name_that_was_given_to_something_else_is_not_believed() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) {
            a = Relu (x)
            b = Sigmoid (x)
            y = Sub (a, b)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) {
            b = Relu (x)
            a = Sigmoid (x)
            y = com.microsoft.Minus (b, a)
        }
    """
    assert regions(match(before, after)) == {"b": {"a"}, "a": {"b"}, "y": {"y"}}


def test_a_name_with_another_shape_is_not_believed() -> None:
    after = BEFORE.replace("float[4] b", "float[2, 4] b")
    matcher = match(BEFORE, after)
    assert matcher.tensor_in_a[matcher.b.names.index("v")] == matcher.a.names.index("v")
    assert matcher.tensor_in_a[matcher.b.names.index("b")] is None


def test_fixed_points_that_are_given_count_before_names() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) {
            a = Relu (x)
            b = Exp (a)
            y = Neg (b)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) {
            b = com.microsoft.Other (x)
            t = com.microsoft.Another (b)
            y = Neg (t)
        }
    """
    assert regions(match(before, after, {"b": "a", "t": "b"})) == {"b": {"a"}, "t": {"b"}, "y": {"y"}}


def test_a_fixed_point_was_not_given_to_another_node_that_reads_the_same() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] p, float[2, 4] q) <float[4, 4] v, float[4, 4] w> {
            p = MatMul (x, v)
            q = MatMul (x, w)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] p, float[2, 4] q) <float[4, 4] w> {
            copy = Identity (w)
            p = MatMul (x, copy)
            q = MatMul (x, w)
        }
    """
    assert regions(match(before, after, {"p": "p", "q": "q"})) == {"p": {"p"}, "q": {"q"}}


def test_inputs_without_a_common_name_are_paired_by_position() -> None:
    before = "main (float[2] x, float[2] z) => (float[2] y) { y = Sub (x, z) }"
    after = "main (float[2] p, float[2] q) => (float[2] r) { r = Sub (p, q) }"
    matcher = match(before, after)
    assert [matcher.tensor_in_a[matcher.b.names.index(name)] for name in "pq"] == [
        matcher.a.names.index(name) for name in "xz"
    ]


def test_nodes_with_new_names_between_fixed_points_share_a_region() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4] b, int64[2] shape = {2, 4}> {
            t1 = Reshape (x, shape)
            t2 = Gemm (t1, v, b)
            c = Reshape (t2, shape)
            y = Relu (c)
        }
    """
    matcher = match(BEFORE, after)
    found = matcher.matches[2]
    assert regions(matcher)["c"] == {"a", "c"}
    assert found.group == (0, 1, 2)
    assert found.altered


def test_a_node_that_is_as_it_was_is_not_altered_and_one_with_another_attribute_is() -> None:
    before = "main (float[2, 4] x) => (float[2, 4] y) { y = LeakyRelu <alpha = 0.5> (x) }"
    after = "main (float[2, 4] x) => (float[2, 4] y) { y = LeakyRelu <alpha = 0.25> (x) }"
    assert not match(before, before).matches[0].altered
    assert match(before, after).matches[0].altered


def test_a_name_alone_is_no_proof() -> None:
    before = "main (float[2, 4] x, float[2, 4] z) => (float[2, 4] y) { a = Exp (x) y = Add (a, z) }"
    after = "main (float[2, 4] x, float[2, 4] z) => (float[2, 4] y) { y = Add (x, x) }"
    found = match(before, after).matches[0]
    assert not found.proven  # the result of A needs z


IF = """
    main (bool k, float[2] x) => (float[2] y) {{
        y = If (k) <
            then_branch = yes () => (float[2] {p}) {{ {p} = {then} (x) }},
            else_branch = no () => (float[2] {q}) {{ {q} = {other} (x) }}
        >
    }}
"""


def test_bodies_are_paired_by_their_attribute() -> None:
    before = IF.format(p="t", q="u", then="Relu", other="Exp")
    after = IF.format(p="new1", q="new2", then="Relu", other="Exp")
    matcher = match(before, after)
    labels = {matcher.b.graphs[b].label: matcher.a.graphs[a].label for b, a in matcher.graph_in_a.items()}
    assert labels == {"": "", "then_branch": "then_branch", "else_branch": "else_branch"}
    assert regions(matcher) == {"y": {"y"}, "new1": {"t"}, "new2": {"u"}}


def test_an_output_that_got_another_name_is_none_of_a_body() -> None:
    text = """
        main (bool k, float[2] x) => (float[2] {out}) {{
            c = If (k) <
                then_branch = yes () => (float[2] {inside}) {{ {inside} = Tanh (x) }},
                else_branch = no () => (float[2] u) {{ u = Exp (x) }}
            >
            {out} = Tanh (c)
        }}
    """
    matcher = match(text.format(inside="t", out="tanh"), text.format(inside="tanh", out="output"))
    assert regions(matcher) == {"c": {"c"}, "tanh": {"t"}, "u": {"u"}, "output": {"tanh"}}


def test_functions_are_paired_by_their_key() -> None:
    text = """
        <ir_version: 10, opset_import: ["": 21, "own": 1]>
        main (float[2] x) => (float[2] y) {{ y = own.double (x) }}
        <domain: "own", opset_import: ["": 21]> double ({i}) => ({o}) {{ {o} = Add ({i}, {i}) }}
    """
    a, b = (view_function(text.format(i=i, o=o)) for i, o in (("p", "q"), ("r", "s")))
    matcher = Matcher(a, b).run()
    assert matcher.graph_in_a == {0: 0, 1: 1}
    assert regions(matcher) == {"y": {"y"}, "s": {"q"}}


def view_function(text: str) -> View:
    return view_model(ir.serde.deserialize_model(parser.parse_model(text)))


def test_a_tensor_in_another_layout_has_the_name_that_it_has_behind_the_reorder() -> None:
    before = """
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) <float[8, 8, 1, 1] w> {
            c = Conv (x, w)
            y = Relu (c)
        }
    """
    after = """
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) <float[8, 8, 1, 1] w> {
            t = com.microsoft.nchwc.Conv (x, w)
            c = com.microsoft.nchwc.ReorderOutput (t)
            y = Relu (c)
        }
    """
    matcher = match(before, after)
    assert regions(matcher) == {"t": {"c"}, "y": {"y"}}
    assert matcher.passed_on == {1: matcher.a.names.index("c")}


# -- operators of the same kind ---------------------------------------------------------------------------


def test_one_node_does_not_do_the_work_of_two_of_its_kind() -> None:
    before = """
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) <float[8, 8, 1, 1] v, float[8, 8, 1, 1] w> {
            c = Conv (x, v)
            d = Conv (c, w)
            y = Sigmoid (d)
        }
    """
    after = """
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) <float[8, 8, 1, 1] n> {
            t = com.microsoft.nchwc.Conv (x, n)
            u = com.microsoft.QLinearSigmoid (t)
            y = com.microsoft.Other (u)
        }
    """
    assert "t" not in regions(match(before, after))


HEADS = """
    main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4, 4] w> {
        a = MatMul (x, v)
        b = MatMul (x, w)
        c = Mul (a, b)
        y = Relu (c)
    }
"""


def test_nodes_of_one_kind_that_read_the_same_are_taken_in_turn_without_proof() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <uint8[4, 4] n1, uint8[4, 4] n2> {
            t1 = com.microsoft.MatMulNBits (x, n1)
            t2 = com.microsoft.MatMulNBits (x, n2)
            t3 = Mul (t1, t2)
            t4 = Relu (t3)
            y = com.microsoft.Other (t4)
        }
    """
    matcher = match(HEADS, after)
    assert {name: regions(matcher)[name] for name in ("t1", "t2")} == {"t1": {"a"}, "t2": {"b"}}
    assert not matcher.matches[0].proven


BRANCHES = """
    main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y)
    <float[8, 8, 3, 3] v, float[8] b, float[8, 8, 1, 1] w, float[8] c> {
        [dense] d = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, v, b)
        [point] p = Conv <kernel_shape = [1, 1]> (x, w, c)
        s = Add (d, p)
        y = Relu (s)
    }
"""
"""Of two branches a tool computes the second first, and the first together with their sum."""


@pytest.mark.parametrize(
    ("weights", "point", "dense"),
    [
        # Weights that kept their names; weights of other sizes; attributes.
        ("float[8, 8, 3, 3] n1, float[8] b, float[8, 8, 1, 1] n2, float[8] c", "(x, n2, c)", "(x, n1, b, t1)"),
        ("float[8, 8, 3, 3] n1, float[8] m1, float[8, 8, 1, 1] n2, float[8] m2", "(x, n2, m2)", "(x, n1, m1, t1)"),
        ("float n1, float n2", "<kernel_shape = [1, 1]> (x, n2)", "<kernel_shape = [3, 3]> (x, n1, n1, t1)"),
    ],
)
def test_of_nodes_of_one_kind_weights_and_attributes_tell_which_is_which(weights: str, point: str, dense: str) -> None:
    after = f"""
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) <{weights}> {{
            t1 = com.microsoft.nchwc.Conv {point}
            t2 = com.microsoft.nchwc.Conv {dense}
            y = com.microsoft.nchwc.ReorderOutput (t2)
        }}
    """
    matcher = match(BRANCHES, after)
    assert regions(matcher)["t1"] == {"p"}
    assert matcher.matches[0].proven
    assert regions(matcher)["t2"] == {"d", "s", "y"}


def test_of_nodes_of_one_kind_their_names_tell_which_is_which_without_proof() -> None:
    after = """
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) <float n1, float n2> {
            [point_nchwc] t1 = com.microsoft.nchwc.Conv (x, n2)
            [dense_nchwc] t2 = com.microsoft.nchwc.Conv (x, n1, n1, t1)
            y = com.microsoft.nchwc.ReorderOutput (t2)
        }
    """
    matcher = match(BRANCHES, after)
    assert regions(matcher)["t1"] == {"p"}
    assert not matcher.matches[0].proven
    assert regions(matcher)["t2"] == {"d", "s", "y"}


def test_nodes_of_one_kind_are_not_guessed_where_there_are_not_as_many() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <uint8[4, 4] n1> {
            t1 = com.microsoft.MatMulNBits (x, n1)
            t2 = Mul (t1, t1)
            t3 = Relu (t2)
            y = com.microsoft.Other (t3)
        }
    """
    assert "t1" not in regions(match(HEADS, after))


# -- limits -----------------------------------------------------------------------------------------------


def test_a_region_of_thousands_of_nodes_is_none() -> None:
    small, large = (Matcher(chain(length), chain(1)).run().matches[0] for length in (50, 3_000))
    assert len(small.region) == 50
    assert small.proven
    assert len(large.region) == 1
    assert not large.proven


def chain(length: int) -> View:
    """Make a chain of operators; the last output is called y, and so is that of any other."""
    made = View(graphs=[ViewGraph("", "", None, (), ())])
    current = given = made.add_tensor("x", 0)
    for number in range(length):
        following = made.add_tensor("y" if number == length - 1 else f"t{number}", 0)
        made.add_node(ViewNode("Exp", "", 0, (current,), (following,), (("steps", length),)))
        current = following
    made.graphs[0] = ViewGraph("", "", None, (given,), (current,))
    return made


def test_an_operator_is_no_form_of_another_that_has_its_name_within_its_own() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4] s, float[4, 4] w> {
            a = Exp (x)
            b = Mul (a, s)
            y = MatMul (b, w)
        }
    """
    after = """
        main (float[2, 4] in) => (float[2, 4] out) <float[4] s, float[4, 4] w> {
            t1 = com.microsoft.ScaledExp (in)
            out = MatMul (t1, w)
        }
    """
    assert regions(match(before, after))["t1"] == {"a", "b"}  # MatMul is no Mul that reads what Exp makes


def test_what_is_computed_from_a_guess_is_no_more_certain_than_it() -> None:
    before = """
        main (float[2, 64] x) => (float[2, 64] y) <float[64, 64] v, float[64, 64] w> {
            a = MatMul (x, v)
            b = MatMul (x, w)
            c = Exp (a)
            d = Exp (b)
            y = Sub (c, d)
        }
    """
    after = """
        main (float[2, 64] in) => (float[2, 64] out) <float[64, 64] p, float[64, 64] q> {
            t1 = MatMul (in, p)
            t2 = MatMul (in, q)
            t3 = Exp (t1)
            t4 = Exp (t2)
            out = com.microsoft.Difference (t3, t4)
        }
    """
    matcher = match(before, after)
    proven = {matcher.b.node_key(index)[1]: found.proven for index, found in matcher.matches.items()}
    assert {name: proven[name] for name in ("t1", "t2", "t3", "t4")} == dict.fromkeys(("t1", "t2", "t3", "t4"), False)
