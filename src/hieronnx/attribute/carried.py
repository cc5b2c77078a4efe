"""Carrying a hierarchy from graph A to graph B: decides of each node its scope and origins (a fused node has several).

`match/structure.py` finds for each node of B its region, the nodes of A that it stands for. From that follow here:

| the region of a node of B | scope and origins | where |
|---|---|---|
| one node of A | those of that node | `_attribute` |
| several: B fused them | their scopes are the origins, the lowest call above them all is the scope | `_attribute` |
| with constants, shapes, copies in it | these add no origin, unless there is nothing else | `_core` |
| has equals in A that B has not | B merged them: the scope of each is an origin as well | `_find_merged` |
| shared by a group of nodes | divided by parameters, operators, order (`groups.py`) | `_divide` |
| none: an inserted Cast, QuantizeLinear, … | those of the tensor's maker, or of its readers | `_attribute_inserted` |
| none: it has a tensor's name and computes it from that tensor | those of that tensor's maker | `_attribute_behind` |
| none: it computes from constants | those of the node of A whose reader it feeds | `match/tensors.py` |
| none: the work was folded into an initializer | the initializer keeps the origins | `folded.py` |

    A: Conv (in `conv`) ─ BatchNormalization (in `norm`)          B: Conv, with origins `conv` and `norm`

Nothing here knows of torch, of files or of a particular optimizer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hieronnx.attribute.folded import Folded, find_folded
from hieronnx.attribute.groups import divide_region
from hieronnx.graph.operators import DATA_MOVEMENT_OPS, QUANTIZE_OPS
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import CallTree, Hierarchy
from hieronnx.hierarchy.records import CONFIDENCE, ROOT, Attribution, CallId
from hieronnx.match.align.sequences import group
from hieronnx.match.kinds import see_through
from hieronnx.match.structure import Match, Matcher
from hieronnx.match.tensors import find_behind, map_tensors, pair_constants

# A node that may do the work of more calls than this does not do the work of all.
_MANY = 8
_STRENGTH = list(CONFIDENCE)
"""Kinds of evidence, the strongest first."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What carry finds of B.

    Attributes:
        nodes: the attribution of each node of B, None where nothing says what it stands for.
        initializers: what those of B were computed from.
        tensors: for each tensor of A the tensor of B that holds its value; None where that is not known.
        work: for nodes of B the nodes of A whose work they were found to do.
    """

    nodes: list[Attribution | None]
    initializers: dict[int, Folded]
    tensors: list[int | None]
    work: Mapping[int, Sequence[int]] = field(default_factory=dict)


def read_scopes(view: View, hierarchy: Hierarchy) -> list[Attribution | None]:
    """Return what a hierarchy knows of each node; None for a fallback to the root: another graph may tell more."""
    nodes = (hierarchy.node_by_key.get(view.node_key(index)) for index in range(len(view.nodes)))
    return [
        None if n is None or n.evidence == "root" else Attribution(n.scope, n.origins, n.evidence, n.rule)
        for n in nodes
    ]


def carry_scopes(
    a: View,
    scopes: Sequence[Attribution | None],
    b: View,
    tree: CallTree,
    *known: Mapping[int, int] | None,
) -> Carried:
    """Attribute the nodes of graph B from the scopes of the nodes of graph A, None where one has none.

    `known` is what is known of B's tensors besides names, as the matcher takes it.
    """
    matcher = Matcher(a, b, *known).run()
    attributor = _Attributor(scopes, tree, matcher)
    nodes = attributor.run()
    tensors = [None if t is None else attributor.replaced.get(t, t) for t in map_tensors(matcher)]
    attributor.finish(nodes, tensors)
    return Carried(nodes, find_folded(scopes, matcher), tensors, attributor.work)


class _Attributor:
    """Turns the regions that were matched into scopes and origins."""

    def __init__(self, scopes: Sequence[Attribution | None], tree: CallTree, matcher: Matcher) -> None:
        self._scopes, self._tree, self._matcher = scopes, tree, matcher
        self._a, self._b = matcher.a, matcher.b
        self._merged = self._find_merged()
        self.work: dict[int, Sequence[int]] = {}
        """The nodes of A whose work a node of B was found to do."""
        self._shares: dict[int, list[Attribution | None]] = defaultdict(list)
        """What a node of B does, for each group that it is in; None where that is not known."""
        self._idle: dict[int, bool] = {}
        """For each node of B in a group whether the others do all the work of its groups."""
        self._groups: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        """And these groups."""
        self._kept = {
            match.region[0]: index
            for index, match in matcher.matches.items()
            if match.proven and not match.altered and not match.group and len(match.region) == 1
        }
        """For nodes of A that B has as they were the node that they are there: no other does their work."""
        self.replaced: dict[int, int] = {}
        """For tensors of B those that took their names and their readers."""

    def run(self) -> list[Attribution | None]:
        """Attribute every node of B that has a match, or that shares one, or that passes on what others make."""
        matches = self._matcher.matches
        for index, match in matches.items():
            if not match.group:
                self.work[index] = self._core(match.region)
                self._shares[index].append(self._attribute(index, self.work[index], match.proven))
        for index, match in matches.items():
            if match.group:
                self._divide(index, match)
        attributions = [self._join_shares(index) for index in range(len(self._b.nodes))]
        constants = pair_constants(self._matcher, self.work)
        for index, same in constants.items():
            attributions[index] = attributions[index] or self._attribute(index, [same], True)
            self.work.setdefault(index, [same])
        for index in self._b.literals:
            folded = attributions[index]
            if folded is not None and folded.evidence == "carried" and not self._is_nothing_else(index):
                attributions[index] = None
        self._attribute_inserted(attributions)
        self._attribute_moves(attributions)
        self._attribute_behind(attributions)
        return attributions

    def finish(self, attributions: list[Attribution | None], tensors: Sequence[int | None]) -> None:
        """Let a node that makes a tensor of A in the form of a later one do the work of both.

        A: x ─ MatMul ─ m [linear] ─ Reshape ─ y, of the same sizes       B: x ─ Reshape ─ Gemm ─ g ─ Reshape ─ y

        B has no other tensor that `linear` may have returned than y.
        """
        a, matcher, number = self._a, self._matcher, self._matcher.values.number
        done = {n for nodes in self.work.values() for n in nodes}
        for of_a, of_b in enumerate(tensors):
            maker, index = a.producers[of_a], None if of_b is None else self._b.producers[of_b]
            same = None if of_b is None else matcher.tensor_in_a[of_b]
            later = None if same is None or number[same] == number[of_a] else a.producers[same]
            if maker is None or index is None or later is None or maker > later or a.flow.constant[of_a]:
                continue
            match = matcher.matches.get(index)
            own, more = attributions[index], self._scopes[maker]
            is_open = maker not in done or (match is not None and bool(match.group) and maker in match.region)
            if is_open and own is not None and more is not None and not set(more.origins) <= set(own.origins):
                attributions[index] = self._tree.join((own, more), "carried")

    def _join_shares(self, index: int) -> Attribution | None:
        """Join the work that a node does for several others."""
        shares = [share for share in self._shares.get(index, ()) if share is not None]
        if len(shares) < 2:
            return shares[0] if shares else None
        return self._tree.join(shares, "carried" if all(s.evidence == "carried" for s in shares) else "dataflow")

    def _core(self, region: Sequence[int]) -> list[int]:
        """Leave out of a region what adds no origin: constants, shapes and copies, unless there is nothing else."""
        a, flow = self._a, self._a.flow
        attributed = [n for n in region if self._scopes[n] is not None]
        computed = [n for n in attributed if not all(flow.constant[t] for t in a.nodes[n].makes)]
        working = [n for n in computed if not self._matcher.values.is_copy(a.nodes[n])]
        if working or computed:
            return working or computed
        of_sizes = [n for n in attributed if not all(flow.literal[t] for t in a.nodes[n].makes)]
        return of_sizes or [n for n in attributed if n not in a.literals] or attributed

    def _attribute(self, index: int, core: Sequence[int], proven: bool) -> Attribution | None:
        """Attribute a node of B that does the work of these nodes of A: all their scopes are its origins."""
        own = [scope for n in core if (scope := self._scopes[n]) is not None]
        if not own:
            return None
        uncertain = [scope.evidence for scope in own if CONFIDENCE[scope.evidence] != "high"]
        # What is made of nodes of which none is certain is no more certain than they are.
        weakest = max(uncertain, key=_STRENGTH.index) if len(uncertain) == len(own) else "carried"
        joined = self._tree.join(own, weakest if proven else "name")
        untouched = proven and len(core) == 1 and self._a.nodes[core[0]].op == self._b.nodes[index].op
        evidence, rule = (own[0].evidence, own[0].rule) if untouched else (joined.evidence, "")
        # A literal is written once for each reader, or once for all: what it is equal to says nothing.
        merged = {} if index in self._b.literals else self._merged
        copies = (origin for n in core for origin in merged.get(n, ()))
        return Attribution(joined.scope, tuple(dict.fromkeys((*joined.origins, *copies))), evidence, rule)

    def _find_merged(self) -> dict[int, list[CallId]]:
        """Return for each node of A that B kept the origins of its equals that B did not keep."""
        matcher = self._matcher
        kept = {n for match in matcher.matches.values() for n in self._core(match.region)}
        nodes, values = self._a.nodes, matcher.values
        numbered = (n for n, node in enumerate(nodes) if node.makes and not values.is_copy(node))
        merged: dict[int, list[CallId]] = defaultdict(list)
        for equals in group(numbered, lambda n: values.number[nodes[n].makes[0]]).values():
            survivors = [n for n in equals if n in kept]
            for equal in equals if len(survivors) == 1 else ():
                scope = self._scopes[equal]
                if equal not in kept and scope is not None:
                    merged[survivors[0]].extend(scope.origins)
        return merged

    def _is_nothing_else(self, literal: int) -> bool:
        """Say whether all that read a literal of B read in A what its work makes: others may be written as one with it.

        A: Add (1, 1) ─ Slice [a]     2 ─ Gather [b]          B: 2 ─┬─ Slice [a]
                                                                    └─ Gather [b]
        """
        a, b, makers = self._a, self._b, set(self.work.get(literal, ()))
        readers = (reader for tensor in b.nodes[literal].makes for reader in b.consumers[tensor])
        work = (self.work[reader] for reader in readers if reader in self.work)
        read = ([t for n in nodes for t in a.nodes[n].reads] for nodes in work)
        return all(any(a.producers[t] in makers for t in (*tensors, *see_through(a, tensors))) for tensors in read)

    # Inserted nodes --------------------------------------------------------------------------------------

    def _attribute_inserted(self, attributions: list[Attribution | None]) -> None:
        """Give inserted nodes to the calls that made what they pass on; what no call made, to those that read it.

        What quantizes serves those that compute with the quantized numbers, unless they are only turned back.
        """
        b, passed_on = self._b, self._matcher.passed_on
        for index in reversed(passed_on):
            node = b.nodes[index]
            readers = [r for t in node.makes for r in b.consumers[t]]
            serves_readers = node.op in QUANTIZE_OPS and readers and not any(r in passed_on for r in readers)
            tensor = None if serves_readers else passed_on[index]
            producer = None if tensor is None else self._a.producers[tensor]
            # Inputs, parameters and constants have no maker.
            core = [] if producer is None or self._a.nodes[producer].op == "Constant" else self._core([producer])
            maker = self._attribute(index, core, False)
            if maker is not None:
                attributions[index] = Attribution(maker.scope, maker.origins, "dataflow", "handed on")
                continue
            reading = [reader for r in readers if (reader := attributions[r]) is not None]
            if reading:
                served = self._tree.join(reading, "dataflow")
                origins = served.origins if len(served.origins) <= _MANY else (served.scope,)
                attributions[index] = Attribution(served.scope, origins, "dataflow", "consumers")

    def _attribute_moves(self, attributions: list[Attribution | None]) -> None:
        """Give nodes of a group that only move elements, and do none of A's work, to who makes these, or reads them.

        A: c ─ Conv ─ Add ─ Relu            B: c ─ Conv ─ Reshape ─ Add ─ Reshape ─ Relu
                                                 {Conv}   {Conv}   {Add}   {Add}

        Those who make them count if they are of the group: what is moved for a group belongs to it.
        """
        for_readers = list[int]()
        for index, groups in sorted(self._groups.items()):
            found, data = attributions[index], self._find_moved(index)
            if found is None or found.evidence != "dataflow" or data is None or not self._idle[index]:
                continue
            producer = self._b.producers[data]
            maker = None if producer is None or not any(producer in g for g in groups) else attributions[producer]
            if maker is None:
                for_readers.append(index)
            else:
                attributions[index] = Attribution(maker.scope, maker.origins, "dataflow", "handed on")
        for index in reversed(for_readers):
            readers = {r for tensor in self._b.nodes[index].makes for r in self._b.consumers[tensor]}
            reading = [reader for r in sorted(readers) if (reader := attributions[r]) is not None]
            if reading:
                served = self._tree.join(reading, "dataflow")
                attributions[index] = Attribution(served.scope, served.origins, "dataflow", "consumers")

    def _find_moved(self, index: int) -> int | None:
        """Return the tensor whose elements a node of B moves; None if there are several, or it computes."""
        node = self._b.nodes[index]
        data = [tensor for tensor in node.reads if not self._b.flow.constant[tensor]]
        return data[0] if len(data) == 1 and node.op in DATA_MOVEMENT_OPS else None

    def _attribute_behind(self, attributions: list[Attribution | None]) -> None:
        """Give nodes behind a tensor that took its name, and do none of A's work, to the call that made the tensor.

        All that read the tensor read what they make of it: this is what that call returns now. Behind an output, which
        nobody reads, they may as well do what comes after the model.
        """
        b, matcher = self._b, self._matcher
        for index, node in enumerate(b.nodes):
            readers = [r for t in node.makes for r in b.consumers[t]]
            if not self._idle.get(index) or not all(r in self._idle for r in readers):
                continue
            tensor, nodes = find_behind(matcher, index) or (None, ())
            same = None if tensor is None else matcher.tensor_in_a[tensor]
            producer = None if same is None else self._a.producers[same]
            maker = None if producer is None else self._attribute(index, self._core([producer]), False)
            if tensor is not None and maker is not None:
                self.replaced[tensor] = node.makes[0]
                for behind in nodes:
                    attributions[behind] = Attribution(maker.scope, maker.origins, "dataflow", "handed on")

    # Groups ----------------------------------------------------------------------------------------------

    def _divide(self, last: int, match: Match) -> None:
        """Divide a region among the nodes of a group: each takes what it can be seen to do."""
        core = self._core([*match.region, *self._find_unread(match)])
        core = [n for n in core if self._kept.get(n, last) in match.group] or core
        makers = self._find_makers(core, last)
        own = [] if match.altered else makers
        rest = [n for n in core if n not in own]
        others = [n for n in match.group if n != last]
        # A member that feeds another group may have its work in this region already.
        done = {member: sorted(set(self.work.get(member, ())).intersection(rest)) for member in others}
        taken = {n for work in done.values() for n in work}
        left = [n for n in rest if n not in taken] or rest
        free = [member for member in others if not done[member]]
        known = {member: work for member, work in done.items() if work}
        claims, choices = divide_region(self._matcher, match, free if own else [*free, last], left, known)
        claims.setdefault(last, own)
        only_moves = self._b.nodes[last].op in DATA_MOVEMENT_OPS and len(self._b.nodes[last].outputs) == 1
        claimants = Counter(n for claimed in claims.values() for n in claimed)
        is_done = all(n in claimants or n in taken for n in core)
        for member in match.group:
            is_idle = is_done and not claims.get(member) and not done.get(member)
            self._idle[member] = self._idle.get(member, True) and is_idle
            self._groups[member].append(match.group)
        for node, claimed in claims.items():
            alone = all(claimants[n] == 1 for n in claimed)
            open_to = choices.get(node)
            certain = match.proven and (not open_to or self._are_alike([*claimed, *open_to]))
            share = self._attribute(node, claimed, certain) if alone else None
            if node == last and not claimed and only_moves:
                share = self._attribute(node, makers, match.proven)
            if node in self._b.literals:
                share = None  # it does none of the work that is done with it
            elif share is None:
                share = self._share_whole(node, core if node == last else rest or core, match, node == last)
            self.work[node] = [*self.work.get(node, ()), *claimed]
            self._shares[node].append(share)

    def _are_alike(self, nodes: Sequence[int]) -> bool:
        """Say whether nodes of A have all the same scope and origins: it does not matter then which is meant."""
        scopes = [self._scopes[n] for n in nodes]
        return len({(scope.scope, scope.origins) for scope in scopes if scope is not None}) < 2

    def _find_unread(self, match: Match) -> list[int]:
        """Find the nodes of A that a tool merged with one of a region, though nobody reads their part any more."""
        b, kinds = self._b, self._matcher.kinds
        for split in (b.nodes[n] for n in match.group if b.nodes[n].op == "Split"):
            if not all(b.consumers[t] for t in split.makes):
                for node in match.region:
                    same = kinds.find_same_reading(node)
                    if len(same) == len(split.outputs):
                        return [n for n in same if n not in match.region]
        return []

    def _share_whole(self, node: int, core: Sequence[int], match: Match, is_last: bool) -> Attribution | None:
        """Give a node of a group that cannot be told from the others the work of all; of many calls, only the scope.

        Where these calls are all over the model, nothing is known of it.
        """
        whole = self._attribute(node, core, match.proven)
        if whole is None:
            return None
        if len(whole.origins) <= _MANY:
            evidence = "carried" if is_last or len(whole.origins) == 1 else "dataflow"
            return Attribution(whole.scope, whole.origins, evidence)
        last = self._attribute(node, self._find_makers(core, node), match.proven) if is_last else None
        # That a node ran somewhere in the model is no news.
        return last or (None if whole.scope == ROOT else Attribution(whole.scope, (whole.scope,), "dataflow"))

    def _find_makers(self, nodes: Sequence[int], index: int) -> list[int]:
        """Return those nodes of A that make a tensor which a node of B makes."""
        made = {self._matcher.tensor_in_a[t] for t in self._b.nodes[index].makes}
        return [n for n in nodes if not made.isdisjoint(self._a.nodes[n].outputs)]
