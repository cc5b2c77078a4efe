"""Nodes that read copies of constants are told apart by what is copied."""

from __future__ import annotations

import pytest

from support.onnx_text import match, regions

BEFORE = """
    main (float[2, 4] x) => (float[2, 4] y, float[2, 2] z)
    <float[4, 4] v, float[4, 4] w, float[4, 2] p, float[4, 2] q> {
        w1 = Identity (w)
        v1 = Identity (v)
        a = MatMul (x, v)
        b = MatMul (x, w)
        y = Sub (a, b)
        t = Tanh (x)
        c = MatMul (t, v1)
        d = MatMul (t, w1)
        e = MatMul (c, p)
        f = MatMul (d, q)
        z = Sub (e, f)
    }
"""
AFTER = """
    main (float[2, 4] x) => (float[2, 4] y, float[2, 2] z)
    <float[4, 4] v, float[4, 4] w, float[4, 2] p, float[4, 2] q> {{
        {copies}
        a_new = MatMul (x, v)
        b_new = MatMul (x, w)
        y = Sub (a_new, b_new)
        t_new = Tanh (x)
        c_new = MatMul (t_new, {first})
        d_new = MatMul (t_new, {second})
        e_new = MatMul (c_new, p)
        f_new = MatMul (d_new, q)
        z = Sub (e_new, f_new)
    }}
"""


@pytest.mark.parametrize(
    ("copies", "first", "second"),
    [("w_new = Identity (w)  v_new = Identity (v)", "v_new", "w_new"), ("", "v", "w")],
)
def test_of_nodes_that_read_copies_what_is_copied_tells_which_is_which(copies: str, first: str, second: str) -> None:
    matcher = match(BEFORE, AFTER.format(copies=copies, first=first, second=second))
    found = regions(matcher)
    assert all(found[f"{name}_new"] == {name} for name in "abcdef")
    assert all(found_match.proven for found_match in matcher.matches.values())


def test_a_node_that_reads_a_copy_of_another_weight_is_not_the_same() -> None:
    matcher = match(BEFORE, AFTER.format(copies="u = Identity (w)", first="u", second="u"))
    assert regions(matcher)["c_new"] == {"d"}
