"""Where the work of a call is done that has no kernel of its own.

FusedConv, origins `conv` and `act`, all its time `conv`'s      act: its node runs in 'conv'
Conv, for `conv` and for `conv@1` on the same input             conv@1: its work is done once, in 'conv'
Conv, of which the weight holds what `norm` did                 norm: its node runs in 'conv'
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from hieronnx.errors import count, list_some
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.profile.result import Kernel

_MOST_NAMES = 3
_FOLDED = "its work was folded into a weight"


def tell_elsewhere(before: Hierarchy, after: Hierarchy, kernels: Sequence[Kernel]) -> dict[CallId, str]:
    """Tell of each call without a kernel of its own where its work is done.

    Args:
        before: The hierarchy of the model.
        after: That of the graph that ran.
        kernels: What ran.
    """
    teller = _Teller(after, kernels)
    nodes = _group(node for node in before.nodes if node.evidence != "root")
    calls = dict.fromkeys((*nodes, *teller.folded, *teller.kernels))
    told = ((call, teller.tell(call, nodes.get(call, []))) for call in calls if not teller.has_own(call))
    return {call: where for call, where in told if where}


def _group(nodes: Iterable[Node]) -> dict[CallId, list[Node]]:
    """Return for each call the nodes that do work of it."""
    groups: dict[CallId, list[Node]] = defaultdict(list)
    for node in nodes:
        for origin in dict.fromkeys(node.origins):
            groups[origin].append(node)
    return groups


class _Teller:
    """Knows which kernels do the work of each call, and which weights hold it."""

    def __init__(self, after: Hierarchy, kernels: Sequence[Kernel]) -> None:
        self.folded: dict[CallId, list[str]] = defaultdict(list)
        for initializer in after.initializers:
            for origin in initializer.origins:
                self.folded[origin].append(initializer.name)
        self.kernels: dict[CallId, list[Kernel]] = defaultdict(list)
        """For each call the kernels that it is an origin of; those that only prepare for it left out."""
        for kernel in kernels:
            for origin in kernel.origins if kernel.kind != "inserted" else ():
                self.kernels[origin].append(kernel)
        self._unnamed = any(kernel.kind == "runtime" for kernel in kernels)
        self._unattributed = any(node.evidence == "root" for node in after.nodes)
        ran = {kernel.node.key for kernel in kernels if kernel.node is not None}
        self._left = _group(node for node in after.nodes if node.evidence != "root" and node.key not in ran)
        """For each call the nodes of the graph that no kernel is known to be of."""

    def has_own(self, call: CallId) -> bool:
        """Say whether a call has a kernel whose time is its own: all of it, or that of a node which is in it."""
        for kernel in self.kernels[call]:
            hosts = _find_hosts(kernel)
            is_scope = kernel.node is not None and kernel.node.scope == call
            if call in hosts and (is_scope or (hosts[0] == call and len({host.module for host in hosts}) == 1)):
                return True
        return False

    def tell(self, call: CallId, nodes: Sequence[Node]) -> str:
        """Tell where the work of a call is done, by its nodes in the model; nothing where that cannot be told."""
        its, runs = (f"its {len(nodes)} nodes", "run") if len(nodes) > 1 else ("its node", "runs")
        same, kernels = _find_same(call, nodes), self.kernels[call]
        hosts: dict[str, CallId] = {}
        for host in (host for kernel in kernels for host in _find_hosts(kernel) if host.module != call.module):
            hosts.setdefault(host.module, host)
        if nodes and hosts and same is None:
            return f"{its} {runs} in {_name_some(hosts.values())}"
        once = same or (None if hosts else _find_same(call, kernels))
        if once is not None or hosts:
            return f"its work is done once, in {_name_some(hosts.values() if once is None else [once])}"
        if any(call in _find_hosts(kernel) for kernel in kernels):
            return ""
        if folded := self.folded[call]:
            into = "a weight" if len(folded) == 1 or not nodes else count(len(folded), "weight")
            return f"{its} {'were' if len(nodes) > 1 else 'was'} folded into {into}" if nodes else _FOLDED
        return self._tell_left(call, its) if nodes else ""

    def _tell_left(self, call: CallId, its: str) -> str:
        """Tell of nodes for which no kernel is known whether they run."""
        if call in self._left and self._unnamed:
            return f"{its} may run in kernels of no known node, under 'runtime'"
        if call in self._left:
            return f"{its} did not run"
        return f"no kernel is known to run {its}" if self._unattributed else f"nothing is left to run of {its}"


def _find_hosts(kernel: Kernel) -> list[CallId]:
    """Return the calls that have a part of a kernel's time."""
    return [CallId(share.module, share.call) for share in kernel.shares if share.part]


def _find_same(call: CallId, items: Sequence[Node] | Sequence[Kernel]) -> CallId | None:
    """Return the earlier call of the same module that a call's work is done in, if all of it is."""
    same = {min(origin for origin in item.origins if origin.module == call.module) for item in items}
    return min(same) if same and call not in same else None


def _name_some(calls: Iterable[CallId]) -> str:
    return list_some([f"'{call}'" if call.module else "the root" for call in calls], _MOST_NAMES)
