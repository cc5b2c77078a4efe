"""The errors that hieronnx raises on purpose, all addressed to the user."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

_MOST_LISTED = 20


class HieronnxError(Exception):
    """Something that the user can fix; its message says what, and what to do next."""


class TargetError(HieronnxError):
    """The model that was named cannot be found or built."""


class InputError(HieronnxError, ValueError):
    """An input, a shape, a dtype or an option does not fit the model."""


class AmbiguousTargetError(InputError):
    """A target that should name one call matches several."""


class ExportError(HieronnxError):
    """torch could not export the model, or the files could not be written."""


class MismatchError(HieronnxError):
    """A file is not of the model that it is said to be of.

    Attributes:
        agreement: How far the two agree, from 0 to 1.
        unmatched: The calls of the model of which nothing is in the file, each a module's path and a number.
    """

    def __init__(self, message: str, agreement: float, unmatched: tuple[tuple[str, int], ...]) -> None:
        super().__init__(message)
        self.agreement = agreement
        self.unmatched = unmatched

    def to_dict(self) -> dict[str, Any]:
        """Return what `annotate --json` prints instead of a result."""
        unmatched = [{"module": module, "call": number} for module, number in self.unmatched]
        return {"matched": False, "agreement": self.agreement, "unmatched": unmatched, "message": str(self)}


class MissingExtraError(HieronnxError):
    """An optional dependency is needed and not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}, which is not installed; run: pip install 'hieronnx[{extra}]'")


def require(package: str, extra: str) -> None:
    """Make sure that a package is installed.

    Raises:
        MissingExtraError: If it is not.
    """
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(package, extra)


def check_known(kind: str, name: object, known: Iterable[str], where: str = "choose one of") -> None:
    """Make sure that a name is a known one; what is no text is none.

    Raises:
        InputError: If it is not; the message names the nearest, or all unless these are very many.
    """
    names = list(known)
    if isinstance(name, str) and name in names:
        return
    near = get_close_matches(name, names, 1) if isinstance(name, str) else []
    listed = f"{where} {', '.join(names) or 'none'}" if len(names) <= _MOST_LISTED else ""
    hint = f"did you mean '{near[0]}'?" if near else listed
    shown = f"'{name}'" if isinstance(name, str) else repr(name)
    raise InputError(f"no {kind} {shown}; {hint}".rstrip("; "))


def count(number: int, noun: str) -> str:
    """Write a number of things: `1 node`, `1,024 nodes`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def list_some(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """List names for a message: all, or the first few and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def describe_error(error: BaseException) -> str:
    """Say in one line what an error of others says: its type, and its message up to a line that ends."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    length = next((n for n, line in enumerate(lines, 1) if not line.endswith(":")), len(lines))
    return f"{type(error).__name__}: {' '.join(lines[:length])}"


def innermost(error: BaseException) -> BaseException:
    """Return what an error was raised from, to the first: where others wrap errors, that one says something."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the system says of a file that cannot be written into one of our errors."""
    try:
        yield
    except OSError as error:
        raise ExportError(f"cannot write '{os.fspath(path)}': {error.strerror or error}") from error


def check_folder(output: Path) -> None:
    """Make sure that a file has a folder to be in.

    Raises:
        ExportError: If it has none, or is one.
    """
    with writing(output):
        if output.is_dir():
            raise ExportError(f"'{output}' is a folder; give the name of a file in it, such as {output / 'model.onnx'}")
        if not output.parent.is_dir():
            raise ExportError(f"no folder '{output.parent}' to write '{output.name}' into; make it first")
