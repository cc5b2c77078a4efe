"""The records of folding and unfolding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hieronnx.errors import count
from hieronnx.files.opening import sidecar_path
from hieronnx.graph.walks import walk_protos
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.results import Result, WrittenFile, dump_record, list_files

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, slots=True)
class FoldedFunction:
    """A function that modules became.

    Attributes:
        domain: the package of their class.
        name: the class, with a number where others have that name.
        inputs: what it takes: arguments, then parameters and other constants.
        outputs: what it gives.
        attributes: the attributes that its calls differ in.
        nodes: how many nodes it has itself, calls of other functions counted as one.
        calls: the calls that share it.
    """

    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[str, ...]
    nodes: int
    calls: tuple[CallId, ...]


@dataclass(frozen=True, slots=True)
class InlineCall:
    """A call that stayed as it is, and why."""

    call: CallId
    reason: str


class _ModelResult(Result):
    __slots__ = ()
    _derived: ClassVar[tuple[str, ...]] = ("files",)
    model: onnx.ModelProto | Path

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """The model's file, the files that its weights are in, and its sidecar; none where it is in memory."""
        return list_files(self.model, sidecar_path(self.model)) if isinstance(self.model, Path) else ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values; `model` is the file that it was written to, or None."""
        return {**dump_record(self, {"model"}), "model": str(self.model) if isinstance(self.model, Path) else None}


@dataclass(frozen=True, slots=True)
class FoldResult(_ModelResult):
    """A model whose modules are functions.

    Attributes:
        functions: these.
        inline: the calls that were asked for and stayed as they are, with the reason.
        taken_in: the nodes that functions have of calls that are not theirs.
        nodes_before: how many nodes the model had.
        nodes_after: how many it has, those of functions counted once.
        bytes_before: the size of the model without its weights.
        bytes_after: the same after folding.
        hierarchy: of the folded model.
        model: the folded model, or the file that it was written to.
    """

    functions: tuple[FoldedFunction, ...]
    inline: tuple[InlineCall, ...]
    taken_in: tuple[Node, ...]
    nodes_before: int
    nodes_after: int
    bytes_before: int
    bytes_after: int
    hierarchy: Hierarchy
    model: onnx.ModelProto | Path

    @property
    def calls(self) -> int:
        """How many calls became calls of functions."""
        return sum(len(function.calls) for function in self.functions)

    def __repr__(self) -> str:
        made = f"{count(self.calls, 'call')} to {count(len(self.functions), 'function')}"
        return f"FoldResult({made}, {self.nodes_before} nodes to {self.nodes_after}, {len(self.inline)} inline)"


@dataclass(frozen=True, slots=True)
class UnfoldResult(_ModelResult):
    """A model whose functions are written out.

    Attributes:
        functions: how often each function was called, by its key.
        nodes_before: how many nodes the model had, those of functions counted once.
        nodes_after: how many it has.
        exact: whether names, scopes and the order of all nodes are as they were before folding.
        notes: what one should know.
        hierarchy: of the model.
        model: the model, or the file that it was written to.
    """

    functions: dict[str, int]
    nodes_before: int
    nodes_after: int
    exact: bool
    notes: tuple[str, ...]
    hierarchy: Hierarchy
    model: onnx.ModelProto | Path

    def __repr__(self) -> str:
        return (
            f"UnfoldResult({count(len(self.functions), 'function')}, {self.nodes_before} nodes to {self.nodes_after})"
        )


def count_nodes(model: onnx.ModelProto) -> int:
    """Count the nodes of a model, those in bodies and functions too, each once."""
    return sum(len(graph.node) for _, graph in walk_protos(model))
