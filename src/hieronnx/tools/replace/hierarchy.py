"""The hierarchy of a model with parts in it: their modules and calls below the calls that they replace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hieronnx.hierarchy.hierarchy import Hierarchy, walk_up
from hieronnx.hierarchy.records import BoundTensor, Call, CallId, Module
from hieronnx.hierarchy.tags import CallSite, build_calls
from hieronnx.tools.extract.hierarchy import rebase_calls, set_expected_tags


@dataclass(frozen=True, slots=True)
class GraftedCalls:
    """The modules and calls of a model with parts in it.

    Attributes:
        modules: all of them.
        calls: all of them, without what they received and returned.
        old_ids: the calls that stay, as they were and as they are now.
        part_ids: for each replaced call, the calls of the part and what they are now; none where the part has none.
    """

    modules: Mapping[str, Module]
    calls: tuple[Call, ...]
    old_ids: Mapping[CallId, CallId]
    part_ids: Sequence[Mapping[CallId, CallId]]


def graft_calls(whole: Hierarchy, targets: Sequence[CallId], part: Hierarchy | None) -> GraftedCalls:
    """Put the modules and calls of a part below calls; where they are those that are there, nothing changes."""
    same = [_find_same(whole, target, part) for target in targets]
    if part is None or all(item is not None for item in same):
        ids = {call.id: call.id for call in whole.calls}
        return GraftedCalls(whole.modules, whole.calls, ids, [item or {} for item in same])
    return _graft_others(whole, targets, part)


def _find_same(whole: Hierarchy, target: CallId, part: Hierarchy | None) -> dict[CallId, CallId] | None:
    """Return what the calls of a part are in the whole, if it is the part of that call; None if it is another."""
    if part is None:
        return {}
    rebased = rebase_calls(whole, target)
    back = {new: old for old, new in rebased.new_ids.items()}
    for call in part.calls:
        known = rebased.modules.get(call.id.module)
        if call.id not in back or known is None:
            return None
        if known.qualified_class != part.modules[call.id.module].qualified_class:
            return None
    return {call.id: back[call.id] for call in part.calls}


def _graft_others(whole: Hierarchy, targets: Sequence[CallId], part: Hierarchy) -> GraftedCalls:
    inside = {below for target in targets for below in whole.tree.below(target)} - set(targets)
    counter, sites = Counter[str](), list[CallSite]()
    old_ids: dict[CallId, CallId] = {}
    part_ids: list[dict[CallId, CallId]] = [{} for _ in targets]

    def add(path: str, parent: CallId | None, via: str) -> CallId:
        call = CallId(path, counter[path])
        counter[path] += 1
        sites.append(CallSite(call, parent, via))
        return call

    for call in whole.calls:
        if call.id in inside:
            continue
        old_ids[call.id] = add(call.id.module, None if call.parent is None else old_ids[call.parent], call.via)
        if call.id in targets:
            ids = part_ids[targets.index(call.id)]
            for below in part.calls:
                if below.parent is None:
                    ids[below.id] = old_ids[call.id]
                else:
                    path, via = _join(call.id.module, below.id.module), _join(call.via, below.via)
                    ids[below.id] = add(path, ids[below.parent], via)
    modules = _graft_modules(whole, targets, part, {site.id.module for site in sites})
    classes = {path: module.qualified_class for path, module in modules.items()}
    return GraftedCalls(modules, build_calls(sites, classes, whole.policy), old_ids, part_ids)


def _graft_modules(whole: Hierarchy, targets: Sequence[CallId], part: Hierarchy, called: set[str]) -> dict[str, Module]:
    """Return the modules: those of the part in the places of others, unless these are still called elsewhere."""
    paths = list(dict.fromkeys(target.module for target in targets))
    needed = {above for path in called for above in walk_up(path)}
    modules = dict(whole.modules)
    for root in paths:
        below = [path for path in modules if path.startswith(f"{root}.")]
        for path in below:
            if path not in needed:
                del modules[path]
        for path, module in part.modules.items():
            new = _join(root, path)
            if path and new in modules and any(item == new for item in below):
                continue  # another call of the module has it
            modules[new] = replace(module, path=new, depth=new.count(".") + 1 if new else 0)
        for above in list(walk_up(root))[1:]:
            if above in modules:
                modules[above] = _exchange(modules[above], above, root, whole.modules[root], modules[root])
    return set_expected_tags(modules, whole.policy)


def _exchange(module: Module, path: str, root: str, old: Module, new: Module) -> Module:
    """Return a module above a replaced one, with the parameters that are below it now."""
    inner = root.removeprefix(f"{path}.") if path else root
    kept = tuple(name for name in module.parameters if not name.startswith(f"{inner}."))
    counts = (module.parameter_count, old.parameter_count, new.parameter_count)
    total = None if None in counts else (counts[0] or 0) - (counts[1] or 0) + (counts[2] or 0)
    classes = dict(module.child_classes)
    if inner in classes:
        classes[inner] = new.qualified_class
    names = (*kept, *(f"{inner}.{name}" for name in new.parameters))
    return replace(module, parameters=names, parameter_count=total, child_classes=classes)


def _join(path: str, inner: str) -> str:
    return f"{path}.{inner}".strip(".") if path and inner else path or inner


def rebind(call: Call, received: Mapping[str, str], known: set[str]) -> Call:
    """Return a call with what it received and returned under new names; what is gone is not there any more."""

    def follow(bound: tuple[BoundTensor, ...] | None) -> tuple[BoundTensor, ...] | None:
        if bound is None:
            return None
        found = []
        for item in bound:
            name = None if item.tensor is None else received.get(item.tensor, item.tensor)
            found.append(item if item.graph else replace(item, tensor=name if name in known else None))
        return tuple(found)

    return replace(call, received=follow(call.received), returned=follow(call.returned))
