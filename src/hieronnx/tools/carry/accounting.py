"""What a tool did to a model, counted: nodes untouched, rewritten and inserted, and calls that are gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.carry.result import LostCall, RewrittenNodes
from hieronnx.tools.carry.transfer import Transfer
from hieronnx.tools.carry.views import Pair

UNTOUCHED, REWRITTEN, INSERTED = "untouched", "rewritten", "inserted"


def judge_nodes(pair: Pair, transfer: Transfer) -> list[str]:
    """Say of each node of the graph after, in file order, what happened to it."""
    held = _find_held(pair, transfer)
    judged = []
    for index in pair.b.file_order:
        node = pair.b.nodes[index]
        makers = {pair.a.nodes[maker].op for t in node.outputs for maker in held.get(t, ())}
        if node.op in makers:
            judged.append(UNTOUCHED)
        else:
            found = transfer.carried.nodes[index]
            serves = found is None or found.evidence == "dataflow"
            judged.append(INSERTED if serves else REWRITTEN)
    return judged


def _find_held(pair: Pair, transfer: Transfer) -> dict[int, list[int]]:
    """Return for each tensor of the graph after the nodes of the graph before that made its value."""
    held: dict[int, list[int]] = defaultdict(list)
    for of_a, of_b in enumerate(transfer.carried.tensors):
        maker = pair.a.producers[of_a]
        if of_b is not None and maker is not None:
            held[of_b].append(maker)
    return held


def group_rewritten(nodes: Sequence[Node], judged: Sequence[str]) -> tuple[RewrittenNodes, ...]:
    """Group the rewritten nodes by call and operator, those that do the work of most calls first."""
    groups: dict[tuple[CallId, str], list[Node]] = defaultdict(list)
    for node, verdict in zip(nodes, judged, strict=True):
        if verdict == REWRITTEN:
            groups[node.scope, node.op_type].append(node)
    found = [
        RewrittenNodes(scope, op_type, len(members), tuple(dict.fromkeys(o for node in members for o in node.origins)))
        for (scope, op_type), members in groups.items()
    ]
    return tuple(sorted(found, key=lambda group: (-len(group.origins), -group.nodes)))


def find_lost(pair: Pair, transfer: Transfer) -> tuple[LostCall, ...]:
    """Find the calls that had nodes and have none any more, and the initializers that hold their work."""
    before = _stood_for(pair.hierarchy.nodes)
    after = _stood_for(transfer.hierarchy.nodes)
    folded: dict[CallId, list[str]] = defaultdict(list)
    for held in transfer.hierarchy.initializers:
        for origin in held.origins:
            folded[origin].append(held.name)
    gone = (call.id for call in pair.hierarchy.calls if call.id in before and call.id not in after)
    return tuple(LostCall(call, tuple(folded[call])) for call in gone)


def _stood_for(nodes: Iterable[Node]) -> set[CallId]:
    return {call for node in nodes if node.evidence != "root" for call in (node.scope, *node.origins)}
