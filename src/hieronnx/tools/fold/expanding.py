"""Functions written out: their nodes in the place of each call, with the names and scopes that they had there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx

from hieronnx.errors import HieronnxError
from hieronnx.files.claims import DEEPEST_CALL
from hieronnx.files.metadata import PREFIX, embed_in_nodes
from hieronnx.graph.walks import body_key, first_name, function_key, proto_bodies
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.runtime.flattening import fill_references
from hieronnx.tools.fold.record import ORIGINS_KEY, SCOPE_KEY, CallRecord, FoldRecord, decode_ways, digest_operators
from hieronnx.tools.fold.scopes import RelativeScopes
from hieronnx.tools.fold.types import UnfoldedTypes
from hieronnx.tools.replace.graph import Names


@dataclass(slots=True)
class _Tape:
    """The record of a call, read while its nodes are written out."""

    record: CallRecord
    row: int = 0
    node: int = 0

    def next_names(self) -> list[str]:
        self.row += 1
        return self.record.names[self.row - 1]


@dataclass(slots=True)
class Frame:
    """A graph while it is written out.

    Attributes:
        key: that of the graph in the file as it is.
        target: that of the graph that its nodes go to.
        names: for its tensors the names that they get.
        given: those of them that the call decides.
        attributes: what the call gives.
        base: the call that scopes are relative to; None where they are not.
        around: the call of the function as it is attributed.
        tape: the names that nodes had; None where they are not known.
        prefix: what makes names of their own.
        types: what the function says of its tensors, by their names in it.
        depth: how many functions it lies in.
    """

    key: str
    target: str
    names: dict[str, str] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    attributes: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)
    base: CallId | None = None
    around: Node | None = None
    tape: _Tape | None = None
    prefix: str = ""
    types: Mapping[str, onnx.ValueInfoProto] = field(default_factory=dict)
    depth: int = 0

    def require_name(self, name: str) -> str:
        """Return the name that a tensor of the graph must get; nothing where it may be any."""
        return self.given.get(name) or (name if not self.prefix and self.tape is None else "")


@dataclass(frozen=True, slots=True)
class Expanded:
    """A node of the main graph as it is written out, and whose it and those in its bodies are."""

    node: onnx.NodeProto
    attributions: tuple[Node, ...]


class Expander:
    """Writes out the functions of a model; the nodes of some of them have relative scopes."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        functions: Iterable[onnx.FunctionProto],
        record: FoldRecord | None,
        relative: Collection[str],
        taken: Iterable[str],
    ) -> None:
        self._by_key, self._scopes = hierarchy.node_by_key, RelativeScopes(hierarchy.tree)
        self._functions = {(f.domain, f.name, f.overload): f for f in functions}
        self._embedded = embed_in_nodes(hierarchy) if self._functions else {}
        self._record, self._relative, self._taken = record, relative, Names(taken)
        self.frames: dict[CallId, Frame] = {}
        """For each call of a function with relative scopes, how its tensors are named."""
        self.uses: dict[str, int] = {}
        """How often each function was called."""
        self.inexact: list[CallId] = []
        """The calls of functions whose nodes get new names."""
        self.types = UnfoldedTypes(() if record is None else record.types)

    def expand(self, nodes: Iterable[onnx.NodeProto], frame: Frame) -> Iterator[Expanded]:
        """Yield nodes of a graph, with those of functions in the place of their calls."""
        for node in nodes:
            function = self._functions.get((node.domain, node.op_type, node.overload))
            filled = fill_references(node, frame.attributes)
            if function is None:
                yield self._place(filled, frame)
            else:
                yield from self._call(filled, function, frame)

    # -- nodes --------------------------------------------------------------------------------------------

    def _place(self, node: onnx.NodeProto, frame: Frame) -> Expanded:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        name, outputs = self._name_node(node, frame)
        place = -1 if frame.tape is None else frame.tape.node
        if frame.tape is not None:
            frame.tape.node += 1
        copy.name = name
        copy.input[:] = [frame.names.get(item, item) for item in node.input]
        for old, new in zip(node.output, outputs, strict=True):
            if old:
                frame.names[old] = new
                self.types.find(frame.target, new, frame.types.get(old))
        copy.output[:] = outputs
        strip_scopes(copy)
        if frame.depth:
            self._restore_metadata(copy, (frame.key, first_name(node.output)), frame.tape, place)
        attribution = self._attribute(node, frame, place)
        found = [replace(attribution, graph=frame.target, name=name, output=first_name(outputs))]
        bodies = list(proto_bodies(copy))
        inner = [replace(frame, names={**frame.names, **self._name_body(body, frame)}, types={}) for _, body in bodies]
        for (label, body), inside in zip(bodies, inner, strict=True):
            inside.key = body_key(frame.key, first_name(node.output), label)
            inside.target = body_key(frame.target, first_name(outputs), label)
            found += self._place_body(body, inside)
        return Expanded(copy, tuple(found))

    def _place_body(self, body: onnx.GraphProto, frame: Frame) -> list[Node]:
        """Write out a body, in place; return whose its nodes are."""
        expanded = list(self.expand(list(body.node), frame))
        del body.node[:]
        body.node.extend(item.node for item in expanded)
        for info in (*body.input, *body.output, *body.initializer, *body.value_info):
            info.name = frame.names.get(info.name, info.name)
        self.types.put_into(body, frame.target)
        return [item for each in expanded for item in each.attributions]

    def _name_node(self, node: onnx.NodeProto, frame: Frame) -> tuple[str, list[str]]:
        if frame.tape is not None:
            name, *outputs = frame.tape.next_names()
            return name, [frame.given.get(old) or new for old, new in zip(node.output, outputs, strict=True)]
        if not frame.prefix:
            return node.name, list(node.output)
        name = frame.prefix + node.name if node.name else ""
        return name, [old and (frame.given.get(old) or self._taken.take(frame.prefix + old)) for old in node.output]

    def _name_body(self, body: onnx.GraphProto, frame: Frame) -> dict[str, str]:
        own = list(dict.fromkeys(item.name for item in (*body.input, *body.initializer)))
        if frame.tape is not None:
            return dict(zip(own, frame.tape.next_names(), strict=True))
        return {name: self._taken.take(frame.prefix + name) if frame.prefix else name for name in own}

    def _restore_metadata(self, node: onnx.NodeProto, key: tuple[str, str], tape: _Tape | None, place: int) -> None:
        """Give a node of a function what others wrote on the one that it was.

        A namespace that we wrote on the function's node is not that of a call: it is left out, to be written anew.
        """
        said = {entry.key: entry.value for entry in node.metadata_props}
        ours = self._embedded.get(key, {})
        if "namespace" in said and said["namespace"] == ours.get("namespace"):
            del said["namespace"]
        recorded = None if tape is None else tape.record.metadata.get(place)
        if recorded is not None:
            kept = {name: said.get(name) if text is None else text for name, text in recorded.items()}
            own = {name: text for name, text in said.items() if name.startswith(PREFIX)}
            said = {**{name: text for name, text in kept.items() if text is not None}, **own}
        del node.metadata_props[:]
        for name, text in said.items():
            node.metadata_props.add(key=name, value=text)

    def _attribute(self, node: onnx.NodeProto, frame: Frame, place: int) -> Node:
        known = self._by_key.get((frame.key, first_name(node.output)))
        props = {entry.key: entry.value for entry in node.metadata_props}
        if known is None or (not known.is_attributed() and frame.base is None and frame.around is not None):
            around = frame.around
            assert around is not None  # the main graph's own nodes are known
            return replace(around, op_type=node.op_type, domain=node.domain, rule="", consumers=None)
        known = replace(known, consumers=None)
        if frame.base is None or SCOPE_KEY not in props:
            return known
        scope = self._scopes.find(frame.base, props[SCOPE_KEY])
        origins = (
            self._scopes.find_all(frame.base, decode_ways(props[ORIGINS_KEY])) if ORIGINS_KEY in props else (scope,)
        )
        evidence, rule = known.evidence, known.rule
        if frame.tape is not None:
            evidence, rule = frame.tape.record.evidence.get(place, (evidence, rule))
        return replace(known, scope=scope, origins=origins, evidence=evidence, rule=rule)

    # -- calls of functions -------------------------------------------------------------------------------

    def _call(self, node: onnx.NodeProto, function: onnx.FunctionProto, frame: Frame) -> Iterator[Expanded]:
        key = function_key(function.domain, function.name, function.overload)
        self.uses[key] = self.uses.get(key, 0) + 1
        inner = self._enter(node, function, key, frame)
        yield from self.expand(function.node, inner)
        for formal, actual in zip(function.output, node.output, strict=False):
            if not actual:
                continue
            wanted = inner.given.get(formal, "")
            made = inner.names.get(formal, formal)
            final = frame.require_name(actual)
            if final and made != final:  # what it returns is an input of it, or is returned twice
                yield self._copy(made, final, inner)
                made = final
            frame.names[actual] = made or wanted
            self.types.find(frame.target, made or wanted, frame.types.get(actual))

    def _enter(self, node: onnx.NodeProto, function: onnx.FunctionProto, key: str, frame: Frame) -> Frame:
        if frame.depth == DEEPEST_CALL:
            raise HieronnxError(f"functions lie more than {DEEPEST_CALL} deep in one another; that is not read")
        props = {entry.key: entry.value for entry in node.metadata_props}
        around = self._by_key.get((frame.key, first_name(node.output))) or frame.around
        assert around is not None  # every node of the file is known
        base, tape = None, None
        if key in self._relative:
            base = around.scope if frame.base is None else self._scopes.find(frame.base, props.get(SCOPE_KEY, ""))
            tape = frame.tape or self._find_tape(base, function)
            around = replace(around, scope=base, origins=(base,))
        outer = (frame.names.get(name, name) for name in node.input)
        names = dict.fromkeys(function.input, "")
        names.update(zip(function.input, outer, strict=False))
        given = self._name_results(node, function, frame, is_free=tape is None)
        first = next((given[name] for name in function.output if name in given), first_name(node.output))
        attributes = {attribute.name: attribute for attribute in (*function.attribute_proto, *node.attribute)}
        prefix = f"{first}/{function.name}/"
        types = {info.name: info for info in function.value_info}
        inner = Frame(key, frame.target, names, given, attributes, base, around, tape, prefix, types, frame.depth + 1)
        if base is not None:
            self.frames[base] = inner
        return inner

    def _name_results(
        self, node: onnx.NodeProto, function: onnx.FunctionProto, frame: Frame, *, is_free: bool
    ) -> dict[str, str]:
        """Return the names that a call decides, by those in the function; new ones where any name is free."""
        given: dict[str, str] = {}
        for formal, actual in zip(function.output, node.output, strict=False):
            if not actual or formal in function.input:
                continue
            if name := frame.require_name(actual):
                given.setdefault(formal, name)
            elif is_free:
                given.setdefault(formal, self._taken.take(frame.prefix + actual))
        return given

    def _find_tape(self, call: CallId, function: onnx.FunctionProto) -> _Tape | None:
        """Return the record of a call if it is of this function as it is."""
        record = None if self._record is None else self._record.calls.get(str(call))
        if record is not None:
            rows = list(self._measure(function.node))
            operators = digest_operators(op_type for op_type, _ in rows if op_type is not None)
            if operators == record.operators and [len(row) for row in record.names] == [count for _, count in rows]:
                return _Tape(record)
        self.inexact.append(call)
        return None

    def _measure(self, nodes: Sequence[onnx.NodeProto]) -> Iterator[tuple[str | None, int]]:
        """Yield the operators of a function's nodes, None for bodies, and how many names each has, as a record does."""
        for node in nodes:
            function = self._functions.get((node.domain, node.op_type, node.overload))
            if function is not None:
                yield from self._measure(function.node)
                continue
            yield node.op_type, 1 + len(node.output)
            bodies = [body for _, body in proto_bodies(node)]
            for body in bodies:
                yield None, len({item.name for item in (*body.input, *body.initializer)})
            for body in bodies:
                yield from self._measure(body.node)

    def _copy(self, made: str, name: str, frame: Frame) -> Expanded:
        assert frame.around is not None  # it is of a function's call
        node = onnx.helper.make_node("Identity", [made], [name])
        known = replace(frame.around, graph=frame.target, name="", op_type="Identity", domain="", output=name)
        return Expanded(node, (replace(known, consumers=None),))


def strip_scopes(node: onnx.NodeProto) -> None:
    """Take relative scopes off a node."""
    kept = [entry for entry in node.metadata_props if entry.key not in (SCOPE_KEY, ORIGINS_KEY)]
    del node.metadata_props[:]
    node.metadata_props.extend(kept)
