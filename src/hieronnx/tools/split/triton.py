"""The stages of a pipeline as a model repository for NVIDIA Triton: a model for each, and an ensemble of them.

repository/name/config.pbtxt                  the ensemble, which is the whole model
repository/name_stage_0/config.pbtxt, 1/model.onnx, …
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx

from hieronnx.errors import HieronnxError, InputError
from hieronnx.files.external import copy_data
from hieronnx.files.pipeline import read_pipeline, writing_folder
from hieronnx.files.wire import read_skeleton

_CONFIG = "config.pbtxt"
_TYPES = {
    "FLOAT": "FP32",
    "DOUBLE": "FP64",
    "FLOAT16": "FP16",
    "BFLOAT16": "BF16",
    "BOOL": "BOOL",
    "STRING": "STRING",
    **{f"{sign}INT{bits}": f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
}


def write_triton(
    folder: str | os.PathLike[str], repository: str | os.PathLike[str], *, name: str | None = None
) -> tuple[Path, ...]:
    """Write the stages in a folder as a model repository for Triton.

    Args:
        folder: What `split` wrote.
        repository: Where to write: a new folder, or one that was written so.
        name: Of the ensemble; by default that of the model's file.

    Returns:
        The models' folders, the ensemble's last.

    Raises:
        HieronnxError: If Triton has no such type, or the repository cannot be written.
    """
    stages, target = Path(folder), Path(repository)
    document = read_pipeline(stages)
    whole = name or Path(document.model).stem
    if not whole or "/" in whole:
        raise InputError(f"'{whole}' cannot be the name of a model in Triton; give another")
    passed = {item.name for item in document.inputs} & {item.name for item in document.outputs}
    if passed:
        raise HieronnxError(f"the model gives its input '{min(passed)}' as it is, which an ensemble cannot")
    names = [f"{whole}_{Path(stage.file).stem}" for stage in document.stages]
    ends: dict[str, onnx.ValueInfoProto] = {}
    with writing_folder(target, f"{whole}/{_CONFIG}") as new:
        for model, stage in zip(names, document.stages, strict=True):
            graph = read_skeleton(stages / stage.file).graph
            values = {value.name: value for value in (*graph.input, *graph.output)}
            ends |= values
            version = new / model / "1"
            version.mkdir(parents=True)
            shutil.copyfile(stages / stage.file, version / "model.onnx")
            copy_data(stages / stage.file, version)
            lines = [_field("name", model), _field("platform", "onnxruntime_onnx"), "max_batch_size: 0"]
            lines += _list_ends("input", (values[item] for item in stage.inputs))
            lines += _list_ends("output", (values[item] for item in stage.outputs))
            _write(new / model, lines)
        (new / whole / "1").mkdir(parents=True)
        lines = [_field("name", whole), _field("platform", "ensemble"), "max_batch_size: 0"]
        used = {item for stage in document.stages for item in stage.inputs}
        lines += _list_ends("input", (ends[item.name] for item in document.inputs if item.name in used))
        lines += _list_ends("output", (ends[item.name] for item in document.outputs))
        lines.append("ensemble_scheduling {")
        for model, stage in zip(names, document.stages, strict=True):
            lines += ["  step {", f"    {_field('model_name', model)}", "    model_version: -1"]
            lines += _list_maps("input_map", stage.inputs) + _list_maps("output_map", stage.outputs)
            lines.append("  }")
        _write(new / whole, [*lines, "}"])
    return tuple(target / model for model in (*names, whole))


def _write(folder: Path, lines: Iterable[str]) -> None:
    (folder / _CONFIG).write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def _field(key: str, text: str) -> str:
    return f"{key}: {_quote(text)}"


def _quote(text: str) -> str:
    """Write a string as protobuf's text format has it."""
    plain = (chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\{byte:03o}" for byte in text.encode())
    return f'"{"".join(plain)}"'


def _list_ends(kind: str, values: Iterable[onnx.ValueInfoProto]) -> list[str]:
    return [_describe_end(kind, value) for value in values]


def _describe_end(kind: str, value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    dtype = onnx.TensorProto.DataType.Name(tensor.elem_type)
    if dtype not in _TYPES or not tensor.HasField("shape"):
        raise HieronnxError(f"Triton cannot be told of '{value.name}': its type is {dtype}, or its rank is not known")
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    # Triton has no tensors without axes, but a model may.
    shape = f"dims: [ {', '.join(map(str, dims))} ]" if dims else "dims: [ 1 ] reshape { shape: [ ] }"
    return f"{kind} {{ {_field('name', value.name)} data_type: TYPE_{_TYPES[dtype]} {shape} }}"


def _list_maps(kind: str, names: Sequence[str]) -> list[str]:
    return [f"    {kind} {{ {_field('key', name)} {_field('value', name)} }}" for name in names]
