"""The category table is complete, has no doubles and needs no dependency."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from onnx import defs

from hieronnx.hierarchy import categories
from hieronnx.hierarchy.categories import CATEGORIES, OPERATORS, category_of

KNOWN = frozenset(operator for operators in OPERATORS.values() for operator in operators)
CRITICAL = {
    "mathematical",
    "neural_network_layers",
    "activation",
    "normalization",
    "reduction",
    "lookup_indexing",
}


def test_every_operator_of_the_standard_domains_is_in_the_table() -> None:
    missing = {(s.domain, s.name) for s in defs.get_all_schemas_with_history() if s.name not in KNOWN}
    assert not missing, f"add these to categories.py: {sorted(missing)}"


def test_every_standard_domain_is_looked_up() -> None:
    schemas = defs.get_all_schemas_with_history()
    wrong = {(s.domain, s.name) for s in schemas if category_of(s.name, s.domain) != category_of(s.name, "ai.onnx")}
    assert not wrong


def test_nearly_every_operator_of_onnxruntime_is_in_the_table() -> None:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    names = {s.name for s in state.get_all_operator_schema() if s.domain == "com.microsoft"}
    assert len(names & KNOWN) >= 0.85 * len(names)


def test_no_operator_is_in_two_categories() -> None:
    counts = Counter(operator for operators in OPERATORS.values() for operator in operators)
    assert not [operator for operator, count in counts.items() if count > 1]


def test_thresholds_and_critical_are_those_of_the_design() -> None:
    assert {name for name, category in CATEGORIES.items() if category.critical} == CRITICAL
    assert {CATEGORIES[name].threshold for name in CRITICAL} == {95}
    assert {CATEGORIES[name].threshold for name in ("tensor_manipulation", "shape_metadata")} == {85}
    context = ("parameter_constants", "type_conversion", "control_flow")
    assert [CATEGORIES[name].threshold for name in context] == [70, 60, 80]
    assert all(name == category.name for name, category in CATEGORIES.items())
    assert len(CATEGORIES) == 16


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        CATEGORIES["other"].threshold = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        CATEGORIES["new"] = CATEGORIES["other"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("op_type", "domain", "category"),
    [
        ("MatMul", "", "mathematical"),
        ("MatMul", "ai.onnx", "mathematical"),
        ("Conv", "com.microsoft.nchwc", "neural_network_layers"),
        ("LayerNormalization", "", "normalization"),
        ("SkipLayerNormalization", "com.microsoft", "normalization"),
        ("Gather", "", "lookup_indexing"),
        ("Identity", "", "tensor_manipulation"),
        ("Constant", "", "parameter_constants"),
        ("QuantizeLinear", "com.microsoft", "quantization"),
        ("Adam", "ai.onnx.preview.training", "other"),
        ("NoSuchOperator", "", "other"),
        ("MatMul", "my.domain", "other"),
    ],
)
def test_category_of(op_type: str, domain: str, category: str) -> None:
    assert category_of(op_type, domain) == category


def test_categories_imports_nothing_heavy() -> None:
    tree = ast.parse(Path(categories.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {str(module).partition(".")[0] for module in modules} <= {*sys.stdlib_module_names, "hieronnx"}
