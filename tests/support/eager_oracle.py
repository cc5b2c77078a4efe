"""The checks' own run of a model in PyTorch: who called whom, what each call had, what each operation made.

What judges shares nothing with what is judged: plain hooks, a counter of its own, and no line of hieronnx. Tensors are
copied at once, since in-place operations may change them later.
"""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._decomp import decomposition_table
from torch._ops import HigherOrderOperator
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import TensorWeakRef

Scope = tuple[str, int]
"""A call: the module's first name in `named_modules()`, and how many calls it had before."""

aten = torch.ops.aten
# Kernels whose steps an ONNX file often has as nodes of their own. Their decompositions draw no random numbers.
_WITH_STEPS = {
    aten.addmm.default,
    aten.baddbmm.default,
    aten.gelu.default,
    aten.native_group_norm.default,
    aten.native_layer_norm.default,
    aten.silu.default,
}
# These run their callables on plain tensors; others (flex_attention, …) under vmap, where no tensor can be copied.
_CONTROL_FLOW = {"cond", "while_loop", "scan", "map_impl"}
_OPAQUE = (nn.Module, type, FunctionType, MethodType, ModuleType)

NamedTensors = tuple[tuple[str, Tensor | None], ...]
"""Tensors with the names of the arguments that hold them, `cache.keys.0`; None where vmap hides the values."""


@dataclass
class Operation:
    """One operation, the call that ran it, and copies of the tensors that it made or wrote to."""

    name: str
    scope: Scope
    outputs: Sequence[Tensor]


@dataclass
class ModuleCall:
    """One call of a module, user hooks included; it returned nothing if it raised."""

    scope: Scope
    parent: Scope | None
    received: NamedTensors
    returned: NamedTensors = ()

    @property
    def inputs(self) -> list[Tensor]:
        return [tensor for _, tensor in self.received if tensor is not None]

    @property
    def outputs(self) -> list[Tensor]:
        return [tensor for _, tensor in self.returned if tensor is not None]


@dataclass
class EagerRun:
    """All calls in the order they began, the root's first, and all operations in the order they ran."""

    calls: dict[Scope, ModuleCall]
    operations: list[Operation]

    @property
    def outputs(self) -> list[Tensor]:
        """What the model returned."""
        return self.calls["", 0].outputs


def run_model(model: nn.Module, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> EagerRun:
    """Run the model once on copies of its inputs; its buffers, hooks and the random state are then as before."""
    observer = _Observer()
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    # deepcopy alone refuses what a differentiable computation made.
    args, kwargs = deepcopy((tuple(args), dict(kwargs or {})), {id(leaf): leaf.detach().clone() for leaf in leaves})
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(_restored_buffers(model))
        # What is compiled, torch.cond's branches too, runs as the Python it was written in.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        # One kernel in the place of children or of an attention's steps would hide them.
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        for path, module in model.named_modules():
            # Not as methods: those of a scripted module refuse.
            enter = observer.hook_before(path)
            before = nn.Module.register_forward_pre_hook(module, enter, prepend=True, with_kwargs=True)
            stack.callback(before.remove)
            after = nn.Module.register_forward_hook(module, observer.leave, always_call=True)
            stack.callback(after.remove)
        stack.enter_context(observer)
        model(*args, **kwargs)
    return EagerRun(observer.calls, observer.operations)


@contextmanager
def _restored_buffers(model: nn.Module) -> Iterator[None]:
    """Undo what a forward writes to buffers, or puts in their place."""
    buffers = [(m, name, b, b.clone()) for m in model.modules() for name, b in m._buffers.items() if b is not None]
    try:
        yield
    finally:
        for module, name, buffer, values in buffers:
            module._buffers[name] = buffer
            if not torch.equal(buffer, values):
                buffer.copy_(values)


class _Observer(TorchDispatchMode):
    """Counts calls as the hooks tell it, and logs each operation under the innermost call that is running."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Scope, ModuleCall] = {}
        self.operations: list[Operation] = []
        self._counts: Counter[str] = Counter()
        self._running: list[tuple[nn.Module, Scope]] = []
        self._copying = False
        self._in_memory: dict[int, list[TensorWeakRef]] = defaultdict(list)

    # -- module calls

    def hook_before(self, path: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            scope = path, self._counts[path]
            self._counts[path] += 1
            parent = self._running[-1][1] if self._running else None
            self.calls[scope] = ModuleCall(scope, parent, self._copy_named(_name_arguments(module, args, kwargs)))
            self._running.append((module, scope))

        return enter

    def leave(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        running, scope = self._running.pop()
        assert running is module, f"{scope} was left in another's place"
        self.calls[scope].returned = self._copy_named([("", result)])

    def _copy_named(self, named: Iterable[tuple[str, Any]]) -> NamedTensors:
        seen: set[int] = set()
        found = [pair for name, value in named for pair in _find_tensors(name, value, seen)]
        return tuple((name, self._copy(tensor) if _has_values(tensor) else None) for name, tensor in found)

    def _copy(self, tensor: Tensor) -> Tensor:
        self._copying = True
        try:
            return tensor.detach().clone()
        finally:
            self._copying = False

    # -- operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._copying:
            return func(*args, **kwargs)
        if isinstance(func, HigherOrderOperator):
            if str(func) in _CONTROL_FLOW:
                args = tuple(self._observed(arg) if callable(arg) else arg for arg in args)
            result = func(*args, **kwargs)
            self._log(str(func), _tensors(result))
            return result
        with self:  # in inference mode and inside control flow, linear and its like come here whole
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        for tensor in _tensors((args, kwargs)):
            self._remember(tensor)
        result = func(*args, **kwargs)
        made = _tensors(result)
        self._log(str(func), [*made, *self._changed(func, args, kwargs, made)])
        if func in _WITH_STEPS:
            with self:
                decomposition_table[func](*args, **kwargs)
        return result

    def _observed(self, branch: Callable[..., Any]) -> Callable[..., Any]:
        """Let a branch be observed: inside the operator torch has turned the mode off."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return branch(*args, **kwargs)

        return run

    def _log(self, name: str, tensors: Iterable[Tensor]) -> None:
        copies = []
        for tensor in tensors:
            self._remember(tensor)
            copies.append(self._copy(tensor))
        if copies:
            self.operations.append(Operation(name, self._running[-1][1] if self._running else ("", 0), copies))

    def _remember(self, tensor: Tensor) -> None:
        others = self._in_memory[_memory(tensor)]
        if not any(ref() is tensor for ref in others):
            others.append(TensorWeakRef(tensor))

    def _changed(self, func: Any, args: Any, kwargs: Any, made: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the tensors that share memory with what an operation wrote to: they have new values, too."""
        if not func._schema.is_mutable:
            return
        given = [*zip(func._schema.arguments, args, strict=False)]
        given += [(argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs]
        written = [
            value for argument, value in given if argument.alias_info is not None and argument.alias_info.is_write
        ]
        for memory in {_memory(tensor): None for tensor in _tensors(written)}:
            alive = [tensor for ref in self._in_memory[memory] if (tensor := ref()) is not None]
            yield from (t for t in alive if _memory(t) == memory and not any(t is other for other in made))


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and _has_values(leaf)]


def _has_values(tensor: Tensor) -> bool:
    # Inside vmap a tensor stands for one of many.
    return not is_functorch_wrapped_tensor(tensor)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


# -- the tensors among arguments and results


def _name_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Name arguments as the signature of `forward` does; what `**more` takes has its own names."""
    try:
        signature = inspect.signature(module.forward)
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # scripted, or written in C
        return [*((str(place), value) for place, value in enumerate(args)), *kwargs.items()]
    catch_all = inspect.Parameter.VAR_KEYWORD
    named = [(name, value) for name, value in bound.items() if signature.parameters[name].kind is not catch_all]
    more = [value for name, value in bound.items() if signature.parameters[name].kind is catch_all]
    return [*named, *(item for held in more for item in held.items())]


def _find_tensors(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors inside a value, those in the attributes of unknown objects too, each with the way to it."""
    if isinstance(value, Tensor):
        yield name, value
        return
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, list | tuple | deque):
        inner = enumerate(value)
    elif isinstance(value, dict):
        inner = list(dict.items(value))
    elif not isinstance(value, _OPAQUE) and id(value) not in seen:
        seen.add(id(value))
        slots = [slot for cls in type(value).__mro__ for slot in vars(cls).get("__slots__", ()) if hasattr(value, slot)]
        inner = [*((slot, getattr(value, slot)) for slot in slots), *getattr(value, "__dict__", {}).items()]
    for step, found in inner:
        yield from _find_tensors(f"{name}.{step}" if name else str(step), found, seen)
