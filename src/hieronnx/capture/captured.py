"""What a route hands on: the calls, and the graph that it is about to write with its nodes' attributions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from torch import nn

from hieronnx.attribute.carried import Carried
from hieronnx.capture.passing import Exchange
from hieronnx.graph.view import View
from hieronnx.hierarchy.records import CallId
from hieronnx.hierarchy.tags import CallSite


@dataclass(frozen=True, slots=True)
class Embedding:
    """Metadata to write into a file."""

    nodes: Mapping[tuple[str, str], Mapping[str, str]]
    """For each node, by its graph's key and its first output. What a node already has is not replaced."""
    model: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Captured:
    """The calls of the captured execution, and the graph as it will be written.

    Attributes:
        sites: the calls.
        view: the graph.
        carried: whose work its nodes do.
        passed: what each call received and returned, by the tensors of the view.
    """

    sites: tuple[CallSite, ...]
    view: View
    carried: Carried
    passed: Mapping[CallId, Exchange]


Annotate: TypeAlias = Callable[[Captured], Embedding]
"""Called once by a route, right before it writes: from what was captured to what is embedded."""


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
