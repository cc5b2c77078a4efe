"""Which input and output of a part is which tensor of the model, and whether they fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.files.opening import OpenedModel
from hieronnx.hierarchy.records import BoundTensor
from hieronnx.tools.extract.find import Part
from hieronnx.tools.extract.model import ValueTypes
from hieronnx.tools.extract.source import Source


@dataclass(frozen=True, slots=True)
class Interface:
    """The ends of a part: for its inputs the tensors of the model, for tensors of the model its outputs."""

    inputs: Mapping[str, int]
    outputs: Mapping[int, str]


def match_interface(source: Source, types: ValueTypes, old: Part, part: OpenedModel) -> Interface:
    """Match the ends of a part with those of the part that it replaces: by name, by argument, by position.

    Raises:
        HieronnxError: If they do not fit, with all that differs.
    """
    graph, names = part.model.graph, source.view.names
    call = None if part.hierarchy is None else part.hierarchy.calls[0]
    fed = [value.name or "" for value in graph.inputs if (value.name or "") not in graph.initializers]
    given = [value.name or "" for value in graph.outputs]
    # What the call only passed on is not made by it: it stays as it is.
    made = {t for index in old.region for t in source.view.nodes[index].makes}
    wanted = [t for t in old.outputs if t in made]
    inputs = _match(fed, old.inputs, names, old.arguments, _list_bound(None if call is None else call.received))
    back = _match(given, wanted, names, old.places, _list_bound(None if call is None else call.returned))
    outputs = {tensor: name for name, tensor in back.items()}
    problems = [f"it takes '{name}', which the call is not given" for name in fed if name not in inputs]
    problems += [f"it does not give '{names[t]}', which others read" for t in wanted if t not in outputs]
    values = {value.name: value for value in (*graph.inputs, *graph.outputs)}
    problems += _compare_types(source, types, values, ((n, t) for n, t in inputs.items()), "input")
    problems += _compare_types(source, types, values, ((n, t) for t, n in outputs.items()), "output")
    if problems:
        takes = ", ".join(f"'{names[t]}'" + _name_argument(old.arguments.get(t, ())) for t in old.inputs) or "nothing"
        gives = ", ".join(f"'{names[t]}'" for t in wanted)
        raise HieronnxError(
            f"the part does not fit in the place of '{old.call}': {'; '.join(problems)}. The call takes {takes} and "
            f"gives {gives}; 'hieronnx extract' writes a part that fits"
        )
    return Interface(inputs, outputs)


def _name_argument(arguments: Sequence[str]) -> str:
    return f" ({', '.join(arguments)})" if any(arguments) else ""


def _list_bound(bound: Iterable[BoundTensor] | None) -> dict[str, str]:
    """Return for each tensor of the part what forward calls it."""
    return {item.tensor: item.name for item in bound or () if item.tensor is not None}


def _match(
    ends: Sequence[str],
    tensors: Sequence[int],
    names: Sequence[str],
    roles: Mapping[int, tuple[str, ...]],
    bound: Mapping[str, str],
) -> dict[str, int]:
    """Match the ends of a part with tensors: by name, by what forward calls them, and the rest by position."""
    by_name = {names[t]: t for t in reversed(tensors)}
    found = {end: by_name[end] for end in ends if end in by_name}
    by_role = {role: t for t in reversed(tensors) for role in roles.get(t, ()) if t not in found.values()}
    for end in ends:
        role = bound.get(end, end)
        if end not in found and role in by_role and by_role[role] not in found.values():
            found[end] = by_role[role]
    left = [end for end in ends if end not in found]
    free = [t for t in tensors if t not in found.values()]
    if len(left) == len(free):
        found |= zip(left, free, strict=True)
    return found


def _compare_types(
    source: Source,
    types: ValueTypes,
    values: Mapping[str | None, ir.Value],
    pairs: Iterable[tuple[str, int]],
    kind: str,
) -> list[str]:
    problems = []
    for name, tensor in pairs:
        theirs, ours = types[tensor], ir.serde.serialize_value(values[name])
        if theirs is None or theirs.type.WhichOneof("value") is None or ours.type.WhichOneof("value") is None:
            continue  # nothing is known to differ
        if not _fits(ours.type, theirs.type, kind):
            told = f"'{source.view.names[tensor]}'" + (f" (its '{name}')" if name != source.view.names[tensor] else "")
            problems.append(
                f"the {kind} {told} is {_show(theirs.type)} in the model and {_show(ours.type)} in the part"
            )
    return problems


def _fits(part: onnx.TypeProto, whole: onnx.TypeProto, kind: str) -> bool:
    if part.WhichOneof("value") != whole.WhichOneof("value"):
        return False
    if not part.HasField("tensor_type"):
        return bool(part == whole)
    ours, theirs = part.tensor_type, whole.tensor_type
    if ours.elem_type != theirs.elem_type:
        return False
    if not (ours.HasField("shape") and theirs.HasField("shape")):
        return True
    if len(ours.shape.dim) != len(theirs.shape.dim):
        return False
    for mine, other in zip(ours.shape.dim, theirs.shape.dim, strict=True):
        if mine.HasField("dim_value") and other.HasField("dim_value"):
            if mine.dim_value != other.dim_value:
                return False
        elif kind == "input" and mine.HasField("dim_value") and other.dim_param:
            return False  # it takes one size alone, and the model may have another
    return True


def _show(kind: onnx.TypeProto) -> str:
    if not kind.HasField("tensor_type"):
        return str(kind.WhichOneof("value"))
    tensor = kind.tensor_type
    dims = ["?" if not d.WhichOneof("value") else str(d.dim_value or d.dim_param or 0) for d in tensor.shape.dim]
    shape = f"[{','.join(dims)}]" if tensor.HasField("shape") else ""
    return f"{ir.DataType(tensor.elem_type).name.lower()}{shape}"
