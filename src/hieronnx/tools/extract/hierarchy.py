"""The hierarchy of a part, rooted at its module: what the module would have if it had been exported by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hieronnx.graph.walks import body_key
from hieronnx.hierarchy.hierarchy import CallTree, Hierarchy, find_owner, walk_up
from hieronnx.hierarchy.records import BoundTensor, Call, CallId, Initializer, Module, Node
from hieronnx.hierarchy.tags import CallSite, TagPolicy, build_calls, expect_tags
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


def rebase_part(source: Source, part: Part) -> Rebased:
    """Name the modules and calls of a part as seen from its call; of several calls, those that it has nodes of."""
    tree = source.hierarchy.tree
    if part.calls == (part.call,):
        return rebase_calls(source.hierarchy, part.call)
    below = set(tree.below(part.call))
    touched = {below for call in part.calls for below in tree.below(call)}
    nodes = (source.attributions[index] for index in part.region)
    touched |= {call for node in nodes for call in (node.scope, *node.origins)}
    inside = {above for call in touched & below for above in tree.ancestors(call)} & below
    return rebase_calls(source.hierarchy, part.call, inside | {part.call})


def rebase_calls(hierarchy: Hierarchy, call: CallId, inside: Collection[CallId] | None = None) -> Rebased:
    """Name the modules and calls at and below a call as seen from there; all, or only these, the call among them."""
    region = set(hierarchy.tree.below(call))
    inside = region if inside is None else inside
    below = [item for item in hierarchy.calls if item.id in inside]
    paths = _rebase_paths(hierarchy, below)
    numbers, new_ids, sites = Counter[str](), dict[CallId, CallId](), list[CallSite]()
    for item in below:
        path = paths[item.id.module]
        new_ids[item.id] = CallId(path, numbers[path])
        numbers[path] += 1
        parent = None if item.parent is None or item.id == call else new_ids[item.parent]
        sites.append(CallSite(new_ids[item.id], parent, _relative(item.via, below[0].via)))
    modules = _rebase_modules(hierarchy, paths, call.module)
    if len(inside) < len(region):
        modules = _leave_uncalled(modules, hierarchy.tree, new_ids, call)
    classes = {path: module.qualified_class for path, module in modules.items()}
    return Rebased(modules, build_calls(sites, classes, hierarchy.policy), paths, new_ids)


def _rebase_paths(hierarchy: Hierarchy, calls: Iterable[Call]) -> dict[str, str]:
    """Map the modules of a part to their paths in it; those that are reached from elsewhere keep their own."""
    first, *rest = calls
    root = first.id.module
    paths = {root: ""} | {path: _relative(path, root) for path in hierarchy.modules if _is_below(path, root)}
    own = set(paths.values())
    for call in rest:
        path = call.id.module
        if path in paths:
            continue
        step, dot, inner = _relative(call.via, first.via).partition(".")
        while step in own and not _is_below(call.via, first.via):
            step += "_"
        paths[path] = step + dot + inner
        for below in hierarchy.modules:
            if _is_below(below, path):
                paths.setdefault(below, f"{paths[path]}.{_relative(below, path)}")
    return paths


def _rebase_modules(hierarchy: Hierarchy, paths: Mapping[str, str], root: str) -> dict[str, Module]:
    """Return the modules of a part; those that come from elsewhere with the modules that they lie in there."""
    modules = {new: _rebase_module(hierarchy.modules[old], new) for old, new in paths.items()}
    for old, new in paths.items():
        while new and not _is_below(old, root):
            (above, _, step), old = new.rpartition("."), old.rpartition(".")[0]
            if above not in modules:
                if not old or old not in hierarchy.modules:
                    break
                # The part has only some of what lies in this module: all else of it is not known there.
                bare = replace(hierarchy.modules[old], parameters=(), direct_parameters=(), parameter_count=None)
                modules[above] = _rebase_module(replace(bare, children=(), child_classes={}), above)
            if step not in modules[above].children:
                modules[above] = _add_child(modules[above], step, modules[new])
            new = above
    return set_expected_tags(modules, hierarchy.policy)


def _leave_uncalled(
    modules: dict[str, Module], tree: CallTree, new_ids: Mapping[CallId, CallId], root: CallId
) -> dict[str, Module]:
    """Leave out the modules that are in no call of the part; of those that it has in part, the rest is not known."""
    whole = [new.module for old, new in new_ids.items() if old != root and set(tree.below(old)) <= new_ids.keys()]
    parts = {above for path in (new.module for new in new_ids.values()) for above in walk_up(path)}
    kept = {path for path in modules if path in parts or any(_is_below(path, above) for above in whole)}
    result = {}
    for path, module in modules.items():
        if path not in kept:
            continue
        if path not in whole and not any(_is_below(path, above) for above in whole):
            children = tuple(name for name in module.children if f"{path}.{name}".removeprefix(".") in kept)
            classes = {name: item for name, item in module.child_classes.items() if name in children}
            known = tuple(p for p in module.parameters if find_owner(modules, f"{path}.{p}".removeprefix(".")) in kept)
            module = replace(module, children=children, child_classes=classes, parameters=known, parameter_count=None)
        result[path] = module
    return result


def _add_child(module: Module, name: str, child: Module) -> Module:
    classes = {**module.child_classes, name: child.qualified_class}
    return replace(module, children=(*module.children, name), child_classes=classes)


def set_expected_tags(modules: dict[str, Module], policy: TagPolicy) -> dict[str, Module]:
    """Set the tags that the structure of a part lets expect; none where that of the whole model is not known."""
    containers = {path for path, module in modules.items() if path and module.expected_tag is None}
    if modules[""].expected_tag is None:
        return modules
    tags = expect_tags({path: module.qualified_class for path, module in modules.items()}, containers, policy)
    return {path: replace(module, expected_tag=tags.get(path)) for path, module in modules.items()}


def _rebase_module(module: Module, path: str) -> Module:
    return replace(module, path=path, depth=path.count(".") + 1 if path else 0)


def _is_below(path: str, above: str) -> bool:
    return bool(path) and (not above or path.startswith(f"{above}."))


def _relative(path: str, above: str) -> str:
    """Return a path as seen from another above it; one from elsewhere as it is."""
    if path == above:
        return ""
    return path.removeprefix(f"{above}.") if above else path


# -- nodes and initializers -------------------------------------------------------------------------------


def rebase_hierarchy(source: Source, part: Part, rebased: Rebased, renamed: Mapping[str, str]) -> Hierarchy:
    """Return the hierarchy of a part's model; some of the initializers have been renamed in it."""
    served = _served_scopes(source, part, rebased)
    walked = list(_walk(source, part))
    nodes = ((_rebase_node(source, index, rebased, served.get(index, part.call)), key) for index, key in walked)
    return Hierarchy(
        modules=rebased.modules,
        calls=tuple(_rebase_io(source, rebased, _name_tensors(source, part, walked, renamed))),
        nodes=tuple(replace(node, graph=key) for node, key in nodes),
        initializers=tuple(_rebase_initializers(source, part, rebased, renamed)),
        policy=source.hierarchy.policy,
        strategy=source.hierarchy.strategy,
    )


def _name_tensors(
    source: Source, part: Part, walked: Sequence[tuple[int, str]], renamed: Mapping[str, str]
) -> dict[int, tuple[str, str]]:
    """Return the tensors that a part has, each with its graph and its name there."""
    view = source.view
    tensors = {t: ("", renamed.get(view.names[t], view.names[t])) for t in (*part.inputs, *part.initializers)}
    inner = {graph: key for index, key in walked if (graph := view.nodes[index].graph) not in part.graphs}
    for index, key in walked:
        tensors |= {t: (key, view.names[t]) for t in view.nodes[index].makes}
        # What a body itself is given, and has as initializers.
        own = (t for t in view.nodes[index].reads if view.tensor_graphs[t] in inner)
        tensors |= {t: (inner[view.tensor_graphs[t]], view.names[t]) for t in own}
    return tensors


def _rebase_io(source: Source, rebased: Rebased, tensors: Mapping[int, tuple[str, str]]) -> Iterator[Call]:
    """Yield the calls of a part with what they received and returned, as far as the part has it."""
    moved = {source.view.tensor_key(tensor): key for tensor, key in tensors.items()}

    def rebase(bound: Iterable[BoundTensor] | None) -> tuple[BoundTensor, ...] | None:
        if bound is None:
            return None
        keys = ((item.name, moved.get((item.graph, item.tensor or ""), ("", None))) for item in bound)
        return tuple(BoundTensor(name, tensor, graph) for name, (graph, tensor) in keys)

    for old, call in zip(rebased.new_ids, rebased.calls, strict=True):
        whole = source.hierarchy.call_by_id[old]
        yield replace(call, received=rebase(whole.received), returned=rebase(whole.returned))


def _rebase_node(source: Source, index: int, rebased: Rebased, served: CallId) -> Node:
    """Return a node under its new calls; one that belongs to none of them serves one."""
    old = source.attributions[index]
    inside = [call for call in (old.scope, *old.origins) if call in rebased.new_ids]
    if not inside:
        scope = rebased.new_ids[served]
        return replace(old, scope=scope, origins=(scope,), evidence="dataflow", rule="", consumers=None)
    scope = rebased.new_ids[old.scope if old.scope in rebased.new_ids else source.hierarchy.tree.lowest_above(inside)]
    origins = tuple(rebased.new_ids[origin] for origin in old.origins if origin in rebased.new_ids)
    return replace(old, scope=scope, origins=origins or (scope,), consumers=None)  # those of the whole model


def _walk(source: Source, part: Part) -> Iterator[tuple[int, str]]:
    """Yield the nodes of a part in the order of its file, with the keys that their graphs have there."""
    view = source.view
    pending = [(index, "") for index in part.nodes]
    for graph in source.functions_below(part.nodes):
        pending += ((index, view.graphs[graph].key) for index in view.nodes_in[graph])
    pending.reverse()
    while pending:
        index, key = pending.pop()
        yield index, key
        output = view.node_key(index)[1]
        for body in reversed(view.nodes[index].bodies):
            inner = body_key(key, output, view.graphs[body].label)
            pending += ((index, inner) for index in reversed(view.nodes_in[body]))


def _served_scopes(source: Source, part: Part, rebased: Rebased) -> dict[int, CallId]:
    """Return for each node that came along the lowest call above all those that it serves."""
    served: dict[int, CallId] = {}
    for index in reversed(part.pulled_in):
        readers = [r for t in source.view.nodes[index].makes for r in source.view.consumers[t]]
        scopes = [served[r] if r in served else source.attributions[r].scope for r in readers]
        inside = [scope for scope in scopes if scope in rebased.new_ids]
        served[index] = source.hierarchy.tree.lowest_above(inside) if inside else part.call
    return served


def _rebase_initializers(
    source: Source, part: Part, rebased: Rebased, renamed: Mapping[str, str]
) -> Iterable[Initializer]:
    initializers = {item.name: item for item in source.hierarchy.initializers}
    for tensor in part.initializers:
        name = source.view.names[tensor]
        old = initializers.get(name, Initializer(name, None, ()))
        origins = tuple(rebased.new_ids[origin] for origin in old.origins if origin in rebased.new_ids)
        # What others made of a parameter of theirs is none any more to this module.
        made_outside = bool(old.origins) and not origins and not _is_below(old.parameter or "", part.call.module)
        known = None if old.parameter is None or made_outside else _choose_name(source, rebased, name, old.parameter)
        parameter = None if known is None else rebase_parameter(known, rebased)
        yield Initializer(renamed.get(name, name), parameter, origins)


def _choose_name(source: Source, rebased: Rebased, initializer: str, parameter: str) -> str:
    """Return the name of a parameter: of one that is tied, that which a module of the part has for it.

    torch calls the initializer of a tied parameter by one of its names, and the hierarchy knows it by the first.
    """
    (owner, _, last), known = initializer.rpartition("."), parameter.rpartition(".")[0]
    here = {path for path in (owner, known) if rebased.paths.get(path) in rebased.modules}
    is_own = owner in here and last in source.hierarchy.modules[owner].direct_parameters
    return initializer if is_own and known not in here else parameter


def rebase_parameter(parameter: str, rebased: Rebased) -> str:
    """Return a parameter's path as seen from the part's module; one from elsewhere keeps its own."""
    owner, _, name = parameter.rpartition(".")
    if owner not in rebased.paths:
        return parameter
    return f"{rebased.paths[owner]}.{name}".removeprefix(".")
