"""The shapes of a model's tensors: as the file has them, with axes fixed by name, inferred where they are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, InputError
from hieronnx.graph.shapes import infer_types
from hieronnx.graph.walks import walk_nodes

_Sizes: TypeAlias = tuple[int | None, ...]


class Shapes:
    """The shapes of a model's tensors; inferring those that the file lacks is a step of its own, for it takes time."""

    def __init__(self, model: ir.Model, dims: Mapping[str, int]) -> None:
        """Begin with the shapes that the file has.

        Args:
            model: The model; it is not changed.
            dims: Sizes of dynamic axes, by the axes' names.

        Raises:
            InputError: If the model has no axis of such a name, or a size is not positive.
        """
        self._model = model
        self._dims = dims
        self._inferred: dict[ir.Value, _Sizes] = {}
        if dims:
            _check_dims(model, dims)

    def find(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the shape of a tensor if it is wholly known; that of an absent one is empty."""
        if value is None:
            return ()
        known = self._sizes(value)
        guess = self._inferred.get(value)
        if known is None or None in known:
            known = _merge(known, guess)
        return None if known is None or None in known else known  # type: ignore[return-value]  # None was ruled out

    def could_be_inferred(self, value: ir.Value | None) -> bool:
        """Say whether inference may tell more of a tensor: a named axis stays unknown unless some are fixed."""
        if value is None:
            return False
        if value.shape is None:
            return True
        if self._dims:
            return self.find(value) is None
        return any(not isinstance(dim, int) and dim.value is None for dim in value.shape)

    def infer(self) -> str | None:
        """Infer the shapes that the file lacks, without weights; return what kept that from being done, if anything."""
        try:
            found = infer_types(self._model, self._dims)
        except HieronnxError as error:
            return str(error)
        shaped = {value: info for value, info in found.items() if info.type.tensor_type.HasField("shape")}
        self._inferred = {value: _read_sizes(info) for value, info in shaped.items()}
        return None

    def _sizes(self, value: ir.Value) -> _Sizes | None:
        if value.shape is None:
            return None
        sizes = (d if isinstance(d, int) else self._dims.get(d.value or "") for d in value.shape)
        return tuple(size if size is None or size >= 0 else None for size in sizes)  # some write -1 for unknown


def _merge(known: _Sizes | None, guess: _Sizes | None) -> _Sizes | None:
    if known is None or guess is None or len(known) != len(guess):
        return known if guess is None else guess
    return tuple(b if a is None else a for a, b in zip(known, guess, strict=True))


def _check_dims(model: ir.Model, dims: Mapping[str, int]) -> None:
    for name, size in dims.items():
        if size < 1:
            raise InputError(f"axis '{name}' cannot have size {size}; a size is 1 or more")
    names = {dim.value for value in _values(model) for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)}
    known = sorted(name for name in names if name is not None)
    for name in dims:
        if name not in names:
            listed = f"; its dynamic axes are: {', '.join(known)}" if known else ": it has no dynamic axis with a name"
            raise InputError(f"the model has no dynamic axis '{name}'{listed}")


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for _, node in walk_nodes(model):
        yield from node.outputs


def _read_sizes(info: onnx.ValueInfoProto) -> _Sizes:
    return tuple(d.dim_value if d.HasField("dim_value") else None for d in info.type.tensor_type.shape.dim)
