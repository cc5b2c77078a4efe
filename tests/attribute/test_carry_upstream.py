"""Work between two altered nodes of which either may have taken it over: a norm that was folded into a product."""

from __future__ import annotations

import pytest

from support.onnx_text import carry, hold

WEIGHTS = """
    float[4, 4, 1, 1] v, float[4, 4, 1, 1] w, float[4] s, float[4] b, float[4] m, float[4] u, float[4] t, float[4] p
"""
NEW_WEIGHTS = """
    float[4] pad, float[4, 4, 1, 1] first, float[4] bias, float[4, 4, 1, 1] second, float[4] bias1
"""
CALLS = {"o": "norm0", "c": "conv", "n": "norm", "d": "conv1", "q": "norm1", "y": "act", "z": "other"}

Found = dict[str, tuple[set[str], str]]


def alter(before: str, after: str, *, more: str = "", weights: str = WEIGHTS, new: str = NEW_WEIGHTS) -> Found:
    """Carry the calls between graphs from `x` to `y`, and `more` outputs."""
    ends = f"main (float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] y{more})"
    return carry(f"{ends} <{weights}> {{{before}}}", f"{ends} <{new}> {{{after}}}", CALLS)


CONVS_AND_NORM = """
    c = Conv (x, v)
    n = BatchNormalization (c, s, b, m, u)
    d = Conv (n, w)
    y = Relu (d)
"""
CONVS_AND_NORMS = """
    c = Conv (x, v)
    n = BatchNormalization (c, s, b, m, u)
    d = Conv (n, w)
    q = BatchNormalization (d, s, b, p, u)
    y = Relu (q)
"""
CONVS_BEHIND_NORMS = """
    o = BatchNormalization (x, s, b, t, u)
    c = Conv (o, v)
    n = BatchNormalization (c, s, b, m, u)
    d = Conv (n, w)
    y = Relu (d)
"""
BOTH_WITH_BIAS = """
    c = Conv (x, first, bias)
    d = Conv (c, second, bias1)
    y = Relu (d)
"""
SECOND_WITH_BIAS = BOTH_WITH_BIAS.replace(", bias)", ")")


# -- where something decides ----------------------------------------------------------------------------------------


def test_a_norm_is_in_the_conv_before_it_if_that_adds_something_new_and_nothing_else_explains_it() -> None:
    found = alter(CONVS_AND_NORMS, BOTH_WITH_BIAS)
    assert found["c"] == ({"conv", "norm"}, "carried")
    assert found["d"] == ({"conv1", "norm1"}, "carried")
    assert found["y"] == ({"act"}, "captured")


def test_norms_after_three_convs_are_each_in_the_conv_before() -> None:
    before = CONVS_AND_NORMS.replace("y = Relu (q)", "z = Conv (q, v)\ny = Relu (z)")
    after = BOTH_WITH_BIAS.replace("y = Relu (d)", "z = Conv (d, third)\ny = Relu (z)")
    found = alter(before, after, new=f"{NEW_WEIGHTS}, float[4, 4, 1, 1] third")
    assert found["c"] == ({"conv", "norm"}, "carried")
    assert found["d"] == ({"conv1", "norm1"}, "carried")
    assert found["z"] == ({"other"}, "captured")


def test_a_norm_is_in_the_conv_behind_it_if_the_one_before_is_as_it_was() -> None:
    unpadded = NEW_WEIGHTS.replace("float[4] pad, ", "")  # "first" has the numbers of "v"
    found = alter(CONVS_AND_NORMS, SECOND_WITH_BIAS, new=unpadded)
    assert found["c"] == ({"conv"}, "captured")
    assert found["d"] == ({"norm", "conv1", "norm1"}, "carried")


def test_a_norm_is_not_in_a_conv_that_adds_nothing() -> None:
    found = alter(CONVS_AND_NORM, SECOND_WITH_BIAS)
    assert found["c"] == ({"conv"}, "captured")
    assert found["d"] == ({"norm", "conv1"}, "carried")
    found = alter(CONVS_BEHIND_NORMS, BOTH_WITH_BIAS.replace(", bias1", ""))
    assert found["c"] == ({"norm0", "conv", "norm"}, "carried")
    assert found["d"] == ({"conv1"}, "captured")


@pytest.mark.parametrize("pads", ["pads = [1, 1, 1, 1]", 'auto_pad = "SAME_UPPER"'])
def test_a_norm_is_not_in_a_conv_behind_it_that_pads(pads: str) -> None:
    before, after = (text.replace("d = Conv", f"d = Conv <{pads}>") for text in (CONVS_BEHIND_NORMS, BOTH_WITH_BIAS))
    found = alter(before, after)
    assert found["c"] == ({"norm0", "conv", "norm"}, "carried")
    assert found["d"] == ({"conv1"}, "captured")


def test_a_scale_may_be_in_a_conv_behind_it_that_pads() -> None:
    before, after = (
        text.replace("d = Conv", "d = Conv <pads = [1, 1, 1, 1]>")
        for text in (CONVS_AND_NORM.replace("BatchNormalization (c, s, b, m, u)", "Mul (c, k)"), SECOND_WITH_BIAS)
    )
    found = alter(before, after, weights=f"{WEIGHTS}, float[4, 1, 1] k")
    assert found["c"] == ({"conv", "norm"}, "name")
    assert found["d"] == ({"conv1"}, "name")


@pytest.mark.parametrize("pads", ["pads = [0, 0, 0, 0]", 'auto_pad = "VALID"', 'auto_pad = "NOTSET"'])
def test_a_norm_may_be_in_a_conv_behind_it_that_pads_nothing(pads: str) -> None:
    before, after = (text.replace("d = Conv", f"d = Conv <{pads}>") for text in (CONVS_BEHIND_NORMS, BOTH_WITH_BIAS))
    assert alter(before, after)["d"] == ({"conv1"}, "name")


def test_pads_of_a_transposed_conv_are_cut_off_and_tell_nothing() -> None:
    texts = (CONVS_BEHIND_NORMS, BOTH_WITH_BIAS)
    before, after = (text.replace("d = Conv", "d = ConvTranspose <pads = [1, 1, 1, 1]>") for text in texts)
    assert alter(before, after)["d"] == ({"conv1"}, "name")


def test_a_norm_is_not_in_a_conv_that_has_its_weights_as_they_were() -> None:
    after = BOTH_WITH_BIAS.replace("d = Conv (c, second, bias1)", 'd = com.example.FusedConv <mode = "Relu"> (c, w)')
    found = alter(CONVS_BEHIND_NORMS, after, new="float[4] pad, float[4, 4, 1, 1] w, float[4] bias, float[4] first")
    assert found["c"] == ({"norm0", "conv", "norm"}, "carried")
    assert found["d"][0] == {"conv1"}


BIASES = "float[4] k = {1, 2, 3, 4}, float[4] k1 = {5, 6, 7, 8}"
WITH_BIAS = CONVS_AND_NORM.replace("(x, v)", "(x, v, k)").replace("(n, w)", "(n, w, k1)")


def test_a_norm_is_in_the_conv_of_which_it_changes_what_that_adds() -> None:
    weights = f"{WEIGHTS}, {BIASES}"
    found = alter(WITH_BIAS, BOTH_WITH_BIAS, weights=weights)
    assert found["c"] == ({"conv", "norm"}, "carried")
    assert found["d"] == ({"conv1"}, "captured")
    found = alter(
        WITH_BIAS, BOTH_WITH_BIAS, weights=weights, new=NEW_WEIGHTS.replace(" bias,", " bias = {1, 2, 3, 4},")
    )
    assert found["c"] == ({"conv"}, "captured")
    assert found["d"] == ({"norm", "conv1"}, "carried")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float[4] k = {1, 2, 3, 4}", "float16[4] bias = {1, 2, 3, 4}"),  # rounded, perhaps
        ("float[300] k", "float[300] bias"),  # of so many the view has no numbers
    ],
)
def test_what_is_added_may_be_the_same_where_it_cannot_be_compared(old: str, new: str) -> None:
    weights, new_weights = f"{WEIGHTS}, {old}, float[4] k1", NEW_WEIGHTS.replace("float[4] bias,", f"{new},")
    found = alter(WITH_BIAS, BOTH_WITH_BIAS, weights=weights, new=new_weights)
    assert found["c"] == ({"conv", "norm"}, "name")
    assert found["d"] == ({"conv1"}, "name")


@pytest.mark.parametrize("after", [SECOND_WITH_BIAS, BOTH_WITH_BIAS.replace("Conv (x", "com.example.FusedConv (x")])
def test_what_is_added_tells_nothing_where_a_bias_is_gone_or_the_operator_is_unknown(after: str) -> None:
    before = WITH_BIAS if after == SECOND_WITH_BIAS else CONVS_AND_NORM
    found = alter(before, after, weights=f"{WEIGHTS}, {BIASES}")
    assert found["c"] == ({"conv", "norm"}, "name")
    assert found["d"] == ({"conv1"}, "name")


@pytest.mark.parametrize("first", [True, False])
def test_a_norm_is_in_the_conv_that_reads_its_constants(first: bool) -> None:
    own = "c = com.example.NormConv (x, first, m)" if first else "d = com.example.NormConv (c, second, m)"
    plain = "c = Conv (x, first, bias)" if first else "d = Conv (c, second, bias1)"
    new = f"{NEW_WEIGHTS}, float[4] m"
    found = alter(CONVS_BEHIND_NORMS, BOTH_WITH_BIAS.replace(plain, own), new=new)
    assert found["c"] == ({"norm0", "conv", *(["norm"] if first else [])}, "carried")
    assert found["d"][0] == {"conv1", *([] if first else ["norm"])}
    assert found["d"][1] in ("captured", "carried")


def test_constants_that_others_read_as_well_do_not_tell_what_a_node_does() -> None:
    after = BOTH_WITH_BIAS.replace("Conv (c, second, bias1)", "com.example.NormConv (c, second, s)")
    found = alter(CONVS_BEHIND_NORMS, after, new=f"{NEW_WEIGHTS}, float[4] s")
    assert found["c"][1] == found["d"][1] == "name"


# -- where nothing decides ------------------------------------------------------------------------------------------


def test_where_a_norm_before_both_may_explain_what_the_first_adds_neither_is_sure() -> None:
    """As they would be if each norm went into the Conv behind it."""
    found = alter(CONVS_BEHIND_NORMS, BOTH_WITH_BIAS)
    assert found["c"] == ({"norm0", "conv", "norm"}, "name")
    assert found["d"] == ({"conv1"}, "name")
    assert found["y"] == ({"act"}, "captured")
    ends, others = "main (float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] y)", (WEIGHTS, NEW_WEIGHTS)
    texts = zip((CONVS_BEHIND_NORMS, BOTH_WITH_BIAS), others, strict=True)
    held = hold(*(f"{ends} <{weights}> {{{text}}}" for text, weights in texts))
    assert held["c"] is held["n"] is None


def test_behind_a_guess_is_a_guess() -> None:
    before = CONVS_BEHIND_NORMS.replace("y = Relu (d)", "q = BatchNormalization (d, s, b, p, u)\nz = Conv (q, v)")
    after = BOTH_WITH_BIAS.replace("y = Relu (d)", "z = Conv (d, third, bias2)")
    more = ", float[1, 4, 4, 4] z"
    before, after = (f"{text} y = Relu (z)" for text in (before, after))
    found = alter(before, after, more=more, new=f"{NEW_WEIGHTS}, float[4, 4, 1, 1] third, float[4] bias2")
    assert found["d"] == ({"conv1", "norm1"}, "name")
    assert found["z"] == ({"other"}, "name")
    padded, after = (text.replace("z = Conv", "z = Conv <pads = [1, 1, 1, 1]>") for text in (before, after))
    found = alter(padded, after, more=more, new=f"{NEW_WEIGHTS}, float[4, 4, 1, 1] third, float[4] bias2")
    assert found["d"] == ({"conv1", "norm1"}, "name")  # it may still have the norm before it
    assert found["z"] == ({"other"}, "captured")


def test_a_norm_behind_the_bias_of_a_product_may_be_in_that_product() -> None:
    before = CONVS_AND_NORM.replace("c = Conv (x, v)", "z = Conv (x, v)\nc = Add (z, k)")
    found = alter(before, BOTH_WITH_BIAS, weights=f"{WEIGHTS}, float[4, 1, 1] k")
    assert found["c"] == ({"conv", "norm", "other"}, "name")
    assert found["d"] == ({"conv1"}, "name")


def test_a_bias_of_zeros_may_stand_for_nothing() -> None:
    new = NEW_WEIGHTS.replace(" bias,", " bias = {0, 0, 0, 0},")
    assert alter(CONVS_AND_NORM, BOTH_WITH_BIAS, new=new)["c"] == ({"conv", "norm"}, "name")
    weights = f"{WEIGHTS}, {BIASES.replace('1, 2, 3, 4', '0, 0, 0, 0')}"
    assert alter(WITH_BIAS, BOTH_WITH_BIAS, weights=weights, new=new)["c"] == ({"conv", "norm"}, "name")


def test_a_scale_behind_an_offset_may_be_in_either() -> None:
    before = CONVS_AND_NORM.replace("d = ", "z = Mul (n, k)\nd = ").replace("(n, w)", "(z, w)")
    found = alter(before, BOTH_WITH_BIAS, weights=f"{WEIGHTS}, float[4, 1, 1] k")
    assert found["c"] == ({"conv", "norm", "other"}, "name")
    assert found["d"] == ({"conv1"}, "name")


MATRICES = """
    main (float[2, 4] x) => (float[2, 4] y) <float[4, 4] v, float[4, 4] w, float[4] k> {
        c = MatMul (x, v)
        n = Mul (c, k)
        d = MatMul (n, w)
        y = Relu (d)
    }
"""
PRODUCTS = """
    main (float[2, 4] x) => (float[2, 4] y) <WEIGHTS> {
        c = FIRST
        d = SECOND
        y = Relu (d)
    }
"""


@pytest.mark.parametrize(
    ("weights", "first", "second", "origins"),
    [
        ("float[4] pad, float[4, 4] v2, float[4, 4] w2", "MatMul (x, v2)", "MatMul (c, w2)", None),
        # v2 has the numbers of v here:
        ("float[4, 4] v2, float[4, 4] pad, float[4, 4] w2", "MatMul (x, v2)", "MatMul (c, w2)", "d"),
        ("float[4] pad, float[4, 4] v, float[4, 4] w2", "com.microsoft.FusedMatMul (x, v)", "MatMul (c, w2)", None),
        ("float[4, 4] v, float[4, 4] pad, float[4, 4] w2", "com.microsoft.FusedMatMul (x, v)", "MatMul (c, w2)", "d"),
        ("float[4, 4] pad, float[4, 4] w, float[4, 4] v2", "MatMul (x, v2)", "com.microsoft.FusedMatMul (c, w)", "c"),
        (
            "float[4, 4] pad, float[4, 4] w, float[4, 4] v2",
            "MatMul (x, v2)",
            "com.microsoft.FusedMatMul <alpha = 2.0> (c, w)",
            None,
        ),
    ],
)
def test_a_scale_is_in_the_product_that_has_new_numbers(
    weights: str, first: str, second: str, origins: str | None
) -> None:
    after = PRODUCTS.replace("WEIGHTS", weights).replace("FIRST", first).replace("SECOND", second)
    found = carry(MATRICES, after, CALLS)
    if origins is None:  # both have
        assert found["c"] == ({"conv", "norm"}, "name")
        assert found["d"] == ({"conv1"}, "name")
    else:
        assert "norm" in found[origins][0]
        assert found["c"][0] | found["d"][0] == {"conv", "norm", "conv1"}
        assert "name" not in (found["c"][1], found["d"][1])


# -- where the first cannot have taken it ---------------------------------------------------------------------------


def test_a_tensor_that_a_model_returns_is_what_it_was() -> None:
    found = alter(CONVS_AND_NORM, BOTH_WITH_BIAS, more=", float[1, 4, 4, 4] c")
    assert found["c"] == ({"conv"}, "captured")
    assert found["d"] == ({"norm", "conv1"}, "carried")


def test_a_tensor_that_a_body_reads_is_what_it_was() -> None:
    branch = """
        z = If (flag) <
            then_branch = then () => (float[1, 4, 4, 4] t1) { t1 = Neg (c) },
            else_branch = other () => (float[1, 4, 4, 4] t2) { t2 = Abs (c) }
        >
    """
    ends = "main (float[1, 4, 4, 4] x, bool flag) => (float[1, 4, 4, 4] y, float[1, 4, 4, 4] z)"
    calls = CALLS | {"t1": "other", "t2": "other"}
    texts = zip((CONVS_AND_NORM, BOTH_WITH_BIAS), (WEIGHTS, NEW_WEIGHTS), strict=True)
    found = carry(*(f"{ends} <{weights}> {{{text} {branch}}}" for text, weights in texts), calls)
    assert found["c"] == ({"conv"}, "captured")
    assert found["d"] == ({"norm", "conv1"}, "carried")


def test_work_that_is_there_as_it_was_went_nowhere() -> None:
    after = BOTH_WITH_BIAS.replace("d = ", "n = BatchNormalization (c, s, b, m, u)\nd = ")
    new = f"{NEW_WEIGHTS}, float[4] s, float[4] b, float[4] m, float[4] u"
    found = alter(CONVS_AND_NORM, after, more=", float[1, 4, 4, 4] n", new=new)
    assert found["c"] == ({"conv"}, "captured")


def test_what_another_node_reads_as_well_is_what_it_was() -> None:
    before, after = (f"{text} z = Neg (c)" for text in (CONVS_AND_NORM, BOTH_WITH_BIAS))
    found = alter(before, after, more=", float[1, 4, 4, 4] z")
    assert found["c"] == ({"conv"}, "captured")
    assert found["d"] == ({"norm", "conv1"}, "carried")


@pytest.mark.parametrize(
    ("maker", "altered"),
    [
        ("Clip (x, lo, hi)", "Clip (x, lo2, hi2)"),
        ("Reshape (x, shape)", "Reshape (x, shape2)"),
        ("Relu (x)", "com.example.ReluConv (x, first)"),
        ("Mul (x, lo)", "Mul (x, hi)"),
    ],
)
def test_a_norm_is_in_no_node_but_a_product(maker: str, altered: str) -> None:
    more = "float lo, float hi, int64[4] shape = {1, 4, 4, 4}, float lo2, float hi2, int64[4] shape2 = {-1, 4, 4, 4}"
    before, after = CONVS_AND_NORM.replace("Conv (x, v)", maker), SECOND_WITH_BIAS.replace("Conv (x, first)", altered)
    found = alter(before, after, weights=f"{WEIGHTS}, {more}", new=f"{NEW_WEIGHTS}, {more}")
    assert found["c"][0] == {"conv"}
    assert found["d"] == ({"norm", "conv1"}, "carried")


@pytest.mark.parametrize(
    "work",
    [
        "n = Div (k, c)",
        "n = Pow (c, k)",
        "n = Mul (c, c)",
        "n = BatchNormalization (s, c, b, m, u)",
        "n, mean, var = BatchNormalization <training_mode = 1> (c, s, b, m, u)",
    ],
)
def test_what_is_no_scale_and_shift_is_in_no_product(work: str) -> None:
    before = CONVS_AND_NORM.replace("n = BatchNormalization (c, s, b, m, u)", work)
    found = alter(before, BOTH_WITH_BIAS, weights=f"{WEIGHTS}, float[4, 1, 1] k")
    assert found["c"] == ({"conv"}, "captured")
    assert found["d"] == ({"norm", "conv1"}, "carried")


def test_what_is_multiplied_with_a_tensor_is_in_no_product_before() -> None:
    before = CONVS_AND_NORM.replace("n = BatchNormalization (c, s, b, m, u)", "z = Neg (x)\nn = Mul (c, z)")
    after = BOTH_WITH_BIAS.replace("d = Conv (c, ", "z = Neg (x)\nd = com.example.GateConv (c, z, ")
    found = alter(before, after)
    assert found["c"] == ({"conv"}, "captured")
    assert found["d"] == ({"norm", "conv1"}, "carried")


def test_work_on_another_way_is_not_taken_from_a_node() -> None:
    norms = "o = BatchNormalization (x, s, b, t, u) c = Conv (o, v) n = BatchNormalization (c, s, b, m, u)"
    before = f"{norms} d = Conv (x, w) y = Relu (d) z = Neg (n)"
    after = "c = Conv (x, first, bias) d = com.example.PairConv (c, x, second) y = Relu (d) z = Neg (c)"
    found = alter(before, after, more=", float[1, 4, 4, 4] z")
    assert found["c"] == ({"norm0", "conv", "norm"}, "carried")
    assert found["d"] == ({"conv1"}, "carried")


def test_a_scale_that_was_altered_is_itself() -> None:
    ends = "main (float[1, 4, 4, 4] x) => (float[1, 4, 4, 4] {})"
    before = f"{ends.format('y')} <{WEIGHTS}> {{ c = Conv (x, v) y = Mul (c, s) }}"
    after = f"{ends.format('result')} <{NEW_WEIGHTS}> {{ c = Conv (x, first) result = Mul (c, bias1) }}"
    found = carry(before, after, CALLS)
    assert found["c"] == ({"conv"}, "captured")
    assert found["result"] == ({"act"}, "captured")


def test_what_is_left_of_an_offset_that_the_first_cannot_add_is_in_the_second() -> None:
    before = CONVS_AND_NORM.replace("n = Batch", "z = Mul (c, k)\nn = Batch").replace("tion (c,", "tion (z,")
    found = alter(before, SECOND_WITH_BIAS, weights=f"{WEIGHTS}, float[4, 1, 1] k")
    assert found["c"] == ({"conv", "other"}, "name")
    assert found["d"] == ({"norm", "conv1"}, "name")
