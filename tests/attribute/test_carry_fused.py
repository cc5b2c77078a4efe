"""The rules of carry for nodes that a tool left, fused, merged or split."""

from __future__ import annotations

from support.carry_graphs import CONV_AND_NORM, EQUAL_WORK, TWO_CALLS, TWO_LINEAR
from support.onnx_text import carry, place


def test_a_node_that_is_as_it_was_keeps_its_call_and_evidence() -> None:
    assert carry(TWO_LINEAR, TWO_LINEAR, TWO_CALLS) == {
        "a": ({"first"}, "captured"),
        "r": ({"first"}, "captured"),
        "y": ({"second"}, "captured"),
    }


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


def test_a_product_that_is_part_of_an_activation_is_not_the_one_behind_it() -> None:
    before = """
        main (float[1, 8, 4, 4] x, float[1, 8, 4, 4] z) => (float[1, 8, 4, 4] y)
        <float[8, 8, 1, 1] v, float[8, 8, 1, 1] w> {
            c = Conv (x, v)
            g = Sigmoid (c)
            m = Mul (c, g)
            k = Tanh (z)
            s = Mul (m, k)
            y = Conv (s, w)
        }
    """
    after = """
        main (float[1, 8, 4, 4] x, float[1, 8, 4, 4] z) => (float[1, 8, 4, 4] y)
        <float[8, 8, 1, 1] n1, float[8, 8, 1, 1] n2> {
            t1 = com.microsoft.nchwc.Conv (x, n1)
            t2 = com.microsoft.QuickGelu (t1)
            k = Tanh (z)
            t3 = Mul (t2, k)
            t4 = com.microsoft.nchwc.Conv (t3, n2)
            y = com.microsoft.nchwc.ReorderOutput (t4)
        }
    """
    found = carry(before, after, {"c": "first", "g": "act", "m": "act", "k": "mask", "s": "scale", "y": "second"})
    assert found["t1"][0] == {"first"}
    assert found["t2"][0] == {"act"}
    assert found["t3"][0] == {"scale"}
    assert found["t4"][0] == found["y"][0] == {"second"}


def test_an_operand_that_is_read_again_is_known_however_many_others_read_it() -> None:
    """In half precision each reader of `x` has a Cast of its own."""
    count = 8
    others = "".join(f", float[1, 8, 4, 4] o{i}" for i in range(count))
    ends = f"main (float[1, 8, 4, 4] x, float[1, 8, 4, 4] z) => (float[1, 8, 4, 4] y{others})"
    readers, casts = (
        " ".join(text.format(i=i) for i in range(count))
        for text in (
            "o{i} = Elu <alpha = {i}.0> (x)",
            "xc{i} = Cast <to = 10> (x) oc{i} = Elu <alpha = {i}.0> (xc{i}) o{i} = Cast <to = 1> (oc{i})",
        )
    )
    before = f"""
        {ends} <float[8, 8, 1, 1] v, float[8, 8, 1, 1] w> {{
            {readers}
            c = Conv (x, v)
            s = Add (c, x)
            m = Add (s, z)
            y = Conv (m, w)
        }}
    """
    after = f"""
        {ends} <float[8, 8, 1, 1] n1, float[8, 8, 1, 1] n2> {{
            {casts}
            xa = Cast <to = 10> (x)
            t1 = com.microsoft.nchwc.Conv (xa, n1)
            xb = Cast <to = 10> (x)
            t2 = Add (t1, xb)
            zc = Cast <to = 10> (z)
            t3 = Add (t2, zc)
            t4 = com.microsoft.nchwc.Conv (t3, n2)
            y = com.microsoft.nchwc.ReorderOutput (t4)
        }}
    """
    calls = {"c": "first", "s": "residual", "m": "sum", "y": "second"} | {f"o{i}": f"other{i}" for i in range(count)}
    found = carry(before, after, calls)
    assert found["t1"] == ({"first"}, "carried")
    assert found["t2"] == ({"residual"}, "captured")
    assert found["t3"] == ({"sum"}, "captured")
    assert found["t4"] == ({"second"}, "carried")


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


def test_of_two_reshapes_of_one_form_the_one_that_is_left_does_the_work_of_both() -> None:
    before = """
        main (float[2, 3, 4] x) => (float[6, 4] y) <int64[2] s, float[6, 4] p, float[6, 4] q> {
            t = Tanh (x)
            p = Reshape (t, s)
            q = Reshape (p, s)
            y = Relu (q)
        }
    """
    after = """
        main (float[2, 3, 4] x) => (float[6, 4] y) <int64[2] s, float[6, 4] q> {
            t = Tanh (x)
            q = Reshape (t, s)
            y = Relu (q)
        }
    """
    found = carry(before, after, {"t": "", "p": "", "q": "gate", "y": "gate"})
    assert found["q"] == ({"", "gate"}, "carried")
    assert found["t"] == ({""}, "captured")


def test_a_size_that_is_taken_elsewhere_is_work_of_those_who_take_it() -> None:
    before = """
        main (float[n, 4] x) => (float[n, 4] y, int64[1] c) <float[4, 4] w, int64 i, int64[1] axes> {
            h = MatMul (x, w)
            e = Exp (h)
            s = Shape (e)
            g = Gather (s, i)
            c = Unsqueeze (g, axes)
            y = Neg (e)
        }
    """
    after = """
        main (float[n, 4] x) => (float[n, 4] y, int64[1] c) <float[4, 4] w> {
            h = MatMul (x, w)
            e = Exp (h)
            c = Shape <start = 0, end = 1> (x)
            y = Neg (e)
        }
    """
    calls = {"h": "linear", "e": "act", "s": "size", "g": "size", "c": "size", "y": "neg"}
    found = carry(before, after, calls)
    assert found["c"][0] == {"size"}
