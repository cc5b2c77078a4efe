"""The rules of carry for initializers and tensors: whose work they hold, and what became of them."""

from __future__ import annotations

from support.carry_graphs import EQUAL_WORK, TWO_CALLS, TWO_LINEAR
from support.onnx_text import carry, fold, hold


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


def test_a_reshape_that_changed_nothing_is_held_by_what_it_read_where_the_result_alone_tells_the_sizes() -> None:
    before = """
        main (float[2, 4] x) => (float[4, 2] y) <int64[2] t, float[4, 2] r> {
            s = Shape (x)
            p = Transpose <perm = [1, 0]> (x)
            q = Reshape (p, t)
            r = Reshape (q, s)
            y = Relu (r)
        }
    """
    after = """
        main (float[2, 4] x) => (float[4, 2] y) <int64[2] t, float[2, 4] p, float[4, 2] q> {
            p = Transpose <perm = [1, 0]> (x)
            q = Reshape (p, t)
            y = Relu (q)
        }
    """
    assert hold(before, after)["r"] == "q"


def test_two_reshapes_that_were_joined_hold_nothing_of_the_first() -> None:
    before = """
        main (float[2, 3, 4] x) => (float[2, 3, 4] y) <float[4, 4] w, float[4] b> {
            s = Shape (x)
            t = Tanh (x)
            r = Reshape (t, s)
            m = MatMul (r, w)
            y = Add (m, b)
        }
    """
    after = """
        main (float[2, 3, 4] x) => (float[2, 3, 4] y) <float[4, 4] w, float[4] b, int64[2] n, int64[3] k> {
            t = Tanh (x)
            p = Reshape (t, n)
            q = Gemm (p, w, b)
            y = Reshape (q, k)
        }
    """
    assert hold(before, after)["r"] is None
    assert hold(before, after.replace("q = Gemm (p, w, b)", "q = MatMul (p, w)"))["r"] == "p"


def test_what_is_computed_as_a_matrix_holds_nothing_until_it_is_reshaped_back() -> None:
    weights = "float[4, 4] v, float[4] b, float[4, 4] w, float[4] c"
    before = f"""
        main (float[2, 3, 4] x) => (float[2, 3, 4] y) <{weights}> {{
            s = Shape (x)
            r = Reshape (x, s)
            m = MatMul (r, v)
            a = Add (m, b)
            d = Relu (a)
            n = MatMul (d, w)
            e = Add (n, c)
            y = Exp (e)
        }}
    """
    after = f"""
        main (float[2, 3, 4] x) => (float[2, 3, 4] y) <{weights}, int64[2] i, int64[3] k> {{
            p = Reshape (x, i)
            g = Gemm (p, v, b)
            d = Relu (g)
            h = Gemm (d, w, c)
            e = Reshape (h, k)
            y = Exp (e)
        }}
    """
    held = hold(before, after)
    assert {name: held[name] for name in "rmadney"} == {**dict.fromkeys("rmadn"), "e": "e", "y": "y"}


def test_a_bias_that_is_reshaped_says_nothing_of_what_it_is_added_to() -> None:
    before = """
        main (float[1, 4, 6, 6] x) => (float y) <float[4, 4, 1, 1] w, float[4] b> {
            c = Conv (x, w, b)
            y = Relu (c)
        }
    """
    after = """
        main (float[1, 4, 6, 6] x) => (float y) <float[4, 4, 1, 1] w, float[4] b, int64[4] s> {
            p = Conv (x, w)
            r = Reshape (b, s)
            c = Add (p, r)
            y = Relu (c)
        }
    """
    assert hold(before, after)["c"] == "c"


def test_a_mask_that_is_reshaped_says_nothing_of_what_it_masks() -> None:
    before = """
        main (float[2, 3, 4] x, float[2, 3] m) => (float y) <float[4, 4] w> {
            c = com.microsoft.Mask (m)
            p = com.microsoft.Attend (x, c)
            r = MatMul (p, w)
            y = Relu (r)
        }
    """
    after = """
        main (float[2, 3, 4] x, float[2, 3] m) => (float y) <float[4, 4] w, int64[1] s> {
            u = Reshape (m, s)
            c = com.microsoft.Mask (u)
            p = com.microsoft.Attend (x, c)
            r = MatMul (p, w)
            y = Relu (r)
        }
    """
    held = hold(before, after)
    assert (held["p"], held["r"], held["y"]) == ("p", "r", "y")


def test_a_reshape_behind_which_a_cast_was_put_is_read_by_the_same_operators() -> None:
    before = """
        main (float[n, m] x, int64[2] s) => (float[k, l] y) {
            r = Reshape (x, s)
            t = Tanh (r)
            y = Neg (t)
        }
    """
    after = """
        main (float[n, m] x, int64[2] s) => (float[k, l] y) {
            r_cast = Reshape (x, s)
            r = Cast <to = 10> (r_cast)
            t = Tanh (r)
            u = Cast <to = 1> (t)
            y = Neg (u)
        }
    """
    held = hold(before, after)
    assert held["r"] == "r_cast"
    assert held["t"] == "t"


def test_what_is_added_as_blocks_of_channels_holds_what_it_is_reordered_to() -> None:
    """With sizes that are not known the tool adds tensors of five axes; what it reads and makes has four still."""
    before = """
        main (float[b, 8, h, w] x) => (float[b, 8, h, w] y) <float[8, 8, 1, 1] v, float[8, 8, 1, 1] w> {
            c = Conv (x, v)
            a = Add (c, x)
            d = Conv (a, w)
            y = Relu (d)
        }
    """
    after = """
        main (float[b, 8, h, w] x) => (float[b, 8, h, w] y)
        <float[16, 8, 1, 1] p, float[16, 16, 1, 1] q, int64[5] s, int64[4] back> {
            t0 = com.microsoft.nchwc.ReorderInput (x)
            t1 = com.microsoft.nchwc.Conv (x, p)
            r1 = Reshape (t1, s)
            r2 = Reshape (t0, s)
            t3 = Add (r1, r2)
            r3 = Reshape (t3, back)
            a = com.microsoft.nchwc.ReorderOutput (r3)
            t4 = com.microsoft.nchwc.Conv (r3, q)
            d = com.microsoft.nchwc.ReorderOutput (t4)
            y = Relu (d)
        }
    """
    held = hold(before, after)
    assert {name: held[name] for name in ("d", "y")} == {"d": "t4", "y": "y"}
    assert held["a"] in ("r3", "a")


def test_a_concat_of_one_tensor_holds_the_tensor() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) {
            a = Exp (x)
            c = Concat <axis = 1> (a)
            y = Tanh (c)
        }
    """
    after = "main (float[2, 4] x) => (float[2, 4] y) { c = Exp (x) y = Tanh (c) }"
    assert carry(before, after, {"a": "exp", "c": "join", "y": "act"}) == {
        "c": ({"exp"}, "captured"),
        "y": ({"act"}, "captured"),
    }
    assert hold(before, after)["a"] == hold(before, after)["c"] == "c"
