"""The models that the onnx package ships go through every command that reads a file."""

from __future__ import annotations

import random
import warnings
from functools import cache
from itertools import combinations, islice
from pathlib import Path

import onnx
import pytest
from onnx.backend.test.case.node import collect_testcases

from hieronnx import analyze, compare, validate
from support.onnxdata import FOLDER, MADE, SHIPPED

SAMPLE = 400


@cache
def node_models() -> dict[str, onnx.ModelProto]:
    """Return the models of onnx's node test cases, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, about the inputs that the cases compute
        return {case.name: case.model for case in collect_testcases(None)}


def check(model: Path | onnx.ModelProto) -> None:
    """Assert that a model is analyzed, validated, and found to be the same as itself."""
    analysis = analyze(model)
    assert analysis.file_nodes == analysis.total.nodes
    assert validate(model).passed == is_valid(model)
    found = compare(model, model)
    assert found.same, found.describe()
    assert found.pairs == analysis.file_nodes


def is_valid(model: Path | onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return False
    return True


@pytest.mark.parametrize("path", SHIPPED, ids=[str(path.relative_to(FOLDER)) for path in SHIPPED])
def test_a_shipped_model_goes_through(path: Path) -> None:
    check(path)


@pytest.mark.parametrize("name", MADE)
def test_a_made_model_goes_through(name: str) -> None:
    check(MADE[name]())


def test_the_models_of_the_node_tests_go_through() -> None:
    models = node_models()
    assert len(models) > 1500
    for model in models.values():
        check(model)


def write_plainly(model: onnx.ModelProto) -> str:
    """Write what a model of one or two nodes computes, names left out; an independent measure of sameness."""
    numbers: dict[str, int] = {"": -1}
    graph = model.graph
    values = [*graph.input, *graph.output]
    types = [value.type.SerializeToString(deterministic=True) for value in values]
    names = [numbers.setdefault(value.name, len(numbers)) for value in graph.input]
    lines = [f"{model.opset_import} {types} {names}"]
    for node in graph.node:
        reads = [numbers.setdefault(name, len(numbers)) for name in node.input]
        while reads and reads[-1] == -1:  # an empty input at the end says the same as none
            reads.pop()
        makes = [numbers.setdefault(name, len(numbers)) for name in node.output]
        lines.append(f"{node.op_type} {reads} {makes} {write_attributes(model, node)}")
    return "\n".join([*lines, str([numbers[value.name] for value in graph.output])])


def write_attributes(model: onnx.ModelProto, node: onnx.NodeProto) -> list[bytes]:
    opset = next(entry.version for entry in model.opset_import if entry.domain == node.domain)
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    defaults = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    given = {attribute.name: attribute for attribute in node.attribute}
    return [value.SerializeToString(deterministic=True) for _, value in sorted({**defaults, **given}.items())]


def test_two_that_differ_compare_as_different() -> None:
    rng = random.Random(0)
    models = [model for model in node_models().values() if len(model.graph.node) == 1 and not model.functions]
    by_operator: dict[str, list[onnx.ModelProto]] = {}
    for model in models:
        by_operator.setdefault(model.graph.node[0].op_type, []).append(model)
    pairs = [tuple(rng.sample(models, 2)) for _ in range(SAMPLE)]
    pairs += [pair for group in by_operator.values() for pair in islice(combinations(group, 2), 20)]
    assert len(pairs) > SAMPLE
    for a, b in pairs:
        assert compare(a, b).same == (write_plainly(a) == write_plainly(b)), (a.graph.name, b.graph.name)
