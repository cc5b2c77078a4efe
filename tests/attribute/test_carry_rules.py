"""The rules of carry, one by one, on graphs of a few nodes."""

from __future__ import annotations

from hieronnx.attribute.carried import Carried, carry_scopes
from hieronnx.graph.view import View, ViewGraph, ViewNode
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import ROOT, Attribution, CallId
from support.onnx_text import carry, fold, hold, place

TWO_LINEAR = """
    main (float[2, 4] x) => (float[2, 4] y)
    <float[4, 4] v, float[4, 4] w> {
        a = MatMul (x, v)
        r = Relu (a)
        y = MatMul (r, w)
    }
"""
TWO_CALLS = {"a": "first", "r": "first", "y": "second"}


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


def test_products_that_were_merged_and_split_again_keep_all_their_calls() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] q, float[4, 4] k> {
            a = MatMul (x, q)
            b = MatMul (x, k)
            s = Relu (a)
            t = Relu (b)
            y = Mul (s, t)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 8] both> {
            all = MatMul (x, both)
            a, new = Split <axis = 1, num_outputs = 2> (all)
            s = Relu (a)
            t = Relu (new)
            y = Mul (s, t)
        }
    """
    found = carry(before, after, {"a": "query", "b": "key", "s": "", "t": "", "y": ""})
    assert found["all"][0] == found["a"][0] == {"query", "key"}
    assert found["t"] == ({""}, "captured")


def test_a_reshape_takes_over_no_arithmetic() -> None:
    before = """
        main (float[2, 2, 4] x) => (float[2, 2, 4] y)
        <float[4, 4] w, float[4] bias, float scale = {0.5}, int64[3] shape = {2, 2, 4}> {
            a = MatMul (x, w)
            b = Add (a, bias)
            c = Reshape (b, shape)
            y = Mul (c, scale)
        }
    """
    after = """
        main (float[2, 2, 4] x) => (float[2, 2, 4] y)
        <float[4, 4] new, float[4] other, int64[2] flat = {4, 4}, int64[3] shape = {2, 2, 4}> {
            p = Reshape (x, flat)
            g = Gemm (p, new, other)
            y = Reshape (g, shape)
        }
    """
    found = carry(before, after, {"a": "proj", "b": "proj", "c": "", "y": "scaling"})
    assert found["g"][0] >= {"proj", "scaling"}


def test_a_reshape_after_a_product_does_not_take_over_the_one_before_it() -> None:
    before = """
        main (float[2, 4, 2] x) => (float[2, 2, 4] y)
        <float[4, 4] w, float[4] bias, int64[3] shape = {2, 2, 4}> {
            p = Transpose <perm = [0, 2, 1]> (x)
            v = Reshape (p, shape)
            m = MatMul (v, w)
            l = Add (m, bias)
            y = Relu (l)
        }
    """
    after = """
        main (float[2, 4, 2] x) => (float[2, 2, 4] y)
        <float[4, 4] w, float[4] bias, int64[2] flat = {4, 4}, int64[3] shape = {2, 2, 4}> {
            p = Transpose <perm = [0, 2, 1]> (x)
            new = Reshape (p, flat)
            g = Gemm (new, w, bias)
            l = Reshape (g, shape)
            y = Relu (l)
        }
    """
    found = carry(before, after, {"p": "self", "v": "self", "m": "dense", "l": "dense", "y": "act"})
    assert found["new"][0] == {"self"}
    assert found["g"][0] == found["l"][0] == {"dense"}


def test_a_product_of_which_parts_are_not_read_any_more_keeps_all_its_calls() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] q, float[4, 4] k, float[4, 4] v, float zero = {0.0}> {
            a = MatMul (x, q)
            b = MatMul (x, k)
            c = MatMul (x, v)
            d = Mul (a, b)
            e = Mul (d, zero)
            y = Add (c, e)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 12] all> {
            new = MatMul (x, all)
            one, two, three = Split <axis = 1, num_outputs = 3> (new)
            y = Identity (three)
        }
    """
    found = carry(before, after, {"a": "query", "b": "key", "c": "value", "d": "", "e": "", "y": ""})
    assert found["new"][0] >= {"query", "key", "value"}


def test_a_residual_that_went_into_a_convolution_of_another_layout_keeps_its_calls() -> None:
    before = """
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y)
        <float[8, 8, 1, 1] u, float[8, 8, 1, 1] v, float[8, 8, 1, 1] w> {
            s = Conv (x, u)
            c = Conv (x, v)
            r = Relu (c)
            d = Conv (r, w)
            e = Add (d, s)
            f = Relu (e)
            y = Sigmoid (f)
        }
    """
    after = """
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y)
        <float[8, 8, 1, 1] n1, float[8, 8, 1, 1] n2, float[8, 8, 1, 1] n3, float[8] n4> {
            t1 = com.microsoft.nchwc.Conv (x, n1)
            t2 = com.microsoft.nchwc.Conv (x, n2)
            r = com.microsoft.nchwc.ReorderOutput (t2)
            t3 = com.microsoft.nchwc.Conv (t2, n3, n4, t1)
            f = com.microsoft.nchwc.ReorderOutput (t3)
            y = Sigmoid (f)
        }
    """
    calls = {"s": "shortcut", "c": "first", "r": "act", "d": "second", "e": "block", "f": "last", "y": "gate"}
    found = carry(before, after, calls)
    assert found["t1"][0] == {"shortcut"}
    assert found["t2"][0] == {"first", "act"}
    assert found["r"][0] == {"act"}
    assert found["t3"][0] == {"second", "block", "last"}
    assert found["f"][0] == {"last"}


def test_an_operator_that_was_made_of_several_is_found_between_those_around_it() -> None:
    before = """
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) <float[8, 8, 1, 1] v, float[8, 8, 1, 1] w> {
            c = Conv (x, v)
            g = Sigmoid (c)
            m = Mul (c, g)
            y = Conv (m, w)
        }
    """
    after = """
        main (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) <float[8, 8, 1, 1] n1, float[8, 8, 1, 1] n2> {
            t1 = com.microsoft.nchwc.Conv (x, n1)
            t2 = com.microsoft.QuickGelu (t1)
            t3 = com.microsoft.nchwc.Conv (t2, n2)
            y = com.microsoft.nchwc.ReorderOutput (t3)
        }
    """
    found = carry(before, after, {"c": "first", "g": "act", "m": "act", "y": "second"})
    assert found["t1"][0] == {"first"}
    assert found["t2"][0] == {"act"}
    assert found["t3"][0] == found["y"][0] == {"second"}


def test_operators_of_the_same_kind_are_found_by_what_they_read() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4, 4] w> {
            a = MatMul (x, v)
            r = Relu (a)
            b = MatMul (r, w)
            y = Sigmoid (b)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y)
        <float s = {1.0}, uint8 z = {0}, uint8[4, 4] m, uint8[4, 4] n> {
            p = QuantizeLinear (x, s, z)
            a1 = QLinearMatMul (p, s, z, m, s, z, s, z)
            b1 = QLinearMatMul (a1, s, z, n, s, z, s, z)
            y1 = com.microsoft.QLinearSigmoid (b1, s, z, s, z)
            y = DequantizeLinear (y1, s, z)
        }
    """
    found = carry(before, after, {"a": "first", "r": "act", "b": "second", "y": "gate"})
    assert found["a1"][0] == {"first", "act"}
    assert found["b1"][0] == {"second"}
    assert found["y1"][0] == found["y"][0] == {"gate"}


# -- one node, several, and copies ------------------------------------------------------------------------


def test_a_node_that_is_as_it_was_keeps_its_call_and_evidence() -> None:
    assert carry(TWO_LINEAR, TWO_LINEAR, TWO_CALLS) == {
        "a": ({"first"}, "captured"),
        "r": ({"first"}, "captured"),
        "y": ({"second"}, "captured"),
    }


CONV_AND_NORM = """
    main (float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] y)
    <float[4, 4, 1, 1] w, float[4] s, float[4] b, float[4] m, float[4] v> {
        c = Conv (x, w)
        n = BatchNormalization (c, s, b, m, v)
        y = Relu (n)
    }
"""


def test_a_fused_node_has_two_origins_and_the_lowest_call_above_them_for_its_scope() -> None:
    after = """
        main (float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] y) <float[4, 4, 1, 1] new, float[4] bias> {
            n = Conv (x, new, bias)
            y = Relu (n)
        }
    """
    calls = {"c": "block.conv", "n": "block.norm", "y": "block.act"}
    assert carry(CONV_AND_NORM, after, calls)["n"] == ({"block.conv", "block.norm"}, "carried")
    assert place(CONV_AND_NORM, after, calls)["n"] == "block"


def test_work_that_went_into_the_node_before_is_its_own_though_its_output_kept_its_name() -> None:
    after = """
        main (float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] y) <float[4, 4, 1, 1] new, float[4] bias> {
            c = Conv (x, new, bias)
            y = Relu (c)
        }
    """
    found = carry(CONV_AND_NORM, after, {"c": "conv", "n": "norm", "y": "act"})
    assert found["c"][0] == {"conv", "norm"}
    assert found["y"] == ({"act"}, "captured")


def test_constants_and_shapes_in_a_region_add_no_origin() -> None:
    before = """
        main (float[2, 4] x) => (float[8] y) {
            s = Shape (x)
            n = ReduceProd <keepdims = 1> (s)
            r = Reshape (x, n)
            y = Relu (r)
        }
    """
    after = "main (float[2, 4] x) => (float[8] y) { y = com.microsoft.FlatRelu (x) }"
    calls = {"s": "sizes", "n": "sizes", "r": "view", "y": "act"}
    assert carry(before, after, calls)["y"][0] == {"view", "act"}


def test_a_copy_in_a_region_adds_no_origin() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) {
            i = Identity (x)
            a = Relu (i)
            y = Sigmoid (a)
        }
    """
    after = "main (float[2, 4] x) => (float[2, 4] y) { y = com.microsoft.ReluSigmoid (x) }"
    assert carry(before, after, {"i": "copy", "a": "relu", "y": "gate"})["y"][0] == {"relu", "gate"}


def test_a_region_of_sizes_alone_has_their_origins_and_not_those_of_literals() -> None:
    before = """
        main (float[2, 4] x) => (int64[2] y) <int64[2] two = {2, 2}> {
            l = Neg (two)
            s = Shape (x)
            y = Mul (s, l)
        }
    """
    after = "main (float[2, 4] x) => (int64[2] y) { y = com.microsoft.Count (x) }"
    assert carry(before, after, {"l": "literal", "s": "sizes", "y": "count"})["y"][0] == {"sizes", "count"}


EQUAL_WORK = """
    main (float[2, 4] x) => (float[2, 4] y) {
        a = Relu (x)
        b = Relu (x)
        y = Mul (a, b)
    }
"""


def test_every_copy_that_was_merged_is_an_origin() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y) {
            a = Relu (x)
            y = Mul (a, a)
        }
    """
    found = carry(EQUAL_WORK, after, {"a": "first", "b": "second", "y": ""})
    assert found["a"] == ({"first", "second"}, "captured")


def test_copies_that_are_still_there_keep_to_themselves() -> None:
    found = carry(EQUAL_WORK, EQUAL_WORK, {"a": "first", "b": "second", "y": ""})
    assert (found["a"][0], found["b"][0]) == ({"first"}, {"second"})


# -- initializers and tensors -----------------------------------------------------------------------------


def test_an_initializer_keeps_the_calls_whose_work_was_folded_into_it() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w> {
            t = Transpose <perm = [1, 0]> (w)
            s = Neg (t)
            y = MatMul (x, s)
        }
    """
    after = "main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] s> { y = MatMul (x, s) }"
    assert fold(before, after, {"t": "turn", "s": "sign", "y": "proj"}) == {"s": ({"turn", "sign"}, {"w"})}


def test_a_renamed_weight_is_found_from_its_reader() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4, 4] other> {
            a = MatMul (x, v)
            r = Relu (a)
            y = MatMul (r, other)
        }
    """
    assert fold(TWO_LINEAR, after, TWO_CALLS)["other"] == (set(), {"w"})


def test_a_weight_of_another_size_is_not_taken_for_its_readers_weight() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4, 8] other> {
            a = MatMul (x, v)
            r = Relu (a)
            y = MatMul (r, other)
        }
    """
    assert "other" not in fold(TWO_LINEAR, after, TWO_CALLS)


def test_a_node_that_computes_a_renamed_constant_is_found_from_its_reader() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w> {
            t = Transpose <perm = [1, 0]> (w)
            y = MatMul (x, t)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v> {
            new = Transpose <perm = [1, 0]> (v)
            y = MatMul (x, new)
        }
    """
    assert carry(before, after, {"t": "turn", "y": "proj"})["new"] == ({"turn"}, "captured")
    assert fold(before, after, {"t": "turn", "y": "proj"})["v"] == (set(), {"w"})


def test_a_merged_copy_has_its_value_in_the_one_that_is_left() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y) {
            a = Relu (x)
            y = Mul (a, a)
        }
    """
    assert hold(EQUAL_WORK, after) == {"x": "x", "a": "a", "b": "a", "y": "y"}


def test_a_tensor_in_another_type_does_not_hold_the_value() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4, 4] w> {
            new = MatMul (x, v)
            a = Cast <to = 10> (new)
            r = Relu (a)
            y = MatMul (r, w)
        }
    """
    assert hold(TWO_LINEAR, after)["a"] == "new"


def test_a_tensor_that_was_turned_and_turned_back_is_held_by_what_it_was() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) {
            t = Transpose <perm = [1, 0]> (x)
            u = Transpose <perm = [1, 0]> (t)
            y = Relu (u)
        }
    """
    after = "main (float[2, 4] x) => (float[2, 4] y) { y = Relu (x) }"
    assert hold(before, after) == {"x": "x", "t": None, "u": "x", "y": "y"}


# -- inserted nodes ---------------------------------------------------------------------------------------


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


# -- a group divided --------------------------------------------------------------------------------------


def test_in_a_group_the_parameters_that_a_node_reads_decide_first() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4] b, float[4, 4] w> {
            a = MatMul (x, v)
            c = Add (a, b)
            d = MatMul (c, w)
            y = Relu (d)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4] b, float[4, 4] w> {
            new = Gemm (x, v, b)
            y = com.microsoft.MatMulRelu (new, w)
        }
    """
    found = carry(before, after, {"a": "first", "c": "first", "d": "second", "y": "act"})
    assert found["new"] == ({"first"}, "carried")
    assert found["y"] == ({"second", "act"}, "carried")


def test_in_a_group_the_only_node_of_an_operator_is_that_operators() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) {
            a = Relu (x)
            b = Sigmoid (a)
            c = Tanh (b)
            y = Neg (c)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) {
            t1 = com.microsoft.Other (x)
            t2 = Tanh (t1)
            y = Neg (t2)
        }
    """
    found = carry(before, after, {"a": "one", "b": "two", "c": "three", "y": "four"})
    assert found["t2"][0] == {"three"}
    assert found["y"][0] == {"four"}
    assert found["t1"][0] == {"one", "two"}


def test_in_a_group_the_one_that_seems_to_do_nothing_does_what_nobody_else_does() -> None:
    steps = "".join(f"e{number + 1} = Exp (e{number})\n" for number in range(7)).replace("(e0)", "(x)")
    before = f"main (float[2, 4] x) => (float[2, 4] y) {{ {steps} c = Tanh (e7) y = Neg (c) }}"
    after = """
        main (float[2, 4] x) => (float[2, 4] y) {
            t1 = com.microsoft.Other (x)
            t2 = Tanh (t1)
            y = Neg (t2)
        }
    """
    calls = {**{f"e{number}": "early" for number in range(1, 8)}, "c": "tanh", "y": "neg"}
    assert carry(before, after, calls)["t1"] == ({"early"}, "carried")


def test_in_a_group_nodes_that_read_the_same_fixed_points_are_the_same() -> None:
    before = """
        main (float[2, 4] w, float[2, 4] x, float[2, 4] z) => (float[2, 4] y) {
            s = Exp (w)
            a = Add (s, z)
            b = Add (s, x)
            c = Mul (a, b)
            d = Tanh (c)
            y = Neg (d)
        }
    """
    after = """
        main (float[2, 4] w, float[2, 4] x, float[2, 4] z) => (float[2, 4] y) {
            t0 = com.microsoft.Other (w)
            t1 = Add (t0, x)
            t2 = Add (t0, z)
            t3 = Tanh (t0)
            t4 = com.microsoft.Joined (t2, t1, t3)
            y = Neg (t4)
        }
    """
    found = carry(before, after, {"s": "exp", "a": "of_z", "b": "of_x", "c": "mul", "d": "tanh", "y": "neg"})
    assert found["t1"][0] == {"of_x"}
    assert found["t2"][0] == {"of_z", "mul"}


def test_in_a_group_nodes_of_one_operator_are_taken_in_their_order() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) {
            a = Relu (x)
            b = Neg (a)
            c = Relu (b)
            d = Exp (c)
            y = Tanh (d)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) {
            t1 = com.microsoft.Relu (x)
            t2 = com.microsoft.NegAgain (t1)
            t3 = com.microsoft.Relu (t2)
            y = com.microsoft.ExpTanh (t3)
        }
    """
    found = carry(before, after, {"a": "first", "b": "sign", "c": "second", "d": "exp", "y": "tanh"})
    assert (found["t1"][0], found["t3"][0]) == ({"first"}, {"second"})
    assert found["y"][0] >= {"tanh"}


def test_in_a_group_nobody_takes_work_that_lies_upstream_of_what_one_before_it_does() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w> {
            a = Relu (x)
            b = MatMul (a, w)
            y = Neg (b)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] w> {
            t1 = com.microsoft.Start (x)
            t2 = com.microsoft.Product (t1, w)
            t3 = com.microsoft.Relu (t2)
            y = Neg (t3)
        }
    """
    found = carry(before, after, {"a": "act", "b": "proj", "y": "sign"})
    assert found["t2"] == ({"proj"}, "carried")
    assert found["t3"] == ({"act", "proj"}, "dataflow")  # not the Relu of A, which comes before the product


def test_in_a_group_of_many_calls_a_node_that_cannot_be_told_apart_has_only_their_common_call() -> None:
    names = [f"n{number}" for number in range(12)]
    steps = "".join(f"{name} = Relu ({before})\n" for before, name in zip(["x", *names], names, strict=False))
    before = f"main (float[2, 4] x) => (float[2, 4] y) {{ {steps} y = Exp (n11) }}"
    after = """
        main (float[2, 4] x) => (float[2, 4] y) {
            t1 = com.microsoft.One (x)
            t2 = com.microsoft.Two (t1)
            y = com.microsoft.Three (t2)
        }
    """
    found = carry(before, after, {**{name: f"all.{name}" for name in names}, "y": "all.exp"})
    assert found["t1"] == found["t2"] == ({"all"}, "dataflow")
    assert found["y"] == ({"all.exp"}, "carried")


# -- large graphs -----------------------------------------------------------------------------------------


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


def test_products_of_one_tensor_with_weights_of_other_sizes_are_told_apart() -> None:
    """All names are new, and the products have changed places."""
    before = """
        main (float[2, 4] x) => (float[2, 3] y) <float[4, 8] v, float[4, 6] w, float[8, 3] p, float[6, 3] q> {
            a = MatMul (x, v)
            b = MatMul (x, w)
            c = MatMul (a, p)
            d = MatMul (b, q)
            y = Add (c, d)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 3] y) <float[4, 6] n1, float[4, 8] n2, float[8, 3] n3, float[6, 3] n4> {
            t1 = MatMul (x, n1)
            t2 = MatMul (x, n2)
            t3 = MatMul (t2, n3)
            t4 = MatMul (t1, n4)
            y = Add (t3, t4)
        }
    """
    calls = {"a": "wide", "b": "narrow", "c": "of_wide", "d": "of_narrow", "y": ""}
    found = place(before, after, calls)
    assert (found.get("t1"), found.get("t2")) == ("narrow", "wide")
