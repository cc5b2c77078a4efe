"""Nodes of one operator in a group: what says which is which, and what is told where nothing does."""

from __future__ import annotations

from time import process_time

from support.onnx_text import carry, carry_views, view


def test_branches_of_one_tensor_are_told_apart_by_what_comes_before_in_each() -> None:
    """The branches have changed places, and all names are new."""
    before = """
        main (float[2, 4] x) => (float[2, 4] y) {
            p = Tanh (x)
            q = Sigmoid (x)
            a = Exp (p)
            b = Exp (q)
            c = Mul (a, b)
            y = Neg (c)
        }
    """
    after = """
        main (float[2, 4] x) => (float[2, 4] y) <int64[1] flat, int64[2] back> {
            t0 = Reshape (x, flat)
            t1 = Sigmoid (t0)
            t2 = Exp (t1)
            t3 = Reshape (t2, back)
            t4 = Tanh (t0)
            t5 = Exp (t4)
            t6 = Reshape (t5, back)
            t7 = Mul (t6, t3)
            y = Neg (t7)
        }
    """
    calls = {"p": "tanh", "q": "sigmoid", "a": "of_tanh", "b": "of_sigmoid", "c": "join", "y": "sign"}
    found = carry(before, after, calls)
    assert found["t2"] == ({"of_sigmoid"}, "captured")
    assert found["t5"] == ({"of_tanh"}, "captured")


def test_branches_of_one_tensor_are_told_apart_by_what_one_of_them_lacks() -> None:
    before = """
        main (float[2, 4] x) => (float[4, 4] y) {
            a = Exp (x)
            n = Neg (x)
            b = Exp (n)
            c = Concat <axis = 0> (a, b)
            y = Tanh (c)
        }
    """
    after = """
        main (float[2, 4] x) => (float[4, 4] y) <int64[1] flat, int64[2] back> {
            t0 = Reshape (x, flat)
            t1 = Neg (t0)
            t2 = Exp (t1)
            t3 = Reshape (t2, back)
            t4 = Exp (t0)
            t5 = Reshape (t4, back)
            t6 = Concat <axis = 0> (t5, t3)
            y = Tanh (t6)
        }
    """
    found = carry(before, after, {"a": "of_x", "n": "sign", "b": "of_sign", "c": "join", "y": "act"})
    assert found["t2"] == ({"of_sign"}, "captured")
    assert found["t4"] == ({"of_x"}, "captured")


OPEN = """
    main (float[2, 4] x) => (float[2, 4] y) {
        p = Tanh (x)
        q = Sigmoid (x)
        a = Exp (p)
        b = Exp (q)
        c = Mul (a, b)
        y = Neg (c)
    }
"""
JOINED = """
    main (float[2, 4] x) => (float[2, 4] y) {
        t1, t2 = com.microsoft.Both (x)
        t3 = Exp (t1)
        t4 = Exp (t2)
        t5 = Mul (t3, t4)
        y = Neg (t5)
    }
"""


def test_branches_that_only_their_turn_tells_apart_are_not_told_for_certain() -> None:
    found = carry(OPEN, JOINED, {"p": "tanh", "q": "sigmoid", "a": "of_p", "b": "of_q", "c": "join", "y": "sign"})
    assert found["t1"] == ({"tanh", "sigmoid"}, "carried")
    assert found["t3"] == ({"of_p"}, "name")
    assert found["t4"] == ({"of_q"}, "name")


def test_which_branch_is_which_does_not_matter_where_all_are_of_one_call() -> None:
    found = carry(OPEN, JOINED, {"p": "both", "q": "both", "a": "exp", "b": "exp", "c": "join", "y": "sign"})
    assert found["t3"] == found["t4"] == ({"exp"}, "captured")


def test_work_on_what_a_node_makes_is_done_by_those_that_need_that_node() -> None:
    """The weights tell who begins each branch; the other one cannot go on with it, for it reads something else."""
    weights = "<float[4] v, float[4] w>"
    before = f"""
        main (float[2, 4] x) => (float[2, 4] y) {weights} {{
            a = Mul (x, v)
            b = Relu (a)
            c = Add (x, w)
            d = Relu (c)
            e = Add (b, d)
            y = Floor (e)
        }}
    """
    after = f"""
        main (float[2, 4] x) => (float[2, 4] y) {weights} {{
            t1 = com.example.MulRelu (x, v)
            t2 = com.example.AddRelu (x, w)
            t3 = Add (t1, t2)
            y = Floor (t3)
        }}
    """
    found = carry(before, after, {"a": "scale", "b": "act", "c": "shift", "d": "act1", "e": "join", "y": "end"})
    assert found["t1"] == ({"scale", "act"}, "carried")
    assert found["t2"] == ({"shift", "act1"}, "carried")


def test_in_a_long_row_of_one_operator_it_is_known_which_is_which() -> None:
    """Each has its place: so many others come before it, and so many behind."""
    ends, length = "main (float[2, 4] x) => (float[2, 4] y)", 14
    row = " ".join(f"e{n} = Exp (e{n - 1})" for n in range(1, length))
    before = f"{ends} {{ e0 = Exp (x) {row} y = Neg (e{length - 1}) }}"
    moved = f"t = Reshape (x, flat) t0 = Exp (t) {row.replace('e', 't')} q = Reshape (t{length - 1}, back) y = Neg (q)"
    after = f"{ends} <int64[1] flat, int64[2] back> {{ {moved} }}"
    found = carry(before, after, {"y": "sign", **{f"e{n}": f"exp{n}" for n in range(length)}})
    assert [found[f"t{n}"] for n in range(length)] == [({f"exp{n}"}, "captured") for n in range(length)]


def test_where_there_are_too_many_ways_to_try_all_nobody_is_told_for_certain() -> None:
    """Those that could change places are the last two of the operator; which of the first is which takes all tries."""
    many = range(24)
    ends = "main (float[2, 4] x) => (float[N, 4] y)"
    heads = " ".join(f"p{n} = Add (x, w{n}) e{n} = Exp (p{n})" for n in many)
    joined = ", ".join(f"e{n}" for n in many)
    tail = "s = Tanh (c) u = Sigmoid (c) f = Exp (s) g = Exp (u) h = Mul (f, g) y = Neg (h)"
    weights = ", ".join(f"float[4] w{n}" for n in many)
    before = f"{ends} <{weights}> {{ {heads} c = Concat <axis = 0> ({joined}) {tail} }}"
    parts, exps = ", ".join(f"o{n}" for n in many), " ".join(f"t{n} = Exp (o{n})" for n in many)
    heads = f"{parts} = com.example.Many (x) {exps} k = Concat <axis = 0> ({joined.replace('e', 't')})"
    tail = "i, j = com.example.Both (k) v = Exp (i) w = Exp (j) z = Mul (v, w) y = Neg (z)"
    names = [*(f"p{n}" for n in many), *(f"e{n}" for n in many), *"csufghy"]
    found = carry(before, f"{ends} {{ {heads} {tail} }}", {name: name for name in names})
    assert (found["v"][1], found["w"][1]) == ("name", "name")
    assert found["z"] == ({"h"}, "captured")


def divide_branches(branches: int) -> float:
    """Return how long it takes to divide so many branches, whose operators and weights are new, and their sums."""

    def join(t: str, op: str, w: str) -> str:
        heads = (f"{t}a{n} = {op} (x, {w}{n}) {t}b{n} = Relu ({t}a{n})" for n in range(branches))
        sums = (f"{t}{n} = Add ({t}{n - 1}, {t}b{n})" for n in range(1, branches))
        weights = ", ".join(f"float[4] {w}{n}" for n in range(branches))
        body = " ".join([*heads, f"{t}0 = Abs ({t}b0)", *sums, f"y = Neg ({t}{branches - 1})"])
        return f"main (float[2, 4] x) => (float[2, 4] y) <{weights}> {{ {body} }}"

    a, b = view(join("s", "Add", "w")), view(join("t", "com.example.F", "v"))
    calls = {a.node_key(index)[1]: "call" for index in range(len(a.nodes))}
    begin = process_time()  # what else runs here does not count
    carry_views(a, b, calls)
    return process_time() - begin


def test_dividing_a_large_group_takes_no_more_time_than_the_square_of_its_size() -> None:
    divide_branches(8)
    small = min(divide_branches(80) for _ in range(3))
    assert divide_branches(240) < 18 * small  # 3 ** 2 is 9, 3 ** 3 is 27
