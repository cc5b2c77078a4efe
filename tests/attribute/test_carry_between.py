"""Several nodes between two altered products: the first may have taken over some of them, the second others."""

from __future__ import annotations

import pytest

from support.onnx_text import carry, carry_views, summarize, view

NORM, SCALE = "BatchNormalization ({}, s, b, m, u)", "Mul ({}, q)"
NEW = "float[4] pad, float[4, 4, 1, 1] v1, float[4] k1 = {9, 9, 9, 9}, float[4, 4, 1, 1] w1, float[4] t1 = {8, 8, 8, 8}"

Found = dict[str, tuple[set[str], str]]


def alter(between: tuple[str, ...], *, bias: bool, first: str = "Conv (x, v1, k1)", more: str = "") -> Found:
    """Carry two Convs with nodes between them onto two others alone; the first had a `bias` before, or had not."""
    ends = "main (float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] y)"
    weights = """
        float[4, 4, 1, 1] v, float[4] k = {1, 2, 3, 4}, float[4, 4, 1, 1] w, float[4] t = {5, 6, 7, 8},
        float[4, 1, 1] q, float[4] s, float[4] b, float[4] m, float[4] u
    """
    names = ["c", "e", "f"][: len(between) + 1]
    nodes = [f"{name} = {work.format(read)}" for name, read, work in zip(names[1:], names, between, strict=False)]
    body = [f"c = Conv (x, v{', k' if bias else ''})", *nodes, f"d = Conv ({names[-1]}, w, t)", "y = Relu (d)"]
    after = f"c = {first} d = Conv (c, w1, t1) y = Relu (d)"
    calls = {"c": "conv", "e": "first", "f": "last", "d": "conv1", "y": "act"}
    return carry(f"{ends} <{weights}> {{ {' '.join(body)} }}", f"{ends} <{NEW}{more}> {{ {after} }}", calls)


@pytest.mark.parametrize(("between", "bias"), [((SCALE, NORM), True), ((NORM, NORM), True), ((NORM, NORM), False)])
def test_where_the_first_of_several_explains_what_a_product_adds_the_others_may_be_in_the_next(
    between: tuple[str, ...], bias: bool
) -> None:
    found = alter(between, bias=bias)
    assert found["c"] == ({"conv", "first", "last"}, "name")
    assert found["d"] == ({"conv1"}, "name")


@pytest.mark.parametrize(("between", "bias"), [((SCALE, NORM), False), ((NORM,), True), ((NORM,), False)])
def test_what_alone_explains_what_a_product_adds_is_in_that_product(between: tuple[str, ...], bias: bool) -> None:
    """A scale adds nothing where there was nothing to scale."""
    found = alter(between, bias=bias)
    assert found["c"] == ({"conv", "first", "last"} if len(between) > 1 else {"conv", "first"}, "carried")
    assert found["d"] == ({"conv1"}, "captured")


@pytest.mark.parametrize(("constant", "evidence"), [("float[4, 1, 1] q", "name"), ("float[4] m", "carried")])
def test_constants_of_the_last_of_several_tell_that_a_product_does_all(constant: str, evidence: str) -> None:
    first = f"com.example.NormConv (x, v1, {constant[-1]})"
    found = alter((SCALE, NORM), bias=True, first=first, more=f", {constant}")
    assert found["c"] == ({"conv", "first", "last"}, evidence)


MATRICES = "main (float[2, 2] x) => (float[2, 2] y) <float[2, 2] v = {1, 2, 3, 4}, float[2, 2] w = {5, 6, 7, 8}"
OWN, SCALED = ({"product"}, "captured"), ({"product", "scale"}, "carried")


@pytest.mark.parametrize(
    ("v", "w", "first", "second"),
    [
        ("2, 4, 6, 8", "5, 6, 7, 8", SCALED, ({"product1"}, "captured")),
        ("1, 2, 3, 4", "10, 12, 14, 16", OWN, ({"product1", "scale"}, "carried")),
        ("2, 4, 6, 8", "6, 7, 8, 9", ({"product", "scale"}, "name"), ({"product1"}, "name")),
    ],
)
def test_a_weight_that_keeps_its_name_is_another_if_it_holds_other_numbers(
    v: str, w: str, first: tuple[set[str], str], second: tuple[set[str], str]
) -> None:
    before = f"{MATRICES}, float k = {{2}}> {{ c = MatMul (x, v) n = Mul (c, k) d = MatMul (n, w) y = Relu (d) }}"
    after = MATRICES.replace("1, 2, 3, 4", v).replace("5, 6, 7, 8", w)
    after = f"{after}> {{ c = MatMul (x, v) d = MatMul (c, w) y = Relu (d) }}"
    found = carry(before, after, {"c": "product", "n": "scale", "d": "product1", "y": "act"})
    assert (found["c"], found["d"]) == (first, second)
    assert found["y"] == ({"act"}, "captured")


def test_a_weight_in_another_type_is_the_same() -> None:
    before = f"{MATRICES}> {{ c = MatMul (x, v) d = MatMul (c, w) y = Relu (d) }}"
    after = before.replace("float[2, 2] w", "float16[2, 2] w").replace("float[2, 2] v", "float16[2, 2] v")
    found = carry(before, after, {"c": "product", "d": "product1", "y": "act"})
    assert found["c"] == OWN
    assert found["d"] == ({"product1"}, "captured")


LARGE = "main (float[2, 32] x) => (float[2, 32] y) <float[32, 32] v, float[32, 32] w"


def test_large_weights_are_not_read_where_no_work_went_anywhere() -> None:
    before = f"{LARGE}> {{ c = MatMul (x, v) n = Relu (c) d = MatMul (n, w) y = Relu (d) }}"
    a, b = view(before), view(before.replace("n = Relu (c) d = MatMul (n, w)", "d = MatMul (c, w)"))
    a.read_digest = b.read_digest = lambda tensor: pytest.fail("a weight was read")
    found = carry_views(a, b, {"c": "product", "n": "act", "d": "product1", "y": "act"}).nodes
    assert [summarize(node)[1] for node in found] == ["captured"] * 3


@pytest.mark.parametrize(
    ("behind", "second"), [("d = MatMul (n, w)", ({"product1"}, "name")), ("d = Tanh (n)", ({"product1"}, "captured"))]
)
def test_where_large_weights_cannot_be_read_it_is_a_guess_which_of_them_has_other_numbers(
    behind: str, second: tuple[set[str], str]
) -> None:
    before = f"{LARGE}, float k = {{2}}> {{ c = MatMul (x, v) n = Mul (c, k) {behind} y = Relu (d) }}"
    after = f"{LARGE}> {{ c = MatMul (x, v) {behind.replace('(n', '(c')} y = Relu (d) }}"
    found = carry(before, after, {"c": "product", "n": "scale", "d": "product1", "y": "act"})
    assert found["c"] == ({"product", "scale"}, "name")
    assert found["d"] == second
    assert found["y"] == ({"act"}, "captured")


@pytest.mark.parametrize("passed", ["p = Cast <to = 1> (d)", "p = Identity (d)"])
def test_what_is_computed_with_a_guess_that_was_passed_on_is_a_guess(passed: str) -> None:
    """Either product may have taken the scale over, so that `d` may be another tensor; `e` has a new name."""
    tail = "d = MatMul (n, w) e = Exp (d) f = Tanh (e) y = Relu (f)"
    before = f"{MATRICES}, float k = {{2}}> {{ c = MatMul (x, v) n = Mul (c, k) {tail} }}"
    weights = MATRICES.replace("1, 2, 3, 4", "2, 4, 6, 8").replace("5, 6, 7, 8", "6, 7, 8, 9")
    after = f"{weights}> {{ c = MatMul (x, v) d = MatMul (c, w) {passed} t = Exp (p) f = Tanh (t) y = Relu (f) }}"
    calls = {"c": "product", "n": "scale", "d": "product1", "e": "exp", "f": "tanh", "y": "act"}
    found = carry(before, after, calls)
    assert found["t"] == ({"exp"}, "name")
    assert found["f"] == ({"tanh"}, "captured")


@pytest.mark.parametrize("sizes", ["2, 2", "32, 32"])
def test_a_weight_in_another_type_may_hold_what_was_before_a_node(sizes: str) -> None:
    """It was rounded, and may have been scaled as well."""
    ends = "main (float[2, 32] x) => (float[2, 32] y)"
    tail = "d = Tanh (n) y = Relu (d)"
    before = f"{ends} <float[{sizes}] v, float k = {{2}}> {{ c = MatMul (x, v) n = Mul (c, k) {tail} }}"
    after = f"{ends} <float16[{sizes}] v> {{ c = MatMul (x, v) {tail.replace('(n', '(c')} }}"
    found = carry(before, after, {"c": "product", "n": "scale", "d": "tanh", "y": "act"})
    assert found["c"] == ({"product", "scale"}, "name")
    assert found["d"] == ({"tanh"}, "captured")


def test_what_was_before_a_product_alone_may_be_in_its_large_weight() -> None:
    before = f"{LARGE}, float k = {{2}}> {{ n = Mul (x, k) d = MatMul (n, w) y = Relu (d) }}"
    found = carry(before, f"{LARGE}> {{ d = MatMul (x, w) y = Relu (d) }}", {"n": "scale", "d": "product", "y": "act"})
    assert found["d"] == ({"scale", "product"}, "name")


def test_an_offset_that_the_second_cannot_add_may_be_in_the_large_bias_of_the_first() -> None:
    """Or nowhere: the bias keeps its name, and cannot be read."""
    ends = "main (float[2, 32] x) => (float[2, 4] y)"
    weights = "float[32, 300] v, float[300] b, float[300, 4] {}"
    tail = "y = Relu (d)"
    before = f"{ends} <{weights.format('w')}, float k> {{ c = Gemm (x, v, b) n = Add (c, k) d = MatMul (n, w) {tail} }}"
    after = f"{ends} <{weights.format('w1')}> {{ c = Gemm (x, v, b) d = MatMul (c, w1) {tail} }}"
    found = carry(before, after, {"c": "product", "n": "offset", "d": "product1", "y": "act"})
    assert found["c"] == ({"product", "offset"}, "name")
    assert found["d"] == ({"product1"}, "captured")
