"""Output files that appear whole or not at all: written into a folder beside their place, then moved there."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hieronnx.errors import ExportError, writing
from hieronnx.files.opening import sidecar_path

_LONGEST_PREFIX = 40


def check_place(path: Path) -> None:
    """Make sure that a file can have this name: nothing is there, or a regular file; a device would be replaced.

    Raises:
        ExportError: If it cannot.
    """
    if "\0" in str(path):
        raise ExportError(f"{str(path)!r} has a NUL in it, which no file's name can have; give another name")
    with writing(path):
        try:
            mode = path.stat().st_mode
        except FileNotFoundError:
            return
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(mode), "a device")
        raise ExportError(f"'{path}' is in the way: it is {kind}, not a regular file; give another name")


@contextmanager
def staging(output: Path) -> Iterator[Path]:
    """Yield a path of the same name in a folder beside the output; the folder is gone afterwards.

    Raises:
        ExportError: If the output cannot be written there.
    """
    check_place(output)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name[:_LONGEST_PREFIX]}.", dir=output.parent))
    except OSError as error:
        raise ExportError(f"cannot write into '{output.parent}': {error.strerror}") from error
    try:
        yield folder / output.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def move_into_place(staged: Path, output: Path, *, keep_sidecar: bool = False) -> None:
    """Put what was staged beside the output, all of it or nothing: weights first, so that the model never lacks them.

    A sidecar of an earlier export goes, unless it is to be kept, also where no new one comes: it is of another file.

    Raises:
        ExportError: If something that is no file is in the way.
    """
    own = {staged, sidecar_path(staged)}
    moves = [(path, output.parent / path.name) for path in sorted(staged.parent.iterdir(), key=lambda p: p in own)]
    for path in (sidecar_path(output), *(target for _, target in moves)):
        check_place(path)
    before = staged.parent / "before"
    before.mkdir()
    done: list[Path] = []
    try:
        for source, target in moves:
            if target.exists():
                _keep(target, before / target.name)
            os.replace(source, target)
            done.append(target)
    except OSError:
        for target in done:
            kept = before / target.name
            os.replace(kept, target) if kept.exists() else target.unlink()
        raise
    if sidecar_path(output) not in done and not keep_sidecar:
        sidecar_path(output).unlink(missing_ok=True)


def _keep(path: Path, kept: Path) -> None:
    """Keep a file under a second name, as a link where the file system has links."""
    try:
        os.link(path, kept)
    except OSError:
        shutil.copy2(path, kept)
