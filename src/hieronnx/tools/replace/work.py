"""A replacement while it is done: which weights, which nodes, the new graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, list_some
from hieronnx.files.opening import OpenedModel
from hieronnx.files.weights import Weight, find_weights
from hieronnx.files.wire import locate_initializers
from hieronnx.graph.walks import function_key
from hieronnx.hierarchy.records import CallId, Initializer
from hieronnx.tools.extract.extracting import Extractor
from hieronnx.tools.extract.find import Part
from hieronnx.tools.extract.hierarchy import rebase_calls, rebase_parameter
from hieronnx.tools.extract.model import find_names, make_model
from hieronnx.tools.replace.graph import Grafted, Names, find_alive, graft, sort_nodes
from hieronnx.tools.replace.interface import Interface


@dataclass(slots=True)
class Change:
    """What became of one call."""

    old: Part
    interface: Interface
    grafted: Grafted
    weights: dict[str, str]


class Work:
    """A replacement while it is done."""

    def __init__(
        self, extractor: Extractor, replaced: Sequence[Part], part: OpenedModel, interfaces: Sequence[Interface]
    ) -> None:
        self.source, self.types = extractor.source, extractor.types
        self.replaced, self.interfaces, self.part = replaced, interfaces, part
        self.nodes = [ir.serde.serialize_node(node) for node in part.model.graph]
        self.new_weights: list[Weight] = []
        self.changes: list[Change] = []
        self.notes: list[str] = []
        self.own_weights: list[str] = []
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
        ours = {w.header.name: w for w in self._all_weights()}
        foreign: set[str] = set()
        for old in self.replaced:
            held = self._list_held(old) if len(self.replaced) > 1 else {}
            chosen: dict[str, str] = {}
            for name, weight in own.items():
                item = parameters.get(name)
                same = name if name in ours and _is_same(ours[name], weight) else None
                if len(self.replaced) > 1:
                    same = _find_own(item, weight, held, ours) or same
                    foreign |= {name} if same is None and item is not None and item.parameter else set()
                if same is not None:
                    chosen[name] = same
            self._weights.append(chosen)
        kept = ours.keys() - set(self._list_unread())
        taken = Names([*self._names_that_stay(), *kept, *(same for c in self._weights for same in c.values())])
        lacking = [name for name in own if any(name not in chosen for chosen in self._weights)]
        added = {name: taken.take(name) for name in lacking}
        for name, new in added.items():
            self.new_weights += find_weights(opened, [graph.initializers[name]], located, {name: new})
        self._weights = [{name: chosen.get(name) or added[name] for name in own} for chosen in self._weights]
        self.own_weights = [name for name in own if name not in added]
        if foreign:
            self.notes.append(
                f"all {len(self.replaced)} calls have the part's own {list_some(sorted(foreign), 3)}: the model has no "
                "parameter of that name, type and shape for each"
            )

    def _list_held(self, old: Part) -> dict[tuple[str, tuple[CallId, ...]], list[str]]:
        """Return the initializers that hold parameters of a call, by these and by who folded work into them."""
        rebased = rebase_calls(self.source.hierarchy, old.call)
        held: dict[tuple[str, tuple[CallId, ...]], list[str]] = {}
        for item in self.source.hierarchy.initializers:
            owner = (item.parameter or "").rpartition(".")[0]
            if item.parameter and owner in rebased.paths:
                origins = tuple(rebased.new_ids[origin] for origin in item.origins if origin in rebased.new_ids)
                held.setdefault((rebase_parameter(item.parameter, rebased), origins), []).append(item.name)
        return held

    def _all_weights(self) -> list[Weight]:
        initializers = self.source.opened.model.graph.initializers.values()
        return find_weights(self.source.opened, initializers, self.source.located, {})

    def kept_weights(self) -> list[Weight]:
        """Return the initializers of the model that stay: all but those that only removed nodes read."""
        gone = set(self.removed_weights())
        return [weight for weight in self._all_weights() if weight.header.name not in gone]

    def removed_weights(self) -> list[str]:
        """Return the initializers that only removed nodes read."""
        used = {new for change_ in self.changes for new in change_.weights.values()}
        used -= {weight.header.name for weight in self.new_weights}  # one of that name and other contents goes
        return [name for name in self._list_unread() if name not in used]

    def _list_unread(self) -> list[str]:
        """Return the initializers that old parts read and no node that stays does."""
        view = self.source.view
        read = {t for index in self.alive for t in view.nodes[index].reads} | set(view.graphs[0].outputs)
        dead = (index for index in view.nodes_in[0] if index not in self.alive)
        unread = dict.fromkeys(t for i in dead for t in view.nodes[i].reads if t in view.constants and t not in read)
        return [view.names[t] for t in unread if view.tensor_graphs[t] == 0]

    def _names_that_stay(self) -> Iterator[str]:
        """Yield the names of tensors that the model has without the old parts, bodies included."""
        view, main = self.source.view, self.source.view.graphs[0]
        yield from (view.names[t] for t in (*main.inputs, *main.outputs))
        yield from (view.names[t] for part in self.replaced for t in part.outputs)
        yield from (view.names[t] for part in self.replaced for i in part.pulled_in for t in view.nodes[i].makes)
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
            self.changes.append(Change(old, interface, grafted, weights))
        view = self.source.view
        read = {name for item in self.changes for _, node in item.grafted.nodes for name in _reads(node)}
        made = {name for item in self.changes for _, node in item.grafted.nodes for name in node.output}
        made |= {weight.header.name for weight in self.new_weights}
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


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from find_names(onnx.ModelProto(graph=graph))


def _is_alike(ours: Weight, theirs: Weight) -> bool:
    return (ours.header.data_type, list(ours.header.dims)) == (theirs.header.data_type, list(theirs.header.dims))


def _is_same(ours: Weight, theirs: Weight) -> bool:
    """Say whether two weights are the same: type, shape and contents."""
    return _is_alike(ours, theirs) and ours.read_elements() == theirs.read_elements()


def _find_own(
    item: Initializer | None,
    weight: Weight,
    held: Mapping[tuple[str, tuple[CallId, ...]], Sequence[str]],
    ours: Mapping[str, Weight],
) -> str | None:
    """Return the one initializer of the model that holds a call's own parameter in the form that the part's has."""
    if item is None or item.parameter is None:
        return None
    alike = [name for name in held.get((item.parameter, item.origins), ()) if _is_alike(ours[name], weight)]
    return alike[0] if len(alike) == 1 else None
