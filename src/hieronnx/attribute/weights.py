"""Comparing weights: those of a file with the parameters of a model, or with the weights of another file.

Both are one question, which `WeightIndex` answers: does this initializer hold the values of that parameter, or of that
initializer, perhaps transposed, cast, quantized or joined with others? Each weight is read once.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from inspect import getattr_static
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from hieronnx.attribute.blocks import BLOCK_SIZES, decode_filter, find_filters
from hieronnx.attribute.weight_index import FEW, Array, HeldParameter, WeightIndex, as_numbers, is_distinctive
from hieronnx.errors import HieronnxError
from hieronnx.files.opening import OpenedModel
from hieronnx.files.weights import Contents
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import CallId

if TYPE_CHECKING:
    from torch import Tensor, nn

_MANY = 64
_MOST_ELEMENTS = 1 << 20
"""Of two files no larger weights are compared, and only so many: reading them all would take long."""
_SAMPLE, _MOST_READ, _MOST_CANDIDATES = 32, 512, 100
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_NO_NUMBERS = frozenset({ir.DataType.UNDEFINED, ir.DataType.STRING, ir.DataType.BOOL})


# -- a file and a model -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModuleTable:
    """The modules that can be called: a list of modules never is."""

    callable_at: Mapping[str, str]
    """For every name of a module the path of the nearest module at or above it that can be called."""
    parents: Mapping[str, str | None]
    """For the path of each that can be called the nearest above it that can."""
    lookups: frozenset[str]
    """The paths of those that do nothing with their parameters but look up rows of them."""

    @classmethod
    def of(cls, model: nn.Module) -> ModuleTable:
        """Read the table of a model."""
        from torch import nn

        canonical = {id(module): path for path, module in model.named_modules()}
        at: dict[str, str] = {}
        parents: dict[str, str | None] = {"": None}
        for name, module in model.named_modules(remove_duplicate=False):
            path = canonical[id(module)]
            above = at.get(name.rpartition(".")[0], "")
            # Looked up without asking the class: that of scripted modules answers for instances only.
            can = not name or getattr_static(type(module), "forward") is not nn.Module.forward
            at[name] = path if can else above
            if can and name:
                parents.setdefault(path, above)
        tables = (path for path, module in model.named_modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
        return cls(at, parents, frozenset(tables))

    def owners(self, parameters: Iterable[str]) -> tuple[str, ...]:
        """Return the modules that own parameters, each once."""
        return tuple(dict.fromkeys(self.callable_at[name.rpartition(".")[0]] for name in parameters))

    def ancestors(self, path: str) -> Iterable[str]:
        """Yield a module and those above it, up to the root."""
        above: str | None = path
        while above is not None:
            yield above
            above = self.parents[above]


@dataclass(frozen=True, slots=True)
class Weights:
    """What the constants of a file hold of a model.

    Attributes:
        held: The parameters that each constant holds, by its number in the view.
        agreement: The share of the file's weights that the model has; a weight is what has the shape of a parameter.
        unknown: The weights of the file that the model does not have, whatever their shape.
        rounded: Whether there are weights in 8 bits or fewer.
        unmatched: The first calls of modules with parameters of which the file has none.
        owners: How many modules have parameters that can be told from others.
        block: How many channels are in a block, where the file has filters in blocks.
    """

    held: Mapping[int, HeldParameter]
    agreement: float
    unknown: tuple[int, ...]
    rounded: bool
    unmatched: tuple[CallId, ...]
    owners: int
    block: int

    @property
    def known(self) -> float:
        """The share of the model's modules with telling parameters of which the file has some."""
        return 1 - len(self.unmatched) / self.owners if self.owners else 0.0


def compare_weights(opened: OpenedModel, model: nn.Module, view: View, table: ModuleTable) -> Weights:
    """Find what the constants of a file hold, each read once.

    Raises:
        HieronnxError: If one cannot be read.
    """
    parameters, contents = _index_parameters(model), Contents.of(opened, view)
    present = {view.names[tensor] for tensor in contents.tensors}
    filters = find_filters(view) & contents.tensors.keys()
    block = _find_block(filters, contents, parameters)
    held: dict[int, HeldParameter] = {}
    unknown: list[int] = []
    for tensor in sorted(contents.tensors):
        array = as_numbers(contents.read(tensor))
        if array is None or array.size < 2:
            continue
        if tensor in filters and (decoded := decode_filter(array, block)) is not None:
            array = decoded
        holding = parameters.find_named(view.names[tensor], array, present) or parameters.find(array)
        if holding is not None:
            held[tensor] = holding
        elif array.ndim > 1 and (is_distinctive(array) or parameters.would_find_rounded(array)):
            unknown.append(tensor)
    large = (tensor for tensor in contents.tensors.values() if tensor.size >= _MANY and len(tensor.shape) > 1)
    unmatched, owners = _find_unmatched(held.values(), parameters, table)
    return Weights(
        held=held,
        agreement=_measure_agreement(contents, held, unknown, parameters),
        unknown=tuple(unknown),
        rounded=any(tensor.dtype.is_integer() and tensor.dtype.itemsize <= 1 for tensor in large),
        unmatched=unmatched,
        owners=owners,
        block=block,
    )


def _find_block(filters: Iterable[int], contents: Contents, parameters: WeightIndex) -> int:
    """Return how many channels are in a block: as many as make a filter one of the model's."""
    for tensor in sorted(filters):
        array = contents.read(tensor)
        for block in BLOCK_SIZES:
            decoded = decode_filter(array, block)
            if decoded is not None and parameters.find(decoded) is not None:
                return block
    return BLOCK_SIZES[0]


def _index_parameters(model: nn.Module) -> WeightIndex:
    """Index the parameters and buffers of a model: those with equal contents are one, under all their names."""
    names: dict[bytes, list[str]] = defaultdict(list)
    arrays: dict[bytes, Array] = {}
    parameters, buffers = model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    for name, tensor in (*parameters, *buffers):
        if (array := _to_array(tensor)) is not None:
            digest = hashlib.blake2b(f"{array.dtype}{array.shape}".encode(), digest_size=16)
            digest.update(np.ascontiguousarray(array).data)
            names[digest.digest()].append(name)
            arrays.setdefault(digest.digest(), array)
    index = WeightIndex()
    for key, array in arrays.items():
        index.add(tuple(names[key]), array)
    return index


def _to_array(tensor: Tensor) -> Array | None:
    import torch

    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_complex():
        return None
    plain = tensor.detach().cpu()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()


def _find_unmatched(
    held: Iterable[HeldParameter], parameters: WeightIndex, table: ModuleTable
) -> tuple[tuple[CallId, ...], int]:
    """Return the modules with telling parameters of which the file has none, and how many have such parameters."""
    in_file = {name for holding in held for name in holding.parameters}
    pairs = zip(parameters.names, parameters.arrays, strict=True)
    distinctive = [name for names, array in pairs if is_distinctive(array) for name in names]
    owners = set(table.owners(distinctive))
    unmatched = owners.difference(table.owners(n for n in distinctive if n in in_file))
    return tuple(CallId(module, 0) for module in table.parents if module in unmatched), len(owners)


def _measure_agreement(
    contents: Contents, held: Collection[int], unknown: Iterable[int], parameters: WeightIndex
) -> float:
    """Return which share of the file's weights the model has.

    A single one that it lacks does not count: an exporter may have computed it from others.
    """
    shapes = {shape for array in parameters.arrays for shape in (array.shape, array.shape[::-1])}
    matched = sum(len(contents.tensors[tensor].shape) > 1 for tensor in held)
    lacking = sum(tuple(contents.tensors[tensor].shape.numpy()) in shapes for tensor in unknown)
    return matched / (matched + lacking) if lacking > 1 else 1.0


# -- two files --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """How many weights of a file could be compared with some of another, and how many of them hold the same."""

    compared: int
    agreeing: int
    quantized: bool
    """Whether only the transformed file has integers for weights: what is float may be new then."""


def compare_files(original: OpenedModel, a: View, transformed: OpenedModel, b: View) -> SharedWeights:
    """Compare a sample of a transformed file's float weights with those of their size in the original.

    Of weights that have one value throughout, and of those that cannot be read, nothing can be told.
    """
    old, new = _FileWeights(original, a), _FileWeights(transformed, b)
    # For operators that the original has not, a tool may have put weights into another layout.
    operators = {node.op for node in a.nodes}
    comparable = {tensor for node in b.nodes if node.op in operators for tensor in node.inputs}
    index = WeightIndex()
    agreeing = compared = 0
    for tensor in new.choose(old):
        array = _read_numbers(new.contents, tensor)
        if array is None or not np.ptp(array) > 0:
            continue
        alike = old.by_size[array.size]
        named = [t for t in alike if a.names[t] == b.names[tensor]]
        agrees = False
        for candidates in (named, alike[:_MOST_CANDIDATES]):  # the others are read only if names do not lead there
            for candidate in candidates if not agrees else ():
                if a.names[candidate] not in index and (content := _read_numbers(old.contents, candidate)) is not None:
                    index.add((a.names[candidate],), content)
            agrees = agrees or index.find(array) is not None
        agreeing += agrees
        compared += agrees or tensor in comparable
        if compared == _SAMPLE:
            break
    return SharedWeights(compared, agreeing, new.has_bytes and not old.has_bytes)


def pair_weights(
    original: OpenedModel, a: View, transformed: OpenedModel, b: View
) -> tuple[dict[int, int], dict[int, int]]:
    """Return for constants of a transformed file those of the original that they hold, whatever their names.

    The first are those that hold the same numbers, the second all others: turned, in fewer bits, or scaled by channel.
    All weights are read: this is for files without names.
    """
    old, new = Contents.of(original, a), Contents.of(transformed, b)
    index = WeightIndex()
    for tensor in sorted(old.tensors):
        array = _read_numbers(old, tensor)
        if array is not None and is_distinctive(array):
            index.add((str(tensor),), array)
    same: dict[int, int] = {}
    altered: dict[int, int] = {}
    for tensor in sorted(new.tensors):
        array = _read_numbers(new, tensor)
        held = None if array is None or array.size < FEW else index.find(array)
        if held is not None and len(held.parameters) == 1:
            of_a = int(held.parameters[0])
            is_same = held.how == "value" and new.tensors[tensor].shape == old.tensors[of_a].shape
            (same if is_same else altered)[tensor] = of_a
    return same, altered


def hold_same(original: OpenedModel, a: View, transformed: OpenedModel, b: View, pairs: Mapping[int, int]) -> bool:
    """Say whether large constants of a transformed file hold what those of the original hold that they are paired with.

    What cannot be read contradicts nothing. One that alone has its type needs no comparison.
    """
    old, new = Contents.of(original, a), Contents.of(transformed, b)
    counts = Counter(a.types[tensor] for tensor in old.tensors)
    for of_b, of_a in pairs.items():
        if of_b not in new.tensors or of_a not in old.tensors or counts[a.types[of_a]] == 1:
            continue
        if a.constants.get(of_a) != b.constants.get(of_b):  # which of small ones is what they hold
            ours, theirs = _read_numbers(new, of_b), _read_numbers(old, of_a)
            if ours is not None and theirs is not None and not np.array_equal(ours, theirs, equal_nan=True):
                return False
    return True


def _read_numbers(contents: Contents, tensor: int) -> Array | None:
    """Read a constant; None where it is not there: a hierarchy can be carried without the weights."""
    try:
        return as_numbers(contents.read(tensor))
    except HieronnxError:
        return None


class _FileWeights:
    """The initializers of a file's main graph, read when they are asked for."""

    def __init__(self, opened: OpenedModel, view: View) -> None:
        self.contents = Contents.of(opened, view)
        self.by_size: dict[int, list[int]] = defaultdict(list)
        """Those that can be compared, by how many elements they have."""
        self.has_bytes = False
        """Whether there are some with elements of 8 bits or less."""
        for tensor in view.constants:
            weight = None if view.tensor_graphs[tensor] else self.contents.tensors.get(tensor)
            if weight is None or weight.size < FEW:
                continue
            if weight.dtype in _FLOATS and weight.size <= _MOST_ELEMENTS:
                self.by_size[weight.size].append(tensor)
            self.has_bytes |= weight.dtype not in _NO_NUMBERS and weight.dtype.bitwidth <= 8

    def choose(self, others: _FileWeights) -> Sequence[int]:
        """Choose the weights to look at: those of a size that few others have first, of these the smallest."""
        counts = {size: len(tensors) for size, tensors in others.by_size.items()}
        sizes = (size for size in self.by_size if size in counts)
        chosen = ((counts[size], size, tensor) for size in sizes for tensor in self.by_size[size])
        return [tensor for _, _, tensor in nsmallest(_MOST_READ, chosen)]
