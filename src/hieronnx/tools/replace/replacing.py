"""Replace: a part in the place of a module call, or of several calls of one shape."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as change
from pathlib import Path

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, list_some
from hieronnx.files.opening import OpenedModel, open_model
from hieronnx.files.weights import Weight, find_inner_weights, find_weights
from hieronnx.files.wire import locate_initializers
from hieronnx.files.writing import ModelPieces, assemble, check_output, list_own_files, write
from hieronnx.graph.view import ModelLike
from hieronnx.graph.walks import first_name, function_key, walk_bodies
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Call, CallId, Initializer, Node
from hieronnx.tools.extract.extracting import Extractor
from hieronnx.tools.extract.find import Part, explain_no_nodes
from hieronnx.tools.extract.model import find_names, make_model
from hieronnx.tools.replace.graph import Grafted, Names, find_alive, graft, sort_nodes
from hieronnx.tools.replace.hierarchy import GraftedCalls, graft_calls, rebind
from hieronnx.tools.replace.interface import Interface, match_interface
from hieronnx.tools.replace.opsets import bring_together
from hieronnx.tools.replace.result import ReplaceResult


def replace(
    model: ModelLike, target: str, part: ModelLike, *, output: str | os.PathLike[str] | None = None
) -> ReplaceResult:
    """Replace a module call by a part: an optimized, quantized, distilled or corrected form of what `extract` gives.

    Args:
        model: The model, with its hierarchy: a file, a ModelProto or an ir.Model.
        target: The call, as `extract` takes it. Where it names several, each is replaced, and keeps its own weights
            where the part has the same parameters.
        part: What goes in its place. Its inputs and outputs are those of the call: by name, argument, or position.
        output: Where to write the new model; its sidecar goes beside it. None: the result holds it.

    Raises:
        HieronnxError: If there is no such call, the part does not fit, or a file is missing or in the way. Nothing is
            written then.

    Example:
        >>> hieronnx.extract("model.onnx", "encoder.layer.3", output="layer.onnx")
        >>> hieronnx.optimize("layer.onnx", output="fast.onnx", tool="ort-extended")
        >>> hieronnx.replace("model.onnx", "encoder.layer.3", "fast.onnx", output="out.onnx")
    """
    extractor = Extractor(model)
    source = extractor.source
    calls = extractor.hierarchy.find_calls(target)
    replaced = [_find_replaced(extractor, call) for call in calls]
    given = open_model(part)
    opened = bring_together(given, source.opened.model.opset_imports)
    files = extractor.files | list_own_files(part)
    if output is not None:
        check_output(Path(output), files)
    interfaces = [match_interface(source, extractor.types, old, opened) for old in replaced]
    work = _Work(extractor, replaced, opened, interfaces)
    work.choose_weights()
    work.graft()
    structure = work.build()
    hierarchy = work.describe()
    weights = [*work.kept_weights(), *work.new_weights]
    inner = _find_inner(structure, source.opened, opened)
    pieces = ModelPieces(structure, weights, inner, frozenset(files))
    if output is None:
        return work.report(hierarchy, assemble(pieces, hierarchy))
    described = write(pieces, hierarchy, output, exporter=extractor.hierarchy.model.get("exporter", ""))
    return work.report(described, Path(output))


def _find_replaced(extractor: Extractor, call: Call) -> Part:
    """Find the part that a call is now.

    Raises:
        HieronnxError: If the file has no nodes of it, or they are in a body.
    """
    part = extractor.find(call.id)
    if part is None:
        raise HieronnxError(explain_no_nodes(extractor.hierarchy, call.id).replace("; extract ", "; replace "))
    if part.graphs != {0}:
        raise HieronnxError(
            f"call '{call.id}' runs inside the body of a control-flow node, where nothing can be put in; replace the "
            "call that has that node"
        )
    return part


def _find_inner(structure: onnx.ModelProto, *models: OpenedModel) -> list[tuple[onnx.TensorProto, Weight]]:
    """Find the external data inside nodes, whichever model they are from."""
    found: dict[int, tuple[onnx.TensorProto, Weight]] = {}
    for opened in models:
        try:
            found |= {id(tensor): (tensor, weight) for tensor, weight in find_inner_weights(opened, structure)}
        except KeyError:  # a node of the other model
            continue
    return list(found.values())


@dataclass(slots=True)
class _Change:
    """What became of one call."""

    old: Part
    interface: Interface
    grafted: Grafted
    weights: dict[str, str]


class _Work:
    """A replacement while it is done."""

    def __init__(
        self, extractor: Extractor, replaced: Sequence[Part], part: OpenedModel, interfaces: Sequence[Interface]
    ) -> None:
        self.source, self.types = extractor.source, extractor.types
        self.replaced, self.interfaces, self.part = replaced, interfaces, part
        self.nodes = [ir.serde.serialize_node(node) for node in part.model.graph]
        self.new_weights: list[Weight] = []
        self.changes: list[_Change] = []
        self.notes: list[str] = []
        self._own_weights: list[str] = []
        entering = {t for interface in interfaces for t in interface.inputs.values()}
        self.alive = find_alive(self.source, replaced, entering)
        self._weights: list[dict[str, str]] = []

    # -- weights ------------------------------------------------------------------------------------------

    def choose_weights(self) -> None:
        """Choose for each initializer of the part one of the model, or a new name."""
        opened, graph = self.part, self.part.model.graph
        located = {} if opened.path is None else locate_initializers(opened.path)
        own = {w.header.name: w for w in find_weights(opened, graph.initializers.values(), located, {})}
        parameters = {} if opened.hierarchy is None else {i.name: i for i in opened.hierarchy.initializers}
        held = {i.parameter: i.name for i in self.source.hierarchy.initializers if i.parameter and not i.origins}
        ours = {w.header.name: w for w in self._all_weights()}
        taken = Names(self._names_that_stay())
        added: dict[str, str] = {}
        foreign: set[str] = set()
        for old in self.replaced:
            chosen: dict[str, str] = {}
            for name, weight in own.items():
                item = parameters.get(name)
                same = name if name in ours and _is_same(ours[name], weight) else None
                if len(self.replaced) > 1:
                    same = self._find_own(old, item, weight, held, ours) or same
                    foreign |= {name} if same is None and item is not None and item.parameter else set()
                if same is None and name not in added:
                    added[name] = taken.take(name)
                    self.new_weights += find_weights(opened, [graph.initializers[name]], located, {name: added[name]})
                chosen[name] = same if same is not None else added[name]
            self._weights.append(chosen)
            self._own_weights += [name for name, new in chosen.items() if new in ours and name not in added]
        if foreign:
            self.notes.append(
                f"all {len(self.replaced)} calls have the part's own {list_some(sorted(foreign), 3)}: the model has no "
                "parameter of that name, type and shape for each"
            )

    def _find_own(
        self,
        old: Part,
        item: Initializer | None,
        weight: Weight,
        held: Mapping[str, str],
        ours: Mapping[str, Weight],
    ) -> str | None:
        """Return the initializer of the model that holds a call's own parameter in the place of the part's."""
        if item is None or item.parameter is None or item.origins:
            return None
        name = held.get(f"{old.call.module}.{item.parameter}".strip("."))
        return name if name is not None and _is_alike(ours[name], weight) else None

    def _all_weights(self) -> list[Weight]:
        initializers = self.source.opened.model.graph.initializers.values()
        return find_weights(self.source.opened, initializers, self.source.located, {})

    def kept_weights(self) -> list[Weight]:
        """Return the initializers of the model that stay: all but those that only removed nodes read."""
        gone = set(self.removed_weights())
        return [weight for weight in self._all_weights() if weight.header.name not in gone]

    def removed_weights(self) -> list[str]:
        """Return the initializers that only removed nodes read."""
        view = self.source.view
        read = {t for index in self.alive for t in view.nodes[index].reads} | set(view.graphs[0].outputs)
        used = {new for change_ in self.changes for new in change_.weights.values()}
        dead = (index for index in view.nodes_in[0] if index not in self.alive)
        unread = dict.fromkeys(t for i in dead for t in view.nodes[i].reads if t in view.constants and t not in read)
        return [view.names[t] for t in unread if view.names[t] not in used and view.tensor_graphs[t] == 0]

    def _names_that_stay(self) -> Iterator[str]:
        """Yield the names of tensors that the model has without the old parts, bodies included."""
        view, main = self.source.view, self.source.view.graphs[0]
        yield from (view.names[t] for t in (*main.inputs, *main.outputs))
        yield from (view.names[t] for part in self.replaced for t in part.outputs)
        for index in self.alive:
            yield from (view.names[t] for t in (*view.nodes[index].reads, *view.nodes[index].makes))
            for graph in self.source.bodies_below([index]):
                yield from (view.names[t] for t in view.graphs[graph].inputs)
                yield from (view.names[t] for i in view.nodes_in[graph] for t in view.nodes[i].makes)

    # -- the graph ----------------------------------------------------------------------------------------

    def graft(self) -> None:
        """Put the part in the place of each call."""
        stay = {*self._names_that_stay(), *(new for weights in self._weights for new in weights.values())}
        tensors, node_names = Names(stay), Names(self.source.view.nodes[index].name for index in self.alive)
        for old, interface, weights in zip(self.replaced, self.interfaces, self._weights, strict=True):
            grafted = graft(
                self.source, old, self.part.model, self.nodes, interface, weights, self.alive, tensors, node_names
            )
            self.changes.append(_Change(old, interface, grafted, weights))
        view = self.source.view
        read = {name for item in self.changes for _, node in item.grafted.nodes for name in _reads(node)}
        made = {name for item in self.changes for _, node in item.grafted.nodes for name in node.output}
        found = (view.find_tensor("", name) for name in read - made)
        self.alive = find_alive(self.source, self.replaced, [t for t in found if t is not None])

    def build(self) -> onnx.ModelProto:
        """Build the new model, without its initializers."""
        source, view = self.source, self.source.view
        model = make_model(source)
        graph, whole = model.graph, source.opened.model.graph
        graph.name = whole.name or "main"
        old = ((index, self._keep(index)) for index in view.nodes_in[0] if index in self.alive)
        places = [(max(item.old.region), item.grafted) for item in self.changes]
        graph.node.extend(sort_nodes(old, places))
        graph.input.extend(map(ir.serde.serialize_value, whole.inputs))
        graph.output.extend(map(ir.serde.serialize_value, whole.outputs))
        made = {name for node in graph.node for name in node.output}
        listed = {info.name for info in graph.output}
        types = {view.names[t]: info for t in source.values if (info := self.types.listed(t)) is not None}
        new = {n for item in self.changes for _, node in item.grafted.nodes for n in node.output}
        graph.value_info.extend(types[n] for n in sorted(made & types.keys() - listed - new))
        graph.value_info.extend(info for info in self._new_types() if info.name not in listed)
        functions = {key: ir.serde.serialize_function(f) for key, f in self.part.model.functions.items()}
        for key, function in source.opened.model.functions.items():
            mine = ir.serde.serialize_function(function)
            if key in functions and functions[key].node != mine.node:
                raise HieronnxError(
                    f"the part and the model have different functions of the name '{function_key(*key)}'; inline those "
                    "of the part first (onnx.inliner)"
                )
            functions[key] = mine
        model.functions.extend(functions.values())
        model.ir_version = max(model.ir_version, self.part.model.ir_version or 0)
        known = {item.domain for item in model.opset_import}
        for domain, version in self.part.model.opset_imports.items():
            if domain not in known:
                model.opset_import.add(domain=domain, version=version)
        return model

    def _keep(self, index: int) -> onnx.NodeProto:
        """Return a node that stays; what a part makes in its place now, it makes under a name that nobody reads."""
        node = ir.serde.serialize_node(self.source.nodes[index])
        taken = {n for item in self.changes for _, new in item.grafted.nodes for n in new.output}
        node.output[:] = [f"{name}_unread" if name in taken else name for name in node.output]
        return node

    def _new_types(self) -> Iterator[onnx.ValueInfoProto]:
        values = {v.name: v for node in self.part.model.graph for v in node.outputs if v.name and v.type is not None}
        for item in self.changes:
            made = {name for _, node in item.grafted.nodes for name in node.output}
            for name, value in values.items():
                new = item.grafted.tensors.get(name or "", "")
                if new in made:
                    info = ir.serde.serialize_value(value)
                    info.name = new
                    yield info

    # -- the hierarchy ------------------------------------------------------------------------------------

    def describe(self) -> Hierarchy:
        """Return the hierarchy of the new model."""
        whole, part = self.source.hierarchy, self.part.hierarchy
        grafted = graft_calls(whole, [old.call for old in self.replaced], part)
        alive = [self.source.attributions[index] for index in self._alive_everywhere()]
        nodes = [_move(node, grafted.old_ids) for node in alive]
        for number, item in enumerate(self.changes):
            ids, call = grafted.part_ids[number], grafted.old_ids[item.old.call]
            nodes += self._describe_nodes(item, ids, call, first=number == 0)
        return Hierarchy(
            modules=grafted.modules,
            calls=tuple(self._describe_calls(grafted)),
            nodes=tuple(nodes),
            initializers=tuple(self._describe_initializers(grafted)),
            policy=whole.policy,
            strategy=whole.strategy,
        )

    def _alive_everywhere(self) -> list[int]:
        """Return the nodes that stay, those in bodies and functions too."""
        view = self.source.view
        inner = {graph for index in self.alive for graph in self.source.bodies_below([index])}
        inner |= set(self.source.functions.values())
        return [*sorted(self.alive), *(index for graph in sorted(inner) for index in view.nodes_in[graph])]

    def _describe_nodes(
        self, item: _Change, ids: Mapping[CallId, CallId], call: CallId, *, first: bool
    ) -> Iterator[Node]:
        """Yield the nodes of a part in the model: by its own hierarchy, else as the call's."""
        hierarchy = self.part.hierarchy
        known = {} if hierarchy is None else hierarchy.node_by_key
        pairs = ((None if at is None else self.nodes[at], node) for at, node in item.grafted.nodes)
        keys = ((old, key) for before, after in pairs for old, key in _pair_keys(before, after))
        for (graph, output), (key, node) in keys:
            old = known.get((graph, output))
            if old is None or not ids:
                origin = (call,)
                yield Node(key, node.name, node.op_type, node.domain, first_name(node.output), call, origin, "carried")
            else:
                moved = _move(old, ids)
                yield change(moved, graph=key, name=node.name, output=first_name(node.output))
        if first:
            inner = {function_key(*key) for key in self.part.model.functions if key not in self.source.functions}
            own = () if hierarchy is None else hierarchy.nodes
            yield from (_move(n, ids) for n in own if any(n.graph == k or n.graph.startswith(f"{k}/") for k in inner))

    def _describe_calls(self, grafted: GraftedCalls) -> Iterator[Call]:
        """Yield the calls with what they received and returned, as far as it is there."""
        view = self.source.view
        known = {view.names[t] for index in self.alive for t in (*view.nodes[index].makes, *view.nodes[index].reads)}
        known |= {view.names[t] for t in (*view.graphs[0].inputs, *view.graphs[0].outputs)}
        known |= {n for item in self.changes for _, node in item.grafted.nodes for n in (*node.output, *node.input)}
        before = {new: self.source.hierarchy.call_by_id[old] for old, new in grafted.old_ids.items()}
        inside: dict[CallId, tuple[Call, Mapping[str, str]]] = {}
        for item, ids in zip(self.changes, grafted.part_ids, strict=True):
            for call in () if self.part.hierarchy is None else self.part.hierarchy.calls:
                if call.parent is not None and call.id in ids:
                    inside[ids[call.id]] = call, item.grafted.tensors
        for call in grafted.calls:
            bound, names = inside.get(call.id) or (before[call.id], {})
            yield rebind(change(call, received=bound.received, returned=bound.returned), names, known)

    def _describe_initializers(self, grafted: GraftedCalls) -> Iterator[Initializer]:
        gone = set(self.removed_weights())
        for item in self.source.hierarchy.initializers:
            if item.name not in gone:
                origins = tuple(grafted.old_ids[o] for o in item.origins if o in grafted.old_ids)
                yield Initializer(item.name, item.parameter, origins)
        added = {weight.header.name for weight in self.new_weights}
        parameters = {} if self.part.hierarchy is None else {i.name: i for i in self.part.hierarchy.initializers}
        if not self.source.hierarchy.initializers and not parameters:
            return
        for item_, ids in zip(self.changes, grafted.part_ids, strict=True):
            for name, new in item_.weights.items():
                if new in added:
                    added.discard(new)
                    old = parameters.get(name, Initializer(name, None, ()))
                    path = f"{item_.old.call.module}.{old.parameter}".strip(".") if old.parameter else None
                    yield Initializer(new, path, tuple(ids[o] for o in old.origins if o in ids))

    # -- the result ---------------------------------------------------------------------------------------

    def report(self, hierarchy: Hierarchy, model: onnx.ModelProto | Path) -> ReplaceResult:
        """Return the record of what was done."""
        names, changes = self.source.view.names, self.changes
        added = {n for item in changes for _, node in item.grafted.nodes for n in node.output}
        dead = [index for index in self.source.view.nodes_in[0] if index not in self.alive]
        pairs = [(old, new) for item in changes for old, new in item.grafted.tensors.items()]
        inner = {v.name for node in self.part.model.graph for v in node.outputs}
        return ReplaceResult(
            targets=tuple(item.old.call for item in changes),
            inputs=_group((name, names[t]) for item in changes for name, t in item.interface.inputs.items()),
            outputs=_group((name, names[t]) for item in changes for t, name in item.interface.outputs.items()),
            removed=tuple(self.source.attributions[index] for index in dead),
            added=tuple(node for node in hierarchy.nodes if not node.graph and node.output in added),
            merged=tuple(dict.fromkeys(first_name(self.nodes[n].output) for i in changes for n in i.grafted.merged)),
            removed_weights=tuple(self.removed_weights()),
            added_weights=tuple(weight.header.name for weight in self.new_weights),
            kept_weights=tuple(dict.fromkeys(self._own_weights)),
            renamed=_group((old, new) for old, new in pairs if old != new and old in inner and new in added),
            notes=tuple(self.notes),
            hierarchy=hierarchy,
            model=model,
        )


def _group(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for key, value in pairs:
        groups[key] = (*groups.get(key, ()), value)
    return groups


def _move(node: Node, ids: Mapping[CallId, CallId]) -> Node:
    """Return a node under the new names of its calls; origins that are gone are left out."""
    origins = tuple(ids[origin] for origin in node.origins if origin in ids)
    scope = ids.get(node.scope) or (origins[0] if origins else ids[min(ids, key=lambda call: call != ("", 0))])
    return change(node, scope=scope, origins=origins or (scope,), consumers=None)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from find_names(onnx.ModelProto(graph=graph))


def _pair_keys(
    before: onnx.NodeProto | None, after: onnx.NodeProto
) -> Iterator[tuple[tuple[str, str], tuple[str, onnx.NodeProto]]]:
    """Yield a node and those in its bodies, by what identified them in the part, with their new keys."""
    old = walk_bodies(onnx.GraphProto(node=[after if before is None else before]))
    new = walk_bodies(onnx.GraphProto(node=[after]))
    for (old_key, old_graph), (new_key, new_graph) in zip(old, new, strict=True):
        for a, b in zip(old_graph.node, new_graph.node, strict=True):
            yield (old_key, first_name(a.output)), (new_key, b)


def _is_alike(ours: Weight, theirs: Weight) -> bool:
    return (ours.header.data_type, list(ours.header.dims)) == (theirs.header.data_type, list(theirs.header.dims))


def _is_same(ours: Weight, theirs: Weight) -> bool:
    """Say whether two weights are the same: type, shape and contents."""
    return _is_alike(ours, theirs) and ours.read_elements() == theirs.read_elements()
