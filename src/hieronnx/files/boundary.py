"""The boundary between files and code: what a library raises on a file is told in one line, with the file's name.

A model is checked when it is opened, and libraries still meet values that they did not expect. An error is put down to
the file if it comes out of a library that reads files, called by hieronnx itself. Any other is a bug, or comes from the
user's own code, and keeps its traceback.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from hieronnx.errors import HieronnxError, describe_error, innermost

P = ParamSpec("P")
T = TypeVar("T")

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_READERS = frozenset({"google", "ml_dtypes", "msgspec", "numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript"})
"""The libraries that read what is in a file."""


def reads_files(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function tell what libraries raise on the files that it is given, with the names of these.

    The files are what is given for its first parameter, and for all that are models.
    """
    signature = inspect.signature(function)
    named = [name for name, item in signature.parameters.items() if "ModelLike" in str(item.annotation)]
    names = list(dict.fromkeys([next(iter(signature.parameters)), *named]))

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (HieronnxError, MemoryError):
            raise
        except Exception as error:
            library = find_library(error)
            if library is None:
                raise
            given = signature.bind(*args, **kwargs).arguments
            files = [_name(given[name]) for name in names if given.get(name) is not None]
            raise HieronnxError(
                f"{library} cannot deal with something in {' or '.join(files)} ({describe_error(innermost(error))}); "
                "fix the file with what made it; --debug shows the traceback"
            ) from error

    run.__dict__["reads_files"] = True
    return run


def _name(model: Any) -> str:
    return f"'{os.fspath(model)}'" if isinstance(model, str | os.PathLike) else "the model"


def find_library(error: Exception) -> str | None:
    """Return the library that an error on a file comes from; None where hieronnx, or someone else, raised it."""
    below: list[str] = []
    for frame in _walk_frames(error.__traceback__):
        if frame.f_code.co_filename.startswith(_PACKAGE):
            below = []
        else:
            below.append(frame.f_globals.get("__name__", "").partition(".")[0])
    called = [name for name in below if name not in sys.stdlib_module_names]
    # What is not written in Python has no frame: then the class of the error says where it is from.
    library = called[0] if called else type(error).__module__.partition(".")[0]
    return library if library in _READERS else None


def _walk_frames(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next
