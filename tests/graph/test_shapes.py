"""Inferring types: without weights, through what is computed of literals, and through ONNX Runtime's own operators."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, parser

from hieronnx.errors import HieronnxError
from hieronnx.graph import growth, shapes
from hieronnx.graph.shapes import _copy_structure, infer_types

HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'


def types_of(model: onnx.ModelProto, **dims: int) -> dict[str, tuple[int, tuple[int | str | None, ...] | None]]:
    """Return the type of elements and the sizes of each tensor that was inferred, by name."""
    found = {}
    for value, info in infer_types(ir.serde.deserialize_model(model), dims).items():
        kind = info.type.tensor_type
        sizes = tuple(d.dim_value or d.dim_param or None for d in kind.shape.dim) if kind.HasField("shape") else None
        found[value.name or ""] = kind.elem_type, sizes
    return found


def infer(text: str, **dims: int) -> dict[str, tuple[int, tuple[int | str | None, ...] | None]]:
    return types_of(parser.parse_model(f"{HEADER} {text}"), **dims)


def test_axes_can_be_fixed_by_name() -> None:
    text = "main (float[n, 4] x) => (y) { h = Relu (x)  y = Transpose (h) }"
    assert infer(text)["h"] == (TensorProto.FLOAT, ("n", 4))
    assert infer(text, n=3)["y"] == (TensorProto.FLOAT, (4, 3))


def test_sizes_that_are_computed_of_literals_are_followed() -> None:
    text = """
        main (float[2, 4, 6] x) => (y)
        <int64[1] two = {2}, int64[1] three = {3}, int64[1] zero = {0}, int64[2] end = {3, -1}>
        {
            s = Shape (x)
            last = Mod (two, three)
            same = Reshape (last, zero)
            first = Slice (s, zero, last)
            k = Concat <axis = 0> (first, end)
            y = Reshape (x, k)
        }
        """
    assert infer(text.replace("same = Reshape (last, zero)", ""))["y"] == (TensorProto.FLOAT, (2, 4, 3, 2))


HALVES = """
    main (float[{batch}, 6, 8] x) => (y)
    <int64 one = {{1}}, int64 two = {{2}}, int64[1] axis = {{1}}, int64[1] zero = {{0}}> {{
        s = Shape (x)
        n = Gather (s, one)
        h = Div (n, two)
        e = Unsqueeze (h, zero)
        a = Slice (x, zero, e, axis)
        t = Shape (a)
        m = Gather (t, axis)
        k = Div (m, m)
        b = Slice (a, zero, k, axis)
        y = Relu (b)
    }}
"""


@pytest.mark.parametrize("batch", [2, "batch"])
def test_sizes_that_are_computed_of_sizes_are_followed_one_after_the_other(batch: int | str) -> None:
    assert infer(HALVES.format(batch=batch))["a"] == (TensorProto.FLOAT, (batch, 3, 8))
    assert infer(HALVES.format(batch=batch))["y"] == (TensorProto.FLOAT, (batch, 1, 8))


def test_what_is_divided_by_no_number_is_not_computed() -> None:
    text = HALVES.format(batch=2).replace("int64 two = {2}", "int64 two = {0}")
    _, sizes = infer(text)["a"]
    assert not any(isinstance(size, int) for size in sizes or ())


def test_numbers_that_are_filled_in_and_turned_are_followed() -> None:
    text = """
        main (float[2, 4, 6] x) => (y)
        <int64[1] four = {4}, int64[2] ends = {1, 2}, int64[2] pairs = {-1, 2}, int64[1] flat = {-1}>
        {
            zeros = ConstantOfShape <value = int64[1] {0}> (four)
            all = Concat <axis = 0> (zeros, ends)
            table = Reshape (all, pairs)
            turned = Transpose <perm = [1, 0]> (table)
            pads = Reshape (turned, flat)
            y = Pad (x, pads)
        }
        """
    assert infer(text)["y"] == (TensorProto.FLOAT, (2, 4, 9))


@pytest.mark.parametrize("sizes", ["{1000000, 1000000}", "{0, 9223372036854775807}"])
def test_what_is_filled_with_many_numbers_is_not_computed(sizes: str) -> None:
    text = f"""
        main (float[2] x) => (y) <int64[2] many = {sizes}>
        {{ filled = ConstantOfShape <value = int64[1] {{1}}> (many)  y = Relu (x) }}
        """
    assert infer(text)["y"] == (TensorProto.FLOAT, (2,))


def test_an_input_with_a_default_is_no_literal() -> None:
    text = """
        main (float[6] x, int64[1] k) => (y)
        <int64[1] k = {2}, int64[1] one = {1}> { s = Add (k, one)  y = Reshape (x, s) }
        """
    model = parser.parse_model(f"{HEADER} {text}")
    assert [info.name for info in model.graph.input] == ["x", "k"]
    assert types_of(model)["s"] == (TensorProto.INT64, (1,))
    assert types_of(model)["y"][1] != (3,)


def test_long_lists_of_numbers_are_not_followed() -> None:
    weight = TensorProto(name="w", data_type=TensorProto.INT64, dims=[1 << 22], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="w.data")
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, [1 << 22]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weight])
    model = ir.serde.deserialize_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    copy, _ = _copy_structure(model, {})
    (held,) = (info for info in copy.graph.input if info.name == "w")
    assert [dim.WhichOneof("value") for dim in held.type.tensor_type.shape.dim] == [None]
    assert not copy.graph.initializer


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ("com.microsoft.MatMulIntegerToFloat (a, b, s, s)", (TensorProto.FLOAT, (2, 5))),
        ("com.microsoft.QGemm (a, s, z, b, s, z)", (TensorProto.FLOAT, (2, 5))),
        ("com.microsoft.QGemm (a, s, z, b, s, z, , s, z)", (TensorProto.UINT8, (2, 5))),
        ("com.microsoft.QLinearAdd (a, s, z, a, s, z, s, z)", (TensorProto.UINT8, (2, 3))),
        ("com.microsoft.DynamicQuantizeMatMul (x, b, s)", (TensorProto.FLOAT, (2, 5))),
        ("com.microsoft.FusedMatMul <transA = 1> (x, x)", (TensorProto.FLOAT, (3, 3))),
    ],
)
def test_operators_of_onnx_runtime_have_types_too(
    node: str, found: tuple[int, tuple[int | str | None, ...] | None]
) -> None:
    given = "uint8[2, 3] a, uint8[3, 5] b, float s, uint8 z, float[2, 3] x"
    text = f"main ({given}) => (y) {{ h = {node}  y = Identity (h) }}"
    assert infer(text)["h"] == found
    assert infer(text)["y"] == found


BLOCKED = HEADER.replace('"com.microsoft" : 1', '"com.microsoft.nchwc" : 1')
FLOAT = TensorProto.FLOAT


def infer_blocked(text: str, **dims: int) -> dict[str, tuple[int, tuple[int | str | None, ...] | None]]:
    """Infer a model in blocks of channels: `c.` stands for their domain, and what is declared is a weight."""
    model = parser.parse_model(f"{BLOCKED} {text.replace('c.', 'com.microsoft.nchwc.')}")
    for info in model.graph.value_info:
        sizes = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        weight = model.graph.initializer.add(name=info.name, data_type=FLOAT, dims=sizes)
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="weights")
    del model.graph.value_info[:]
    return types_of(model, **dims)


def test_tensors_in_blocks_of_channels_have_types() -> None:
    text = """
        main (float[1, 12, 6, 8] x) => (y) <float[32, 16, 3, 3] w, float[32, 1, 3, 3] d>
        {
            a = c.ReorderInput <channels_last = 0> (x)
            b = c.Conv <kernel_shape = [3, 3], activation = "Relu"> (a, w)
            e = c.Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 32> (b, d)
            f = c.MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (e)
            g = c.Upsample <scales = [1, 1, 2, 2]> (f)
            h = Add (g, e)
            k = c.GlobalAveragePool (h)
            y = c.ReorderOutput <channels = 20, channels_last = 0> (k)
            z = c.ReorderOutput <channels = 20, channels_last = 1> (h)
        }
        """
    found = infer_blocked(text)
    assert found["a"] == (FLOAT, (1, 16, 6, 8))
    assert found["b"] == found["e"] == found["g"] == found["h"] == (FLOAT, (1, 32, 4, 6))
    assert found["f"] == (FLOAT, (1, 32, 2, 3))
    assert found["y"] == (FLOAT, (1, 20, 1, 1))
    assert found["z"] == (FLOAT, (1, 4, 6, 20))


def test_what_is_put_into_blocks_keeps_its_dynamic_axes() -> None:
    text = """
        main (float[n, 12, h, 8] x, float[n, h, 8, 12] l) => (y) <float[16, 1, 3, 3] d>
        {
            a = c.ReorderInput <channels_last = 0> (x)
            b = c.Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 16> (a, d)
            e = c.ReorderInput <channels_last = 1> (l)
            f = c.Conv <kernel_shape = [3, 3], group = 16> (e, d)
            y = c.ReorderOutput <channels = 12> (a)
        }
        """
    found = infer_blocked(text)
    assert found["a"] == found["e"] == (FLOAT, ("n", 16, "h", 8))
    assert found["y"] == (FLOAT, ("n", 12, "h", 8))
    assert infer_blocked(text, n=2, h=5)["b"] == (FLOAT, (2, 16, 5, 8))


def test_how_far_channels_are_filled_up_is_not_guessed() -> None:
    text = """
        main (float[1, 12, 6, 8] x) => (y)
        {
            a = c.ReorderInput (x)
            b = c.MaxPool <kernel_shape = [2, 2]> (a)
            y = c.ReorderOutput <channels = 12> (b)
        }
        """
    found = infer_blocked(text)
    for name, sizes in (("a", (6, 8)), ("b", (5, 7))):
        element, (batch, channels, *rest) = found[name][0], found[name][1] or ()
        assert (element, batch, *rest) == (FLOAT, 1, *sizes)
        assert not isinstance(channels, int)
    assert found["y"] == (FLOAT, (1, 12, 5, 7))


def test_operators_of_onnx_runtime_have_types_in_bodies_too() -> None:
    text = """
        main (float[1, 12, 6, 8] x, bool on) => (y) <float[16, 16, 1, 1] w>
        {
            y = If (on) <then_branch = yes () => (p) {
                             a = c.ReorderInput (x)
                             b = c.Conv <kernel_shape = [1, 1]> (a, w)
                             p = c.ReorderOutput <channels = 9> (b) },
                         else_branch = no () => (q) { q = c.ReorderOutput <channels = 9> (x) }>
        }
        """
    found = infer_blocked(text)
    assert found["b"] == (FLOAT, (1, 16, 6, 8))
    assert found["p"] == found["q"] == found["y"] == (FLOAT, (1, 9, 6, 8))


def test_products_with_packed_weights_have_types() -> None:
    given = "float[n, 2, 64] x, uint8[96, 2, 16] b, float[192] s"
    node = "com.microsoft.MatMulNBits <K = 64, N = 96, bits = 4, block_size = 32> (x, b, s)"
    assert infer(f"main ({given}) => (y) {{ h = {node}  y = Neg (h) }}")["y"] == (FLOAT, ("n", 2, 96))


@pytest.mark.parametrize(
    ("product", "sizes"),
    [("<transB = 1> (w, x)", (2, 5, 8)), ("<transA = 1> (t, w)", (2, 8, 3)), ("<transA = 1> (w, w)", (3, 3))],
)
def test_products_of_a_matrix_that_is_transposed_have_types(product: str, sizes: tuple[int, ...]) -> None:
    given = "float[2, 8, 3] x, float[2, 5, 8] t"
    text = f"main ({given}) => (y) {{ h = com.microsoft.FusedMatMul {product}  y = Neg (h) }}"
    model = parser.parse_model(f"{HEADER} {text}")
    weight = model.graph.initializer.add(name="w", data_type=FLOAT, dims=[5, 3])
    weight.raw_data = bytes(60)
    assert types_of(model)["y"] == (FLOAT, sizes)


def test_bodies_have_types_too() -> None:
    text = """
        main (float[2, 3] x, bool c) => (y)
        {
            y = If (c) <then_branch = yes () => (p) { h = Transpose (x)  p = Neg (h) },
                        else_branch = no () => (q) { q = Transpose (x) }>
        }
        """
    found = infer(text)
    assert found["h"] == found["q"] == found["y"] == (TensorProto.FLOAT, (3, 2))


def test_what_cannot_be_inferred_is_told() -> None:
    given = "int64[1] two = {2}, int64[1] far = {7}"
    text = f"main (float[2] x) => (y) <{given}> {{ k = Gather (two, far)  y = Reshape (x, k) }}"
    with pytest.raises(HieronnxError, match="the shapes that the file lacks cannot be inferred: "):
        infer(text)


# -- sizes that are computed from sizes, step by step --------------------------------------------------------------


def halve(layers: int, others: int = 0) -> str:
    """Return a chain of layers that cut a tensor at a half of its size, and as many nodes beside them."""
    text = """main (float[2, 64] x) => (y)
        <int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64[1] axis = {1}, int64[1] first = {0}> {"""
    before = "x"
    for i in range(layers):
        text += f"""
            s{i} = Shape ({before})
            d{i} = Gather (s{i}, one)
            h{i} = Div (d{i}, two)
            e{i} = Unsqueeze (h{i}, first)
            a{i} = Slice ({before}, first, e{i}, axis)
            b{i} = Concat <axis = 1> (a{i}, a{i})"""
        before = f"b{i}"
    for i in range(others):
        text += f" o{i} = Neg ({f'o{i - 1}' if i else 'x'})"
    return f"{text} y = Relu ({before}) }}"


def count_inferred(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return where the sizes of all graphs are noted down that types are inferred of."""
    infer_shapes, counts = onnx.shape_inference.infer_shapes, list[int]()

    def count(model: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
        counts.append(len(model.graph.node))
        return infer_shapes(model, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", count)
    return counts


def test_only_what_sizes_reach_is_inferred_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_inferred(monkeypatch)
    again = []
    for others in (0, 300):
        counts.clear()
        assert infer(halve(4, others))["y"] == (TensorProto.FLOAT, (2, 64))
        assert counts[0] == 4 * 6 + 1 + others
        again.append(counts[1:])
    assert again[0] == again[1]
    assert again[0] == sorted(again[0], reverse=True)
    assert len(again[0]) == 4


def test_steps_that_end_are_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert infer(halve(4))["y"] == (TensorProto.FLOAT, (2, 64))
    assert not caplog.records
    monkeypatch.setattr(shapes, "_MOST_VISITS", 40)
    kind, sizes = infer(halve(4))["y"]
    assert (kind, sizes is None or sizes[1] == 64) == (TensorProto.FLOAT, False)
    assert [record.getMessage() for record in caplog.records] == [
        "sizes are computed from one another in too many steps: not all of them are followed"
    ]


def test_what_sizes_reach_in_bodies_has_types_too() -> None:
    found = infer("""
        main (float[batch, 6] x, bool c) => (y)
        <int64 one = {1}, int64 two = {2}, int64[1] axis = {1}, int64[1] zero = {0}> {
            s = Shape (x)
            n = Gather (s, one)
            h = Div (n, two)
            e = Unsqueeze (h, zero)
            a = Slice (x, zero, e, axis)
            y = If (c) <then_branch = yes () => (t) { t = Neg (a) },
                        else_branch = no () => (f) { g = Abs (a)  f = Neg (g) }>
        }
    """)
    assert found["a"] == found["t"] == found["g"] == found["y"] == (TensorProto.FLOAT, ("batch", 3))


def test_dynamic_sizes_are_known_by_name_beside_those_that_are_followed() -> None:
    """What computes them comes before what a size reaches, and is not reached itself."""
    found = infer("""
        main (float[batch, 6, 8] x) => (y)
        <int64 two = {2}, int64[1] axis = {1}, int64[1] zero = {0}, int64[1] end = {1}, int64[1] rest = {-1}> {
            s = Shape (x)
            n = Slice (s, zero, end)
            k = Concat <axis = 0> (n, rest)
            m = Shape <start = 1, end = 2> (x)
            h = Div (m, two)
            a = Slice (x, zero, h, axis)
            y = Reshape (a, k)
        }
    """)
    assert found["a"] == (TensorProto.FLOAT, ("batch", 3, 8))
    assert found["y"][1] is not None
    assert found["y"][1][0] == "batch"


@pytest.mark.parametrize(
    ("ends", "size"), [("start = 1", 3), ("start = -2, end = -1", 3), ("start = 1, end = 2", 3), ("end = 1", 1)]
)
def test_a_part_of_a_shape_is_followed(ends: str, size: int) -> None:
    found = infer(f"""
        main (float[2, 6, n] x, float[9] z) => (y)
        <int64 two = {{2}}, int64 none = {{0}}, int64[1] zero = {{0}}, int64[1] axis = {{0}}> {{
            s = Shape <{ends}> (x)
            m = Gather (s, none)
            h = Div (m, two)
            e = Unsqueeze (h, zero)
            y = Slice (z, zero, e, axis)
        }}
    """)
    assert found["y"] == (TensorProto.FLOAT, (size,))


def test_sizes_that_are_not_known_are_not_named_alike() -> None:
    """Each inference gives the names of its own from 0 on."""
    text = """
        main (float[6, 8] x, float[a] v, float[b] w) => (y) <int64 one = {1}, int64 two = {2}, int64[1] zero = {0}> {
            p = NonZero (v)
            q = NonZero (w)
            s = Shape (x)
            n = Gather (s, one)
            h = Div (n, two)
            e = Unsqueeze (h, zero)
            c = Slice (x, zero, e, zero)
            d = NonZero (c)
            y = Neg (d)
        }
    """
    found = infer(text)
    assert found["y"][1] == found["d"][1]
    unknown = [sizes[1] for _, sizes in (found[name] for name in "pqd") if sizes is not None]
    assert len(set(unknown)) == 3


def test_sizes_are_not_followed_where_lists_become_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        main (float[2, 400] x) => (y) <int64 one = {1}, int64 two = {2}, int64[1] zero = {0}> {
            s = Shape (x)
            n = Gather (s, one)
            h = Div (n, two)
            e = Unsqueeze (h, zero)
            l = Expand (one, e)
            k = Concat <axis = 0> (l, l)
            t = Shape (k)
            y = Expand (one, t)
        }
    """
    assert infer(text)["y"] == (TensorProto.INT64, (400,))
    counts = count_inferred(monkeypatch)
    monkeypatch.setattr(growth, "MOST_NUMBERS", 300)
    assert infer(text)["k"] == (TensorProto.INT64, (400,))  # 400 numbers are read to make it
    assert len(counts) == 2
