"""The public names: complete, light to import, and what they say in whatever order they are imported."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
import pytest

import hieronnx

VERBS = {
    *("analyze", "annotate", "carry", "compare", "export", "extract", "extract_all", "fold", "load", "locate"),
    *("optimize", "place", "profile", "quantize", "replace", "select", "sensitivity", "split", "unfold", "validate"),
    *("verify", "view", "with_past"),
}
PUBLIC = {name: getattr(hieronnx, name) for name in hieronnx.__all__}


@pytest.mark.parametrize(
    "first",
    [
        "import hieronnx",
        "from hieronnx import load, HieronnxError",
        "from hieronnx import ExportResult",
        "import hieronnx; hieronnx.HierarchyExporter",
        "import hieronnx.tools.export",
        "import hieronnx.tools.compare; import hieronnx.cli.compare",
        "import hieronnx.tools.validate.validating; import hieronnx.cli.validate",
        "import hieronnx.tools.carry; import hieronnx.cli.carry",
        "import hieronnx; hieronnx.export; import hieronnx.cli.export",
    ],
)
def test_functions_are_functions_whatever_was_imported_before(first: str) -> None:
    run_alone(f"{first}\nimport hieronnx\nfor name in {VERBS}: assert callable(getattr(hieronnx, name)), name")


def run_alone(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_hieronnx_imports_nothing_heavy() -> None:
    heavy = {"torch", "onnx", "onnx_ir", "onnxruntime", "numpy", "msgspec", "rich", "click"}
    run_alone(f"import sys, hieronnx\nassert not {heavy} & set(sys.modules), sys.modules.keys()")


def test_every_public_name_is_there() -> None:
    assert set(hieronnx.__all__) <= set(dir(hieronnx))
    with pytest.raises(AttributeError, match="module 'hieronnx' has no attribute 'nothing'"):
        _ = hieronnx.nothing


def test_type_checkers_see_what_is_imported() -> None:
    tree = ast.parse(Path(hieronnx.__file__).read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module.startswith("hier")]
    seen = {name.asname: f"{node.module}.{name.name}" for node in imports for name in node.names}
    assert set(seen) == set(hieronnx.__all__)
    for name in set(seen) - {"__version__"}:
        assert seen[name] == f"hieronnx.{hieronnx._HOMES[name]}.{name}"


# --- what results lead to ---


def returned_by(function: Any) -> Any:
    return eval(function.__annotations__["return"], {**function.__globals__, **PUBLIC})


def classes_in(hint: Any) -> Iterator[type]:
    """Yield the classes of this package in a type hint."""
    if inspect.isclass(hint) and hint.__module__.startswith("hieronnx"):
        yield hint
    for argument in typing.get_args(hint):
        yield from classes_in(argument)


def members_of(record: type) -> Iterator[Any]:
    """Yield the hints of a record's fields, and of what its public properties and methods return."""
    yield from typing.get_type_hints(record, localns={**PUBLIC, "onnx": onnx}).values()
    for name, member in vars(record).items():
        function = {property: "fget", cached_property: "func"}.get(type(member))
        function = getattr(member, function) if function else member
        if inspect.isfunction(function) and not name.startswith("_"):
            yield returned_by(function)


def reachable_records() -> set[type]:
    waiting = [record for verb in VERBS for record in classes_in(returned_by(getattr(hieronnx, verb)))]
    reached: set[type] = set()
    while waiting:
        record = waiting.pop()
        if record not in reached:
            reached.add(record)
            waiting += [other for hint in members_of(record) for other in classes_in(hint)]
    return reached


def test_every_record_that_a_result_leads_to_is_public_and_nothing_else_is() -> None:
    records = {record.__name__ for record in reachable_records()}
    assert {"ExportResult", "CompareResult", "Finding", "BoundTensor", "CallTree"} <= records
    errors = {name for name, value in vars(sys.modules["hieronnx.errors"]).items() if name.endswith("Error")}
    assert set(hieronnx.__all__) == VERBS | records | errors | {"HierarchyExporter", "Pipeline", "__version__"}


@pytest.mark.parametrize("name", sorted(name for name in PUBLIC if name.endswith("Result")))
def test_a_result_has_a_repr_of_its_own_and_to_dict(name: str) -> None:
    assert "__repr__" in vars(PUBLIC[name])
    assert callable(PUBLIC[name].to_dict)
