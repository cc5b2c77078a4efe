"""A seeded fuzzer of all that reads a file: `python tests/security/fuzz.py --seconds 60`.

Each mutant is made from a model by a few changes of its structure (a number, a text, a type, an element more or less),
of its bytes, of its data or of its sidecar; then every reader is run on it, in a child process with limits on memory
and time. What a reader may do is finish, or raise a HieronnxError. Everything else is reported by cause: a traceback
by its innermost lines of hieronnx, a hang, a crash.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import parser

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

import hieronnx
from hieronnx.errors import HieronnxError
from hieronnx.files.opening import sidecar_path
from hieronnx.graph.building import view_model
from support import layered
from support.annotated import annotated
from support.forking import fork
from support.onnxdata import BODIES, FUNCTIONS, SHIPPED

CPU_SECONDS, MEMORY = 10, 2 << 30
NUMBERS = (0, 1, -1, 2, 7, 255, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
TEXTS = (
    "",
    "x",
    "y",
    "a" * 300,
    "../../etc/passwd",
    "/etc/passwd",
    "\0",
    "Loop",
    "Constant",
    "com.microsoft",
    "é\u202e",
)
_INTEGERS = {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64}
_UNSIGNED = {FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64}


# -- mutants ----------------------------------------------------------------------------------------------------


def mutate(folder: Path, random_: random.Random) -> str:
    """Change the model `model.onnx` in a folder, or what is beside it, a few times; say how."""
    done = []
    for _ in range(random_.choice((1, 1, 1, 2, 4))):
        change = random_.choice(
            (*[_change_structure] * 6, _change_bytes, _change_sidecar, _change_sidecar, _change_data)
        )
        done.append(change(folder, random_))
    return "; ".join(done)


def _change_structure(folder: Path, random_: random.Random) -> str:
    path = folder / "model.onnx"
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except Exception:
        return _change_bytes(folder, random_)
    messages = list(_walk(model))
    message = random_.choice(messages)
    fields = [f for f in message.DESCRIPTOR.fields if f.name not in ("doc_string",)]
    chosen = random_.choice(fields)
    how = _change_repeated if chosen.is_repeated else _change_single
    told = how(message, chosen, random_, messages)
    path.write_bytes(model.SerializePartialToString())
    return f"{message.DESCRIPTOR.name}.{chosen.name}: {told}"


def _walk(message: Message) -> Iterator[Message]:
    yield message
    for chosen, value in message.ListFields():
        if chosen.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for item in value if chosen.is_repeated else (value,):
                yield from _walk(item)


def _draw(chosen: FieldDescriptor, random_: random.Random) -> Any:
    if chosen.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return random_.choice([value.number for value in chosen.enum_type.values])
    if chosen.cpp_type in _INTEGERS | _UNSIGNED:
        number = random_.choice(NUMBERS)
        if chosen.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32):
            number = max(-(2**31), min(number, 2**31 - 1))
        return abs(number + 1) if chosen.cpp_type in _UNSIGNED else number
    if chosen.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        text = random_.choice(TEXTS)
        return text.encode() if chosen.type == FieldDescriptor.TYPE_BYTES else text
    return random_.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))


def _change_single(message: Message, chosen: FieldDescriptor, random_: random.Random, others: Sequence[Message]) -> str:
    if random_.random() < 0.3 and message.HasField(chosen.name) if chosen.has_presence else False:
        message.ClearField(chosen.name)
        return "cleared"
    if chosen.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        alike = [other for other in others if chosen.message_type == other.DESCRIPTOR]
        if alike:
            copy = type(alike[0])()
            copy.CopyFrom(random_.choice(alike))
            getattr(message, chosen.name).CopyFrom(copy)
        return "another's"
    value = _draw(chosen, random_)
    setattr(message, chosen.name, value)
    return repr(value)[:40]


def _change_repeated(
    message: Message, chosen: FieldDescriptor, random_: random.Random, others: Sequence[Message]
) -> str:
    values = getattr(message, chosen.name)
    how = random_.choice(("drop", "double", "empty", "change", "shuffle"))
    if how == "empty" or not values:
        del values[:]
        if chosen.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            values.append(_draw(chosen, random_))
        return how
    position = random_.randrange(len(values))
    if how == "drop":
        del values[position]
    elif how == "double":
        values.append(values[position])
    elif how == "shuffle":
        kept = list(values)
        random_.shuffle(kept)
        del values[:]
        values.extend(kept)
    elif chosen.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        alike = [other for other in others if chosen.message_type == other.DESCRIPTOR]
        copy = type(values[position])()
        copy.CopyFrom(random_.choice(alike))
        values[position].CopyFrom(copy)
    else:
        values[position] = _draw(chosen, random_)
    return how


def _change_bytes(folder: Path, random_: random.Random) -> str:
    path = folder / "model.onnx"
    content = bytearray(path.read_bytes())
    if not content:
        return "nothing left"
    how = random_.choice(("flip", "flip", "cut", "ones", "repeat"))
    position = random_.randrange(len(content))
    if how == "flip":
        content[position] ^= 1 << random_.randrange(8)
    elif how == "cut":
        del content[position:]
    elif how == "ones":
        content[position:position] = b"\xff" * random_.choice((1, 12, 1000))
    else:
        content[position:position] = content[position : position + random_.choice((1, 16, 200))]
    path.write_bytes(content)
    return f"bytes: {how} at {position}"


def _change_sidecar(folder: Path, random_: random.Random) -> str:
    path = sidecar_path(folder / "model.onnx")
    if not path.exists():
        return _change_structure(folder, random_)
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        return "sidecar: cut"
    if random_.random() < 0.1:
        content = path.read_bytes()
        path.write_bytes(content[: random_.randrange(len(content))])
        return "sidecar: cut"
    holders = [value for value in _walk_json(document) if value]
    holder = random_.choice(holders)
    key = random_.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    options = (None, *NUMBERS, *TEXTS, 1.5, True, [], {}, [[]], random_.choice(holders))
    if random_.random() < 0.3:
        del holder[key]
    else:
        holder[key] = json.loads(json.dumps(random_.choice(options)))
    path.write_text(json.dumps(document))
    return f"sidecar: {key}"


def _walk_json(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from _walk_json(item)


def _change_data(folder: Path, random_: random.Random) -> str:
    data = folder / "model.onnx.data"
    if not data.exists():
        return _change_structure(folder, random_)
    how = random_.choice(("cut", "gone", "folder", "pipe", "link"))
    content = data.read_bytes() if data.is_file() else b""
    shutil.rmtree(data) if data.is_dir() else data.unlink()
    if how == "cut":
        data.write_bytes(content[: random_.randrange(len(content) + 1)])
    elif how == "folder":
        data.mkdir()
    elif how == "pipe":
        os.mkfifo(data)
    elif how == "link":
        data.symlink_to("/etc/passwd")
    return f"data: {how}"


# -- models -----------------------------------------------------------------------------------------------------


def write_models(folder: Path) -> list[Path]:
    """Write the models to begin with, each into a folder of its own: shipped ones, and ours with all that they have."""
    makers: list[Callable[[Path], object]] = [
        _write_layered,
        _write_bodies,
        lambda path: onnx.save(parser.parse_model(FUNCTIONS), path),
        _write_external,
    ]
    makers += [lambda path, shipped=shipped: shutil.copy(shipped, path) for shipped in SHIPPED[::37]]
    paths = []
    for number, make in enumerate(makers):
        path = folder / f"seed{number}" / "model.onnx"
        path.parent.mkdir()
        make(path)
        paths.append(path)
    return paths


def _write_bodies(path: Path) -> None:
    model = parser.parse_model(BODIES)
    nodes = len(view_model(ir.serde.deserialize_model(model)).nodes)
    onnx.save(annotated(model, ["a", "b"] * (nodes // 2) + ["a"] * (nodes % 2)), path)


def _write_layered(path: Path) -> None:
    layered.write(path, layered.make_model(), layered.record_boundaries(layered.make_hierarchy()))


def _write_external(path: Path) -> None:
    _write_layered(path)
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)


# -- readers ----------------------------------------------------------------------------------------------------


def readers(path: Path, original: Path) -> Mapping[str, Callable[[], object]]:
    """Return what reads a file, each by its name."""
    out = path.parent / "out"
    return {
        "load": lambda: str(hieronnx.load(path).tree),
        "analyze": lambda: hieronnx.analyze(path).to_dict(),
        "validate": lambda: hieronnx.validate(path).to_dict(),
        "fix": lambda: hieronnx.validate(_copy(path, out), fix=True),
        "compare": lambda: hieronnx.compare(original, path).to_dict(),
        "compare values": lambda: hieronnx.compare(path, original, values=True).to_dict(),
        "extract": lambda: hieronnx.extract_all(path, "*", out),
        "carry from": lambda: hieronnx.carry(path, original, output=out / "carried.onnx"),
        "carry onto": lambda: hieronnx.carry(original, path, output=out / "carried.onnx"),
        "optimize": lambda: hieronnx.optimize(path, output=out / "optimized.onnx", tool="onnxscript"),
        "quantize": lambda: hieronnx.quantize(path, output=out / "quantized.onnx", tool="dynamic"),
        "fold": lambda: hieronnx.fold(path, output=out / "folded.onnx"),
        "unfold": lambda: hieronnx.unfold(path, output=out / "flat.onnx"),
        "fold and unfold": lambda: hieronnx.unfold(hieronnx.fold(path).model, output=out / "flat.onnx"),
        "split": lambda: hieronnx.split(path, stages=2, into=out / "stages"),
        "replace": lambda: hieronnx.replace(path, "*", original, output=out / "replaced.onnx"),
        "replace by": lambda: hieronnx.replace(original, "*", path, output=out / "replaced.onnx"),
        "select": lambda: hieronnx.select(path, "*", op="Add").to_dict(),
        "place": lambda: hieronnx.place(path, on=["cpu:*"], output=out / "placed.onnx", check=False),
        "verify": lambda: hieronnx.verify(path, original).to_dict(),
        "verify against": lambda: hieronnx.verify(original, path).to_dict(),
        "profile": lambda: hieronnx.profile(path, runs=1, warmup=0, roofline=False).to_dict(),
        "view": lambda: hieronnx.view(path, output=out / "page.html", against=original),
        "picture": lambda: hieronnx.view(path, output=out / "picture.svg", svg=""),
        "sensitivity": lambda: hieronnx.sensitivity(path).to_dict(),
    }


def _copy(path: Path, folder: Path) -> Path:
    for file in path.parent.glob("model*"):
        if file.is_file() and not file.is_symlink():
            shutil.copy(file, folder)
    return folder / path.name


def run_readers(path: Path, original: Path, memory: int) -> Iterator[tuple[str, str]]:
    """Run every reader in a child; yield each that neither finished nor refused, and the cause."""
    left = list(readers(path, original).items())
    while left:
        receiving, sending = os.pipe()
        child = fork()
        if child == 0:
            os.close(receiving)
            _run_limited(left, path.parent / "out", memory, sending)
        os.close(sending)
        with os.fdopen(receiving, encoding="utf-8", errors="replace") as pipe:
            lines = pipe.read().splitlines()
        _, status = os.waitpid(child, 0)
        yield from ((name, cause) for (name, _), cause in zip(left, lines, strict=False) if cause)
        left = left[len(lines) :]
        if left:  # the next one took the child with it
            name, signal_ = left.pop(0)[0], os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            yield name, "a hang" if signal_ in (signal.SIGXCPU, signal.SIGKILL) else f"a crash, signal {signal_}"


def _run_limited(left: Sequence[tuple[str, Callable[[], object]]], out: Path, memory: int, sending: int) -> None:
    """Run readers one after the other, a line for each that ends; then end this process, whatever happened."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        for _, read in left:
            used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
            resource.setrlimit(resource.RLIMIT_CPU, (used + CPU_SECONDS, resource.RLIM_INFINITY))
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            os.write(sending, f"{_run(read)}\n".encode())
    finally:
        os._exit(0)


def _run(read: Callable[[], object]) -> str:
    """Run a reader; return the cause if it neither finishes nor refuses."""
    try:
        read()
    except HieronnxError:
        return ""
    except BaseException as error:
        return describe(error)
    return ""


def describe(error: BaseException) -> str:
    """Name the cause of a traceback: the error, and the innermost line of hieronnx that it went through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f"{os.sep}hieronnx{os.sep}" in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].name}" if frames else "elsewhere"
    return f"{type(error).__name__} in {place}: {' '.join(str(error).split())[:80]}"


# -- the run ----------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What a run found: how many mutants were tried, and examples of each cause."""

    mutants: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def __str__(self) -> str:
        lines = [f"{self.mutants:,} mutants, {sum(self.causes.values()):,} findings of {len(self.causes):,} causes"]
        for cause, times in self.causes.most_common():
            lines += (f"{times:6,}  {cause}", *(f"        {example}" for example in self.examples[cause][:2]))
        return "\n".join(lines)


def fuzz(seed: int, *, seconds: float = float("inf"), mutants: int | None = None, first: int = 0) -> Report:
    """Try mutants, each with a number from which it can be made again, until time or number is used up."""
    report, started = Report(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name, suppress(KeyboardInterrupt):  # then tell what was found
        folder = Path(name)
        seeds = write_models(folder)
        _import_readers()
        memory = _virtual_memory() + MEMORY
        for number in _count(first, mutants):
            if time.monotonic() - started > seconds:
                break
            random_ = random.Random(f"{seed}-{number}")
            original = random_.choice(seeds)
            mutant = folder / "mutant"
            shutil.copytree(original.parent, mutant)
            told = mutate(mutant, random_)
            for reader, cause in run_readers(mutant / "model.onnx", original, memory):
                if cause not in report.causes:  # at once: a run may be long
                    print(f"mutant {number}: {reader}: {cause}", file=sys.stderr, flush=True)
                report.causes[cause] += 1
                report.examples[cause].append(f"{reader}, mutant {number} of {original.parent.name}: {told}")
            report.mutants += 1
            shutil.rmtree(mutant)
    return report


def _import_readers() -> None:
    """Import what readers import, once for all children."""
    for name in ("onnxruntime.quantization", "onnxscript.optimizer", "onnxscript.rewriter"):
        importlib.import_module(name)
    for name in hieronnx.__all__:
        getattr(hieronnx, name)


def _count(first: int, mutants: int | None) -> Iterable[int]:
    return range(first, first + (1 << 60 if mutants is None else mutants))


def _virtual_memory() -> int:
    """Return what this process has mapped, which its children have too."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def main() -> int:
    """Fuzz as the command line says."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--mutants", type=int)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--first", type=int, default=0, help="The number of the first mutant.")
    given = arguments.parse_args()
    seconds = float("inf") if given.mutants else given.seconds
    report = fuzz(given.seed, seconds=seconds, mutants=given.mutants, first=given.first)
    print(report)
    return 1 if report.causes else 0


if __name__ == "__main__":
    sys.exit(main())
