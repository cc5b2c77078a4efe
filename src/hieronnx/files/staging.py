"""Output files that appear whole or not at all: written into a folder beside their place, then moved there.

A model and its data cannot be replaced in one step, so that new data never takes the name of data that is there:

    model.onnx, model.onnx.data  ->  model.3f2a9c01.onnx.data, model_hierarchy.json, model.onnx; model.onnx.data goes

Whenever the power goes, the model that is there finds its own data. The name that people expect is taken wherever it
is free, also the next time.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hieronnx.errors import ExportError, HieronnxError, writing
from hieronnx.files.opening import sidecar_path
from hieronnx.files.wire import read_locations

try:
    import fcntl
except ImportError:  # pragma: no cover  # a system without it has no locks of this kind
    fcntl = None  # type: ignore[assignment]

_LONGEST_PREFIX = 40
_SIDECAR = re.compile(rb'\s*\{\s*"format_version"')
_BEGIN = b'{"format_version"'
"""How every sidecar begins."""
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_HELD = threading.local()
"""The outputs that this thread is writing."""


def data_name(path: Path) -> str:
    """Return the name of the file for a model's weights: onnx refuses two dots in a row, wherever they are."""
    return f"{re.sub(r'[.]{2,}', '.', path.name)}.data"


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
    """Yield a path in a folder beside the output, which nobody else writes meanwhile; the folder is gone afterwards.

    The name is that of the output; or another, where the data that a model of that name would get is there already.

    Raises:
        ExportError: If the output cannot be written there, or another process is writing it.
    """
    check_place(output)
    prefix = f".{output.name[:_LONGEST_PREFIX]}."
    with _locked(output) as outermost:
        for dead in output.parent.glob(f"{glob.escape(prefix)}*.staged") if outermost else ():
            shutil.rmtree(dead, ignore_errors=True)  # nobody else writes this output
        try:
            folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=".staged", dir=output.parent))
        except OSError as error:
            raise ExportError(f"cannot write into '{output.parent}': {error.strerror}") from error
        try:
            taken = os.path.lexists(output.with_name(data_name(output)))
            token = f".{secrets.token_hex(4)}" if taken else ""
            yield folder / f"{output.stem}{token}{output.suffix}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def swap_folders(one: Path, other: Path) -> None:
    """Let two folders beside each other change places: at once where the system can, else in three steps."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0
    except (AttributeError, OSError, TypeError):  # another system has no such call, or no such library
        done = False
    if done:
        return
    aside = one.with_name(f"{one.name}.aside")
    os.rename(other, aside)
    try:
        os.rename(one, other)
    except OSError:
        os.rename(aside, other)
        raise
    os.rename(aside, one)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a text or bytes to a file, which appears whole or not at all.

    Raises:
        HieronnxError: If it cannot be written.
    """
    with staging(path) as staged, writing(path):
        staged.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(staged, path)


@contextmanager
def new_files(folder: Path) -> Iterator[None]:
    """Make a folder for several files; if they cannot all be written, those that are new go, and so does the folder.

    Raises:
        HieronnxError: If it cannot be made.
    """
    try:
        above = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        before = set(folder.iterdir())
    except (OSError, ValueError) as error:  # a ValueError for a NUL in the name
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise HieronnxError(f"cannot make the folder '{folder}': {reason}") from error
    try:
        yield
    except BaseException:
        for path in set(folder.iterdir()) - before:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        for path in above:
            path.rmdir()
        raise


def move_into_place(staged: Path, output: Path, *, kept: Collection[Path] = (), keep_sidecar: bool = False) -> None:
    """Put what was staged beside the output: data first, under names that are free, then the sidecar, the model last.

    What the model there before needed and no model needs now goes: its data, unless it is to be kept or another model
    of the folder has it, and its sidecar, unless it is to be kept or a new one took its place.

    Raises:
        ExportError: If something is in the way that is not the output's own.
    """
    places = {sidecar_path(staged): sidecar_path(output), staged: output}
    data = [path for path in sorted(staged.parent.iterdir()) if path not in places]
    for path in (output, sidecar_path(output)):
        check_place(path)
    if sidecar_path(staged).exists():
        check_sidecar(sidecar_path(output))
    for path in data:
        if os.path.lexists(output.with_name(path.name)):
            raise ExportError(f"'{output.with_name(path.name)}' is there already; move it, or give another name")
    unused = (_list_data(output) - _list_data(staged)) if staged.exists() else set()
    moves = [(path, places.get(path, output.with_name(path.name))) for path in (*data, *places) if path.exists()]
    for source, target in moves:
        if target.exists():
            shutil.copymode(target, source)
        _flush(source)
    _replace(moves, staged.with_name("before"))
    _flush(output.parent)
    if sidecar_path(output) not in dict(moves).values() and not keep_sidecar and is_sidecar(sidecar_path(output)):
        sidecar_path(output).unlink(missing_ok=True)
    for path in _find_unneeded(unused, output, kept):
        path.unlink(missing_ok=True)


def _replace(moves: Sequence[tuple[Path, Path]], before: Path) -> None:
    """Rename files one after the other; where one cannot be, undo those before it."""
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


def _keep(path: Path, kept: Path) -> None:
    """Keep a file under a second name, as a link where the file system has links."""
    try:
        os.link(path, kept)
    except OSError:
        shutil.copy2(path, kept)


def _flush(path: Path) -> None:
    """Have the system write a file, or the names in a folder, to its disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- whose a file is --------------------------------------------------------------------------------------------


def is_sidecar(path: Path) -> bool:
    """Say whether a file is a hierarchy that hieronnx wrote, whole or damaged."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        begin = file.read(100)
    return _SIDECAR.match(begin) is not None or _BEGIN.startswith(begin.strip())  # cut off, even to nothing


def check_sidecar(path: Path) -> None:
    """Make sure that a sidecar can have this name: nothing is there, or one that hieronnx wrote.

    Raises:
        ExportError: If it cannot.
    """
    check_place(path)
    if path.exists() and not is_sidecar(path):
        raise ExportError(f"'{path}' is there and is no hierarchy of hieronnx; move it, or give another name")


def _list_data(model: Path) -> set[str]:
    """Return the names of the files beside a model that it has its data in; none where there is no model."""
    try:
        locations = read_locations(model) if model.is_file() else set()
    except HieronnxError:  # it is no model, so it has no data
        return set()
    return {location for location in locations if Path(location).name == location}


def _find_unneeded(names: set[str], output: Path, kept: Collection[Path]) -> list[Path]:
    """Return the files of these names that no other model beside the output has its data in, and nobody keeps."""
    if not names:
        return []
    others = (path for path in output.parent.glob("*.onnx") if path != output)
    used = {name for path in others for name in _list_data(path)}
    paths = [output.with_name(name) for name in names - used if _is_data_of(name, output)]
    return [path for path in paths if path.is_file() and not any(k.exists() and k.samefile(path) for k in kept)]


def _is_data_of(name: str, output: Path) -> bool:
    """Say whether a file's name is one that the data of this output has, or had."""
    stem, suffix = re.escape(output.stem), re.escape(output.suffix)
    return re.fullmatch(rf"{stem}(\.[0-9a-f]{{8}})?{suffix}\.data(\.\d+)?", name) is not None


# -- one writer at a time ---------------------------------------------------------------------------------------


@contextmanager
def _locked(output: Path) -> Iterator[bool]:
    """Keep others from writing an output; yield whether this thread does not write it already."""
    outputs: set[Path] = _HELD.__dict__.setdefault("outputs", set())
    place = output.parent.resolve() / output.name
    if place in outputs:
        yield False
        return
    digest = hashlib.blake2b(os.fsencode(output.name), digest_size=4).hexdigest()
    path = output.with_name(f".{output.name[:_LONGEST_PREFIX]}.{digest}.lock")
    lock = _acquire(path, output)
    outputs.add(place)
    try:
        yield True
    finally:
        outputs.discard(place)
        with suppress(OSError):
            path.unlink()
        os.close(lock)


def _acquire(path: Path, output: Path) -> int:
    """Open and lock a file that only says who writes."""
    while True:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ExportError(f"cannot write into '{output.parent}': {error.strerror}") from error
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(path)):
                    return lock
        except BlockingIOError as error:
            os.close(lock)
            raise ExportError(f"another process is writing '{output}'; wait for it, or give another name") from error
        except OSError:  # a file system without locks
            return lock
        os.close(lock)  # whoever held it took it away
