"""The records of an analysis: nodes, tallies, shares of categories, lines of modules, tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from hieronnx.errors import HieronnxError
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Call, Node
from hieronnx.tools.results import Result, dump_record


@dataclass(frozen=True, slots=True)
class AnalyzedNode(Result):
    """One node of the file."""

    graph: str
    name: str
    op_type: str
    domain: str
    output: str
    category: str
    multiply_adds: int | None
    """None where they are not known."""
    attribution: Node | None
    """What the hierarchy says of it; None without a hierarchy."""
    tag: str | None
    attributed: bool
    """Whether the node's call is known: one that ran in the root is, one that fell back to it is not."""

    @property
    def operator(self) -> str:
        """The operator, with its domain before `::` where that is not the standard one."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type


@dataclass(frozen=True, slots=True)
class Tally:
    """What some nodes amount to."""

    nodes: int
    operators: Mapping[str, int]
    """How many nodes there are of each operator, the most frequent first."""
    multiply_adds: int
    """Of the nodes where they are known; the nodes of a loop's body count once."""
    uncounted: int
    """How many nodes have multiply-adds that are not known."""


@dataclass(frozen=True, slots=True)
class CategoryShare(Result):
    """How many nodes of a category there are, and how many of them are attributed."""

    _derived: ClassVar[tuple[str, ...]] = ("percent", "under")

    name: str
    total: int
    attributed: int | None
    """None without a hierarchy."""
    threshold: float
    critical: bool

    @property
    def percent(self) -> float | None:
        """The share that is attributed."""
        return None if self.attributed is None else 100 * self.attributed / self.total

    @property
    def under(self) -> bool:
        """Whether less is attributed than should be."""
        return self.attributed is not None and 100 * self.attributed < self.threshold * self.total


@dataclass(frozen=True, slots=True)
class ModuleLine(Result):
    """A call that has a line of its own: what its region holds.

    Attributes:
        call: the call.
        class_name: of its module.
        label: the last segment of its tag.
        parent: the position of the line above it.
        level: how far below the root or the topmost match; None above a match, where it only shows the way.
        own: its nodes in no line below it.
        total: all nodes of its region.
        parameters: of its module and all below, as PyTorch counts them; None without the sidecar.
        parameter_bytes: of the initializers that hold parameters and buffers of these; None without the sidecar.
        other_bytes: of the initializers that hold nothing that is known by name, and that only its nodes read.
        repeated: whether a line before it is of the same module, which has these parameters already.
    """

    _derived: ClassVar[tuple[str, ...]] = ("bytes",)

    call: Call
    class_name: str
    label: str
    parent: int | None
    level: int | None
    own: Tally
    total: Tally
    parameters: int | None
    parameter_bytes: int | None
    other_bytes: int | None
    repeated: bool

    @property
    def bytes(self) -> int | None:
        """The bytes of all initializers of the module; None without the sidecar."""
        return None if self.parameter_bytes is None else self.parameter_bytes + (self.other_bytes or 0)


@dataclass(frozen=True, slots=True)
class TensorUse:
    """A tensor: the tag of the node that makes it (None for inputs and initializers), and the tags of its readers."""

    graph: str
    name: str
    producer: str | None
    consumers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnalysisResult(Result):
    """What a model is made of.

    Attributes:
        model: the file's path as it was given; `model` for a model in memory.
        hierarchy: the model's hierarchy, if it has one.
        filters: which nodes were asked for: category, module, op, evidence.
        file_nodes: how many nodes the file has.
        total: what the nodes that were asked for amount to.
        nodes: the nodes that were asked for, in file order.
        by_evidence: how many of them have each evidence; empty without a hierarchy.
        by_confidence: the same by confidence.
        categories: the same by category, without those that have none.
        modules: the calls of the hierarchy in the order of a tree; empty without one.
        initializers: how many the file has, whatever was asked for.
        elements: how many elements these have.
        bytes: how many bytes these take; strings take none.
        parameters: of the whole model, as PyTorch counts them; None without the sidecar.
        tensors: the tensors that the nodes make or read, if they were asked for.
        notes: what could not be found out, and why.
    """

    _derived: ClassVar[tuple[str, ...]] = ("strategy", "min_confidence", "calls", "attributed", "coverage")

    model: str
    hierarchy: Hierarchy | None
    filters: Mapping[str, str]
    file_nodes: int
    total: Tally
    nodes: tuple[AnalyzedNode, ...]
    by_evidence: Mapping[str, int]
    by_confidence: Mapping[str, int]
    categories: tuple[CategoryShare, ...]
    modules: tuple[ModuleLine, ...]
    initializers: int
    elements: int
    bytes: int
    parameters: int | None
    tensors: tuple[TensorUse, ...]
    notes: tuple[str, ...]

    @property
    def strategy(self) -> str | None:
        """How the nodes were attributed, as `Hierarchy.strategy` says it; None without a hierarchy."""
        return None if self.hierarchy is None else self.hierarchy.strategy

    @property
    def min_confidence(self) -> str | None:
        """The least confidence with which a node counts as attributed; None without a hierarchy."""
        return None if self.hierarchy is None else self.hierarchy.min_confidence

    @property
    def calls(self) -> int | None:
        """How many calls the hierarchy has; None without one."""
        return None if self.hierarchy is None else len(self.hierarchy.calls)

    @property
    def attributed(self) -> int | None:
        """How many of the nodes that were asked for are attributed; None without a hierarchy."""
        return None if self.hierarchy is None else sum(node.attributed for node in self.nodes)

    @property
    def coverage(self) -> float | None:
        """The same in percent; None also where there are no nodes."""
        return None if self.attributed is None or not self.nodes else round(100 * self.attributed / len(self.nodes), 2)

    def to_dict(self, *, detailed: bool = False) -> dict[str, Any]:
        """Return the result as JSON values, with every node if `detailed`: what `--json --detailed` prints."""
        without = {"hierarchy", *([] if detailed else ["nodes"]), *([] if self.tensors else ["tensors"])}
        return dump_record(self, without)

    def make_module_table(self) -> dict[str, dict[str, Any]]:
        """Return the modules by path as JSON values; `tag` is None for a module that was never called.

        Raises:
            HieronnxError: If the model has no sidecar: the metadata inside a model has no module table.
        """
        if self.hierarchy is None or not self.hierarchy.model:
            raise HieronnxError(
                f"'{self.model}' has no module table: it is in the sidecar, the _hierarchy.json beside the model; "
                "export the model with 'hieronnx export' to get one"
            )
        tags: dict[str, list[str]] = {path: [] for path in self.hierarchy.modules}
        for call in self.hierarchy.calls:
            tags[call.id.module].append(call.tag)
        return {
            path: {
                **dump_record(module, {"path", "depth"}),
                "tag": next(iter(tags[path]), None),
                "call_tags": tags[path],
            }
            for path, module in self.hierarchy.modules.items()
        }

    def __repr__(self) -> str:
        nodes = f"{len(self.nodes)} of {self.file_nodes} nodes"
        return f"AnalysisResult({self.model!r}: {nodes}, {len(self.modules)} module lines)"
