"""How certain the work of nodes in a group is: what others could do as well, or nobody is seen to do, is a guess."""

from __future__ import annotations

import pytest

from support.onnx_text import carry


def test_what_hangs_on_a_guess_is_a_guess_as_well() -> None:
    """Only turn tells the branches apart; the tool's operator gives them in the other order."""
    before = """
        main (float[2, 4] x) => (float[2, 4] y) {
            p = Tanh (x)
            q = Sigmoid (x)
            a = Exp (p)
            b = Exp (q)
            c = Abs (a)
            d = Abs (b)
            e = Mul (c, d)
            y = Neg (e)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) {
            t1, t2 = com.microsoft.SigmoidAndTanh (x)
            t3 = Exp (t1)
            t4 = Exp (t2)
            t5 = Abs (t3)
            t6 = Abs (t4)
            t7 = Mul (t6, t5)
            y = Neg (t7)
        }
    """
    found = carry(before, after, {n: n for n in "pqabcdey"})
    assert {found[t][1] for t in ("t3", "t4", "t5", "t6")} == {"name"}
    assert found["t7"] == ({"e"}, "captured")
    # What was guessed fits together.
    assert {"a": "c", "b": "d"}[next(iter(found["t3"][0]))] in found["t5"][0]


def test_work_on_one_of_two_branches_is_done_by_the_node_that_joins_them() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) {
            a = Exp (x)
            b = Tanh (a)
            c = Neg (x)
            d = Add (b, c)
            y = Relu (d)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <int64[1] flat, int64[2] back> {
            t1 = Reshape (x, flat)
            a = Exp (t1)
            t2 = Neg (t1)
            t3 = com.microsoft.TanhAdd (t2, a)
            t4 = Reshape (t3, back)
            y = Relu (t4)
        }
    """
    found = carry(before, after, {n: n for n in "abcdy"})
    assert found["t3"] == ({"b", "d"}, "carried")


def test_a_node_with_work_that_a_new_operator_may_do_as_well_is_not_certain() -> None:
    """One of two Adds went into the new operator, and one of two Exps."""
    before = """
        main (float[2, 4] x) => (float[2, 4] y) {
            a = Exp (x)
            b = Add (a, x)
            c = Exp (b)
            d = Mul (a, b)
            e = Add (c, d)
            y = Relu (e)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <int64[1] flat, int64[2] back> {
            t1 = Reshape (x, flat)
            t2 = Exp (t1)
            t3 = Add (t1, t2)
            t4 = com.microsoft.Rest (t3, t2)
            t5 = Reshape (t4, back)
            y = Relu (t5)
        }
    """
    found = carry(before, after, {n: n for n in "abcdey"})
    assert {found["t2"][1], found["t3"][1]} == {"name"}
    assert "a" in found["t2"][0]
    assert "b" in found["t3"][0]


def test_a_scale_that_was_moved_behind_a_product_does_its_own_work_still() -> None:
    before = """
        main (float[4, 4] x, float[4, 4] z) => (float[4, 4] y) <float s> {
            q = Mul (x, s)
            k = Mul (z, s)
            m = MatMul (q, k)
            y = Softmax (m)
        }
    """
    after = """
        main (float[4, 4] x, float[4, 4] z) => (float[4, 4] y) <float pad1, float pad2, float squared> {
            t1 = MatMul (x, z)
            t2 = Mul (t1, squared)
            y = Softmax (t2)
        }
    """
    found = carry(before, after, {n: n for n in "qkmy"})
    assert found["t1"] == ({"m"}, "captured")
    assert found["t2"] == ({"q", "k"}, "name")


def test_a_node_that_reads_a_fixed_point_in_another_form_is_not_one_that_reads_more() -> None:
    """Of two Adds that read `b`, the first reads the input as well, which the tool reshapes."""
    before = """
        main (float[2, 4] x) => (float[2, 4] y) {
            a = Tanh (x)
            b = Tanh (a)
            c = Add (b, x)
            d = Add (b, c)
            e = Add (d, c)
            y = Relu (e)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <int64[1] flat> {
            t1 = Reshape (x, flat)
            a = Tanh (t1)
            t2 = Tanh (a)
            t3 = Add (t2, t1)
            e = com.microsoft.TwoSums (t2, t3)
            t4 = Reshape (e, flat)
            y = Relu (t4)
        }
    """
    assert "c" in carry(before, after, {n: n for n in "abcdey"})["t3"][0]


@pytest.mark.parametrize("branches", [8, 1100])
def test_of_many_branches_that_are_alike_none_is_told_for_certain(branches: int) -> None:
    def write(source: str, end: str) -> str:
        steps = "".join(f"{end}{n} = Exp ({source})\n" for n in range(branches))
        return f"{steps} {end} = Sum ({', '.join(f'{end}{n}' for n in range(branches))})"

    before = f"main (float[2, 4] x) => (float[2, 4] y) {{ {write('x', 'a')} y = Relu (a) }}"
    after = f"""
        main (float[2, 4] x) => (float[2, 4] y) <int64[1] flat, int64[2] back> {{
            r = Reshape (x, flat)
            {write("r", "b")}
            c = Reshape (b, back)
            y = Relu (c)
        }}
    """
    found = carry(before, after, {"a": "sum", "y": "act", **{f"a{n}": f"branch{n}" for n in range(branches)}})
    assert {found[f"b{n}"][1] for n in range(branches)}.isdisjoint({"captured", "carried"})


def test_a_product_does_not_split_what_it_reads() -> None:
    """torch's optimizer writes one Split for the sequence, and leaves out a bias that is zero."""
    before = """
        main (float[1, 8, 4, 4] x) => (float[1, 12, 4, 4] y)
        <float[4, 4, 1, 1] w, int64 four, int64 one, float[4] zero> {
            r = Relu (x)
            s = SplitToSequence <axis = 1> (r, four)
            b = SequenceAt (s, one)
            c = Conv (b, w, zero)
            y = Concat <axis = 1> (r, c)
        }
    """
    after = """
        main (float[1, 8, 4, 4] x) => (float[1, 12, 4, 4] y) <float[4, 4, 1, 1] w> {
            r = Relu (x)
            s0, s1 = Split <axis = 1, num_outputs = 2> (r)
            c = Conv (s1, w)
            y = Concat <axis = 1> (r, c)
        }
    """
    found = carry(before, after, {"r": "act", "s": "block", "b": "block", "c": "conv", "y": "block"})
    assert found["c"] == ({"conv"}, "captured")
    assert found["s0"] == ({"block"}, "carried")


FUSED = {
    "a norm with the addition before it": (
        ("a = Add (x, r) b = LayerNormalization (a, g, h)", "t = com.microsoft.SkipLayerNormalization (x, r, g1, h1)"),
        ("s = Add (b, x)", "u = Add (t, x)"),
    ),
    "an activation with the bias before it": (
        ("a = Add (x, g) b = Gelu (a)", "t = com.microsoft.BiasGelu (x, g1)"),
        ("s = Add (b, r)", "u = Add (t, r)"),
    ),
    "an activation with the bias before it, and a gate": (
        ("a = Add (x, g) b = Gelu (a)", "t = com.microsoft.BiasGelu (x, g1)"),
        ("s = Mul (b, r)", "u = Mul (t, r)"),
    ),
    "an activation with the bias before it, and a scale": (
        ("a = Add (x, g) b = Gelu (a)", "t = com.microsoft.BiasGelu (x, g1)"),
        ("s = Mul (b, h)", "u = Mul (t, h1)"),
    ),
    "an activation with the scale before it": (
        ("a = Mul (x, g) b = Abs (a)", "t = com.example.MulAbs (x, g1)"),
        ("s = Add (b, r)", "u = Add (t, r)"),
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_node_does_what_the_plain_operator_behind_it_cannot(name: str) -> None:
    """All names are new; what is behind could take over a scale or an offset only into weights of its own."""
    (fused, by), (plain, again) = FUSED[name]
    ends = "main (float[2, 4] x, float[2, 4] r) => (float[2, 4] y)"
    before = f"{ends} <float[4] g, float[4] h> {{ {fused} {plain} y = Floor (s) }}"
    after = f"{ends} <float[4] pad, float[4] g1, float[4] h1> {{ {by} {again} y = Floor (u) }}"
    found = carry(before, after, {"a": "first", "b": "second", "s": "behind", "y": "end"})
    assert found["t"] == ({"first", "second"}, "carried")
    assert found["u"] == ({"behind"}, "captured")


def test_what_a_product_or_the_new_operator_behind_it_may_do_is_told_of_neither_for_certain() -> None:
    """The scale is in the weights of either."""
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4] k, float[4] c> {
            t = Tanh (x)
            a = Mul (t, k)
            b = Mul (a, c)
            e = Exp (b)
            y = Floor (e)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4] pad, float[4] k1, float[4] c1> {
            t0 = com.example.TanhAsIs (x)
            t1 = Mul (t0, k1)
            t2 = com.example.ExpOf (t1, c1)
            y = Floor (t2)
        }
    """
    found = carry(before, after, {"t": "tanh", "a": "scale", "b": "factor", "e": "exp", "y": "end"})
    assert found["t1"][1] == found["t2"][1] == "name"


def test_a_scale_between_a_new_operator_and_a_product_may_be_in_either() -> None:
    before = """
        main (float[2, 4] x) => (float[2, 4] y) <float[4] k, float[4, 4] v> {
            t = Tanh (x)
            e = Exp (t)
            s = Mul (e, k)
            p = MatMul (s, v)
            y = Floor (p)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <int64[2] flat, int64[2] back, float[4, 4] v1> {
            t0 = Reshape (x, flat)
            t1 = com.example.TanhExp (t0)
            t2 = MatMul (t1, v1)
            t3 = Reshape (t2, back)
            y = Floor (t3)
        }
    """
    found = carry(before, after, {"t": "tanh", "e": "exp", "s": "scale", "p": "product", "y": "end"})
    assert {"tanh", "exp"} <= found["t1"][0]
    assert (found["t1"][1], found["t2"][1]) == ("name", "name")
