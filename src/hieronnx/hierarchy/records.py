"""The records that pass between all parts: modules, calls, nodes and how they are attributed.

Names and numbers only: no tensor, no torch object, no dependency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

LEVELS = ("high", "medium", "low")
"""The levels of confidence, the highest first."""
STRATEGIES: Mapping[str, str] = {
    "captured": "what the exporter itself recorded",
    "htp": "by the values that model and file compute",
    "usage_based": "by parameters and dataflow",
    "carried": "from the file that a tool made this one of",
    "torch_scopes": "torch's own record of modules",
}
"""How the nodes of a file can have been attributed."""


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
    """Their names as attributes."""
    depth: int
    child_classes: Mapping[str, str] = field(default_factory=dict)
    """The qualified class of each child, by its name; empty where a file before version 1.3 does not say."""
    expected_tag: str | None = None
    """The tag that structure and policy let expect: that of its call if each module that has a forward were called
    once, by the nearest one above it. None of one without a forward, and where the structure is not known."""


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
    """The tensors that the call received, in the order of its arguments; None where they were not recorded."""
    returned: tuple[BoundTensor, ...] | None = None
    """The tensors that it returned; None where they were not recorded."""


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
    consumers: tuple[str, ...] | None = field(default=None, compare=False)
    """The tags of the calls whose nodes read what it makes, each once; None where that is not known."""

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the node in its file: the key of its graph, and its first output."""
        return self.graph, self.output

    @property
    def confidence(self) -> str:
        """How far the attribution can be trusted: high, medium or low."""
        return CONFIDENCE[self.evidence]

    def is_attributed(self, min_confidence: str = "low") -> bool:
        """Say whether its call is known, and with this confidence at least; a fallback to the root never is."""
        return self.evidence != "root" and LEVELS.index(self.confidence) <= LEVELS.index(min_confidence)


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
