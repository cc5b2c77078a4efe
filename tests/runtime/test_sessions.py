"""Running a file with its inner tensors handed out: bodies, functions, weights anywhere, and in small pieces."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from hieronnx.errors import HieronnxError
from hieronnx.files.opening import open_model
from hieronnx.runtime.sessions import Array, open_runner
from support.onnxdata import BODIES, FUNCTIONS

X = np.array([1.0, -2.0], dtype=np.float32)
FileRun = Mapping[tuple[str, str], list[list[float]]]


def see(
    model: onnx.ModelProto | Path,
    feeds: Mapping[str, Array],
    *,
    buffer: int = 1 << 20,
    wanted: Callable[[str, str], bool] | None = None,
) -> tuple[FileRun, tuple[str, ...]]:
    """Run a model; return what it made, by graph and name, and what was hidden."""
    seen: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    with open_runner(open_model(model), buffer=buffer) as runner:
        hidden = runner.run_exposed(feeds, lambda g, n, array: seen[g, n].append(array.tolist()), wanted=wanted)
    return seen, hidden


def bodies_feeds(condition: bool, count: int) -> dict[str, Array]:
    return {"x": X, "c": np.array(condition), "n": np.array(count, dtype=np.int64)}


def test_the_branch_that_is_taken_is_seen_and_the_other_named() -> None:
    seen, hidden = see(parser.parse_model(BODIES), bodies_feeds(condition=True, count=1))
    assert seen["", "a"] == [[2.0, 0.0]]
    assert seen["y.then_branch", "t1"] == [[2.0, 0.0]]
    assert seen["y.then_branch/t.then_branch", "p"] == seen["", "y"] == [[2.0, 0.0]]
    assert ("y.else_branch", "e") not in seen
    assert any("y.else_branch" in reason for reason in hidden)
    assert any("y.then_branch/t.else_branch" in reason for reason in hidden)


def test_the_other_branch_is_seen_on_other_inputs() -> None:
    seen, _ = see(parser.parse_model(BODIES), bodies_feeds(condition=False, count=1))
    assert seen["y.else_branch", "e"] == [[-2.0, 0.0]]
    assert ("y.then_branch", "t1") not in seen


def test_a_tensor_in_a_loop_is_seen_once_for_each_iteration() -> None:
    seen, _ = see(parser.parse_model(BODIES), bodies_feeds(condition=True, count=3))
    assert seen["z.body", "so"] == [[4.0, 0.0], [6.0, 0.0], [8.0, 0.0]]
    assert seen["", "z"] == [[8.0, 0.0]]


def test_a_loop_that_never_runs_shows_nothing() -> None:
    seen, _ = see(parser.parse_model(BODIES), bodies_feeds(condition=True, count=0))
    assert seen["", "z"] == seen["", "a"]
    assert ("z.body", "so") not in seen


def test_functions_are_seen_under_their_own_names() -> None:
    seen, _ = see(parser.parse_model(FUNCTIONS), {"x": X, "c": np.array(True)})
    assert seen["", "h"] == seen["local::twice", "y"] == [[2.0, -4.0]]
    assert seen["local::choose/y.then_branch", "t"] == seen["", "y"] == [[2.0, 0.0]]


CALLED_TWICE = """
    <ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    main (float[2] x) => (float[2] y)
    {
        h = local.scale <factor = 2.0> (x)
        y = local.scale <factor = 3.0> (h)
    }
    <domain: "local", opset_import: ["" : 21]>
    scale <factor> (x) => (y)
    {
        f = Constant <value_float: float = @factor> ()
        y = Mul (x, f)
    }
"""


def test_a_function_that_is_called_twice_is_seen_twice_each_time_with_its_attributes() -> None:
    seen, _ = see(parser.parse_model(CALLED_TWICE), {"x": X})
    assert seen["local::scale", "y"] == [[2.0, -4.0], [6.0, -12.0]]


GROWS = """
    <ir_version: 10, opset_import: ["" : 21]>
    main (float[2] x, int64 n, bool c) => (float[k] z)
    {
        z = Loop (n, c, x) <
            body = grow (int64 i, bool ci, float[m] s) => (bool co, float[l] so) {
                co = Identity (ci)
                so = Concat <axis = 0> (s, x)
            }
        >
    }
"""


def test_what_changes_size_while_a_loop_runs_is_named_as_hidden() -> None:
    feeds = {"x": X, "n": np.array(3, dtype=np.int64), "c": np.array(True)}
    seen, hidden = see(parser.parse_model(GROWS), feeds)
    assert ("z.body", "so") not in seen
    assert seen["z.body", "co"] == [True, True, True]
    assert hidden == ("'so' in z.body: it changes size from one iteration to the next",)


SEQUENCES = """
    <ir_version: 10, opset_import: ["" : 21]>
    main (float[2] x) => (float[4] y)
    {
        h = Neg (x)
        s = SequenceConstruct (x, h)
        t = Identity (s)
        y = ConcatFromSequence <axis = 0> (t)
    }
"""


def test_what_is_no_tensor_is_left_out() -> None:
    seen, hidden = see(parser.parse_model(SEQUENCES), {"x": X})
    assert set(seen) == {("", "h"), ("", "y")}
    assert len(hidden) == 2


def make_chain(length: int, size: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.random(size, dtype=np.float32), f"w{i}") for i in range(length)]
    names = ["x", *(f"t{i}" for i in range(length))]
    nodes = [helper.make_node("Add", [names[i], f"w{i}"], [names[i + 1]]) for i in range(length)]
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [size]) for n in (names[0], names[-1]))
    graph = helper.make_graph(nodes, "chain", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("buffer", [1, 8 * 1000 * 3, 1 << 24])
def test_all_is_seen_however_small_the_buffer(buffer: int) -> None:
    feeds = {"x": np.zeros(1000, dtype=np.float32)}
    seen, _ = see(make_chain(10, 1000), feeds, buffer=buffer)
    assert list(seen) == [("", f"t{i}") for i in range(10)]
    assert all(len(arrays) == 1 for arrays in seen.values())


def test_only_what_is_wanted_is_seen() -> None:
    seen, _ = see(make_chain(4, 3), {"x": np.zeros(3, np.float32)}, wanted=lambda _, name: name in {"t1", "t3"})
    assert set(seen) == {("", "t1"), ("", "t3")}


def save(model: onnx.ModelProto, path: Path, form: str) -> Path:
    """Save a model with its weights inside, in a file beside it, or as numbers in the message."""
    if form == "as numbers":
        for tensor in model.graph.initializer:
            values = numpy_helper.to_array(tensor)
            tensor.ClearField("raw_data")
            tensor.float_data.extend(values.tolist())
    onnx.save(model, path, save_as_external_data=form == "external", location="weights.bin", size_threshold=0)
    return path


@pytest.mark.parametrize("form", ["inside", "external", "as numbers"])
def test_weights_are_found_wherever_they_are(form: str, tmp_path: Path) -> None:
    model, feeds = make_chain(3, 1000), {"x": np.ones(1000, dtype=np.float32)}
    expected = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    held: dict[str, Array] = {}
    path = save(model, tmp_path / "model.onnx", form)
    before = sorted(tmp_path.iterdir())
    with open_runner(open_model(path)) as runner:
        runner.read_initializers(lambda _, name, array: held.update({name: array.copy()}))
        assert np.allclose(runner.run(feeds)["t2"], 1 + sum(expected.values()))
    assert held.keys() == expected.keys()
    assert all(np.array_equal(held[name], expected[name]) for name in expected)
    assert sorted(tmp_path.iterdir()) == before


def test_a_model_in_memory_is_left_as_it_is() -> None:
    model = make_chain(2, 1000)
    before = model.SerializeToString(deterministic=True)
    see(model, {"x": np.zeros(1000, np.float32)})
    assert model.SerializeToString(deterministic=True) == before


def test_inputs_are_described_without_the_weights_among_them() -> None:
    model = make_chain(1, 5)
    model.graph.input.append(helper.make_tensor_value_info("w0", TensorProto.FLOAT, [5]))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with open_runner(open_model(model)) as runner:
        (given,) = runner.inputs
    assert (given.name, given.dtype, given.shape) == ("x", np.dtype(np.float32), ("n",))


def test_a_file_that_cannot_run_is_one_clear_error() -> None:
    with pytest.raises(HieronnxError, match="ONNX Runtime cannot run 'model' on these inputs"):
        see(make_chain(1, 5), {"x": np.zeros(4, np.float32)})
