"""Where in the module hierarchy a node may be matched: the calls of two models in pairs, and the place of each node.

    A: refine@1 [ MatMul ─ Relu ]          B: refine@1 [ MatMul ─ Silu ] ─ extra [ MatMul ─ Relu ]

Calls of one path, number and kind are a pair. The place of a node is the lowest call above it that is in a pair; a node
is matched inside its place, so that the Relu of `refine@1` is not taken for the new layer's. A node that does the work
of several calls has their places, too. One whose call is not known, or only guessed, may be matched anywhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import ROOT, CallId, Node
from hieronnx.match.align.sequences import group

_PlacesOf: TypeAlias = Sequence[tuple[CallId, ...]]
_MOST_PLACES = 8


@dataclass(frozen=True, slots=True)
class Round:
    """One go at matching: which nodes of each side take part, and where each of them is.

    Attributes:
        a: the place of each node of A; only nodes of one place are matched.
        b: the place of each node of B.
        open_a: the nodes of A that may be matched; None for all.
        open_b: those of B.
        anywhere: whether only nodes that are alike in every respect are matched, wherever they are.
    """

    a: Sequence[Hashable]
    b: Sequence[Hashable]
    open_a: Collection[int] | None = None
    open_b: Collection[int] | None = None
    anywhere: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """The places of the nodes of two models, as calls of A; none where a node may be anywhere."""

    a: _PlacesOf
    b: _PlacesOf

    def list_rounds(self) -> Iterator[Round]:
        """Yield the rounds in which nodes are matched, the surest first."""
        first_a, first_b = ([places[0] if places else None for places in side] for side in (self.a, self.b))
        yield Round(first_a, first_b, _select(self.a, 0), _select(self.b, 0))
        for turn in range(1, max(map(len, (*self.a, *self.b)), default=0)):
            several_a, several_b = _select(self.a, turn), _select(self.b, turn)
            turned_a, turned_b = (
                [places[turn] if len(places) > turn else at for places, at in zip(side, first, strict=True)]
                for side, first in ((self.a, first_a), (self.b, first_b))
            )
            yield Round(first_a, turned_b, _select(self.a, 0), several_b)
            yield Round(turned_a, first_b, several_a, _select(self.b, 0))
        anywhere_a, anywhere_b = [None] * len(self.a), [None] * len(self.b)
        yield Round(anywhere_a, anywhere_b, anywhere=True)
        for which, side in enumerate((self.a, self.b)):
            unknown = [node for node, places in enumerate(side) if not places]
            if unknown:
                yield Round(anywhere_a, anywhere_b, *((unknown, None) if which == 0 else (None, unknown)))


def _select(side: _PlacesOf, turn: int) -> list[int]:
    return [node for node, places in enumerate(side) if len(places) > turn]


def find_places(view_a: View, a: Hierarchy, view_b: View, b: Hierarchy) -> Places:
    """Find the places of the nodes of two models that both have a hierarchy."""
    partners = pair_calls(a, b)
    in_a = {call: call for call in partners}
    in_b = {partner: call for call, partner in partners.items()}
    return Places(_find_places(view_a, a, in_a), _find_places(view_b, b, in_b))


def _find_places(view: View, hierarchy: Hierarchy, paired: Mapping[CallId, CallId]) -> list[tuple[CallId, ...]]:
    nearest = {ROOT: ROOT}
    for call in hierarchy.calls:  # each after the one above it
        nearest[call.id] = paired.get(call.id) or nearest[call.parent or ROOT]

    def place(node: Node | None) -> tuple[CallId, ...]:
        if node is None or node.confidence == "low":
            return ()
        return tuple(dict.fromkeys(nearest[call] for call in (node.scope, *node.origins)))[:_MOST_PLACES]

    return [place(hierarchy.node_by_key.get(key)) for key in view.node_keys]


# -- calls in pairs ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Forms:
    """What the calls of a hierarchy look like: class, operators, and those of the calls below by their names there."""

    hierarchy: Hierarchy
    operators: dict[CallId, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def __post_init__(self) -> None:
        for node in self.hierarchy.nodes:
            self.operators[node.scope][node.op_type] += 1

    def describe(self, call: CallId) -> Hashable:
        below = self.hierarchy.tree.below(call)
        parts = ((self.name_below(call, item), self.class_of(item), self.operators.get(item)) for item in below)
        return tuple((*name, kind, frozenset((work or {}).items())) for name, kind, work in parts)

    def name_below(self, call: CallId, item: CallId) -> tuple[str, int]:
        return item.module.removeprefix(call.module), item.number - call.number

    def class_of(self, call: CallId) -> str:
        return self.hierarchy.modules[call.module].class_name

    def list_movable(self, paired: Collection[CallId]) -> dict[Hashable, list[CallId]]:
        """List calls without a partner, by their form; what has no weights has nothing to be known by elsewhere."""
        modules, below = self.hierarchy.modules, self.hierarchy.tree.below
        unpaired = (call.id for call in self.hierarchy.calls if modules[call.id.module].parameter_count)
        return group((call for call in unpaired if not any(item in paired for item in below(call))), self.describe)


def pair_calls(a: Hierarchy, b: Hierarchy) -> dict[CallId, CallId]:
    """Pair the calls of two models: by path and number; then what was moved or renamed and looks the same.

    A path is not enough where another kind of module has it now, as in a list into which one was put: then the two are
    a pair only if calls directly below them are.
    """
    forms_a, forms_b = _Forms(a), _Forms(b)
    paired = {ROOT: ROOT}
    for call in reversed([call.id for call in a.calls if call.id in b.call_by_id]):  # each after those below it
        same_class = forms_a.class_of(call) == forms_b.class_of(call)
        if same_class or any(child in paired for child in a.tree.children[call]):
            paired[call] = call
    moved_a = forms_a.list_movable(paired.keys())
    moved_b = forms_b.list_movable(paired.keys())
    for form, calls in moved_a.items():
        others = moved_b.get(form, ())
        for call, other in zip(calls, others, strict=True) if len(calls) == len(others) else ():
            if call not in paired:  # those below a pair are in pairs already
                paired.update(zip(a.tree.below(call), b.tree.below(other), strict=True))
    return paired
