"""The records of an export: what was asked for, and what a route captured on the way to the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from torch import nn

from hieronnx.capture.calls import CallIO
from hieronnx.capture.names import BoundaryNames
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import Attribution, CallId
from hieronnx.hierarchy.tags import CallSite

NodeMetadata: TypeAlias = Mapping[tuple[str, str], Mapping[str, str]]
"""Metadata for nodes, by what identifies them in the file: the key of the graph, and the first output."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """A model, its example inputs and torch's own options, passed on as they are."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Path
    """Where the route writes; the files are moved from there to the destination."""
    destination: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `torch.onnx.export`."""
    strip_torch_metadata: bool = False
    names: BoundaryNames = field(default_factory=BoundaryNames)
    """The lists among the options that the route is to fill in."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One graph on the way from the trace to the file, and what torch itself says of its nodes and tensors.

    Between two stages torch either translated the graph node by node, or ran passes over it that nobody can follow but
    by comparing the two.

    Attributes:
        view: the graph.
        scopes: for each node the call that torch recorded for it; None where it recorded none.
        sources: for each node the one of the stage before that torch says it comes from; None where it says nothing.
        tensors: for tensors of the stage before those of this one that torch says they are, or that took their place.
        translated: whether torch translated the stage before node by node.
        parameters: the names of parameters, by those that they have in the view, where the two differ.
    """

    view: View
    scopes: Sequence[Attribution | None]
    sources: Sequence[int | None] = ()
    tensors: Mapping[int, int] = field(default_factory=dict)
    translated: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Captured:
    """What a route captured of one export; nothing is written yet.

    Attributes:
        sites: the calls.
        stages: the graphs that torch made, from the first one that says which call made which node to the finished one.
        view: the finished graph, with the names that it has in the file.
        passed: what each call received and returned, by the tensors of the first stage.
        write: writes the file, with metadata for its nodes and for the model. What a node already has is not replaced.
    """

    sites: tuple[CallSite, ...]
    stages: tuple[Stage, ...]
    view: View
    passed: Mapping[CallId, CallIO]
    write: Callable[[NodeMetadata, Mapping[str, str]], None]
