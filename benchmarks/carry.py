"""`carry_scopes` on generated graphs of growing size: how the time per node grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.measure import Section, Work, measure, median
from hieronnx.attribute.carried import carry_scopes
from hieronnx.graph.view import View, ViewGraph, ViewNode
from hieronnx.hierarchy.hierarchy import CallTree
from hieronnx.hierarchy.records import ROOT, Attribution, CallId

_SIZES = (1_000, 10_000, 100_000)
_NODES_PER_CALL = 10
_NODES_PER_BLOCK = 9
_FUSE_EVERY = 4
_TEXT = (
    "`carry_scopes` from a generated graph to a transformed copy of it, microseconds per node of the original. "
    "A chain is one operator after the other, each with a parameter; a graph is blocks of three branches and a "
    "residual, as in attention. The copy is the same, or has new names for all tensors, or has every fourth pair of "
    f"neighbours fused into one node. There is a call for every {_NODES_PER_CALL} nodes. "
    "Growth is the time per node at the largest size over that at the smallest."
)


def run(repeats: int) -> Section:
    """Measure every shape and transformation at every size."""
    rows = []
    for shape in ("chain", "graph"):
        for change in ("same", "renamed", "fused"):
            works = {str(n): Work("benchmarks.carry:prepare", (shape, change, str(n))) for n in _SIZES}
            costs = {size: median(found) for size, found in measure(works, repeats).items()}
            per_node = [costs[str(size)].seconds / size * 1e6 for size in _SIZES]
            peak = costs[str(_SIZES[-1])].peak_mib
            growth = per_node[-1] / per_node[0]
            rows.append((shape, change, *(f"{time:.1f}" for time in per_node), f"{growth:.2f}", f"{peak:.0f}"))
    header = ("shape", "transformed", *(f"{size:,} nodes, µs" for size in _SIZES), "growth", "peak of the largest, MiB")
    return Section("Carry", _TEXT, header, tuple(rows))


# -- in the child process -----------------------------------------------------------------------------------


def prepare(shape: str, change: str, size: str) -> Callable[[], object]:
    """Generate both graphs, warm up on small ones, and return the carrying to be measured."""
    if int(size) > _SIZES[0]:
        prepare(shape, change, str(_SIZES[0]))()
    edges = _chain(int(size)) if shape == "chain" else _blocks(int(size))
    before = _build_view(edges, "t")
    after = _build_view(edges, "u" if change == "renamed" else "t", fuse=change == "fused")
    calls = [CallId(f"layers.{number}", 0) for number in range(len(edges) // _NODES_PER_CALL + 1)]
    tree = CallTree({ROOT: None, **dict.fromkeys(calls, ROOT)})
    scopes = [_attribution(calls[number // _NODES_PER_CALL]) for number in range(len(edges))]
    return lambda: carry_scopes(before, scopes, after, tree)


def _attribution(call: CallId) -> Attribution:
    return Attribution(call, (call,), "captured")


def _chain(size: int) -> list[tuple[int, ...]]:
    """Return for each node the nodes that it reads; -1 is the graph's input."""
    return [(node - 1,) for node in range(size)]


def _blocks(size: int) -> list[tuple[int, ...]]:
    """Return blocks: a norm, three branches of two nodes each, their join, and a residual."""
    edges: list[tuple[int, ...]] = []
    while len(edges) < size:
        before, norm = len(edges) - 1, len(edges)
        edges += [(before,), (norm,), (norm,), (norm,), (norm + 1,), (norm + 2,), (norm + 3,)]
        edges += [(norm + 4, norm + 5, norm + 6), (norm + 7, before)]
    return edges[:size]


def _build_view(edges: Sequence[tuple[int, ...]], prefix: str, *, fuse: bool = False) -> View:
    """Build the view of a graph; a node that was fused into its only reader is left out."""
    view = View(graphs=[ViewGraph("", "", None, (), ())])
    made = {-1: view.add_tensor("input", 0)}
    fused = _find_fused(edges) if fuse else set()
    reads: dict[int, tuple[int, ...]] = {}
    for number, sources in enumerate(edges):
        weight = view.add_tensor(f"{prefix}.weight.{number}", 0)
        view.constants[weight] = "named", f"weight.{number}"
        inputs = (*(t for s in sources for t in (reads[s] if s in fused else (made[s],))), weight)
        if number in fused:
            reads[number] = inputs
            continue
        made[number] = view.add_tensor(f"{prefix}.{number}", 0)
        op = f"Op{number % _NODES_PER_BLOCK}" + ("Fused" if fused.intersection(sources) else "")
        view.add_node(ViewNode(op, "", 0, inputs, (made[number],), ()))
    view.graphs[0] = ViewGraph("", "", None, (made[-1],), (made[len(edges) - 1],))
    return view


def _find_fused(edges: Sequence[tuple[int, ...]]) -> set[int]:
    """Return every fourth of the nodes that have one reader, the node right after them or later."""
    readers: dict[int, int] = dict.fromkeys(range(len(edges)), 0)
    for sources in edges:
        for source in sources:
            readers[source] = readers.get(source, 0) + 1
    return {n for n in range(_FUSE_EVERY - 1, len(edges) - 1, _FUSE_EVERY) if readers[n] == 1}
