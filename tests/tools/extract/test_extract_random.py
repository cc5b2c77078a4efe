"""Extract from made-up graphs, whatever is said of calls: a part always computes what the whole model does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from hieronnx.tools.extract.extracting import Extractor
from support.annotated import annotated
from support.callrecords import identical, open_session

UNARY = ("Neg", "Relu", "Identity", "Transpose", "Cast", "Abs")
BINARY = ("Add", "Mul", "Sub")
MODULES = ("a", "a.x", "a.y", "b")
INPUTS = ("x", "z")


@dataclass(frozen=True)
class Made:
    """A made-up model with its hierarchy inside, and the tensors that it has."""

    model: onnx.ModelProto
    tensors: list[str]


@st.composite
def models(draw: st.DrawFn) -> Made:
    """Draw a graph, a call or two for each node, and what the calls received and returned, true or not."""
    tensors, nodes, scopes = [*INPUTS, "w"], [], []
    for number in range(draw(st.integers(1, 12))):
        operator = draw(st.sampled_from((*UNARY, *BINARY)))
        read = [draw(st.sampled_from(tensors)) for _ in range(2 if operator in BINARY else 1)]
        options = {"Cast": {"to": TensorProto.FLOAT}, "Transpose": {"perm": [1, 0]}}.get(operator, {})
        nodes.append(helper.make_node(operator, read, [f"t{number}"], **options))
        tensors.append(f"t{number}")
        scopes.append(tuple(draw(st.lists(st.sampled_from(("", *MODULES)), min_size=1, max_size=2, unique=True))))
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in tensors}
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [1, 2, 3, 4])
    returned = [name for name in tensors if name.startswith("t")]
    outputs = sorted({draw(st.sampled_from(returned)), returned[-1]})
    graph = helper.make_graph(nodes, "made", [infos[n] for n in INPUTS], [infos[n] for n in outputs], [weight])
    graph.value_info.extend(infos[name] for name in returned if name not in outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    some = st.lists(st.sampled_from([*tensors, ""]), max_size=4)
    ends = {m: tuple([f"{n}={t}" for n, t in enumerate(draw(some))] for _ in range(2)) for m in MODULES}
    present = {path for scope in scopes for path in scope}
    return Made(annotated(model, list(scopes), {m: ends[m] for m in present if m}), tensors)


def run_whole(made: Made) -> dict[str, np.ndarray]:
    """Run a model, and return every tensor that it has."""
    whole = onnx.ModelProto()
    whole.CopyFrom(made.model)
    del whole.graph.output[:]
    names = [name for name in made.tensors if name.startswith("t")]
    whole.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2]) for name in names)
    rng = np.random.default_rng(0)
    fed = {name: rng.standard_normal((2, 2)).astype(np.float32) for name in INPUTS}
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.model.graph.initializer}
    return fed | weights | dict(zip(names, open_session(whole).run(None, fed), strict=True))


@settings(max_examples=150, deadline=None)
@given(models())
def test_a_part_computes_what_the_whole_does(made: Made) -> None:
    tensors = run_whole(made)
    extractor = Extractor(made.model)
    with_nodes = [call for call in extractor.hierarchy.calls if extractor.find(call.id) is not None]
    assert with_nodes
    for call in with_nodes:
        part = extractor.extract([call])
        assert isinstance(part.model, onnx.ModelProto)
        onnx.checker.check_model(part.model, full_check=True)
        given = open_session(part.model).run(None, {name: tensors[name] for name in part.input_names})
        for name, array in zip(part.output_names, given, strict=True):
            assert identical(array, tensors[name])


@settings(max_examples=150, deadline=None)
@given(models())
def test_inputs_are_arguments_or_listed(made: Made) -> None:
    extractor = Extractor(made.model)
    with_nodes = [call for call in extractor.hierarchy.calls if extractor.find(call.id) is not None]
    assert with_nodes
    for call in with_nodes:
        part = extractor.extract([call])
        received = {item.name for item in call.received or ()}
        assert part.recorded == (call.received is not None)
        for item in part.inputs:
            assert received.issuperset(item.arguments)
            assert bool(item.arguments) == (item not in part.undeclared_inputs) or not part.recorded
        own = {node.output for node in part.nodes}
        made_and_returned = {item.tensor for item in call.returned or () if item.tensor in own}
        kept = {node.output for node in part.nodes if node not in part.pulled_in_nodes}
        assert made_and_returned & kept <= set(part.output_names)
