"""The rules for nodes without a scope: each one, and that none ever gives a node to a sibling of its call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hieronnx.attribute.fill import fill_gaps
from hieronnx.files.opening import load_ir_model
from hieronnx.graph.building import view_model
from hieronnx.graph.view import View, ViewGraph, ViewNode
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import ROOT, Attribution, CallId
from support.onnxdata import BODIES

A, B, A_X, A_Y, B_X = (CallId(path, 0) for path in ("a", "b", "a.x", "a.y", "b.x"))
TREE = CallTree({ROOT: None, A: ROOT, B: ROOT, A_X: A, A_Y: A, B_X: B})


def fill(text: str, scopes: Mapping[str, CallId | None]) -> dict[str, Attribution]:
    """Fill the gaps of a model written in onnx's text form; scopes and results are by first output."""
    header = '<ir_version: 10, opset_import: ["" : 21]>'
    view = view_model(load_ir_model(onnx.parser.parse_model(text if "<ir" in text else f"{header} {text}")))
    outputs = [view.node_key(index)[1] for index in range(len(view.nodes))]
    known = [None if (scope := scopes[output]) is None else captured(scope) for output in outputs]
    return dict(zip(outputs, fill_gaps(view, known, TREE), strict=True))


def captured(scope: CallId) -> Attribution:
    return Attribution(scope, (scope,), "captured")


def outcome(attribution: Attribution) -> tuple[CallId, str, str]:
    assert attribution.origins == (attribution.scope,)
    return attribution.scope, attribution.evidence, attribution.rule


# -- rule by rule -------------------------------------------------------------------------------------------------


def test_what_has_a_scope_keeps_it_origins_and_all() -> None:
    known = Attribution(A, (A_X, A_Y), "carried", "some rule")
    view = View(graphs=[ViewGraph("", "", None, (0,), ())])
    x = view.add_tensor("x", 0)
    for name in ("m", "n"):
        view.add_node(ViewNode("Op", name, 0, (x,), (view.add_tensor(name, 0),), ()))
    assert fill_gaps(view, [known, known], TREE) == [known, known]
    assert fill_gaps(view, [known, None], TREE)[0] is known


@pytest.mark.parametrize(
    ("before", "after", "scope"),
    [(A_X, A_X, A_X), (A_X, A_Y, A), (A_X, B_X, ROOT), (A, A_X, A), (A_X, A, A), (ROOT, B_X, ROOT)],
)
def test_between_gives_the_lowest_call_above_what_comes_before_and_after(
    before: CallId, after: CallId, scope: CallId
) -> None:
    text = "g (float[2] x) => (float[2] z) { p = Relu (x) m = Neg (p) z = Exp (m) }"
    expected = ("root", "root") if scope == ROOT else ("dataflow", "between")
    assert outcome(fill(text, {"p": before, "m": None, "z": after})["m"]) == (scope, *expected)


def test_between_looks_at_all_that_it_reads_and_all_that_read_it() -> None:
    text = (
        "g (float[2] x) => (float[2] y, float[2] z) { p = Relu (x) q = Abs (x) m = Add (p, q) y = Exp (m) z = Neg (m) }"
    )
    same = {"p": A_X, "q": A_X, "m": None, "y": A_X, "z": A_X}
    assert fill(text, same)["m"].scope == A_X
    assert fill(text, same | {"q": A_Y})["m"].scope == A
    assert fill(text, same | {"z": A_Y})["m"].scope == A
    assert fill(text, same | {"q": B})["m"].scope == ROOT


def test_between_looks_through_neighbours_that_have_no_scope_either() -> None:
    text = "g (float[2] x) => (float[2] z) { p = Relu (x) m = Neg (p) n = Abs (m) z = Exp (n) }"
    found = fill(text, {"p": A_X, "m": None, "n": None, "z": A_Y})
    assert outcome(found["m"]) == outcome(found["n"]) == (A, "dataflow", "between")


def test_what_reads_the_models_inputs_comes_after_the_root_began() -> None:
    text = "g (float[2] x) => (float[2] z) { m = Neg (x) z = Exp (m) }"
    assert outcome(fill(text, {"m": None, "z": A_X})["m"]) == (ROOT, "root", "root")


def test_what_reads_a_shape_alone_serves_those_who_read_it() -> None:
    text = "g (float[2] x) => (float[2] z) { m = Shape (x) z = Reshape (x, m) }"
    assert outcome(fill(text, {"m": None, "z": A_X})["m"]) == (A_X, "dataflow", "consumers")


def test_what_the_model_returns_is_read_by_the_root() -> None:
    text = "g (float[2] x) => (float[2] m) { p = Neg (x) m = Exp (p) }"
    assert outcome(fill(text, {"p": A_X, "m": None})["m"]) == (ROOT, "root", "root")


LITERAL = """g (float[2] x) => (float[2] y, float[2] z) {
    k = Constant <value = float {1}> ()
    y = Add (x, k)
    z = Mul (x, k)
}"""


@pytest.mark.parametrize("recorded", [None, A, A_X, B_X, ROOT])
@pytest.mark.parametrize(("y", "z", "scope"), [(A_X, A_X, A_X), (A_X, A_Y, A), (A_X, B_X, ROOT), (A, A_Y, A)])
def test_a_literal_belongs_to_those_who_read_it_whatever_was_recorded(
    recorded: CallId | None, y: CallId, z: CallId, scope: CallId
) -> None:
    found = fill(LITERAL, {"k": recorded, "y": y, "z": z})["k"]
    assert (found.scope, found.origins) == (scope, tuple(dict.fromkeys((y, z))))
    assert (found.evidence, found.rule) == (("captured", "") if recorded == scope else ("dataflow", "consumers"))


def test_a_literal_that_is_returned_is_read_by_the_root_too() -> None:
    found = fill(LITERAL.replace("float[2] z)", "float k)"), {"k": A_X, "y": A_X, "z": A_X})["k"]
    assert (found.scope, found.origins, found.evidence) == (ROOT, (A_X, ROOT), "dataflow")


def test_a_literal_that_nobody_known_reads_keeps_what_was_recorded() -> None:
    text = "g (float[2] x) => (float[2] x) { k = Constant <value = float {1}> () }"
    assert outcome(fill(text, {"k": A_X})["k"]) == (A_X, "captured", "")
    assert outcome(fill(text, {"k": None})["k"]) == (ROOT, "root", "root")


def test_a_literal_is_read_in_bodies_and_returned_to_the_node_that_has_them() -> None:
    text = """g (float[2] x, bool c) => (float[2] y, float[2] z) {
        k = Constant <value = float {1}> ()
        y = If (c) <
            then_branch = t () => (float[2] t) { t = Add (x, k) },
            else_branch = e () => (float[2] e) { e = Constant <value = float[2] {1, 2}> () }
        >
        z = Mul (x, k)
    }"""
    found = fill(text, {"k": B, "t": A_X, "e": B, "y": A, "z": A_Y})
    assert (found["k"].scope, found["k"].origins) == (A, (A_X, A_Y))
    assert (found["e"].scope, found["e"].origins) == (A, (A,))


def test_a_gap_is_not_filled_from_what_was_recorded_of_a_literal() -> None:
    text = "g (float[2] x) => (float[2] y) { k = Constant <value = float {1}> () m = Cast <to = 1> (k) y = Add (x, m) }"
    assert outcome(fill(text, {"k": B, "m": None, "y": A_X})["m"]) == (A_X, "dataflow", "consumers")


def test_what_reads_initializers_alone_belongs_to_those_who_read_it() -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { i = Identity (w) y = Add (x, i) }"
    assert outcome(fill(text, {"i": None, "y": B_X})["i"]) == (B_X, "dataflow", "consumers")


def test_what_nobody_reads_is_honestly_at_the_root() -> None:
    text = "g (float[2] x) => (float[2] y) { y = Neg (x) lone = Exp (y) }"
    assert outcome(fill(text, {"y": A_X, "lone": None})["lone"]) == (ROOT, "root", "root")


def test_a_body_is_inside_the_call_of_the_node_that_has_it() -> None:
    scopes: dict[str, CallId | None] = dict.fromkeys(["a", "t1", "t", "p", "q", "e", "y", "co", "so", "z"], ROOT)
    found = fill(BODIES, scopes | {"a": A, "y": A, "z": A, "so": None, "co": None, "e": None, "t1": A_X, "p": None})
    # The body's inputs are made by the Loop, its outputs are read by the Loop.
    assert outcome(found["so"]) == outcome(found["co"]) == (A, "dataflow", "between")
    assert outcome(found["e"]) == (A, "dataflow", "between")


def test_a_body_within_a_body_without_scopes_is_inside_the_nearest_node_around_that_has_one() -> None:
    scopes: dict[str, CallId | None] = dict.fromkeys(["a", "e", "co", "so", "z"], A_X)
    found = fill(BODIES, scopes | {"y": A_X, "t1": A_X, "t": None, "p": None, "q": None})
    assert outcome(found["p"]) == (A_X, "dataflow", "between")
    assert outcome(found["t"]) == (A_X, "dataflow", "between")
    assert outcome(found["q"]) == (A_X, "dataflow", "between")  # also reads the model's input, which says nothing here


def test_what_lies_in_a_body_is_in_no_call_above_that_of_the_node_that_has_it() -> None:
    text = """g (float[2] x, bool c) => (float[2] z) {
        p = Relu (x)
        y = If (c) <
            then_branch = t () => (float[2] m) { m = Identity (p) },
            else_branch = e () => (float[2] e) { e = Abs (p) }
        >
        z = Neg (y)
    }"""
    scopes: dict[str, CallId | None] = {"p": A_Y, "m": None, "e": A_X, "y": A_X, "z": B}
    assert outcome(fill(text, scopes)["m"]) == (A_X, "dataflow", "between")
    assert outcome(fill(text, scopes | {"p": B})["m"]) == (A_X, "dataflow", "between")


def test_a_body_that_reads_the_models_input_reads_no_constant() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = t () => (float[2] t) { m = Neg (x) t = Exp (m) },
            else_branch = e () => (float[2] e) { e = Abs (x) }
        >
    }"""
    found = fill(text, {"m": None, "y": A, "t": A_X, "e": A})
    assert outcome(found["m"]) == (A, "dataflow", "between")  # Exp's own call may have begun after it


def test_an_initializer_that_is_an_input_too_is_a_constant() -> None:
    view = View(graphs=[ViewGraph("", "", None, (0,), (2,))])
    weight, copy, result = (view.add_tensor(name, 0) for name in ("weight", "copy", "result"))
    view.constants[weight] = "named", "weight"
    view.add_node(ViewNode("Identity", "i", 0, (weight,), (copy,), ()))
    view.add_node(ViewNode("Relu", "r", 0, (copy,), (result,), ()))
    assert outcome(fill_gaps(view, [None, captured(A_X)], TREE)[0]) == (A_X, "dataflow", "consumers")


def test_a_tensor_that_a_body_captures_is_read_there() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        p = Relu (x)
        m = Neg (p)
        y = If (c) <
            then_branch = t () => (float[2] t) { t = Exp (m) },
            else_branch = e () => (float[2] e) { e = Abs (m) }
        >
    }"""
    found = fill(text, {"p": A_X, "m": None, "y": A, "t": A_X, "e": A_X})
    assert outcome(found["m"]) == (A_X, "dataflow", "between")


# -- the promise of `between` -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A made-up run: calls that contain each other, and nodes in the order of execution, each in its call."""

    tree: CallTree
    parents: Mapping[CallId, CallId | None]
    view: View
    scopes: Sequence[CallId]
    """The true ones."""

    def is_at_or_above(self, call: CallId, scope: CallId) -> bool:
        current: CallId | None = scope
        while current is not None and current != call:
            current = self.parents[current]
        return current == call


@dataclass
class OpenBody:
    """A body that is being run: its graph, where its call began, and the tensors that can be read in it."""

    graph: int
    depth: int
    inputs: list[int]
    made: list[int]
    first_node: int
    known: int
    """How many tensors there were before it."""


class Simulator:
    """Runs made-up calls, nodes and bodies, and writes down the view that an export would have."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self.parents: dict[CallId, CallId | None] = {ROOT: None}
        self.scopes: list[CallId] = []
        self.view = View()
        self._stack = [ROOT]
        self._constants = [self.view.add_tensor(f"constant_{n}", 0) for n in range(2)]
        self.view.constants.update((tensor, ("named", tensor)) for tensor in self._constants)
        self._open: list[OpenBody] = []
        self.enter_graph()

    def enter_graph(self) -> None:
        """Begin the main graph, or a body: inside the call that is running."""
        number = len(self.view.graphs)
        known = len(self.view.names)
        inputs = [self.view.add_tensor(f"input_{number}_{n}", number) for n in range(self._draw(st.integers(0, 2)))]
        self.view.graphs.append(ViewGraph(str(number), "body", None, tuple(inputs), ()))
        self._open.append(OpenBody(number, len(self._stack), inputs, [], len(self.view.nodes), known))

    def leave_graph(self) -> None:
        """End a body, and with it every call that began in it; its node reads all that it captured."""
        body = self._open.pop()
        del self._stack[body.depth :]
        returned = self._draw(st.lists(st.sampled_from(body.made), max_size=2, unique=True)) if body.made else []
        owner = len(self.view.nodes) if self._open else None
        self.view.graphs[body.graph] = ViewGraph(str(body.graph), "body", owner, tuple(body.inputs), tuple(returned))
        if self._open:
            inner = self.view.nodes[body.first_node :]
            self.add_node(body.graph, tuple(dict.fromkeys(t for n in inner for t in n.inputs if t < body.known)))

    def enter_call(self) -> None:
        call = CallId(f"m{self._draw(st.integers(0, 2))}", len(self.parents))
        self.parents[call] = self._stack[-1]
        self._stack.append(call)

    def leave_call(self) -> None:
        if len(self._stack) > self._open[-1].depth:
            self._stack.pop()

    def add_node(self, body: int | None = None, captures: tuple[int, ...] = ()) -> None:
        """Do a node that reads what was made before, here or in the graphs around, inputs or constants."""
        readable = [*self._constants, *(t for level in self._open for t in (*level.inputs, *level.made[-3:]))]
        reads = self._draw(st.lists(st.sampled_from(readable), max_size=3))
        graph = self._open[-1].graph
        output = self.view.add_tensor(f"t{len(self.view.nodes)}", graph)
        bodies = () if body is None else (body,)
        name = f"n{len(self.view.nodes)}"
        self.view.add_node(ViewNode("Op", name, graph, tuple(reads), (output,), (), bodies, captures))
        self._open[-1].made.append(output)
        self.scopes.append(self._stack[-1])

    def run(self) -> Run:
        steps = ["enter call", "leave call", "node", "node", "node", "enter body", "leave body"]
        for step in self._draw(st.lists(st.sampled_from(steps), min_size=15, max_size=30)):
            if step == "node":
                self.add_node()
            elif step.endswith("call"):
                self.enter_call() if step.startswith("enter") else self.leave_call()
            elif step == "enter body":
                self.enter_graph()
            elif len(self._open) > 1:
                self.leave_graph()
        while self._open:
            self.leave_graph()
        return Run(CallTree(self.parents), self.parents, self.view, self.scopes)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Draw a run: enter a call or leave it, begin a body or end it, or do a node."""
    return Simulator(draw).run()


def test_between_is_the_true_call_or_one_above_it_never_a_siblings() -> None:
    occurred = 0

    @settings(max_examples=200)
    @given(runs(), st.data())
    def check(run: Run, data: st.DataObject) -> None:
        nonlocal occurred
        dropped = data.draw(st.lists(st.booleans(), min_size=len(run.scopes), max_size=len(run.scopes)))
        known = [None if drop else captured(scope) for drop, scope in zip(dropped, run.scopes, strict=True)]
        for index, found in enumerate(fill_gaps(run.view, known, run.tree)):
            if found.rule == "between":
                assert run.is_at_or_above(found.scope, run.scopes[index])
                occurred += 1

    check()
    assert occurred


@given(runs(), st.data())
def test_every_gap_is_filled_by_one_rule_and_nothing_else_is_touched(run: Run, data: st.DataObject) -> None:
    dropped = data.draw(st.lists(st.booleans(), min_size=len(run.scopes), max_size=len(run.scopes)))
    known = [None if drop else captured(scope) for drop, scope in zip(dropped, run.scopes, strict=True)]
    filled = fill_gaps(run.view, known, run.tree)
    assert len(filled) == len(known)
    for index, (before, after) in enumerate(zip(known, filled, strict=True)):
        if index in run.view.literals:
            assert after.evidence in ("captured", "dataflow", "root")
        elif before is not None:
            assert after is before
        else:
            evidence = {"between": "dataflow", "consumers": "dataflow", "root": "root"}
            assert after.evidence == evidence[after.rule]
            assert after.scope == ROOT or after.rule != "root"


@given(runs(), st.data())
def test_rules_apply_by_what_a_node_reads_and_who_reads_it(run: Run, data: st.DataObject) -> None:
    """A node that feeds nothing in the end is `root`; one made of constants alone is `consumers`; others `between`.

    What serves a node of which nothing is known is not known either.
    """
    view = run.view
    gaps = [data.draw(st.booleans()) for _ in run.scopes]
    gaps = [gap or index in view.literals for index, gap in enumerate(gaps)]
    assume(any(gaps))
    known = [None if gap else captured(scope) for gap, scope in zip(gaps, run.scopes, strict=True)]
    consumers = view.consumers
    given_tensors = {tensor for graph in view.graphs for tensor in graph.inputs}
    useful = [False] * len(view.nodes)
    fed = [False] * len(view.nodes)
    for index in reversed(range(len(view.nodes))):
        output = view.nodes[index].outputs[0]
        returned = output in view.graphs[view.nodes[index].graph].outputs
        useful[index] = returned or any(not gaps[n] or useful[n] for n in consumers[output])
    for index in range(len(view.nodes)):
        makers = [view.producers[tensor] for tensor in view.nodes[index].reads]
        given_some = any(tensor in given_tensors for tensor in view.nodes[index].reads)
        fed[index] = given_some or any(maker is not None and (not gaps[maker] or fed[maker]) for maker in makers)
    filled = fill_gaps(view, known, run.tree)
    for index, found in enumerate(filled):
        if gaps[index] and index not in view.literals:
            expected = "root" if not useful[index] else "between" if fed[index] else "consumers"
            nothing_new = expected == "between" and found.scope == ROOT
            readers = consumers[view.nodes[index].outputs[0]]
            nothing_new |= expected == "consumers" and any(filled[reader].rule == "root" for reader in readers)
            assert found.rule == ("root" if nothing_new else expected)
