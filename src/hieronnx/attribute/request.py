"""The records around a strategy: a file with its model goes in, the calls projected onto its nodes come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import nn

from hieronnx.attribute.blocks import BlockedTensors, find_blocked
from hieronnx.attribute.weight_index import HeldParameter
from hieronnx.attribute.weights import ModuleTable, Weights, compare_weights
from hieronnx.capture.calls import CallIO
from hieronnx.files.opening import OpenedModel
from hieronnx.files.weights import Contents
from hieronnx.graph.building import view_model
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import Attribution, CallId
from hieronnx.hierarchy.tags import CallSite

if TYPE_CHECKING:
    from hieronnx.attribute.by_value.file_run import FirstRun

Contradiction: TypeAlias = tuple[int, tuple[tuple[str, CallId], ...]]
"""A node, and each evidence with the call that it names; the first one won."""


@dataclass(frozen=True)
class Request:
    """A file, the model that it is said to be of, and inputs to run both on.

    What is derived from them is derived once, when it is first asked for.
    """

    opened: OpenedModel
    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def view(self) -> View:
        """The structure of the file."""
        return view_model(self.opened.model)

    @cached_property
    def table(self) -> ModuleTable:
        """The modules of the model that can be called."""
        return ModuleTable.of(self.model)

    @cached_property
    def weights(self) -> Weights:
        """What the constants of the file hold of the model.

        Raises:
            HieronnxError: If one cannot be read.
        """
        return compare_weights(self.opened, self.model, self.view, self.table)

    @cached_property
    def blocked(self) -> BlockedTensors:
        """The tensors of the file that are in blocks of channels.

        Raises:
            HieronnxError: If a filter cannot be read.
        """
        return find_blocked(self.view, Contents.of(self.opened, self.view), self.weights.block)

    @cached_property
    def first_run(self) -> FirstRun:
        """What the outputs of file and model say of each other, on the inputs given.

        Raises:
            InputError: If the model cannot be run on these inputs.
            HieronnxError: If the file cannot.
        """
        from hieronnx.attribute.by_value.file_run import run_both  # it needs ONNX Runtime, which `usage_based` does not

        return run_both(self.opened, self.model, self.args, self.kwargs)


@dataclass(frozen=True, slots=True)
class Projected:
    """The calls of a model projected onto the nodes of a file.

    Attributes:
        sites: The calls, in order.
        nodes: The attribution of each node in the view's order; None where there is no evidence.
        initializers: For each initializer of the view the parameters that it holds, where that is known.
        agreement: Of `htp`, the share of the file's distinctive tensors whose values the model computed too, 1 where
            there are none; of `usage_based`, the share of the file's weights that the model has.
        unmatched: The calls of which nothing is in the file.
        missing: Of `htp`, those of them that work on what the file gives, and of whose parameters it has none either.
        unknown_weights: Of `htp`, how many weights of the file are not the model's, and lead to nothing that it
            computes.
        contradictions: The nodes of which two kinds of evidence say different things, and what they say.
        input_sets: On how many sets of inputs file and model were compared; 0 where nothing was run.
        passed: Of `htp`, what the calls received and returned, by the tensors of the view; None for what the file does
            not have, or cannot be told by its values.
    """

    sites: tuple[CallSite, ...]
    nodes: list[Attribution | None]
    initializers: Mapping[int, HeldParameter]
    agreement: float
    unmatched: tuple[CallId, ...]
    missing: tuple[CallId, ...] = ()
    unknown_weights: int = 0
    contradictions: tuple[Contradiction, ...] = ()
    input_sets: int = 0
    passed: Mapping[CallId, CallIO] = field(default_factory=dict)
