"""Why a file does not tell which of its tensors a call returned: by the nodes that end the call's work.

    Add [layer] ─ LayerNormalization [norm]          SkipLayerNormalization [layer, norm]

The layer returned what Add makes; on the right nothing is that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from hieronnx.errors import list_some
from hieronnx.graph.operators import BLOCKED_DOMAIN
from hieronnx.hierarchy.hierarchy import Hierarchy, NodeKey
from hieronnx.hierarchy.records import CallId, Node

Readers = Mapping[NodeKey, Iterable[NodeKey]]
"""For each node those that read what it makes."""


class Untold:
    """Explains of one of the two files, the `file` or the `reference`, why it does not have what calls returned."""

    def __init__(self, side: str, hierarchy: Hierarchy, find_readers: Callable[[], Readers]) -> None:
        self._side, self._hierarchy, self._find_readers = side, hierarchy, find_readers

    def explain(self, call: CallId, is_output: bool) -> str:
        """Say why it is not told which tensor a call returned."""
        if is_output:  # it is there, and nothing follows
            return f"the {self._side} does not tell which of its tensors is what it returned, an output of the model"
        lacks = f"the {self._side} does not have what it returned: its work is one with that of what follows"
        fused, guessed = self._ends
        if call in fused:
            node = fused[call]
            others = (o for o in node.origins if call not in self._hierarchy.tree.ancestors(o))
            named = list_some([f"'{other or 'the root'}'" for other in others], 2)
            return f"{lacks}, {named}, in '{node.name or node.output}'"
        if call in guessed:
            return (
                f"the {self._side} does not tell which of its tensors is what it returned: "
                "names alone tell what does its work"
            )
        return f"{lacks}, {'it is in blocks of channels alone, ' if self._in_blocks else ''}or nobody reads it"

    @cached_property
    def _in_blocks(self) -> bool:
        return any(node.domain == BLOCKED_DOMAIN for node in self._hierarchy.nodes)

    @cached_property
    def _ends(self) -> tuple[Mapping[CallId, Node], frozenset[CallId]]:
        """The last node of each call that does other calls' work too, and the calls of whose ends only names tell.

        Nothing that is in the call as well reads its last nodes; an end is read by others, too, or by nobody.
        """
        tree, readers = self._hierarchy.tree, self._find_readers()
        above = {call.id: frozenset(tree.ancestors(call.id)) for call in self._hierarchy.calls}
        around = {n.key: frozenset[CallId]().union(*map(above.__getitem__, n.origins)) for n in self._hierarchy.nodes}
        fused, guessed = dict[CallId, Node](), set[CallId]()
        for node in self._hierarchy.nodes:
            reading = [around[reader] for reader in readers.get(node.key, ()) if reader in around]
            calls = around[node.key]
            if node.evidence == "name":
                guessed |= calls.difference(frozenset.intersection(*reading)) if reading else calls
            else:
                shared = calls.difference(frozenset.intersection(*(above[o] for o in node.origins)), *reading)
                fused.update((call, node) for call in shared)
        return fused, frozenset(guessed)
