"""Kernels of written-down traces joined to nodes: loops, branches, names that two nodes have, threads."""

from __future__ import annotations

import json
from pathlib import Path

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from hieronnx.graph.building import view_model
from hieronnx.runtime.profiles import read_trace
from hieronnx.tools.profile.joining import join_kernels


def make_view():
    """Return a loop whose body has a node of the same name as one outside, and a branch in it."""
    bool_value = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    then = helper.make_graph([helper.make_node("Exp", ["v"], ["t"], name="same")], "then", [], [value("t")])
    other = helper.make_graph([helper.make_node("Sin", ["v"], ["e"], name="sine")], "else", [], [value("e")])
    body = helper.make_graph(
        [
            helper.make_node("Neg", ["v"], ["n"], name="same"),
            helper.make_node("If", ["c"], ["w"], name="branch", then_branch=then, else_branch=other),
            helper.make_node("Identity", ["c"], ["c_out"], name="go on"),
        ],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), bool_value, value("v")],
        [helper.make_tensor_value_info("c_out", TensorProto.BOOL, []), value("w")],
    )
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], name="same"),
        helper.make_node("Loop", ["m", "k", "a"], ["y"], name="loop", body=body),
    ]
    inputs = [helper.make_tensor_value_info("m", TensorProto.INT64, []), value("x")]
    inputs.append(helper.make_tensor_value_info("k", TensorProto.BOOL, []))
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, [value("y")]))
    return view_model(ir.serde.deserialize_model(model))


def value(name: str):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])


def node(name: str, ts: int, dur: int, tid: int = 1):
    return {"cat": "Node", "pid": 1, "tid": tid, "ts": ts, "dur": dur, "ph": "X", "name": f"{name}_kernel_time"}


def run(ts: int, dur: int, tid: int = 1):
    return {"cat": "Session", "pid": 1, "tid": tid, "ts": ts, "dur": dur, "ph": "X", "name": "model_run"}


def join(tmp_path: Path, *events: dict):
    (tmp_path / "trace.json").write_text(json.dumps(events))
    view = make_view()
    kernels = join_kernels(read_trace(tmp_path / "trace.json"), view)
    return {(k.name, None if k.node is None else view.nodes[k.node].op): (k.samples, k.counts) for k in kernels}


# As they end: what a loop ran comes before it.
LOOP = (
    node("same", 10, 5),
    *(node("same", 21, 4), node("same", 27, 3), node("branch", 26, 6), node("go on", 33, 1)),
    *(node("same", 40, 4), node("sine", 46, 2), node("branch", 45, 5), node("go on", 51, 2)),
    node("loop", 20, 40),
    run(5, 60),
)


def test_own_times_are_without_what_was_run_and_add_up(tmp_path: Path) -> None:
    joined = join(tmp_path, *LOOP)
    assert joined["same", "Abs"] == ([5], [1])
    assert joined["same", "Neg"] == ([8], [2])
    assert joined["same", "Exp"] == ([3], [1])
    assert joined["sine", "Sin"] == ([2], [1])
    assert joined["branch", "If"] == ([6], [2])
    assert joined["loop", "Loop"] == ([40 - 4 - 6 - 1 - 4 - 5 - 2], [1])
    assert sum(samples[0] for samples, _ in joined.values()) == 5 + 40


def test_runs_of_several_threads_are_told_apart(tmp_path: Path) -> None:
    joined = join(tmp_path, node("same", 10, 5), node("same", 11, 7, tid=2), run(9, 8), run(9, 10, tid=2))
    assert joined["same", "Abs"] == ([5, 7], [1, 1])


def test_what_ran_in_other_threads_is_of_the_run_around_it(tmp_path: Path) -> None:
    joined = join(tmp_path, node("same", 10, 5, tid=7), run(9, 8))
    assert joined["same", "Abs"] == ([5], [1])


def test_a_name_that_no_node_has_stays_a_kernel_of_its_own(tmp_path: Path) -> None:
    joined = join(tmp_path, node("unknown", 10, 5), run(9, 8))
    assert joined["unknown", None] == ([5], [1])


@pytest.mark.parametrize("rounded", [0, 1])
def test_a_rounded_time_is_never_less_than_nothing(tmp_path: Path, rounded: int) -> None:
    joined = join(tmp_path, node("same", 20, 5 + rounded), node("loop", 20, 5), run(5, 60))
    assert joined["loop", "Loop"][0] == [0]


# -- nodes without names ----------------------------------------------------------------------------------


def join_unnamed(tmp_path: Path, *names: str) -> dict[str, str | None]:
    """Join kernels to a chain of a named node and two pairs without names; return the outputs of the nodes."""
    chain = [("Abs", "first"), ("Exp", ""), ("Neg", ""), ("Abs", "second"), ("Exp", ""), ("Neg", "")]
    nodes = [helper.make_node(op, [f"t{n}"], [f"t{n + 1}"], name=name) for n, (op, name) in enumerate(chain)]
    graph = helper.make_graph(nodes, "g", [value("t0")], [value("t6")])
    view = view_model(ir.serde.deserialize_model(helper.make_model(graph)))
    events = [node(name, 10 * place, 5) for place, name in enumerate(names, 1)]
    for made in events:
        made["args"] = {"op_name": made["name"].partition("_")[0]}
    (tmp_path / "trace.json").write_text(json.dumps([*events, run(5, 500)]))
    kernels = join_kernels(read_trace(tmp_path / "trace.json"), view)
    return {k.name: None if k.node is None else view.node_key(k.node)[1] for k in kernels}


def test_nodes_without_names_are_known_by_their_order(tmp_path: Path) -> None:
    joined = join_unnamed(tmp_path, "first", "Exp_7", "Neg_8", "second", "Exp_3", "Neg_4")
    assert joined == {"first": "t1", "Exp_7": "t2", "Neg_8": "t3", "second": "t4", "Exp_3": "t5", "Neg_4": "t6"}


@pytest.mark.parametrize(
    "names",
    [
        ("first", "Exp_7", "Neg_8", "second", "Exp_3", "Neg_4", "Exp_5"),  # one more than there are nodes
        ("second", "Exp_7", "Neg_8", "first", "Exp_3", "Neg_4"),  # in another order than that of the file
        ("first", "Exp_7", "Exp_3", "Neg_8", "second", "Neg_4"),
    ],
)
def test_where_their_order_is_not_that_of_the_file_they_are_not_known(tmp_path: Path, names: tuple[str, ...]) -> None:
    joined = join_unnamed(tmp_path, *names)
    assert (joined["first"], joined["second"]) == ("t1", "t4")
    assert joined["Exp_7"] is joined["Exp_3"] is None
