"""The strategy `usage_based`: parameters' owners, then dataflow. The model is not run.

A node that reads a parameter belongs to the module that owns it. What several modules own alike (tied weights, equal
ones of which a file keeps one) says nothing of a node unless all that it reads leaves one owner; nor does what has one
value throughout, as a bias that was never trained. Such a node belongs to the module whose product it completes. All
other nodes follow from their neighbours.

Without a run it is not known how often a module was called. The first use of its parameters, in the order of the
file, is its first call. A module all of whose parameters are used more than once was called again, or one above it
was; which of them cannot be told, so a later use goes to the nearest module above that has a parameter used once: that
one ran once. No call has a number other than 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hieronnx.attribute.fill import propagate
from hieronnx.attribute.request import Projected, Request
from hieronnx.attribute.weights import ModuleTable
from hieronnx.graph.operators import COPY_OPS, DATA_MOVEMENT_OPS, LOOKUP_OPS, NEUTRAL_OPERANDS
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import ROOT, Attribution, CallId
from hieronnx.hierarchy.tags import CallSite

_MOST_NAMES = 256
"""Parameters that a constant may hold; of more that are equal, which one it is decides nothing."""
_MOST_SOURCES = 64
"""Parameters that a node may be made of; what is made of more belongs to nobody in particular."""


def attribute_usage_based(request: Request) -> Projected:
    """Attribute the nodes of a file from the parameters that they use.

    Raises:
        HieronnxError: If the weights of the file cannot be read.
    """
    table, weights = request.table, request.weights
    constants: dict[int, _Use] = {}
    for tensor, holding in weights.held.items():
        if len(holding.parameters) <= _MOST_NAMES:
            modules = table.owners(holding.parameters)
            certain = holding.how == "fused" or (len(modules) == 1 and holding.telling)
            constants[tensor] = _Use(modules, certain, frozenset((tensor,)), telling=holding.telling)
    uses = _find_uses(request.view, constants, table)
    placed = _place(uses, _find_once(uses, constants, table), table)
    _complete(request.view, uses, placed)
    sites = _make_sites(placed, table)
    tree = CallTree({site.id: site.parent for site in sites})
    attributed = [_attribute(modules, use, tree) for modules, use in zip(placed, uses, strict=True)]
    return Projected(
        sites=sites,
        nodes=list(propagate(request.view, attributed, tree)),
        initializers=weights.held,
        agreement=weights.agreement,
        unmatched=weights.unmatched,
    )


@dataclass(frozen=True, slots=True)
class _Use:
    """The modules whose parameters something is made of.

    Attributes:
        modules: The modules.
        certain: Whether it is made of them all; else of one of them, nobody knows which.
        sources: The constants that hold the parameters.
        prepares: Whether it is constant itself: so is what a node makes that reads constants alone.
        telling: Whether the values of the parameters say anything.
    """

    modules: tuple[str, ...]
    certain: bool
    sources: frozenset[int]
    prepares: bool = True
    telling: bool = True


def _find_uses(view: View, constants: Mapping[int, _Use], table: ModuleTable) -> list[_Use | None]:
    """Find for each node whose parameters it reads, also through nodes that read constants alone.

    What a node looks up in a parameter is its work, no parameter any more; also where an exporter did that, and a node
    adds the rows. And a copy serves those who read it.
    """
    made_of = dict(constants)
    uses = []
    for node in view.nodes:
        read = [made_of[tensor] for tensor in node.reads if tensor in made_of]
        if node.op in NEUTRAL_OPERANDS:
            read = [use for use in read if table.lookups.isdisjoint(use.modules)]
        use = _join(read, prepares=all(view.flow.constant[t] for t in node.makes)) if read else None
        uses.append(None if node.op in COPY_OPS else use)
        if use is not None and use.prepares and node.op not in LOOKUP_OPS:
            made_of.update(dict.fromkeys(node.makes, use))
    return uses


def _join(read: Sequence[_Use], *, prepares: bool) -> _Use | None:
    """Join what a node reads: what is certain counts; else the one owner that all of it may have."""
    counted = [use for use in read if use.certain] or [use for use in read if use.telling] or list(read)
    sources = frozenset().union(*(use.sources for use in counted))
    if len(sources) > _MOST_SOURCES:
        return None
    if counted[0].certain:
        modules = tuple(dict.fromkeys(module for use in counted for module in use.modules))
        return _Use(modules, True, sources, prepares)
    common = tuple(m for m in counted[0].modules if all(m in use.modules for use in counted))
    telling = counted[0].telling
    return _Use(common or counted[0].modules, telling and len(common) == 1, sources, prepares, telling)


def _find_once(uses: Iterable[_Use | None], constants: Mapping[int, _Use], table: ModuleTable) -> set[str]:
    """Find the modules that ran once: they, or one below them, have a parameter that is used once."""
    users = Counter(source for use in uses if use is not None and not use.prepares for source in use.sources)
    once = {""}
    for source, count in users.items():
        if count == 1 and constants[source].certain:
            for module in constants[source].modules:
                once.update(table.ancestors(module))
    return once


def _place(uses: Iterable[_Use | None], once: Collection[str], table: ModuleTable) -> list[tuple[str, ...]]:
    """Return for each node the modules whose first call it belongs to, as far as that can be told."""
    seen: set[int] = set()
    placed = []
    for use in uses:
        modules = use.modules if use is not None and use.certain else ()
        if use is not None and not use.prepares:
            if not seen.isdisjoint(use.sources):
                ran_once = (next(above for above in table.ancestors(m) if above in once) for m in modules)
                modules = tuple(dict.fromkeys(ran_once))
            seen |= use.sources
        placed.append(modules)
    return placed


def _complete(view: View, uses: Sequence[_Use | None], placed: list[tuple[str, ...]]) -> None:
    """Place what is not certain with the product that it completes: that of a module that may have the parameter.

    A bias that is zero throughout says nothing by itself; what it is added to does.
    """
    for index, use in enumerate(uses):
        if use is None or use.certain or use.prepares or view.nodes[index].op not in NEUTRAL_OPERANDS:
            continue
        for tensor in view.nodes[index].reads_values:
            producer = view.producers[tensor]
            while producer is not None and view.nodes[producer].op in DATA_MOVEMENT_OPS:
                producer = view.producers[view.nodes[producer].inputs[0]]
            product = None if producer is None else uses[producer]
            if product is not None and product.certain and not set(product.modules).isdisjoint(use.modules):
                assert producer is not None  # it has a use
                placed[index] = placed[producer]


def _make_sites(placed: Iterable[Sequence[str]], table: ModuleTable) -> tuple[CallSite, ...]:
    """Return the calls that nodes belong to and those above them, in the order of their first use."""
    sites = {"": CallSite(ROOT, None, "")}
    for module in (module for modules in placed for module in modules):
        for path in reversed([above for above in table.ancestors(module) if above not in sites]):
            parent = table.parents[path]
            assert parent is not None  # the root is there
            sites[path] = CallSite(CallId(path, 0), CallId(parent, 0), path)
    return tuple(sites.values())


def _attribute(modules: tuple[str, ...], use: _Use | None, tree: CallTree) -> Attribution | None:
    if not modules:
        return None
    if modules == ("",) and use is not None and "" not in use.modules:
        return Attribution(ROOT, (ROOT,), "root", "root")  # a later use, of which nothing more is known
    calls = tuple(CallId(module, 0) for module in modules)
    return Attribution(tree.lowest_above(calls), calls, "parameter")
