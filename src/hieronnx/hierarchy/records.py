"""The records that pass between all parts: modules, calls, nodes, and the Hierarchy that holds them.

Names and numbers only: no tensor, no torch object, no dependency.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple


class CallId(NamedTuple):
    """The n-th run of a module's forward; written `path@n`, and `path` alone for the first."""

    module: str
    number: int

    def __str__(self) -> str:
        return f"{self.module}@{self.number}" if self.number else self.module


ROOT = CallId("", 0)

# The one place where evidence becomes confidence. `root` is a fallback: never counted as covered.
CONFIDENCE: Mapping[str, str] = {
    "captured": "high",
    "carried": "high",
    "value": "high",
    "near": "medium",
    "parameter": "medium",
    "name": "medium",
    "dataflow": "low",
    "root": "low",
}


@dataclass(frozen=True, slots=True)
class Module:
    """What is known of one `nn.Module` without its tensors."""

    path: str
    class_name: str
    qualified_class: str
    forward_args: tuple[str, ...]
    forward_defaults: Mapping[str, Any]
    parameters: tuple[str, ...]
    direct_parameters: tuple[str, ...]
    parameter_count: int | None
    """Of the module and those below it; None where it is not known."""
    children: tuple[str, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class BoundTensor:
    """One tensor that a call received or returned.

    Attributes:
        name: the argument, with the way to the tensor inside it: `hidden_states`, `past.0.1`; of what is returned the
            way alone, and nothing where a single tensor is.
        tensor: the tensor of the file that holds it; None where the file has it no more.
        graph: the graph of that tensor.
    """

    name: str
    tensor: str | None
    graph: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a module's forward in the captured execution."""

    id: CallId
    parent: CallId | None
    via: str
    tag: str
    tagged: bool
    """Whether the call has a tag of its own; if not, `tag` is that of the nearest call above which has."""
    received: tuple[BoundTensor, ...] | None = None
    """The tensors that the call took, in the order of its arguments; None where they were not recorded."""
    returned: tuple[BoundTensor, ...] | None = None
    """The tensors that it gave back; None where they were not recorded."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the ONNX file and the call that it belongs to.

    `output` is the node's first non-empty output; it identifies the node within its `graph`.
    """

    graph: str
    name: str
    op_type: str
    domain: str
    output: str
    scope: CallId
    origins: tuple[CallId, ...]
    evidence: str
    rule: str = ""
    """Where the exporter left no scope: the rule that filled it."""

    @property
    def confidence(self) -> str:
        """How far the attribution can be trusted: high, medium or low."""
        return CONFIDENCE[self.evidence]


@dataclass(frozen=True, slots=True)
class Initializer:
    """One initializer: the parameter that it holds, and the calls whose work was folded into it."""

    name: str
    parameter: str | None
    origins: tuple[CallId, ...]


@dataclass(frozen=True, slots=True)
class Attribution:
    """Whose work a node does: its scope, all its origins, and how that is known."""

    scope: CallId
    origins: tuple[CallId, ...]
    evidence: str
    rule: str = ""


class CallTree:
    """The calls and their parents, for finding the lowest call above several."""

    def __init__(self, parents: Mapping[CallId, CallId | None]) -> None:
        self._parents = parents
        self._depths: dict[CallId, int] = {}

    def depth(self, call: CallId) -> int:
        """Return how many calls are above this one."""
        known = self._depths.get(call)
        if known is None:
            parent = self._parents[call]
            known = self._depths[call] = 0 if parent is None else self.depth(parent) + 1
        return known

    def lowest_above(self, calls: Iterable[CallId]) -> CallId:
        """Return the lowest call that is, or is above, all of the given ones."""
        remaining = iter(calls)
        lowest = next(remaining, ROOT)
        for call in remaining:
            lowest = self._join(lowest, call)
        return lowest

    def _join(self, a: CallId, b: CallId) -> CallId:
        while a != b:
            if self.depth(a) < self.depth(b):
                a, b = b, a
            a = self._parents[a] or ROOT
        return a


def join_scopes(attributions: Iterable[Attribution], tree: CallTree, evidence: str) -> Attribution:
    """Join the work of several nodes into one: the lowest call above them all, and all their origins."""
    found = list(attributions)
    scope = tree.lowest_above(item.scope for item in found)
    origins = dict.fromkeys(origin for item in found for origin in item.origins)
    return Attribution(scope, tuple(origins), evidence)


@dataclass(frozen=True)
class Hierarchy:
    """The module hierarchy of one ONNX file: modules, calls in execution order, and nodes in file order."""

    modules: Mapping[str, Module]
    calls: tuple[Call, ...]
    nodes: tuple[Node, ...]
    initializers: tuple[Initializer, ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    """About the file: class, file, exporter, opset, inputs and outputs."""

    def __repr__(self) -> str:
        root = self.modules[""].class_name if "" in self.modules else "none"
        return f"Hierarchy({root}: {len(self.modules)} modules, {len(self.calls)} calls, {len(self.nodes)} nodes)"

    @cached_property
    def call_by_id(self) -> Mapping[CallId, Call]:
        """Every call by its id."""
        return {call.id: call for call in self.calls}

    @cached_property
    def tree(self) -> CallTree:
        """The calls and their parents."""
        return CallTree({call.id: call.parent for call in self.calls})

    @cached_property
    def tags(self) -> Mapping[str, str]:
        """The `hierarchy` map: the tag of each tagged call, and its module's path."""
        return {call.tag: call.id.module for call in self.calls if call.tagged}

    def tag_of(self, scope: CallId) -> str:
        """Return the tag that a node in this scope carries."""
        return self.call_by_id[scope].tag

    def ancestors(self, scope: CallId) -> Iterable[CallId]:
        """Yield the call and those above it, up to the root."""
        current: CallId | None = scope
        while current is not None:
            yield current
            current = self.call_by_id[current].parent

    def coverage(self) -> float:
        """Return the share of nodes whose evidence is better than `root`."""
        known = sum(node.evidence != "root" for node in self.nodes)
        return known / len(self.nodes) if self.nodes else 0.0
