"""The one gate to external data: a location that a model names becomes a regular file in its folder, or a reason.

Whoever made the model chose the location. Nothing outside the model's folder is read, copied or deleted for it, by
whatever way it leads there: an absolute path, `..`, a symbolic link. onnx and ONNX Runtime have the same rule.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from hieronnx.errors import HieronnxError
from hieronnx.files.wire import read_locations

BRING_IN = "put the file itself into the folder of the model, and its name alone into the model"


@dataclass(frozen=True, slots=True)
class DataFile:
    """Where a location leads.

    Attributes:
        path: the file.
        size: how many bytes it has.
        problem: why it must not be opened; empty where it may be, and where there is none.
        missing: whether there is no such file.
    """

    path: Path
    size: int = 0
    problem: str = ""
    missing: bool = False


def look_up(folder: Path, location: str, model: Path | None = None) -> DataFile:
    """Find out where a location leads.

    Args:
        folder: That of the model.
        location: As the model names it.
        model: The model's file; if that is a link, its data may be beside what it links to.
    """
    posix, windows, path = PurePosixPath(location), PureWindowsPath(location), folder / location
    if posix.is_absolute() or windows.anchor or ".." in (*posix.parts, *windows.parts):
        return DataFile(path, problem="is not in the model's folder: no runtime will follow")
    try:
        status, real = path.stat(), path.resolve()
    except (OSError, ValueError, RuntimeError):  # also a name that no file system takes, and links in a circle
        return DataFile(path, missing=True)
    homes = (folder, *(() if model is None else (model.resolve().parent,)))
    if not any(real.is_relative_to(home.resolve()) for home in homes):
        return DataFile(path, problem="is a link that leads out of the model's folder: no runtime will follow")
    if not stat.S_ISREG(status.st_mode):
        return DataFile(path, problem="is no regular file")
    return DataFile(path, status.st_size)


def find_data_file(model: Path, location: str) -> DataFile:
    """Find a file of a model's external data.

    Raises:
        HieronnxError: If it is not there, or must not be opened.
    """
    return require_sound(look_up(model.parent, location, model), f"the weights of '{model}'")


def require_sound(file: DataFile, what: str) -> DataFile:
    """Return a file that may be opened.

    Raises:
        HieronnxError: If it is not there, or must not be opened; the message names what should be in it.
    """
    if file.problem:
        raise HieronnxError(f"{what} should be in '{file.path}', which {file.problem}; {BRING_IN}")
    if file.missing:
        raise HieronnxError(f"{what} should be in '{file.path}'; put the file there")
    return file


def check_data(model: str | os.PathLike[str], *, needed: bool = True) -> None:
    """Make sure that all external data of a file is there, if it is needed, and may be opened, before others open it.

    Raises:
        HieronnxError: If some is not.
    """
    path = Path(model)
    for location in sorted(read_locations(path)):
        file = look_up(path.parent, location, path)
        if needed or not file.missing:
            require_sound(file, f"the weights of '{path}'")


def copy_data(model: Path, folder: Path) -> None:
    """Copy a file's external data into another folder, where it is found under the same locations.

    Raises:
        HieronnxError: If some is not there, or must not be opened.
    """
    for location in sorted(read_locations(model)):
        source, target = find_data_file(model, location).path, folder / location
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)  # not as a link: onnx refuses these
