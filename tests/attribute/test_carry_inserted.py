"""The rules of carry for nodes that a tool inserted: casts, reorders, quantization."""

from __future__ import annotations

import pytest

from hieronnx.attribute.carried import Carried, carry_scopes
from hieronnx.graph.view import View, ViewGraph, ViewNode
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import ROOT, Attribution, CallId
from support.carry_graphs import CONV_AND_NORM, TWO_CALLS, TWO_LINEAR
from support.onnx_text import carry, hold, place


def test_a_cast_of_an_activation_belongs_to_the_call_that_made_it() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4, 4] w> {
            a = MatMul (x, v)
            r = Relu (a)
            half = Cast <to = 10> (r)
            whole = Cast <to = 1> (half)
            y = MatMul (whole, w)
        }
    """
    found = carry(TWO_LINEAR, after, TWO_CALLS)
    assert found["half"] == found["whole"] == ({"first"}, "dataflow")
    assert found["y"] == ({"second"}, "captured")


def test_a_cast_of_an_input_belongs_to_those_who_read_it() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4, 4] w> {
            half = Cast <to = 10> (x)
            a = MatMul (half, v)
            r = Relu (a)
            y = MatMul (r, w)
        }
    """
    assert carry(TWO_LINEAR, after, TWO_CALLS)["half"] == ({"first"}, "dataflow")


def test_a_weight_that_is_dequantized_belongs_to_its_reader() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y)
        <float[4, 4] v, int8[4, 4] small, float scale = {1.0}, int8 zero = {0}> {
            a = MatMul (x, v)
            r = Relu (a)
            large = DequantizeLinear (small, scale, zero)
            y = MatMul (r, large)
        }
    """
    found = carry(TWO_LINEAR, after, TWO_CALLS)
    assert found["large"] == ({"second"}, "dataflow")
    assert found["y"][0] == {"second"}


def test_a_quantization_that_took_over_a_relu_has_its_calls_work() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v> {
            a = MatMul (x, v)
            y = Relu (a)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float scale = {1.0}, uint8 zero = {0}> {
            new = MatMul (x, v)
            small = QuantizeLinear (new, scale, zero)
            y = DequantizeLinear (small, scale, zero)
        }
    """
    found = carry(before, after, {"a": "linear", "y": "act"})
    assert "act" in found["small"][0]
    assert "act" in found["y"][0]


def test_what_quantizes_for_several_readers_belongs_to_the_lowest_call_above_them() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] q, float[4, 4] k, float[4, 4] v> {
            n = Relu (x)
            a = MatMul (n, q)
            b = MatMul (n, k)
            c = MatMul (n, v)
            d = Add (a, b)
            y = Add (c, d)
        }
    """
    products = "".join(
        f"""
            {name}0 = MatMulInteger (small, {weight}, zero)
            {name}1 = Cast <to = 1> ({name}0)
            {name} = Mul ({name}1, scale)"""
        for name, weight in zip("abc", "qkv", strict=True)
    )
    after = f"""
        main (float[2, 4] x) => (float[2, 4] y) <int8[4, 4] q, int8[4, 4] k, int8[4, 4] v> {{
            n = Relu (x)
            small, scale, zero = DynamicQuantizeLinear (n)
            {products}
            d = Add (a, b)
            y = Add (c, d)
        }}
    """
    attention = {"a": "attention.query", "b": "attention.key", "c": "attention.value", "d": "attention"}
    calls = {"n": "norm", **attention, "y": "attention"}
    assert place(before, after, calls)["small"] == "attention"


def test_what_is_quantized_and_turned_back_belongs_to_the_call_that_made_it() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y)
        <float[4, 4] v, float[4, 4] w, float scale = {1.0}, uint8 zero = {0}> {
            a = MatMul (x, v)
            r = Relu (a)
            small = QuantizeLinear (r, scale, zero)
            large = DequantizeLinear (small, scale, zero)
            y = MatMul (large, w)
        }
    """
    found = carry(TWO_LINEAR, after, TWO_CALLS)
    assert found["small"] == found["large"] == ({"first"}, "dataflow")


def test_a_copy_of_an_input_belongs_to_its_readers_call() -> None:
    after = """
        main (float[2, 4] z) => (float[2, 4] y) <float[4, 4] v, float[4, 4] w> {
            x = Identity (z)
            a = MatMul (x, v)
            r = Relu (a)
            y = MatMul (r, w)
        }
    """
    assert carry(TWO_LINEAR, after, TWO_CALLS)["x"] == ({"first"}, "dataflow")


def test_a_reorder_of_an_input_belongs_to_its_reader_and_of_a_result_to_its_maker() -> None:
    after = """
        main (float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] y)
        <float[4, 4, 1, 1] w, float[4] s, float[4] b, float[4] m, float[4] v> {
            t1 = com.microsoft.nchwc.ReorderInput (x)
            t2 = com.microsoft.nchwc.Conv (t1, w)
            c = com.microsoft.nchwc.ReorderOutput (t2)
            n = BatchNormalization (c, s, b, m, v)
            y = Relu (n)
        }
    """
    found = carry(CONV_AND_NORM, after, {"c": "conv", "n": "norm", "y": "act"})
    assert found["t1"] == found["c"] == ({"conv"}, "dataflow")
    assert found["t2"][0] == {"conv"}


def test_what_many_calls_read_belongs_to_the_call_above_them_alone() -> None:
    heads = range(10)
    products = "".join(f"p{n} = MatMul (x, w{n})\n" for n in heads)
    weights = ", ".join(f"float[4, 4] w{n}" for n in heads)
    sums = "".join(f"s{n} = Add ({'p0' if n == 1 else f's{n - 1}'}, p{n})\n" for n in heads[1:])
    before = f"main (float[2, 4] x) => (float[2, 4] y) <{weights}> {{ {products} {sums} y = Relu (s9) }}"
    after = before.replace("{ p0", "{ half = Cast <to = 10> (x) p0").replace("MatMul (x,", "MatMul (half,")
    calls = {**{f"p{n}": f"all.head{n}" for n in heads}, **{f"s{n}": "all" for n in heads}, "y": ""}
    assert carry(before, after, calls)["half"] == ({"all"}, "dataflow")


BRANCHED = """
    main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] u, float[4, 4] v, float[4, 4] w> {
        a = MatMul (x, u)
        b = MatMul (a, v)
        c = MatMul (a, w)
        d = Add (a, b)
        y = Add (c, d)
    }
"""
BRANCHED_CALLS = {"a": "first", "b": "left", "c": "right", "d": "", "y": ""}


def put_behind(nodes: str, before: str = BRANCHED) -> str:
    """Put nodes behind the first product of a graph, which gets another name."""
    return before.replace("> {", ", float[4] k> {").replace("a = MatMul (x, u)", f"new = MatMul (x, u) {nodes}")


@pytest.mark.parametrize(
    "nodes",
    ["a = Mul (new, k)", "t = Mul (new, k) a = Add (t, k)", "t = Sigmoid (new) a = Mul (new, t)"],
    ids=["one", "two", "gate"],
)
def test_what_is_put_behind_a_tensor_and_takes_its_name_belongs_to_its_maker(nodes: str) -> None:
    after = put_behind(nodes)
    found = carry(BRANCHED, after, BRANCHED_CALLS)
    assert found["new"] == ({"first"}, "captured")
    assert found["a"] == found.get("t", found["a"]) == ({"first"}, "dataflow")
    assert all(found[output] == ({BRANCHED_CALLS[output]}, "captured") for output in "bcdy")
    assert hold(BRANCHED, after)["a"] == "a"


def test_what_is_put_behind_a_tensor_belongs_to_its_maker_where_its_readers_have_new_names() -> None:
    after = put_behind("a = Mul (new, k)").replace("b", "b1").replace("(c, d)", "(c1, d1)")
    after = after.replace("c =", "c1 =").replace("d =", "d1 =")
    assert carry(BRANCHED, after, BRANCHED_CALLS)["a"] == ({"first"}, "dataflow")


def test_what_is_put_behind_an_output_that_nobody_reads_is_nobodys() -> None:
    after = TWO_LINEAR.replace("y = MatMul (r, w)", "new = MatMul (r, w) y = Tanh (new)")
    assert carry(TWO_LINEAR, after, TWO_CALLS)["y"] == (set(), "")


@pytest.mark.parametrize(
    "after",
    [
        put_behind("a = Mul (new, k)").replace("MatMul (a, w)", "MatMul (new, w)"),
        put_behind("t = Mul (new, k) a = Add (t, k)").replace("MatMul (a, w)", "MatMul (t, w)"),
    ],
    ids=["the tensor", "one on the way"],
)
def test_what_only_some_read_is_not_taken_for_what_a_call_returns(after: str) -> None:
    assert hold(BRANCHED, after)["a"] == "new"


def test_what_does_the_work_of_a_reader_belongs_to_the_reader_though_it_took_a_name() -> None:
    before = BRANCHED.replace("b = MatMul (a, v)", "s = Sigmoid (a) b = Mul (a, s)")
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] u, float[4, 4] w> {
            new = MatMul (x, u)
            c = MatMul (new, w)
            a = com.microsoft.QuickGelu (new)
            d = Add (new, a)
            y = Add (c, d)
        }
    """
    assert carry(before, after, {**BRANCHED_CALLS, "s": "left"})["a"][0] == {"left"}


def test_a_chain_of_inserted_nodes_is_walked_without_recursion() -> None:
    before, after = (build_chain(inserted) for inserted in (0, 30_000))
    tree = CallTree({ROOT: None, CallId("a", 0): ROOT})
    call = CallId("a", 0)
    carried: Carried = carry_scopes(before, [Attribution(call, (call,), "captured")] * 2, after, tree)
    assert all(found is not None and found.scope == call for found in carried.nodes)


def build_chain(inserted: int) -> View:
    made = View(graphs=[ViewGraph("", "", None, (), ())])
    given = made.add_tensor("x", 0)
    current = made.add_tensor("a", 0)
    made.add_node(ViewNode("Relu", "", 0, (given,), (current,), ()))
    for number in range(inserted):
        following = made.add_tensor(f"new{number}", 0)
        made.add_node(ViewNode("Cast", "", 0, (current,), (following,), (("to", ("INT", number % 2)),)))
        current = following
    last = made.add_tensor("y", 0)
    made.add_node(ViewNode("Neg", "", 0, (current,), (last,), ()))
    made.graphs[0] = ViewGraph("", "", None, (given,), (last,))
    return made


def test_what_reads_a_tensor_in_few_bits_reads_the_tensor() -> None:
    before = """
        main (int64[2] i) => (float[2, 4] y) <float[9, 4] v, float[4, 4] w> {
            e = Gather (v, i)
            m = MatMul (e, w)
            y = Add (m, e)
        }
    """
    after = """
        main (int64[2] i) => (float[2, 4] y)
        <uint8[9, 4] v2, uint8[4, 4] w2, float s, uint8 z, uint8 z2, float t> {
            q = Gather (v2, i)
            p = MatMulInteger (q, w2, z, z2)
            e = DequantizeLinear (q, s, z)
            c = Cast <to = 1> (p)
            m = Mul (c, t)
            y = Add (m, e)
        }
    """
    found = carry(before, after, {"e": "embed", "m": "query", "y": ""})
    assert found["p"] == ({"query"}, "carried")
    assert found["q"][0] == found["e"][0] == {"embed"}


def test_what_reshapes_inside_a_group_belongs_to_who_made_the_tensor_or_reads_it() -> None:
    """ONNX Runtime adds tensors in blocks of channels as tensors of five axes."""
    before = """
        main (float[b, 8, h, w] x) => (float[b, 8, h, w] y) <float[8, 8, 1, 1] v, float[8, 8, 1, 1] w> {
            c = Conv (x, v)
            d = Conv (c, w)
            a = Add (c, d)
            y = Relu (a)
        }
    """
    after = """
        main (float[b, 8, h, w] x) => (float[b, 8, h, w] y) <float[16, 8, 1, 1] p, float[16, 16, 1, 1] q, int64[5] s> {
            t1 = com.microsoft.nchwc.Conv (x, p)
            t2 = com.microsoft.nchwc.Conv (t1, q)
            r1 = Reshape (t1, s)
            r2 = Reshape (t2, s)
            t3 = Add (r1, r2)
            r3 = Reshape (t3, s)
            t4 = com.microsoft.nchwc.ReorderOutput (r3)
            y = Relu (t4)
        }
    """
    found = carry(before, after, {"c": "first", "d": "second", "a": "sum", "y": "act"})
    assert found["t3"] == ({"sum"}, "captured")
    # What the first Conv makes is known, so that it is moved for the group alone.
    assert [found[name] for name in ("r1", "r2", "r3")] == [
        ({"sum"}, "dataflow"),
        ({"second"}, "dataflow"),
        ({"sum"}, "dataflow"),
    ]
