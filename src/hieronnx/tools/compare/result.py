"""The records of a comparison: what was added, removed and changed, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

from hieronnx.errors import count
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.results import Result, dump_record

Kind: TypeAlias = Literal["added", "removed", "changed"]
_ORDER: tuple[Kind, ...] = ("removed", "changed", "added")


@dataclass(frozen=True, slots=True)
class ComparedNode:
    """A node of one of the two files."""

    graph: str
    name: str
    op_type: str
    domain: str
    output: str

    @property
    def operator(self) -> str:
        """The operator, with its domain before `::` where that is not the standard one."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type


@dataclass(frozen=True, slots=True)
class Difference:
    """One respect in which two things differ: an attribute, an input, a type, the operator's version, a name."""

    what: str
    name: str
    before: str
    after: str

    def __str__(self) -> str:
        what = f"{self.what} {self.name}" if self.name else self.what
        return f"{what}: {self.before} → {self.after}"


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node that only one of the files has, or that is not the same in both."""

    kind: Kind
    before: ComparedNode | None
    after: ComparedNode | None
    scope: CallId | None = None
    """The call that the node belongs to, or that its surroundings belong to; None where no file has a hierarchy."""
    tag: str | None = None
    """Of the first of `calls`."""
    origins: tuple[CallId, ...] = ()
    """All the calls whose work the node does."""
    calls: tuple[CallId, ...] = ()
    """Where the change is told: at the scope; at several calls of a module, where the node works for each of them."""
    differences: tuple[Difference, ...] = ()

    @property
    def node(self) -> ComparedNode:
        """The node as it is in B, or as it was in A."""
        node = self.after or self.before
        assert node is not None
        return node


@dataclass(frozen=True, slots=True)
class ValueAmount:
    """By how much the contents of an initializer differ.

    Attributes:
        elements: how many elements it has.
        different: how many of them are not the same.
        max_absolute: the largest difference of an element; None where it is infinite, or one of the two is no number.
        relative: that, divided by the largest absolute value before; None also where all was zero.
    """

    elements: int
    different: int
    max_absolute: float | None
    relative: float | None

    def __str__(self) -> str:
        by = "without bound" if self.max_absolute is None else f"by at most {self.max_absolute:.3g}"
        share = "" if self.relative is None else f" ({100 * self.relative:.3g} % of the largest)"
        return f"{self.different:,} of {count(self.elements, 'element')} differ {by}{share}"


@dataclass(frozen=True, slots=True)
class ModuleWeights:
    """What differs in the weights of one module: how many there are, and the largest of their differences."""

    module: str | None
    """None where no file tells whose they are."""
    initializers: int
    elements: int
    different: int
    max_absolute: float | None
    """None where a difference is infinite."""
    relative: float | None
    """The largest share of a weight's largest value; None where none has one."""


@dataclass(frozen=True, slots=True)
class ValueChange:
    """An input, output or initializer that only one of the files has, or that is not the same in both."""

    role: Literal["input", "output", "initializer"]
    kind: Kind
    graph: str
    before: str | None
    """The name in A."""
    after: str | None
    """The name in B."""
    differences: tuple[Difference, ...] = ()
    module: str | None = None
    """Of an initializer: the module that has the parameter, or the lowest above all that read it; None if unknown."""
    amount: ValueAmount | None = None
    """Of an initializer whose contents differ: by how much, if contents count."""


@dataclass(frozen=True, slots=True)
class ChangeGroup(Result):
    """The changes within one call; of what all calls of a module share, within all of them.

    Attributes:
        scope: the call, the first of several; None where no file has a hierarchy.
        tag: its tag.
        calls: all of them.
        changes: what was removed, changed and added there.
    """

    _derived: ClassVar[tuple[str, ...]] = ("summary",)

    scope: CallId | None
    tag: str | None
    calls: tuple[CallId, ...]
    changes: tuple[NodeChange, ...]

    @property
    def summary(self) -> str:
        """What became of what: `MatMul+Add → Gemm`; several alike as `3×Mul`."""
        lists: dict[Kind, str] = {}
        for kind in _ORDER:
            operators = Counter(change.node.operator for change in self.changes if change.kind == kind)
            lists[kind] = "+".join(f"{n}×{operator}" if n > 1 else operator for operator, n in operators.items())
        if lists["removed"] and lists["added"]:
            parts = [f"{lists['removed']} → {lists['added']}"]
        else:
            parts = [f"{lists[kind]} {kind}" for kind in ("removed", "added") if lists[kind]]
        return ", ".join([*parts, f"{lists['changed']} changed"] if lists["changed"] else parts)


@dataclass(frozen=True)
class CompareResult(Result):
    """What two ONNX files have in common, and what not.

    Attributes:
        a: the name of the first file.
        b: the name of the second.
        pairs: how many nodes are in both, changed or not.
        nodes: the nodes that were added, removed or changed.
        values: the inputs, outputs and initializers that were.
        functions: the functions that only one file has, or that declare other attributes, by key.
        notes: what is different, and makes no difference to what is computed.
        compared_names: whether names count.
        compared_values: whether the contents of initializers count.
        strategies: how the nodes of A and of B were attributed, as `Hierarchy.strategy` says it.
    """

    _derived: ClassVar[tuple[str, ...]] = ("same", "operators", "groups", "weights")

    a: str
    b: str
    pairs: int
    nodes: tuple[NodeChange, ...]
    values: tuple[ValueChange, ...]
    functions: Mapping[str, Kind]
    notes: tuple[str, ...]
    compared_names: bool
    compared_values: bool
    strategies: tuple[str | None, str | None] = (None, None)

    @property
    def same(self) -> bool:
        """Whether the two are the same computation graph."""
        return not self.nodes and not self.values and not self.functions

    @property
    def size(self) -> int:
        """How much was edited; initializers that came or went are not counted: mostly they follow from nodes."""
        edited = sum(change.role != "initializer" or change.kind == "changed" for change in self.values)
        return len(self.nodes) + edited + len(self.functions)

    def count(self, kind: Kind) -> int:
        """Return how many nodes were added, removed or changed."""
        return sum(change.kind == kind for change in self.nodes)

    @cached_property
    def operators(self) -> Mapping[str, Mapping[Kind, int]]:
        """For each operator how many of its nodes were added, removed and changed."""
        counts: dict[str, dict[Kind, int]] = {}
        for change in self.nodes:
            entry = counts.setdefault(change.node.operator, {"added": 0, "removed": 0, "changed": 0})
            entry[change.kind] += 1
        return dict(sorted(counts.items()))

    @cached_property
    def groups(self) -> tuple[ChangeGroup, ...]:
        """The changed nodes by the call that they belong to, in the order of the file.

        What was removed from a call into which nothing was put is told with the added node that does its work: at the
        lowest call above all that this node was fused of.
        """
        kept = {call for change in self.nodes if change.kind != "removed" for call in change.calls}
        fused: dict[CallId, tuple[CallId, ...]] = {}
        for change in self.nodes:
            for origin in change.origins if change.kind == "added" else ():
                if origin not in kept:
                    fused.setdefault(origin, change.calls)
        groups: dict[tuple[CallId, ...], list[NodeChange]] = {}
        for change in self.nodes:
            own = change.calls
            groups.setdefault(fused.get(own[0], own) if len(own) == 1 else own, []).append(change)
        for changes in groups.values():
            changes.sort(key=lambda change: _ORDER.index(change.kind))
        tags = {change.calls: change.tag for change in self.nodes}
        return tuple(
            ChangeGroup(next(iter(calls), None), tags.get(calls), calls, tuple(changes))
            for calls, changes in groups.items()
        )

    @cached_property
    def weights(self) -> tuple[ModuleWeights, ...]:
        """By how much weights differ, by module, the most first; empty unless contents were compared."""
        amounts: dict[str | None, list[ValueAmount]] = {}
        for change in self.values:
            if change.amount is not None:
                amounts.setdefault(change.module, []).append(change.amount)
        weights = [_join_amounts(module, items) for module, items in amounts.items()]
        infinite = float("inf")
        return tuple(sorted(weights, key=lambda w: -infinite if w.max_absolute is None else -(w.relative or infinite)))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values; the nodes are in `groups`, and `counts` says how many there are."""
        counts = {kind: self.count(kind) for kind in _ORDER}
        return {"counts": counts, **dump_record(self, {"nodes"})}

    def __repr__(self) -> str:
        return f"CompareResult({self.a!r}, {self.b!r}: {self.describe()})"

    def describe(self) -> str:
        """Say in one line what came out."""
        if self.same:
            silent = "" if self.compared_values else " (contents of initializers not compared)"
            return f"the same: {count(self.pairs, 'node')}{silent}"
        parts = [f"{count(number, 'node')} {kind}" for kind in _ORDER if (number := self.count(kind))]
        for role in ("input", "output", "initializer"):
            number = sum(change.role == role for change in self.values)
            parts += [f"{count(number, role)} not the same"] if number else []
        if self.weights:
            worst = _join_amounts(None, [change.amount for change in self.values if change.amount is not None])
            parts[-1] += f" ({ValueAmount(worst.elements, worst.different, worst.max_absolute, worst.relative)})"
        parts += [f"{count(len(self.functions), 'function')} not the same"] if self.functions else []
        return f"different: {', '.join(parts)}; {count(self.pairs - self.count('changed'), 'node')} the same"


def _join_amounts(module: str | None, amounts: Sequence[ValueAmount]) -> ModuleWeights:
    largest = [amount.max_absolute for amount in amounts]
    return ModuleWeights(
        module,
        len(amounts),
        sum(amount.elements for amount in amounts),
        sum(amount.different for amount in amounts),
        None if None in largest else max(filter(None, largest), default=0.0),
        max((amount.relative for amount in amounts if amount.relative is not None), default=None),
    )
