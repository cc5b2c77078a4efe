"""Which parameters and buffers the constants of a file hold: by name where names are kept, and by value.

A constant is cut into pieces of parameters, each found by its first elements and then compared whole. One piece is a
parameter as it is or transposed; several are parameters that were joined, as query, key and value often are, or one
whose parts were put in another order, as the gates of an LSTM are. What is no such thing may still be a parameter
scaled channel by channel, as by quantization or a folded normalization: it goes along with it within each channel.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hieronnx.attribute.projected import HeldParameter
from hieronnx.files.weights import Contents
from hieronnx.graph.view import View

Array: TypeAlias = npt.NDArray[Any]

_FEW = 8
"""Elements that find a piece of a parameter, and the least that values can tell."""
_PARTS = (1, 2, 3, 4)
"""A parameter may be found in this many equal parts: joined projections have three, the gates of an LSTM are four."""
_SAMPLE = 64
_ALIKE = 0.995
"""How far a scaled channel must go along with that of the parameter."""
_ALIKE_ROUNDED, _STEPS = 0.98, 16
"""The same for 8 bits, and how many steps of them a channel must have: 16 leave more than 0.99."""
_CHANNELS = 8
_LEAST_FREE = 3
_CROWD = 1000
"""Parameters of one shape among which a scaled one is looked for; with more it could take all day."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters and buffers of a model: those with equal contents are one."""

    names: tuple[tuple[str, ...], ...]
    """All names of each, those of equal ones included; the first is the canonical one."""
    arrays: tuple[Array, ...]
    numbers: Mapping[str, int]

    @classmethod
    def of(cls, model: nn.Module) -> Parameters:
        """Read the parameters and buffers of a model; no copies are made."""
        names: dict[bytes, list[str]] = defaultdict(list)
        arrays: dict[bytes, Array] = {}
        for source in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)):
            for name, tensor in source:
                array = _to_array(tensor)
                if array is not None:
                    key = _digest(array)
                    names[key].append(name)
                    arrays.setdefault(key, array)
        numbers = {name: number for number, held in enumerate(names.values()) for name in held}
        return cls(tuple(map(tuple, names.values())), tuple(arrays.values()), numbers)


def _to_array(tensor: torch.Tensor) -> Array | None:
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_complex():
        return None
    plain = tensor.detach().cpu()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()


def _digest(array: Array) -> bytes:
    digest = hashlib.blake2b(f"{array.dtype}{array.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def find_holdings(contents: Contents, view: View, parameters: Parameters) -> tuple[dict[int, HeldParameter], list[int]]:
    """Find for each constant what it holds; and return those that must hold something, yet nothing of the model."""
    index = _Index(parameters)
    present = {view.names[tensor] for tensor in contents.tensors}
    absent = [tuple(name for name in names if name not in present) for names in parameters.names]
    found: dict[int, HeldParameter] = {}
    unknown: list[int] = []
    for tensor in sorted(contents.tensors):
        array = _as_number(contents.read(tensor))
        if array is None or array.size < 2:
            continue
        holding = _hold_by_name(view.names[tensor], array, parameters, absent) or index.find(array)
        if holding is not None:
            found[tensor] = holding
        elif is_telling(array) or index.would_find_rounded(array):
            unknown.append(tensor)
    return found, unknown


def _as_number(array: Array) -> Array | None:
    """Return an array of a type that numpy computes with; None for texts."""
    if array.dtype.kind in "biuf":
        return array
    # The types that numpy has from elsewhere: bfloat16, float8, int4.
    return array.astype(np.float32) if array.dtype.kind == "V" and array.dtype.itemsize <= 2 else None


def is_telling(array: Array) -> bool:
    """Say whether an array can hardly be equal to another by chance: enough numbers, and more than a pattern of few."""
    if array.dtype.kind != "f" or array.size < _FEW:
        return False
    sample = array.ravel()[:: max(1, array.size // 256)]
    return np.unique(sample).size > min(_FEW, sample.size // 2)


def _hold_by_name(
    name: str, array: Array, parameters: Parameters, absent: Sequence[tuple[str, ...]]
) -> HeldParameter | None:
    """Return what a constant holds that has the name of a parameter, if it has its values too.

    Of parameters with equal contents a file may have one for all: then it is all those of which the file has none.
    """
    number = parameters.numbers.get(name)
    if number is None or not _same(array.ravel(), parameters.arrays[number].ravel()):
        return None
    return HeldParameter((name, *absent[number]), "name")


def _same(ours: Array, theirs: Array) -> bool:
    """Say whether two arrays are equal, up to the precision of the lesser type."""
    if ours.size != theirs.size:
        return False
    if ours.dtype == theirs.dtype:
        return bool(np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f"))
    if ours.dtype.kind != "f" or theirs.dtype.kind != "f":
        return bool(np.array_equal(ours, theirs))
    rtol = 1e-5 if min(ours.dtype.itemsize, theirs.dtype.itemsize) >= 4 else 1e-2
    return bool(np.allclose(ours, theirs, rtol=rtol, atol=1e-6, equal_nan=True))


# -- by value ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a parameter's elements in their order."""

    number: int
    start: int
    length: int


@dataclass(slots=True)
class _Index:
    """The parameters by their first elements, in whole and in parts; and by shape."""

    parameters: Parameters
    whole: dict[tuple[int, bytes], list[int]] = field(default_factory=lambda: defaultdict(list))
    pieces: dict[bytes, list[_Piece]] = field(default_factory=lambda: defaultdict(list))
    shapes: dict[tuple[int, ...], list[int]] = field(default_factory=lambda: defaultdict(list))
    channels: dict[tuple[tuple[int, ...], int, int], Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, array in enumerate(self.parameters.arrays):
            if array.dtype.kind != "f" or not array.size:
                continue
            flat = array.ravel()
            self.whole[array.size, _key(flat)].append(number)
            if is_telling(array):
                self.shapes[array.shape].append(number)
                for piece in _cut_evenly(number, array):
                    self.pieces[_key(flat[piece.start :])].append(piece)

    def find(self, array: Array) -> HeldParameter | None:
        """Find what an array of a file holds by its values."""
        telling = is_telling(array)
        for turned, how in ((array, "value"), (array.T, "transposed")) if array.dtype.kind == "f" else ():
            flat = turned.ravel()
            number = next((n for n in self.whole.get((array.size, _key(flat)), ()) if self._is(n, flat)), None)
            if number is not None and (telling or array.size >= _FEW):
                return self._hold([number], how)
            if telling and (joined := self._join(flat)):
                return self._hold([piece.number for piece in joined], "fused")
            if array.ndim != 2:
                break
        return self._find_scaled(array)

    def _hold(self, numbers: Sequence[int], how: str) -> HeldParameter:
        if len(numbers) == 1:  # equal ones may have very many names: these are not copied
            return HeldParameter(self.parameters.names[numbers[0]], how)
        return HeldParameter(tuple(name for n in dict.fromkeys(numbers) for name in self.parameters.names[n]), how)

    def _is(self, number: int, flat: Array) -> bool:
        return _same(flat, self.parameters.arrays[number].ravel())

    def _join(self, flat: Array) -> list[_Piece]:
        """Cut an array into pieces of parameters; none if it cannot be cut."""
        pieces: list[_Piece] = []
        offset = 0
        while offset < flat.size:
            piece = next((p for p in self.pieces.get(_key(flat[offset:]), ()) if self._fits(p, flat, offset)), None)
            if piece is None:
                return []
            pieces.append(piece)
            offset += piece.length
        return pieces

    def _fits(self, piece: _Piece, flat: Array, offset: int) -> bool:
        held = self.parameters.arrays[piece.number].ravel()[piece.start : piece.start + piece.length]
        return _same(flat[offset : offset + piece.length], held)

    # -- scaled channel by channel

    def _find_scaled(self, array: Array) -> HeldParameter | None:
        """Find the parameter that an array goes along with in several of its channels."""
        if array.ndim < 2:
            return None
        for turned in (array, array.T):
            for axis in range(2 if array.ndim == 2 else 1):
                number = self._go_along(turned, axis)
                if number is not None:
                    return self._hold([number], "scaled")
            if array.ndim != 2:
                break
        return None

    def would_find_rounded(self, array: Array) -> bool:
        """Say whether an array in 8 bits would have been found if it were a parameter: some have its shape."""
        if not _is_rounded(array) or array.ndim < 2:
            return False
        return any(self._choose_channels(turned, 0) for turned in ((array, array.T) if array.ndim == 2 else (array,)))

    def _choose_channels(self, array: Array, axis: int) -> list[int]:
        """Choose channels that tell with which parameter an array goes along; none if it could do so by chance."""
        if not 0 < len(self.shapes.get(array.shape, ())) <= _CROWD:
            return []
        count = array.shape[axis]
        chosen = [p for p in range(0, count, max(1, count // _CHANNELS)) if _is_fine(np.take(array, p, axis))]
        # A line of three numbers goes along with any other now and then, but not several of them at once.
        free = array.size // count - 2
        return chosen if free >= 1 and free * len(chosen) >= _LEAST_FREE else []

    def _go_along(self, array: Array, axis: int) -> int | None:
        positions = self._choose_channels(array, axis)
        if not positions:
            return None
        alike = self.shapes[array.shape]
        score = np.ones(len(alike))
        for position in positions:
            known = self._channels(array.shape, axis, position)
            score = np.minimum(score, np.abs(known @ _channel(array, axis, position)))
        best = int(np.argmax(score))
        return alike[best] if score[best] > (_ALIKE_ROUNDED if _is_rounded(array) else _ALIKE) else None

    def _channels(self, shape: tuple[int, ...], axis: int, position: int) -> Array:
        key = (shape, axis, position)
        if key not in self.channels:
            arrays = [self.parameters.arrays[number] for number in self.shapes[shape]]
            self.channels[key] = np.stack([_channel(array, axis, position) for array in arrays])
        return self.channels[key]


def _key(flat: Array) -> bytes:
    """Key the first elements; rounding to half precision does not matter, nor what converters make of tiny numbers."""
    first = flat[:_FEW].astype(np.float32)
    with np.errstate(over="ignore"):
        return np.where(np.abs(first) < 1e-6, 0, first).astype(np.float16).tobytes()


def _cut_evenly(number: int, array: Array) -> Iterator[_Piece]:
    """Cut a parameter into equal parts along its first axis, the largest first."""
    for parts in _PARTS:
        length = array.size // parts
        if array.shape[0] % parts == 0 and length >= _FEW:
            yield from (_Piece(number, part * length, length) for part in range(parts))


def _is_rounded(array: Array) -> bool:
    return array.dtype.kind in "iu" and array.dtype.itemsize == 1


def _is_fine(line: Array) -> bool:
    """Say whether a channel is as it was but for its scale: in few steps of 8 bits too much was lost."""
    return not _is_rounded(line) or int(line.max()) - int(line.min()) >= _STEPS


def _channel(array: Array, axis: int, position: int) -> Array:
    """Return some elements of one channel, their mean taken away and scaled to length 1."""
    line = np.take(array, position, axis).ravel()[:_SAMPLE].astype(np.float64)
    line = line - line.mean()
    size = float(np.linalg.norm(line))
    return line / size if size > 0 and np.isfinite(size) else np.zeros_like(line)
