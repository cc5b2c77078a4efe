"""The record of a replacement."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hieronnx.errors import count, list_some
from hieronnx.files.opening import sidecar_path
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.results import Result, WrittenFile, dump_record, list_files

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class ReplaceResult(Result):
    """A model with a part in the place of module calls.

    Attributes:
        targets: the calls that were replaced.
        inputs: for each input of the part, the tensors of the model that it is, call by call.
        outputs: for each output of the part, the tensors that it makes, call by call.
        removed: the nodes that went, as they were.
        added: the nodes of the part, as they are in the model now.
        merged: the nodes of the part that the model has for others, too; those are used.
        removed_weights: the initializers that went: nobody else reads them.
        added_weights: those that came with the part.
        kept_weights: those of the part that the model had: its own are used.
        renamed: the tensors of the part whose names others had, by their names in the part.
        notes: what one should know.
        hierarchy: of the new model.
        model: the new model, or the file that it was written to.
    """

    _derived: ClassVar[tuple[str, ...]] = ("files",)

    targets: tuple[CallId, ...]
    inputs: dict[str, tuple[str, ...]]
    outputs: dict[str, tuple[str, ...]]
    removed: tuple[Node, ...]
    added: tuple[Node, ...]
    merged: tuple[str, ...]
    removed_weights: tuple[str, ...]
    added_weights: tuple[str, ...]
    kept_weights: tuple[str, ...]
    renamed: dict[str, tuple[str, ...]]
    notes: tuple[str, ...]
    hierarchy: Hierarchy
    model: onnx.ModelProto | Path

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """The model's file, the files that its weights are in, and its sidecar; none where it is in memory."""
        return list_files(self.model, sidecar_path(self.model)) if isinstance(self.model, Path) else ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values; `model` is the file that it was written to, or None."""
        return {**dump_record(self, {"model"}), "model": str(self.model) if isinstance(self.model, Path) else None}

    def __repr__(self) -> str:
        names = list_some([repr(str(call)) for call in self.targets], 3)
        return f"ReplaceResult({names}: {len(self.removed)} nodes to {count(len(self.added), 'node')})"
