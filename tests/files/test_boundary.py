"""What a library raises on a file is one line with the file's name; a bug of ours keeps its traceback."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import hieronnx
from hieronnx.errors import HieronnxError
from hieronnx.files import boundary, opening
from hieronnx.files.boundary import reads_files
from support.layered import write_layered

FILE = Path("some.onnx")


def fail_in_python(_: object) -> object:
    return ir.serde.deserialize_tensor(onnx.TensorProto(data_type=1, dims=[2], data_location=1)).numpy()


def fail_in_another_language(_: object) -> object:
    return onnx.checker.check_model(onnx.ModelProto())


def fail_in_a_library_that_reads_no_files(_: object) -> object:
    return inspect.signature(3)  # type: ignore[arg-type]


def fail_ourselves(_: object) -> object:
    return {}["nothing"]


def as_ours(function: Callable[[object], object], monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], object]:
    """Let code of this file count as hieronnx's own."""
    monkeypatch.setattr(boundary, "_PACKAGE", str(Path(__file__).parent) + os.sep)
    return reads_files(function)


@pytest.mark.parametrize("fail", [fail_in_python, fail_in_another_language])
def test_what_a_library_raises_is_told_with_the_file(
    fail: Callable[[object], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HieronnxError, match=r"^onnx(_ir)? cannot deal with something in 'some.onnx' \(\w+: ") as told:
        as_ours(fail, monkeypatch)(FILE)
    assert told.value.__cause__ is not None
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("fail", "error"),
    [
        (fail_ourselves, KeyError),
        (fail_in_a_library_that_reads_no_files, TypeError),
        (lambda _: np.zeros(2)[5], IndexError),
        (lambda _: (_ for _ in ()).throw(MemoryError), MemoryError),
    ],
)
def test_a_bug_keeps_its_traceback(
    fail: Callable[[object], object], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error):
        as_ours(fail, monkeypatch)(FILE)


def test_what_a_callback_of_ours_raises_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    run = as_ours(lambda _: np.apply_along_axis(lambda _row: fail_ourselves(None), 0, np.zeros((2, 2))), monkeypatch)
    with pytest.raises(KeyError):
        run(FILE)


def test_a_command_tells_what_a_library_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_layered(tmp_path / "model.onnx")
    monkeypatch.setattr(opening, "read_wiring", partial(onnx.checker.check_model, onnx.ModelProto()))
    with pytest.raises(HieronnxError, match=r"onnx cannot deal with something in '.*model.onnx'"):
        hieronnx.load(path)


def test_every_public_function_that_reads_a_file_has_the_boundary() -> None:
    functions = {name: getattr(hieronnx, name) for name in hieronnx.__all__}
    readers = {
        name: function
        for name, function in functions.items()
        if inspect.isfunction(function)
        and {"ModelLike", "str | Path"} & {str(p.annotation) for p in inspect.signature(function).parameters.values()}
    }
    assert len(readers) >= 10
    without = [name for name, function in readers.items() if not getattr(function, "reads_files", False)]
    assert without == [], "put @reads_files (files/boundary.py) on these"
