"""The rules of carry for a region that a group of nodes shares."""

from __future__ import annotations

from support.onnx_text import carry, place


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
    assert found["t1"] == ({"of_x"}, "captured")
    assert found["t2"] == ({"of_z"}, "captured")
    assert found["t4"][0] == {"mul", "tanh"}  # what joins x and z must read both


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


def test_what_only_moves_elements_does_none_of_the_work_whose_weights_others_read() -> None:
    before = """
        main (float[2, 3, 8] x) => (float[8, 6] y)
        <float[4, 4] v, float[4] b, float[4, 4] w, float[4] c, int64[2] t> {
            s = Constant <value_ints = [2, 6, 4]> ()
            r = Reshape (x, s)
            m = MatMul (r, v)
            a = Add (m, b)
            n = MatMul (a, w)
            d = Add (n, c)
            k = Shape (d)
            e = Reshape (d, k)
            f = Reshape (e, t)
            y = Transpose <perm = [1, 0]> (f)
        }
    """
    after = """
        main (float[2, 3, 8] x) => (float[8, 6] y)
        <int64[2] s2, float[4, 4] v, float[4] b, float[4, 4] w, float[4] c, int64[2] t2> {
            p = Reshape (x, s2)
            g = Gemm (p, v, b)
            h = Gemm (g, w, c)
            f = Reshape (h, t2)
            y = Transpose <perm = [1, 0]> (f)
        }
    """
    calls = {
        "s": "",
        "r": "",
        "m": "first",
        "a": "first",
        "n": "second",
        "d": "second",
        "k": "",
        "e": "",
        "f": "",
        "y": "",
    }
    found = carry(before, after, calls)
    assert found["g"] == ({"first"}, "carried")
    assert found["h"][0] >= {"second"}
    assert "first" not in found["h"][0]


def test_what_gives_a_tensor_its_form_again_does_the_work_of_its_call_as_well() -> None:
    before = """
        main (float[2, 3, 4] x) => (float[2, 3, 4] y) <float[4, 4] w, float[4] b, float[2, 3, 4] l, float[2, 3, 4] r> {
            m = MatMul (x, w)
            l = Add (m, b)
            s = Shape (x)
            r = Reshape (l, s)
            y = Relu (r)
        }
    """
    after = """
        main (float[2, 3, 4] x) => (float[2, 3, 4] y) <float[4, 4] w, float[4] b, int64[2] i, float[2, 3, 4] r> {
            p = Reshape (x, i)
            g = Gemm (p, w, b)
            s = Shape (x)
            r = Reshape (g, s)
            y = Relu (r)
        }
    """
    found = carry(before, after, {"m": "linear", "l": "linear", "s": "", "r": "", "y": ""})
    assert found["r"] == ({"", "linear"}, "carried")
    assert found["g"][0] == {"linear"}


def test_in_a_group_nobody_does_work_that_comes_before_that_of_others_before_it() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[2, 4] s, float[4, 4] w> {
            e = Exp (x)
            k = Cast <to = 1> (e)
            m = Mul (k, s)
            p = MatMul (m, w)
            y = Neg (p)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[2, 4] s, float[4, 4] w> {
            t1 = com.microsoft.Other (x, s)
            t2 = com.microsoft.Third (t1, w)
            t3 = com.microsoft.Fourth (t2)
            y = Neg (t3)
        }
    """
    found = carry(before, after, {"e": "exp", "k": "exp", "m": "scale", "p": "project", "y": "neg"})
    assert found["t2"] == ({"project"}, "carried")
    assert found["t3"] != ({"exp"}, "carried")


def test_in_a_group_what_needs_the_work_of_others_needs_it_before_as_well() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 2] y) <float[4, 4] v, float[4, 4] w> {
            e = Tanh (x)
            n = Neg (e)
            a = MatMul (n, v)
            b = MatMul (n, w)
            r = Exp (a)
            s = Exp (b)
            t = Transpose <perm = [1, 0]> (s)
            y = MatMul (r, t)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 2] y) <float[4, 4] v, float[4, 4] w> {
            t0 = com.microsoft.Start (x)
            t1 = com.microsoft.Other (t0, w)
            t2 = Exp (t1)
            t3 = com.microsoft.Other (t0, v)
            t4 = Exp (t3)
            y = com.microsoft.FusedMatMul <transB = 1> (t4, t2)
        }
    """
    start = {"e": "start", "n": "start"}
    found = carry(before, after, {**start, "a": "q", "b": "k", "r": "of_q", "s": "of_k", "t": "turn", "y": "join"})
    assert found["t2"] == ({"of_k"}, "captured")
    assert found["t4"] == ({"of_q"}, "captured")


def test_in_a_group_what_is_made_of_one_tensor_does_no_work_on_another() -> None:
    before = """
        main (float[2, 4] x, float[2, 4] z) => (float[2, 4] y) {
            a = Tanh (x)
            b = Tanh (z)
            r = Exp (a)
            s = Exp (b)
            y = Mul (r, s)
        }
    """
    after = """
        main (float[2, 4] x, float[2, 4] z) => (float[2, 4] y) <int64[3] form> {
            b = Tanh (z)
            t1 = Reshape (b, form)
            t2 = Exp (t1)
            a = Tanh (x)
            t3 = Reshape (a, form)
            t4 = Exp (t3)
            y = com.microsoft.Joined (t4, t2)
        }
    """
    found = carry(before, after, {"a": "x", "b": "z", "r": "of_x", "s": "of_z", "y": "join"})
    assert found["t2"] == ({"of_z"}, "captured")
    assert found["t4"] == ({"of_x"}, "captured")
    assert found["y"] == ({"join"}, "carried")


JOINED = """
    main (float[2, 4] x) => (float[2, 4] a, float[2, 4] b)
    <float[4, 4] q, float[4, 4] k, float[4, 4] v, float[4] p, float[4] r> {
        xq = MatMul (x, q)
        xk = MatMul (x, k)
        xv = MatMul (x, v)
        pq = Add (xq, p)
        a = Neg (pq)
        rk = Add (xk, r)
        b = Exp (rk)
        unread = Neg (xv)
    }
"""
JOINED_CALLS = {"xq": "q", "xk": "k", "xv": "v", "pq": "q", "a": "q", "rk": "k", "b": "k", "unread": "v"}


def test_a_product_of_joined_weights_does_the_work_of_all_that_nobody_else_does() -> None:
    after = """
        main (float[2, 4] x) => (float[2, 4] a, float[2, 4] b) <float[4, 12] qkv, float[4] p, float[4] r> {
            all = MatMul (x, qkv)
            s0, s1, s2 = Split <axis = 1, num_outputs = 3> (all)
            t1 = Add (s0, p)
            a = Neg (t1)
            t2 = Add (s1, r)
            b = Exp (t2)
        }
    """
    found = carry(JOINED, after, JOINED_CALLS)
    assert found["all"][0] == {"q", "k", "v"}
    assert found["t1"][0] == {"q"}
    assert found["t2"][0] == {"k"}


def test_of_a_product_of_joined_weights_one_part_may_be_read_alone() -> None:
    before = JOINED.replace(", float[2, 4] b)", ")")
    after = """
        main (float[2, 4] x) => (float[2, 4] a) <float[4, 12] qkv, float[4] p> {
            all = MatMul (x, qkv)
            s0, s1, s2 = Split <axis = 1, num_outputs = 3> (all)
            t1 = Add (s0, p)
            a = Neg (t1)
        }
    """
    assert carry(before, after, JOINED_CALLS)["all"][0] == {"q", "k", "v"}


def test_nodes_that_a_tool_wrote_do_the_work_that_they_are_named_after() -> None:
    before = """
        main (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
        <float[4, 4, 1, 1] v, float[4] s, float[4] b, float[4] m, float[4] u> {
            c = Conv (x, v)
            a = Add (c, x)
            r = Relu (a)
            n = BatchNormalization (r, s, b, m, u)
            l = LeakyRelu (n)
            y = Add (l, r)
        }
    """
    after = """
        main (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) <float[4, 4, 1, 1] p, float[4, 1, 1, 1] q> {
            [c_nchwc] t1 = com.microsoft.nchwc.Conv (x, p, p, x)
            [n_bn_nchwc] t2 = com.microsoft.nchwc.Conv (t1, q)
            n = com.microsoft.nchwc.ReorderOutput (t2)
            l = LeakyRelu (n)
            t3 = com.microsoft.nchwc.ReorderOutput (t1)
            y = Add (l, t3)
        }
    """
    found = carry(before, after, {"c": "conv", "a": "sum", "r": "act", "n": "norm", "l": "leaky", "y": "join"})
    assert found["t1"][0] == {"conv", "sum", "act"}
    assert found["t2"] == ({"norm"}, "carried")
    assert found["l"] == ({"leaky"}, "captured")


def test_nodes_named_after_the_last_of_several_do_them_all() -> None:
    before = """
        main (float[1, 4, 8, 8] x, float[1, 4, 8, 8] z) => (float[1, 4, 8, 8] y)
        <float[4, 4, 1, 1] v, float[4, 4, 1, 1] w, float[4] s, float[4] b, float[4] m, float[4] u> {
            e = Add (x, z)
            c = Conv (e, v)
            n = BatchNormalization (c, s, b, m, u)
            g = Sigmoid (n)
            h = Mul (n, g)
            d = MaxPool <kernel_shape = [1, 1]> (h)
            k = Conv (d, w)
            y = Neg (k)
        }
    """
    after = """
        main (float[1, 4, 8, 8] x, float[1, 4, 8, 8] z) => (float[1, 4, 8, 8] y)
        <float[4, 4, 1, 1] p, float[4, 4, 1, 1] q> {
            t0 = com.microsoft.nchwc.Start (x, z)
            [n_nchwc] t1 = com.microsoft.nchwc.Conv (t0, p)
            [h_QuickGeluFusion] t2 = com.microsoft.QuickGelu (t1)
            [d_nchwc] t3 = com.microsoft.nchwc.MaxPool <kernel_shape = [1, 1]> (t2)
            [k_nchwc] t4 = com.microsoft.nchwc.Conv (t3, q)
            y = Neg (t4)
        }
    """
    calls = {"e": "sum", "c": "conv", "n": "norm", "g": "act", "h": "act", "d": "pool", "k": "last", "y": "neg"}
    found = carry(before, after, calls)
    assert {name: origins for name, (origins, _) in found.items() if name != "t0"} == {
        "t1": {"conv", "norm"},
        "t2": {"act"},
        "t3": {"pool"},
        "t4": {"last"},
        "y": {"neg"},
    }


def test_what_a_node_does_that_is_there_as_it_was_nobody_else_does() -> None:
    before = """
        main (float[n, 2, 4] x) => (float[n, 4] y, float[m, k] r) <float[4, 4] w, float[4] b, int64 zero> {
            t = Tanh (x)
            s = Shape (t)
            r = Reshape (t, s)
            p = MatMul (r, w)
            y = Add (p, b)
        }
    """
    after = """
        main (float[n, 2, 4] x) => (float[n, 4] y, float[m, k] r)
        <float[4, 4] w, float[4] b, int64[2] flat, int64[3] back> {
            t = Tanh (x)
            s = Shape (t)
            r = Reshape (t, s)
            f = Reshape (t, flat)
            g = Gemm (f, w, b)
            y = Reshape (g, back)
        }
    """
    calls = {"t": "act", "s": "form", "r": "form", "p": "linear", "y": "linear"}
    found = carry(before, after, calls)
    assert found["r"] == ({"form"}, "captured")
    assert found["f"][0] == {"linear"}
