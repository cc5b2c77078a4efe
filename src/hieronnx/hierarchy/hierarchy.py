"""The module hierarchy of one ONNX file, the tree of its calls, and the rows of that tree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from hieronnx.errors import AmbiguousTargetError, check_known, list_some
from hieronnx.hierarchy.records import CONFIDENCE, LEVELS, ROOT, Attribution, Call, CallId, Initializer, Module, Node
from hieronnx.hierarchy.tags import TagPolicy, label_call
from hieronnx.hierarchy.targets import Targets, find_outermost

if TYPE_CHECKING:
    from rich.tree import Tree

NodeKey: TypeAlias = tuple[str, str]
"""What identifies a node in its file: the key of its graph, and its first output."""
_Line = TypeVar("_Line", bound=Hashable)


def draw_arms(parents: Mapping[_Line, _Line | None]) -> dict[_Line, str]:
    """Return what leads to each line of a tree; `parents` has the line above each, which comes before it."""
    last = {parent: line for line, parent in parents.items()}
    arms: dict[_Line, str] = {}
    indents: dict[_Line, str] = {}
    for line, parent in parents.items():
        arm, stem = ("", "") if parent is None else ("└─ ", "   ") if last[parent] == line else ("├─ ", "│  ")
        indent = "" if parent is None else indents[parent]
        arms[line], indents[line] = indent + arm, indent + stem
    return arms


def find_common_path(paths: Iterable[str]) -> str:
    """Return the path of the lowest module that all of some modules are in, or that is one of them."""
    segments = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(same[0] for same in takewhile(lambda same: len(set(same)) == 1, segments))


def walk_up(path: str) -> Iterator[str]:
    """Yield a module's path and those above it, up to the root's, which is empty."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield path


def find_owner(modules: Container[str], parameter: str) -> str:
    """Return the module that a parameter's path leads into; keys of lists of parameters are no modules."""
    return next(path for path in walk_up(parameter.rpartition(".")[0]) if path in modules or not path)


class CallTree:
    """The calls and their parents. Printed, it is a tree, a line for each call."""

    def __init__(self, parents: Mapping[CallId, CallId | None], labels: Mapping[CallId, str] | None = None) -> None:
        self._parents = parents
        self._labels = labels or {}
        self._depths: dict[CallId, int] = {}

    def __str__(self) -> str:
        parents: dict[CallId, CallId | None] = {}
        waiting = [call for call, parent in self._parents.items() if parent is None]
        while waiting:
            call = waiting.pop()
            parents[call] = self._parents[call]
            waiting += reversed(self.children[call])
        return "\n".join(arm + self._labels.get(call, str(call)) for call, arm in draw_arms(parents).items())

    @cached_property
    def children(self) -> Mapping[CallId, list[CallId]]:
        """For each call those that it made itself, in order."""
        children: dict[CallId, list[CallId]] = {call: [] for call in self._parents}
        for call, parent in self._parents.items():
            if parent is not None:
                children[parent].append(call)
        return children

    def depth(self, call: CallId) -> int:
        """Return how many calls are above this one."""
        depth = self._depths.get(call)
        if depth is None:
            parent = self._parents[call]
            depth = self._depths[call] = 0 if parent is None else self.depth(parent) + 1
        return depth

    def ancestors(self, call: CallId) -> Iterator[CallId]:
        """Yield a call and those above it, up to the root."""
        current: CallId | None = call
        while current is not None:
            yield current
            current = self._parents[current]

    def below(self, call: CallId) -> list[CallId]:
        """Return a call and all below it."""
        calls = [call]
        for item in calls:
            calls += self.children[item]
        return calls

    def lowest_above(self, calls: Iterable[CallId]) -> CallId:
        """Return the lowest call that is, or is above, all of the given ones."""
        remaining = iter(calls)
        lowest = next(remaining, ROOT)
        for call in remaining:
            other = call
            while lowest != other:
                if self.depth(lowest) < self.depth(other):
                    lowest, other = other, lowest
                lowest = self._parents[lowest] or ROOT
        return lowest

    def fork(self, a: CallId, b: CallId) -> tuple[CallId, CallId | None, CallId | None]:
        """Return the lowest call above two, and the call right below it that each lies in; None for one that it is."""
        above_a, above_b = ([*self.ancestors(call)][::-1] for call in (a, b))
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(above_a, above_b, strict=False)))
        below_a, below_b = (way[shared] if len(way) > shared else None for way in (above_a, above_b))
        return above_a[shared - 1], below_a, below_b

    def join(self, attributions: Iterable[Attribution], evidence: str) -> Attribution:
        """Join the work of several nodes into one: the lowest call above them all, and all their origins.

        The evidence is the one given, or the weakest of theirs: what was made of guesses is one.
        """
        joined = list(attributions)
        scope = self.lowest_above(item.scope for item in joined)
        origins = dict.fromkeys(origin for item in joined for origin in item.origins)
        weak = (item.evidence for item in joined if CONFIDENCE[item.evidence] != "high")
        return Attribution(scope, tuple(origins), max((evidence, *weak), key=list(CONFIDENCE).index))


@dataclass(frozen=True)
class Hierarchy:
    """The module hierarchy of one ONNX file: modules, calls in execution order, and nodes in file order."""

    modules: Mapping[str, Module]
    calls: tuple[Call, ...]
    nodes: tuple[Node, ...]
    initializers: tuple[Initializer, ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    """About the file: class, file, exporter, opset, inputs and outputs."""
    policy: TagPolicy = field(default_factory=TagPolicy)
    """Which modules have a tag of their own."""
    strategy: str | None = None
    """How the nodes were attributed: `captured`, `htp`, `usage_based`, `carried` (from the file that a tool made this
    one of), `torch_scopes` (torch's own record of modules), `function_names` (functions that were written out); None
    where a file before version 1.3 does not say."""
    min_confidence: str = "low"
    """The least confidence with which a node counts as attributed."""

    def __repr__(self) -> str:
        root = self.modules[""].class_name if "" in self.modules else "none"
        return f"Hierarchy({root}: {len(self.modules)} modules, {len(self.calls)} calls, {len(self.nodes)} nodes)"

    def _repr_html_(self) -> str:
        from hieronnx.hierarchy.shown import make_html

        return make_html(self)

    def __rich__(self) -> Tree:
        from hieronnx.hierarchy.shown import make_tree

        return make_tree(self)

    def to_pandas(self, of: str = "nodes") -> Any:
        """Return the nodes, or the calls, as a pandas DataFrame; pandas must be installed.

        Raises:
            MissingExtraError: If it is not.
            InputError: If another table is asked for.
        """
        from hieronnx.hierarchy.shown import make_frame

        return make_frame(self, of)

    @property
    def has_parameter_counts(self) -> bool:
        """Whether parameters are counted: a sidecar, which describes the file too, does; metadata inside does not."""
        return bool(self.model)

    @cached_property
    def call_by_id(self) -> Mapping[CallId, Call]:
        """Every call by its id."""
        return {call.id: call for call in self.calls}

    @cached_property
    def node_by_key(self) -> Mapping[tuple[str, str], Node]:
        """Every node by its graph and its first output."""
        return {node.key: node for node in self.nodes}

    @cached_property
    def node_counts(self) -> Mapping[CallId, int]:
        """How many nodes each call and all below it have."""
        counts = Counter({call.id: 0 for call in self.calls})
        counts.update(node.scope for node in self.nodes)
        for call in reversed(self.calls):  # each after the one above it
            if call.parent is not None:
                counts[call.parent] += counts[call.id]
        return counts

    @cached_property
    def tree(self) -> CallTree:
        """The calls and their parents; it prints as a tree."""
        names = {path: module.class_name for path, module in self.modules.items()}
        labels = {c.id: f"{label_call(c, names[c.id.module])}  {c.id}".rstrip() for c in self.calls}
        return CallTree({call.id: call.parent for call in self.calls}, labels)

    @cached_property
    def tags(self) -> Mapping[str, str]:
        """The `hierarchy` map: the tag of each tagged call, and its module's path."""
        return {call.tag: call.id.module for call in self.calls if call.tagged}

    def tag_of(self, call: CallId | str) -> str:
        """Return the tag that a node of a call carries; the call by its id, or by its path (`cell`, `cell@1`).

        Raises:
            InputError: If there is no such call.
        """
        known = self.call_by_id.get(call) if isinstance(call, CallId) else None
        return (known or self.find_call(str(call))).tag

    def find_call(self, target: str) -> Call:
        """Find the one call that a selection names; a module's path alone names its first call.

        Raises:
            InputError: If the target names none, or several.
        """
        selected = self.find_calls(target)
        if len(selected) > 1:
            names = list_some([str(call.id) or "the root" for call in selected], 8)
            raise AmbiguousTargetError(f"'{target}' matches {len(selected)} calls: {names}; name one of them")
        return selected[0]

    def find_calls(self, target: str) -> list[Call]:
        """Find the calls that a selection names; of those inside one another the outermost.

        Raises:
            InputError: If it names none.
        """
        return self._targets.find_calls(target)

    def find_range(self, target: str) -> list[Call]:
        """Find the calls that a selection names, or with `a..b` those from one to another in the order of execution.

        Raises:
            InputError: If it names none, or the second comes before the first.
        """
        return self._targets.find_range(target)

    @property
    def _targets(self) -> Targets:
        return Targets(self.calls, self.modules, self.nodes)

    def select_calls(self, pattern: str) -> set[CallId]:
        """Select every call that a selection names; a module's path alone stands for all its calls.

        Raises:
            InputError: If it matches none.
        """
        return self._targets.select_calls(pattern)

    def nodes_in(self, target: str, *, shared: bool = False) -> tuple[Node, ...]:
        """Return the nodes that a selection names: those of calls with all below them, of operators, of categories.

        A module's path alone stands for all its calls; `cell@1` for one of them. With `shared`, nodes that work for
        these calls and for others are among them, wherever they ran.

        Raises:
            InputError: If it names no call, or no node.

        Example:
            >>> [node.op_type for node in hierarchy.nodes_in("encoder.layer.0 and not op:Constant")]
        """
        return tuple(self._targets.select_nodes(target, shared=shared))

    def find(self, name: str) -> Node:
        """Find a node by its name, or by the name of its first output: what runtimes and viewers show.

        Raises:
            InputError: If there is none.
        """
        by_name = {name: node for node in reversed(self.nodes) for name in (node.output, node.name) if name}
        check_known("node or tensor", name, by_name)
        return by_name[name]

    @cached_property
    def working_calls(self) -> frozenset[CallId]:
        """The calls that have nodes, their own or of calls below them."""
        scopes = {call for node in self.nodes if node.is_attributed() for call in (node.scope, *node.origins)}
        return frozenset(above for call in scopes for above in self.tree.ancestors(call))

    def coverage(self) -> float:
        """Return the share of nodes that are attributed: better than `root`, and with `min_confidence` at least."""
        known = sum(node.is_attributed(self.min_confidence) for node in self.nodes)
        return known / len(self.nodes) if self.nodes else 0.0

    def list_below(self) -> list[Node]:
        """List the nodes that are attributed, but with less confidence than counts."""
        return [node for node in self.nodes if node.is_attributed() and not node.is_attributed(self.min_confidence)]

    def require_confidence(self, level: str) -> Hierarchy:
        """Return the same hierarchy in which only what is known with this confidence counts as attributed.

        Raises:
            InputError: If it is none of high, medium and low.
        """
        check_known("level of confidence", level, LEVELS)
        return replace(self, min_confidence=level)


def add_consumers(hierarchy: Hierarchy, readers: Mapping[NodeKey, Iterable[NodeKey]]) -> Hierarchy:
    """Add to each node the tags of those who read it; the readers are given by what identifies nodes in the file."""
    tags = {node.key: hierarchy.tag_of(node.scope) for node in hierarchy.nodes}
    nodes = []
    for node in hierarchy.nodes:
        consumers = dict.fromkeys(tags[reader] for reader in readers.get(node.key, ()) if reader in tags)
        nodes.append(replace(node, consumers=tuple(consumers)))
    return replace(hierarchy, nodes=tuple(nodes))


# -- rows: the calls that have a line of their own, and what lies below each ------------------------------


@dataclass(frozen=True, slots=True)
class TreeRows:
    """The lines of a tree before any is left out.

    Attributes:
        hierarchy: whose calls they are.
        nearest: for each call, the line that it counts in: its own, or the nearest above it.
        below: the lines directly below each.
        matches: the topmost calls that were asked for.
        ways: the calls that were asked for and all above them.
    """

    hierarchy: Hierarchy
    nearest: Mapping[CallId, CallId]
    below: Mapping[CallId, list[CallId]]
    matches: set[CallId]
    ways: set[CallId]

    def walk(self, call: CallId) -> Iterator[CallId]:
        """Yield a line and all below it."""
        waiting = [call]
        while waiting:
            line = waiting.pop()
            yield line
            waiting += self.below[line]


def select_rows(hierarchy: Hierarchy, *, pattern: str | None = None, all_calls: bool = False) -> TreeRows:
    """Decide which calls have a line: those with a tag of their own or all, and what the pattern matches.

    Raises:
        InputError: If the pattern matches nothing.
    """
    matched = hierarchy.select_calls("*" if pattern is None else pattern)
    listed = {call.id for call in hierarchy.calls if all_calls or call.tagged}
    if pattern is not None:
        listed |= matched  # what was asked for is shown, tag or not
    nearest: dict[CallId, CallId] = {}
    below: dict[CallId, list[CallId]] = defaultdict(list)
    for call in hierarchy.calls:
        if call.parent is None:
            nearest[call.id] = call.id
        elif call.id in listed:
            below[nearest[call.parent]].append(call.id)
            nearest[call.id] = call.id
        else:
            nearest[call.id] = nearest[call.parent]
    ways = {above for call in matched for above in hierarchy.tree.ancestors(call)}
    return TreeRows(hierarchy, nearest, below, find_outermost(hierarchy.calls, matched), ways)
