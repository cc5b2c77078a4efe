"""The eager log: one plain run of the model, every operation with the module call that it ran in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._decomp import decomposition_table
from torch._ops import HigherOrderOperator, OpOverload
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from hieronnx.capture.calls import module_calls_through
from hieronnx.hierarchy import ROOT, CallId

__all__ = ["CallRecord", "EagerLog", "OpRecord", "copy_tensor", "log_eager"]

# Their callables run once per call or iteration on plain tensors. Others (flex_attention, …) run theirs
# under vmap, where there is no tensor that could be kept.
_CONTROL_FLOW = frozenset({"cond", "while_loop", "scan", "map_impl"})

_ATEN = torch.ops.aten
# No decomposition here leads back to itself or to another of these.
_WITH_PARTS: frozenset[OpOverload] = frozenset(
    {
        _ATEN.addmm.default,
        _ATEN.baddbmm.default,
        _ATEN.gelu.default,
        _ATEN.native_group_norm.default,
        _ATEN.native_layer_norm.default,
        _ATEN.silu.default,
    }
)


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One operation as torch's dispatcher saw it, and the tensors that it gave, as they were at that time."""

    op: str
    scope: CallId
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One module call: the tensors that it took and gave, user hooks applied; no outputs if it raised."""

    module: str
    index: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parent: CallId | None = None


@dataclass(frozen=True, slots=True)
class EagerLog:
    """All operations in the order they ran, and all calls in the order they began."""

    ops: tuple[OpRecord, ...]
    calls: tuple[CallRecord, ...]


def copy_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor's values in memory of their own, since in-place operations may change them later."""
    return tensor.detach().clone()


def log_eager(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    keep: Callable[[Tensor], Tensor] = copy_tensor,
    parts: bool = False,
) -> EagerLog:
    """Run the model once and log its operations by module call; inputs and torch's state stay untouched.

    `keep` says what to remember of each tensor, by default a copy; it must not share the tensor's memory.
    With `parts`, the steps inside kernels that ONNX often writes out (the product in addmm, …) are computed
    too, after the operation itself. Errors of the model's own forward pass through as they are.
    """
    recorder = _Recorder(model, keep, _WITH_PARTS if parts else frozenset())
    inputs, named_inputs = _copy_inputs(tuple(args), dict(kwargs or {}))
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=_cuda_devices(model)))
        stack.enter_context(torch.no_grad())
        # Compiled functions, torch.cond among them, then run as the Python that they were written in.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_without_fast_path())
        # Fused attention would hide its scores and their softmax, which an ONNX file may have as nodes.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(module_calls_through(recorder.run_call))
        stack.enter_context(recorder)
        model(*inputs, **named_inputs)
    return EagerLog(tuple(recorder.ops), tuple(recorder.calls.values()))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Listens to the dispatcher, and knows which module call is running."""

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module, keep: Callable[[Tensor], Tensor], with_parts: frozenset[OpOverload]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[OpRecord] = []
        self.calls: dict[CallId, CallRecord] = {}
        # named_modules gives each module once, under its first name.
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._runs: Counter[str] = Counter()
        self._running: list[CallId] = []
        self._keep = keep
        self._with_parts = with_parts

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operation and log what it gave."""
        kwargs = dict(kwargs or {})
        if isinstance(func, HigherOrderOperator):
            result = self._run_higher_order(func, args, kwargs)
        else:
            with self:
                # In inference mode and inside torch.cond, linear and its like come here whole.
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
            result = func(*args, **kwargs)
        if outputs := self._kept(result):
            self.ops.append(OpRecord(str(func), self._scope(), outputs))
        if func in self._with_parts:
            with self:
                decomposition_table[func](*args, **kwargs)
        return result

    def run_call(
        self,
        call: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run one module call, hooks and all; a module that the model does not register makes no call."""
        path = self._paths.get(id(module))
        if path is None:
            return call(module, *args, **kwargs)
        scope = CallId(path, self._runs[path])
        self._runs[path] += 1
        parent = self._running[-1] if self._running else None
        self.calls[scope] = CallRecord(*scope, self._kept((args, kwargs)), (), parent)
        self._running.append(scope)
        try:
            result = call(module, *args, **kwargs)
        finally:
            self._running.pop()
        self.calls[scope] = replace(self.calls[scope], outputs=self._kept(result))
        return result

    def _run_higher_order(self, op: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run control flow with its branches heard: inside the operator, torch has turned this mode off."""
        if str(op) in _CONTROL_FLOW:
            args = tuple(self._heard(arg) if callable(arg) else arg for arg in args)
        return op(*args, **kwargs)

    def _heard(self, branch: Callable[..., Any]) -> Callable[..., Any]:
        def run_branch(*args: Any, **kwargs: Any) -> Any:
            with self:
                return branch(*args, **kwargs)

        return run_branch

    def _scope(self) -> CallId:
        return self._running[-1] if self._running else ROOT

    def _kept(self, values: object) -> tuple[Tensor, ...]:
        with _disable_current_modes():
            return tuple(self._keep(leaf) for leaf in tree_leaves(values) if _holds_values(leaf))


def _holds_values(leaf: object) -> bool:
    # A tensor inside vmap stands for one of many and dies with it.
    return isinstance(leaf, Tensor) and not is_functorch_wrapped_tensor(leaf)


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Make nn.TransformerEncoder and nn.MultiheadAttention call their children, not one fused kernel."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _copy_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copy the inputs, since a forward may write to them: a key-value cache grows with every run."""
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    # deepcopy refuses tensors that are the result of a differentiable computation.
    memo: dict[int, Any] = {id(leaf): copy_tensor(leaf) for leaf in leaves if not leaf.is_leaf}
    return deepcopy((args, kwargs), memo)


def _cuda_devices(model: nn.Module) -> list[int]:
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    return sorted({device.index or 0 for device in devices if device.type == "cuda"})
