"""The checks of a hierarchy against its model in PyTorch: modules, their classes, and the calls that it makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hieronnx.errors import InputError, describe_error, list_some, require
from hieronnx.files.claims import Finding
from hieronnx.files.torch_scopes import STRATEGY
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Module
from hieronnx.hierarchy.targets import find_outermost

if TYPE_CHECKING:
    from torch import nn

_SHOWN = 5
_OTHER_MODEL = "give the model that the file was made of, or export this one again"
_NEVER_RAN = "nothing, if the model does not use it on these inputs; otherwise export it with inputs that do"
_NO_NODES = "nothing, if it does nothing or was folded; 'hieronnx extract' with its name says what became of it"
_OTHER_RUN = "give the inputs that the model was exported with; or export it again, if it was changed since"
_COUNTED = frozenset({"captured", "htp", "carried", None})
"""The strategies that know each call of a module."""


def check_reference(
    hierarchy: Hierarchy, model: nn.Module, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
) -> list[Finding]:
    """Compare a hierarchy with the model that it should be of; with inputs, also the calls that the model makes.

    Raises:
        InputError: If the model is none, or cannot be run on these inputs.
    """
    require("torch", "torch")
    from torch import nn

    from hieronnx.capture.modules import describe_modules, module_names

    if not isinstance(model, nn.Module):
        raise InputError(f"the reference is a {type(model).__name__}; it must be a torch.nn.Module")
    modules, names = describe_modules(model, hierarchy.policy), module_names(model)
    findings = [*_check_modules(hierarchy, modules, names), *_check_ran(hierarchy, modules, names)]
    findings += _check_nodes(hierarchy)
    if (args or kwargs) and hierarchy.strategy in _COUNTED:
        findings += _check_calls(hierarchy, _count_calls(model, args, kwargs))
    return findings


def _check_modules(hierarchy: Hierarchy, modules: Mapping[str, Module], names: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the model has the modules of the file, and that they are of the same classes."""
    for path in _topmost(path for path in hierarchy.modules if path not in names):
        message = f"the file has this {hierarchy.modules[path].class_name}, the model has no such module"
        yield Finding("model", "error", _place(path), message, _OTHER_MODEL)
    for path, module in hierarchy.modules.items():
        own = modules[names[path]].class_name if path in names else module.class_name
        if own != module.class_name:
            message = f"it is a {module.class_name} in the file, a {own} in the model"
            yield Finding("model", "error", _place(path), message, _OTHER_MODEL)


def _check_ran(hierarchy: Hierarchy, modules: Mapping[str, Module], names: Mapping[str, str]) -> Iterator[Finding]:
    """Find the modules of the model that the file does not know, and those that have never run."""
    called = {names.get(call.id.module) for call in hierarchy.calls}
    idle = [path for path, module in modules.items() if module.expected_tag is not None and path not in called]
    # Without the sidecar of an export only the modules that were called are known.
    whole = hierarchy.modules[""].parameter_count is not None
    known = {names.get(path) for path in hierarchy.modules}
    for path in _topmost(idle):
        name = modules[path].class_name
        if whole and path not in known:
            message = f"the model has this {name}, the file does not know of it"
            yield Finding("model", "error", _place(path), message, _OTHER_MODEL)
        else:
            what = "has no node, so that torch does not name it" if hierarchy.strategy == STRATEGY else "never ran"
            message = f"this {name} {what}; its tag would be '{modules[path].expected_tag}'"
            yield Finding("model", "note", _place(path), message, _NEVER_RAN)


def _check_nodes(hierarchy: Hierarchy) -> Iterator[Finding]:
    """Find the calls of which the file has no node."""
    lacking = find_outermost(hierarchy.calls, {call.id for call in hierarchy.calls} - hierarchy.working_calls)
    if lacking:
        calls = [f"'{call.id}'" for call in hierarchy.calls if call.id in lacking]
        message = f"the file has no node of {len(calls):,} of {len(hierarchy.calls):,}: {list_some(calls, _SHOWN)}"
        yield Finding("model", "note", "calls", message, _NO_NODES, tuple(calls))


def _count_calls(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Counter[str]:
    """Run the model, and count the calls of each module."""
    from hieronnx.capture.eager import log_eager

    try:
        log = log_eager(model, args, kwargs, keep=lambda _tensor: None)
    except Exception as error:
        raise InputError(f"the model cannot be run on these inputs ({describe_error(error)}); give others") from error
    return Counter(site.id.module for site in log.sites)


def _check_calls(hierarchy: Hierarchy, made: Counter[str]) -> Iterator[Finding]:
    """Compare how often the model calls each module with the calls of the file.

    Of control flow a file has every branch once, and a run some of them, and those often.
    """
    written = Counter(call.id.module for call in hierarchy.calls)
    branches = any(node.graph for node in hierarchy.nodes)
    others = (p for p in {**made, **written} if made[p] != written[p] and not (branches and written[p]))
    for path in _topmost(others):
        message = f"the model calls it {_times(made[path])} on these inputs, the file has it {_times(written[path])}"
        yield Finding("model", "warning", _place(path), message, _OTHER_RUN)


def _times(number: int) -> str:
    return {0: "not at all", 1: "once"}.get(number, f"{number:,} times")


def _place(path: str) -> str:
    return f"module '{path}'" if path else "root module"


def _topmost(paths: Iterable[str]) -> list[str]:
    """Leave out the paths below others: what holds of a module holds of what is in it."""
    listed = dict.fromkeys(paths)
    return [path for path in listed if not any(above in listed for above in _walk_above(path))]


def _walk_above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path
