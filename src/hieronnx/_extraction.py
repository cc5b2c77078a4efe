"""The record of an extraction: one module call as a model of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hieronnx.hierarchy import CallId, Hierarchy, Node

if TYPE_CHECKING:
    import onnx

__all__ = ["Extraction", "Hoisted"]


@dataclass(frozen=True, slots=True)
class Hoisted:
    """A size that the exporter computes outside the part, once for all who need it, and that the part is fed with."""

    name: str
    producer: Node | None
    """The node of the whole model that makes it; None where it is an input there too."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """One module call as a model of its own. Nodes are those of the whole model, with their calls there.

    Attributes:
        module: the module's path in the whole model.
        call: which of its calls it is.
        tag: the call's tag in the whole model.
        calls: how many calls the module has there.
        operations: the nodes of the part.
        external_inputs: the part's inputs.
        outputs: the part's outputs.
        internal_tensors: what its nodes make and nobody outside reads.
        boundary_operations: the nodes that read an input or make an output.
        shared_operations: the nodes that other calls share: one node is left of several equal ones, or several became
            one. Their origins say which calls.
        brought_operations: the nodes from outside that came along: constants, and sizes of the part's inputs.
        initializers: what the part has of them, by the names there.
        hoisted: the inputs that the module itself did not receive: sizes.
        hierarchy: of the part, rooted at the module.
        model: the part itself, or the file that it was written to.
    """

    module: str
    call: int
    tag: str
    calls: int
    operations: tuple[Node, ...]
    external_inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    internal_tensors: tuple[str, ...]
    boundary_operations: tuple[Node, ...]
    shared_operations: tuple[Node, ...]
    brought_operations: tuple[Node, ...]
    initializers: tuple[str, ...]
    hoisted: tuple[Hoisted, ...]
    hierarchy: Hierarchy
    model: onnx.ModelProto | Path

    def __repr__(self) -> str:
        return f"Extraction({str(CallId(self.module, self.call))!r}: {len(self.operations)} operations)"
