"""Opening a file and what it is held to, and refusing what is another model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from hieronnx.attribute.same_model import ViewedFile, check_related
from hieronnx.errors import InputError, MismatchError, list_some, require
from hieronnx.files.opening import OpenedModel, open_model, require_hierarchy
from hieronnx.graph.view import ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.runtime.sessions import open_runner
from hieronnx.tools.carry.carrying import transfer
from hieronnx.tools.carry.pair import open_pair
from hieronnx.tools.fold.unfolding import open_flat, unfold_opened
from hieronnx.tools.verify.references import FileReference, Reference, TorchReference

if TYPE_CHECKING:
    from torch import nn

_MOST_NAMED = 5
_FAR = 0.5
_LEAST_OF_WEIGHTS = 0.5


@dataclass(frozen=True, slots=True)
class HeldTo:
    """What a file is held to.

    Attributes:
        name: As it is told.
        reference: What runs it.
        model: The model, if it is one in PyTorch.
        opened: The file, if it is one.
    """

    name: str
    reference: Reference
    model: nn.Module | None = None
    opened: OpenedModel | None = None


def is_file(reference: Any) -> bool:
    """Say whether a reference is an ONNX model."""
    return isinstance(reference, str | os.PathLike | onnx.ModelProto | ir.Model)


def give_hierarchy(opened: OpenedModel, reference: Any) -> OpenedModel:
    """Return a model with its hierarchy: its own, or that of the file that it is held to.

    Raises:
        HieronnxError: If neither has one.
    """
    if opened.hierarchy is None and is_file(reference):
        other = unfold_opened(open_model(reference))
        if other.hierarchy is not None:
            return replace(opened, hierarchy=_carry(other, opened))
    return replace(opened, hierarchy=require_hierarchy(opened.hierarchy, opened.path, opened.model))


def _carry(before: OpenedModel, after: OpenedModel) -> Hierarchy:
    pair = open_pair(before, after.model if after.path is None else after.path)
    moved = transfer(pair)
    check_related(ViewedFile(pair.before, pair.a), ViewedFile(pair.after, pair.b), moved.carried.tensors)
    return moved.hierarchy


@contextmanager
def open_reference(
    opened: OpenedModel, reference: nn.Module | ModelLike, *, float64: bool, buffer: int
) -> Iterator[HeldTo]:
    """Open what a model is held to; a file may have so many bytes of tensors in memory at once.

    Raises:
        MismatchError: If it has other calls.
        InputError: If it is neither a model in PyTorch nor one in ONNX.
    """
    hierarchy = require_hierarchy(opened.hierarchy, opened.path, opened.model)
    if is_file(reference):
        with open_flat(reference) as other:
            calls = other.hierarchy if other.hierarchy is not None else _carry(opened, other)
            _check_calls(opened.name, hierarchy, {call.id.module: "" for call in calls.calls}, other.name)
            with open_runner(other, threads=0) as runner:
                yield HeldTo(other.name, FileReference(runner, calls, buffer=buffer), opened=other)
        return
    require("torch", "torch")
    from torch import nn

    if not isinstance(reference, nn.Module):
        kind = type(reference).__name__
        raise InputError(f"the reference is a {kind}; give a torch.nn.Module, or the path of an ONNX file")
    paths = {path for path, _ in reference.named_modules(remove_duplicate=False)}
    name = type(reference).__name__
    _check_calls(opened.name, hierarchy, paths, name)
    yield HeldTo(name, TorchReference(reference, float64=float64), model=reference)


def _check_calls(file: str, hierarchy: Hierarchy, modules: Any, reference: str) -> None:
    """Make sure that a reference has the modules whose calls the file has."""
    called = dict.fromkeys(call.id.module for call in hierarchy.calls)
    missing = [module for module in called if module not in modules]
    if missing:
        named = list_some([f"'{module}'" for module in missing], _MOST_NAMED)
        raise MismatchError(
            f"'{file}' is not of {reference}: that has no {named}; check that both are of one version of the model",
            1 - len(missing) / len(called),
            tuple((module, 0) for module in missing),
        )


def check_same_weights(opened: OpenedModel, held_to: HeldTo, apart: float) -> None:
    """Refuse a reference with other weights, where outputs are far apart.

    A model may hold weights that it does not tell of, in modules kept in a list, so what it tells of counts as well.

    Raises:
        MismatchError: If most weights are others.
    """
    if apart < _FAR:
        return
    if held_to.model is not None:
        from hieronnx.attribute.request import Request

        weights = Request(opened, held_to.model).weights
        share = max(weights.agreement, weights.known)
    else:
        from hieronnx.attribute.weights import compare_files
        from hieronnx.graph.building import view_model

        assert held_to.opened is not None
        views = (view_model(file.model) for file in (held_to.opened, opened))
        shared = compare_files(held_to.opened, next(views), opened, next(views))
        share = shared.agreeing / shared.compared if shared.compared and not shared.quantized else 1.0
    if share < _LEAST_OF_WEIGHTS:
        raise MismatchError(
            f"'{opened.name}' is not of {held_to.name}: that has only {share:.0%} of its weights, and their outputs "
            f"are {apart:.0%} apart; check that weights and version of the model are those that the file was made with",
            share,
            (),
        )
