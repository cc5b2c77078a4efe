"""The module table: what is known of each module without running it, names and metadata only."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from hieronnx.hierarchy.records import Module
from hieronnx.hierarchy.tags import TagPolicy, expect_tags

_JSON_SCALARS = frozenset({str, int, float, bool, type(None)})
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def describe_modules(model: nn.Module, policy: TagPolicy | None = None) -> dict[str, Module]:
    """Describe every module of the model by its canonical path, in the order of `named_modules()`.

    The policy is that of the tags to expect; None for the default.
    """
    named = dict(model.named_modules())
    modules = {path: _describe(path, module) for path, module in named.items()}
    containers = {path for path, module in named.items() if path and not _has_forward(module)}
    classes = {path: module.qualified_class for path, module in modules.items()}
    tags = expect_tags(classes, containers, policy or TagPolicy())
    return {path: replace(module, expected_tag=tags.get(path)) for path, module in modules.items()}


def _has_forward(module: nn.Module) -> bool:
    """Say whether a module can be called: lists and dicts of modules cannot."""
    forward = getattr(module, "forward", None)  # a scripted list has none
    return forward is not None and getattr(forward, "__func__", None) is not nn.Module.forward


def _name_class(module: nn.Module) -> tuple[str, str]:
    """Return the class of a module by its own name, and by its qualified one."""
    kind, name = type(module), class_name(module)
    return name, f"{kind.__module__}.{kind.__qualname__.removesuffix(kind.__name__)}{name}"


def _describe(path: str, module: nn.Module) -> Module:
    name, qualified = _name_class(module)
    args, defaults = _describe_forward(module)
    parameters = dict(module.named_parameters())
    children = {name: child for name, child in module._modules.items() if child is not None}
    return Module(
        path=path,
        class_name=name,
        qualified_class=qualified,
        forward_args=args,
        forward_defaults=defaults,
        parameters=tuple(parameters),
        direct_parameters=tuple(name for name, _ in module.named_parameters(recurse=False)),
        parameter_count=sum(parameter.numel() for parameter in parameters.values()),
        children=tuple(children),
        depth=path.count(".") + 1 if path else 0,
        child_classes={name: _name_class(child)[1] for name, child in children.items()},
    )


def class_name(module: nn.Module) -> str:
    """Return the name of a module's class; all scripted modules are of one: what was scripted is what people know."""
    scripted = isinstance(module, torch.jit.ScriptModule)
    return str(getattr(module, "original_name", "")) or type(module).__name__ if scripted else type(module).__name__


def forward_signature(module: nn.Module) -> inspect.Signature:
    """Return the signature of a module's forward; where it was traced, what TorchScript knows of it."""
    try:
        return inspect.signature(module.forward)
    except ValueError:
        if not isinstance(module, torch.jit.ScriptModule):
            raise
        kind, none = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
        arguments = module._c._get_method("forward").schema.arguments[1:]
        defaults = (item.default_value if item.has_default_value() else none for item in arguments)
        pairs = zip(arguments, defaults, strict=True)
        return inspect.Signature([inspect.Parameter(item.name, kind, default=default) for item, default in pairs])


def _describe_forward(module: nn.Module) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError, AttributeError):  # written in C, traced, or a scripted list, which has no forward
        return (), {}
    defaults = {p.name: p.default for p in signature.parameters.values() if p.default is not p.empty}
    return tuple(signature.parameters), {
        name: value if _is_json(value) else _ADDRESS.sub("", repr(value))  # no two runs share addresses
        for name, value in defaults.items()
    }


def _is_json(value: object) -> bool:
    """Say whether a value is one of JSON's; a subclass is not: it may be anything to whoever encodes it."""
    if isinstance(value, list | tuple):
        return all(_is_json(item) for item in value)
    if isinstance(value, dict):
        return all(_is_json(key) and isinstance(key, str) and _is_json(item) for key, item in value.items())
    return type(value) in _JSON_SCALARS and (not isinstance(value, float) or math.isfinite(value))


def module_names(model: nn.Module) -> dict[str, str]:
    """Map every name of a module, aliases included, to its canonical path."""
    first = {id(module): path for path, module in model.named_modules()}
    return {name: first[id(module)] for name, module in model.named_modules(remove_duplicate=False)}


def parameter_names(model: nn.Module) -> dict[str, str]:
    """Map every name of a parameter or buffer, aliases included, to its canonical name."""
    first: dict[int, str] = {}
    named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}
