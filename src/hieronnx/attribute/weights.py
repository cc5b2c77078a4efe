"""The weights of a file beside those of a model: what each constant holds, and how far the two agree."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from inspect import getattr_static

import onnx_ir as ir
from torch import nn

from hieronnx.attribute.holdings import Parameters, find_holdings, is_telling
from hieronnx.attribute.projected import HeldParameter
from hieronnx.files.opening import OpenedModel
from hieronnx.files.weights import Contents
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import CallId

_MANY = 64


@dataclass(frozen=True, slots=True)
class ModuleTable:
    """The modules that can be called: a list of modules never is."""

    callable_at: Mapping[str, str]
    """For every name of a module the path of the nearest module at or above it that can be called."""
    parents: Mapping[str, str | None]
    """For the path of each that can be called the nearest above it that can."""

    @classmethod
    def of(cls, model: nn.Module) -> ModuleTable:
        """Read the table of a model."""
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
        return cls(at, parents)

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
        strange: The weights of the file that the model does not have, whatever their shape.
        rounded: Whether there are weights in 8 bits or fewer.
        unmatched: The first calls of modules with parameters of which the file has none.
    """

    held: Mapping[int, HeldParameter]
    agreement: float
    strange: tuple[int, ...]
    rounded: bool
    unmatched: tuple[CallId, ...]


def compare_weights(opened: OpenedModel, model: nn.Module, view: View, table: ModuleTable) -> Weights:
    """Find what the constants of a file hold, each read once.

    Raises:
        HieronnxError: If one cannot be read.
    """
    parameters, contents = Parameters.of(model), Contents.of(opened, view)
    held, unknown = find_holdings(contents, view, parameters)
    strange = [tensor for tensor in unknown if len(contents.tensors[tensor].shape) > 1]
    return Weights(
        held=held,
        agreement=_measure_agreement(contents, held, strange, parameters),
        strange=tuple(strange),
        rounded=any(_is_rounded(tensor) for tensor in contents.tensors.values()),
        unmatched=_find_unmatched(held.values(), parameters, table),
    )


def _is_rounded(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype.is_integer() and tensor.dtype.itemsize <= 1 and tensor.size >= _MANY and len(tensor.shape) > 1


def _find_unmatched(held: Iterable[HeldParameter], parameters: Parameters, table: ModuleTable) -> tuple[CallId, ...]:
    """Return the modules with parameters of which the file has none."""
    found = {name for holding in held for name in holding.parameters}
    telling = [number for number, array in enumerate(parameters.arrays) if is_telling(array)]
    owners: dict[str, bool] = {}
    for name in (name for number in telling for name in parameters.names[number]):
        module = table.callable_at[name.rpartition(".")[0]]
        owners[module] = owners.get(module, False) or name in found
    return tuple(CallId(module, 0) for module in table.parents if not owners.get(module, True))


def _measure_agreement(
    contents: Contents, held: Collection[int], strange: Iterable[int], parameters: Parameters
) -> float:
    """Return which share of the file's weights the model has.

    A single one that it lacks does not count: an exporter may have computed it from others.
    """
    shapes = {shape for array in parameters.arrays for shape in (array.shape, array.shape[::-1])}
    found = sum(len(contents.tensors[tensor].shape) > 1 for tensor in held)
    lacking = sum(tuple(contents.tensors[tensor].shape.numpy()) in shapes for tensor in strange)
    return found / (found + lacking) if lacking > 1 else 1.0
