"""Parsing of what options say: inputs, dynamic axes, thresholds, sizes; without torch."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from hieronnx.capture.specs import InputSpec
from hieronnx.errors import InputError
from hieronnx.hierarchy.categories import check_threshold

_INPUT = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<dtype>\w+)\s*\[(?P<shape>[^\[\]]*)\]\s*")
_DYNAMIC = re.compile(r"\s*(?P<name>[A-Za-z_][\w./-]*|\*)\s*:(?P<axes>.+)")
_PERCENT = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)
_AXIS = re.compile(r"\s*(?P<axis>\d+)\s*=\s*(?P<label>[A-Za-z_]\w*)\s*")


class _SpecFields(msgspec.Struct, forbid_unknown_fields=True):
    """One entry of a file of input specs."""

    shape: list[int]
    dtype: str
    range: tuple[float, float] | None = None


def parse_input(text: str) -> InputSpec:
    """Parse `name=dtype[size,size,…]`; `[]` is a scalar.

    Raises:
        InputError: the text has another form, or names an unknown dtype.
    """
    match = _INPUT.fullmatch(text)
    if match is None:
        raise InputError(f"cannot read input '{text}'; expected name=dtype[shape], as in input_ids=int64[1,128]")
    sizes = [size.strip() for size in match["shape"].split(",")] if match["shape"].strip() else []
    for size in sizes:
        if not size.isdecimal():
            raise InputError(f"cannot read input '{text}': size '{size}' is not a whole number")
    return InputSpec(match["name"], match["dtype"], tuple(map(int, sizes)))


def parse_dynamic(text: str) -> tuple[str, dict[int, str]]:
    """Parse `name:axis=label,axis=label,…`; the name `*` stands for every input.

    Raises:
        InputError: the text has another form, or an axis is given twice.
    """
    match = _DYNAMIC.fullmatch(text)
    parts = [_AXIS.fullmatch(part) for part in match["axes"].split(",")] if match else []
    axes = [(int(part["axis"]), part["label"]) for part in parts if part is not None]
    if match is None or len(axes) < len(parts):
        raise InputError(
            f"cannot read dynamic axes '{text}'; expected name:axis=label,…, as in input_ids:0=batch,1=sequence"
        )
    if len(dict(axes)) < len(axes):
        raise InputError(f"cannot read dynamic axes '{text}': an axis is given twice")
    return match["name"], dict(axes)


def parse_names(text: str) -> list[str]:
    """Parse `name,name,…`.

    Raises:
        InputError: a name is empty or given twice.
    """
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise InputError(f"cannot read the names '{text}'; expected name,name,…, each once, as in logits,states")
    return names


def parse_threshold(text: str) -> tuple[str, float]:
    """Parse `category=percent`.

    Raises:
        InputError: the text has another form, there is no such category, or the number is no percentage.
    """
    name, _, number = (part.strip() for part in text.partition("="))
    if not _PERCENT.fullmatch(number):
        raise InputError(f"cannot read threshold '{text}'; expected category=percent, as in mathematical=95")
    try:
        check_threshold(name, float(number))
    except InputError as error:
        raise InputError(f"cannot read threshold '{text}': {error}") from error
    return name, float(number)


def parse_percent(text: str) -> float:
    """Parse a percentage, with or without its sign.

    Raises:
        InputError: the text has another form.
    """
    number = text.strip().removesuffix("%").strip()
    if not _PERCENT.fullmatch(number):
        raise InputError(f"cannot read the percentage '{text}'; expected a number, as in 10%")
    return float(number)


def parse_dim(text: str) -> tuple[str, int]:
    """Parse `name=size`; the name is that of a dynamic axis, whatever characters it has.

    Raises:
        InputError: the text has another form.
    """
    name, _, size = (part.strip() for part in text.rpartition("="))
    if not name or not size.isdecimal():
        raise InputError(f"cannot read the size of an axis '{text}'; expected name=size, as in batch=1")
    return name, int(size)


def parse_bytes(text: str) -> int:
    """Parse a size in bytes: `2GB`, `500MiB`, `1e9`.

    Raises:
        InputError: the text has another form.
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    try:
        number = float(found[1]) if found else 0.0
    except ValueError:
        number = 0.0
    if found is None or number <= 0:
        raise InputError(f"cannot read the size '{text}'; expected a number of bytes, as in 2GB or 500MiB")
    return int(number * (1024 if found[3] else 1000) ** " kmgt".index(found[2].lower() or " "))


def read_input_specs(path: str | Path) -> list[InputSpec]:
    """Read a JSON file of input specs: `{"name": {"shape": [1, 8], "dtype": "int64", "range": [0, 99]}}`.

    Raises:
        InputError: the file cannot be read, or its content has another form.
    """
    try:
        content = Path(path).read_bytes()
        entries = msgspec.json.decode(content, type=dict[str, _SpecFields])
    except OSError as error:
        raise InputError(f"cannot read the input specs '{path}': {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        form = '{"name": {"shape": [1, 8], "dtype": "int64", "range": [0, 99]}}'
        raise InputError(f"the input specs '{path}' do not have the form {form}: {error}") from error
    return [InputSpec(name, fields.dtype, tuple(fields.shape), fields.range) for name, fields in entries.items()]
