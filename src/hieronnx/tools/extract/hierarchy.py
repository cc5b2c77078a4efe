"""The hierarchy of a part, rooted at its module: what the module would have if it had been exported by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hieronnx.graph.view import NO_TENSOR
from hieronnx.graph.walks import body_key
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import BoundTensor, Call, CallId, Initializer, Module, Node
from hieronnx.hierarchy.tags import CallSite, TagPolicy, build_calls
from hieronnx.tools.extract.find import Part
from hieronnx.tools.extract.source import Source


@dataclass(frozen=True, slots=True)
class Rebased:
    """The modules and calls of a part under their new names."""

    modules: Mapping[str, Module]
    calls: tuple[Call, ...]
    paths: Mapping[str, str]
    """The modules that the part has, as the whole model and as the part names them."""
    new_ids: Mapping[CallId, CallId]
    """The calls that the part has, as the whole model and as the part names them."""


def rebase_calls(hierarchy: Hierarchy, call: CallId) -> Rebased:
    """Name the modules and calls at and below a call as seen from there."""
    below = _calls_below(hierarchy, call)
    paths = _rebase_paths(hierarchy, below)
    numbers: dict[str, int] = defaultdict(int)
    new_ids: dict[CallId, CallId] = {}
    sites: list[CallSite] = []
    for item in below:
        path = paths[item.id.module]
        new_ids[item.id] = CallId(path, numbers[path])
        numbers[path] += 1
        parent = None if item.parent is None or item.id == call else new_ids[item.parent]
        sites.append(CallSite(new_ids[item.id], parent, _relative(item.via, below[0].via)))
    modules = _rebase_modules(hierarchy, paths)
    classes = {path: module.qualified_class for path, module in modules.items()}
    return Rebased(modules, build_calls(sites, classes, _policy_of(hierarchy)), paths, new_ids)


def _calls_below(hierarchy: Hierarchy, call: CallId) -> list[Call]:
    inside = {call}
    found = [hierarchy.call_by_id[call]]
    for item in hierarchy.calls:  # each after the one above it
        if item.parent in inside and item.id not in inside:
            inside.add(item.id)
            found.append(item)
    return found


def _rebase_paths(hierarchy: Hierarchy, calls: Iterable[Call]) -> dict[str, str]:
    """Map the modules of a part to their paths in it; those that are reached from elsewhere keep their own."""
    first, *rest = calls
    root = first.id.module
    paths = {root: ""}
    for path in hierarchy.modules:
        if _is_below(path, root):
            paths[path] = _relative(path, root)
    own = set(paths.values())
    for call in rest:
        path = call.id.module
        if path not in paths:
            name = _name_borrowed(call.via, first.via, own)
            paths[path] = name
            for below in hierarchy.modules:
                if _is_below(below, path):
                    paths.setdefault(below, f"{name}.{_relative(below, path)}")
    return paths


def _name_borrowed(via: str, above: str, own: Collection[str]) -> str:
    """Return the path of a module that is not below the part's: as it is reached, and not that of another one."""
    name = _relative(via, above)
    if _is_below(via, above):
        while name in own:
            name += "_"
        return name
    step, *rest = name.split(".")
    while step in own:
        step += "_"
    return ".".join((step, *rest))


def _rebase_modules(hierarchy: Hierarchy, paths: Mapping[str, str]) -> dict[str, Module]:
    """Return the modules of a part; those that come from elsewhere with the modules that they lie in there."""
    modules = {new: _rebase_module(hierarchy.modules[old], new) for old, new in paths.items()}
    root = next(iter(paths))
    for old, new in paths.items():
        while new and not _is_below(old, root):
            (above, _, step), old = new.rpartition("."), old.rpartition(".")[0]
            if above not in modules:
                if not old or old not in hierarchy.modules:
                    break
                modules[above] = _make_holder(hierarchy.modules[old], above)
            if step not in modules[above].children:
                modules[above] = replace(modules[above], children=(*modules[above].children, step))
            new = above
    return modules


def _make_holder(module: Module, path: str) -> Module:
    """Return a module of which the part has only some that lie in it: all else of it is not known there."""
    bare = replace(module, parameters=(), direct_parameters=(), parameter_count=None, children=())
    return _rebase_module(bare, path)


def _is_below(path: str, above: str) -> bool:
    return bool(path) and (not above or path.startswith(f"{above}."))


def _relative(path: str, above: str) -> str:
    """Return a path as seen from another above it; one from elsewhere as it is."""
    if path == above:
        return ""
    return path.removeprefix(f"{above}.") if above else path


def _rebase_module(module: Module, path: str) -> Module:
    return replace(module, path=path, depth=path.count(".") + 1 if path else 0)


def _policy_of(hierarchy: Hierarchy) -> TagPolicy:
    """Return the policy that gave the calls their tags, as far as it can be told from them."""
    tagged = (hierarchy.modules[call.id.module].class_name for call in hierarchy.calls[1:] if call.tagged)
    return TagPolicy(frozenset(tagged))


# -- nodes and initializers -------------------------------------------------------------------------------


def rebase_hierarchy(source: Source, part: Part, rebased: Rebased, renamed: Mapping[str, str]) -> Hierarchy:
    """Return the hierarchy of a part's model.

    Args:
        source: The whole model.
        part: The part.
        rebased: Its modules and calls.
        renamed: The initializers that have another name in it.
    """
    served = _served_scopes(source, part, rebased)
    walked = list(_walk(source, part))
    nodes = (
        replace(_rebase_node(source, index, rebased, served.get(index, part.call)), graph=key) for index, key in walked
    )
    held = _rebase_initializers(source, part, rebased, renamed)
    calls = _rebase_ends(source, rebased, _name_tensors(source, part, walked, renamed))
    return Hierarchy(rebased.modules, tuple(calls), tuple(nodes), tuple(held))


def _name_tensors(
    source: Source, part: Part, walked: Sequence[tuple[int, str]], renamed: Mapping[str, str]
) -> dict[int, tuple[str, str]]:
    """Return the tensors that a part has, each with its graph and its name there."""
    view = source.view
    found = {t: ("", renamed.get(view.names[t], view.names[t])) for t in (*part.inputs, *part.initializers)}
    inner = {graph: key for index, key in walked if (graph := view.nodes[index].graph) not in part.graphs}
    for index, key in walked:
        found |= {t: (key, view.names[t]) for t in view.nodes[index].outputs if t != NO_TENSOR}
        # What a body itself is given, and has as initializers.
        own = (t for t in view.nodes[index].reads if view.tensor_graphs[t] in inner)
        found |= {t: (inner[view.tensor_graphs[t]], view.names[t]) for t in own}
    return found


def _rebase_ends(source: Source, rebased: Rebased, tensors: Mapping[int, tuple[str, str]]) -> Iterator[Call]:
    """Yield the calls of a part with what they received and returned, as far as the part has it."""
    whole = source.hierarchy.call_by_id
    old_ids = {new: old for old, new in rebased.new_ids.items()}
    for call in rebased.calls:
        old = whole[old_ids[call.id]]
        received, returned = (_rebase_passed(source, passed, tensors) for passed in (old.received, old.returned))
        yield replace(call, received=received, returned=returned)


def _rebase_passed(
    source: Source, passed: Iterable[BoundTensor] | None, tensors: Mapping[int, tuple[str, str]]
) -> tuple[BoundTensor, ...] | None:
    if passed is None:
        return None
    found = []
    for item in passed:
        tensor = source.find_tensor(item)
        graph, name = tensors.get(tensor, ("", None)) if tensor is not None else ("", None)
        found.append(BoundTensor(item.name, name, graph))
    return tuple(found)


def _rebase_node(source: Source, index: int, rebased: Rebased, served: CallId) -> Node:
    """Return a node under its new calls; one that belongs to none of them serves one."""
    old = source.attributions[index]
    inside = [call for call in (old.scope, *old.origins) if call in rebased.new_ids]
    if not inside:
        scope = rebased.new_ids[served]
        return replace(old, scope=scope, origins=(scope,), evidence="dataflow", rule="")
    scope = rebased.new_ids[old.scope if old.scope in rebased.new_ids else source.tree.lowest_above(inside)]
    origins = tuple(rebased.new_ids[origin] for origin in old.origins if origin in rebased.new_ids)
    return replace(old, scope=scope, origins=origins or (scope,))


def _walk(source: Source, part: Part) -> Iterator[tuple[int, str]]:
    """Yield the nodes of a part in the order of its file, with the keys that their graphs have there."""
    view = source.view
    functions = {graph for graph in source.bodies_below(part.nodes) if view.graphs[graph].owner is None}
    pending = [(index, "") for index in part.nodes]
    for graph in sorted(functions):
        pending += ((index, view.graphs[graph].key) for index in source.nodes_in.get(graph, ()))
    pending.reverse()
    while pending:
        index, key = pending.pop()
        yield index, key
        output = view.node_key(index)[1]
        for body in reversed(view.nodes[index].bodies):
            inner = body_key(key, output, view.graphs[body].label)
            pending += ((index, inner) for index in reversed(source.nodes_in.get(body, ())))


def _served_scopes(source: Source, part: Part, rebased: Rebased) -> dict[int, CallId]:
    """Return for each node that came along the lowest call above all those that it serves."""
    found: dict[int, CallId] = {}
    for index in reversed(part.brought):
        readers = [r for t in source.view.nodes[index].outputs for r in source.readers[t]]
        scopes = [found[r] if r in found else source.attributions[r].scope for r in readers]
        inside = [scope for scope in scopes if scope in rebased.new_ids]
        found[index] = source.tree.lowest_above(inside) if inside else part.call
    return found


def _rebase_initializers(
    source: Source, part: Part, rebased: Rebased, renamed: Mapping[str, str]
) -> Iterable[Initializer]:
    known = {held.name: held for held in source.hierarchy.initializers}
    for tensor in part.initializers:
        name = source.view.names[tensor]
        old = known.get(name, Initializer(name, None, ()))
        origins = tuple(rebased.new_ids[origin] for origin in old.origins if origin in rebased.new_ids)
        # What others made of a parameter of theirs is none any more to this module.
        made_outside = bool(old.origins) and not origins and not _is_below(old.parameter or "", part.call.module)
        parameter = None if old.parameter is None or made_outside else rebase_parameter(old.parameter, rebased)
        yield Initializer(renamed.get(name, name), parameter, origins)


def rebase_parameter(parameter: str, rebased: Rebased) -> str:
    """Return a parameter's path as seen from the part's module; one from elsewhere keeps its own."""
    owner, _, name = parameter.rpartition(".")
    if owner not in rebased.paths:
        return parameter
    return f"{rebased.paths[owner]}.{name}".removeprefix(".")
