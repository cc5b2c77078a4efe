"""The eager log: one plain run of the model, every operation with the module call that it ran in.

Nothing is left of such a run: neither in the inputs, nor in the model, nor in torch's state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.weak import WeakIdKeyDictionary

from hieronnx.capture import private_torch
from hieronnx.capture.calls import CallIO, CallRecorder, IORecorder, NumberedTensors, module_calls_through
from hieronnx.capture.private_torch import pytree
from hieronnx.hierarchy.records import ROOT, CallId
from hieronnx.hierarchy.tags import CallSite

# Their callables run once per call or iteration on plain tensors. Others (flex_attention, …) run theirs
# under vmap, where there is no tensor that could be kept.
_CONTROL_FLOW = frozenset({"cond", "while_loop", "scan", "map_impl"})

# No decomposition here leads back to itself or to another of these.
_WITH_PARTS = ("addmm", "baddbmm", "gelu", "native_group_norm", "native_layer_norm", "silu")


@contextmanager
def untouched(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield copies of the inputs to run the model on; afterwards its buffers and the random state are as before."""
    # A forward may write to a buffer, as normalizations in training mode do, or put another in its place.
    buffers = [
        (module, name, tensor, copy_tensor(tensor))
        for module in model.modules()
        for name, tensor in module._buffers.items()
        if tensor is not None
    ]
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers()) if tensor.is_cuda}
    with torch.random.fork_rng(devices=sorted({device.index or 0 for device in devices})), torch.no_grad():
        try:
            # A forward may write to its inputs, too: a key-value cache grows with every run.
            inputs = tuple(args), dict(kwargs or {})
            leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
            # deepcopy refuses tensors that are the result of a differentiable computation.
            yield deepcopy(inputs, {id(leaf): copy_tensor(leaf) for leaf in leaves if not leaf.is_leaf})
        finally:
            for module, name, tensor, before in buffers:
                module._buffers[name] = tensor
                if not tensor.is_meta and not torch.equal(tensor, before):
                    tensor.copy_(before)


def run_calls(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    run_call: Callable[..., Any],
    mode: AbstractContextManager[Any],
    finish: Callable[[Any], Any] = lambda _result: None,
) -> Any:
    """Run the model once in Python, module by module, each call through `run_call`; nothing is left of it.

    Return what `finish` makes of the result before buffers are put back, which may be part of it.
    """
    mha = torch.backends.mha
    with ExitStack() as stack:
        inputs, named_inputs = stack.enter_context(untouched(model, args, kwargs))
        # Compiled functions, torch.cond among them, then run as the Python that they were written in.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        # nn.TransformerEncoder and nn.MultiheadAttention then call their children, not one fused kernel.
        stack.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
        mha.set_fastpath_enabled(False)
        stack.enter_context(module_calls_through(run_call))
        stack.enter_context(mode)
        return finish(model(*inputs, **named_inputs))


def array_of(tensor: Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a tensor as an array; a type that numpy lacks as float32."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    lacking = plain.dtype == torch.bfloat16 or (plain.is_floating_point() and plain.element_size() == 1)
    array: np.ndarray[Any, np.dtype[Any]] = (plain.float() if lacking else plain).numpy()
    return array


def copy_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor's values in memory of their own, since in-place operations may change them later."""
    return tensor.detach().clone()


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One operation as torch's dispatcher saw it, and what was kept of the tensors that it gave, at that time."""

    op: str
    scope: CallId
    outputs: tuple[Any, ...]
    """What was kept of each: a copy, if nothing else was asked for."""
    reads: tuple[int, ...] = ()
    """The numbers of the values that it took: a tensor that is written to has a new value from then on."""
    gives: tuple[int, ...] = ()
    """The numbers of its outputs."""
    views: bool = False
    """Whether it gives the memory that it took in another form."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One module call: what was kept of the tensors that it took and gave, user hooks applied; none if it raised."""

    module: str
    index: int
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    reads: tuple[int, ...] = ()
    """The numbers of the values that it took, those inside objects that torch does not open last."""
    gives: tuple[int, ...] = ()
    """The numbers of those that it gave."""


@dataclass(frozen=True, slots=True)
class EagerLog:
    """All operations in the order they ran, and all calls in the order they began."""

    ops: tuple[OpRecord, ...]
    calls: tuple[CallRecord, ...]
    sites: tuple[CallSite, ...] = ()
    """Who called them, and through which attribute paths."""
    parameters: Mapping[int, str] = field(default_factory=dict)
    """The names of the parameters and buffers among the values, by their numbers."""
    passed: Mapping[CallId, CallIO] = field(default_factory=dict)
    """What each call received and returned, by the arguments that held it and the numbers of the values."""


def log_eager(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    keep: Callable[[Tensor], Any] = copy_tensor,
    parts: bool = False,
) -> EagerLog:
    """Run the model once and log its operations by module call; inputs, buffers and torch's state stay untouched.

    `keep` says what to remember of each tensor, by default a copy; it must not share the tensor's memory. It is asked
    once for each value that a tensor has.
    With `parts`, the steps inside kernels that ONNX often writes out (the product in addmm, …) are computed
    too, after the operation itself. Errors of the model's own forward pass through as they are.
    """
    recorder = _Recorder(model, keep, parts)
    # Fused attention would hide its scores and their softmax, which an ONNX file may have as nodes.
    with sdpa_kernel(SDPBackend.MATH):
        run_calls(model, args, kwargs, recorder.run_call, recorder)
    sites = tuple(recorder.call_recorder.sites)
    return EagerLog(
        tuple(recorder.ops), tuple(recorder.calls.values()), sites, recorder.parameters, recorder.passed.calls
    )


class _Recorder(private_torch.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Listens to the dispatcher, and knows which module call is running."""

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module, keep: Callable[[Tensor], Any], parts: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[OpRecord] = []
        self.calls: dict[CallId, CallRecord] = {}
        self.call_recorder = CallRecorder(model)
        self.passed = IORecorder(self._note_passed)
        self._keep = keep
        self._with_parts = {getattr(torch.ops.aten, name).default for name in _WITH_PARTS} if parts else set()
        self._numbers = _Numbers()
        named = (*model.named_parameters(), *model.named_buffers())
        self.parameters = {self._numbers.add(tensor): name for name, tensor in named}
        self._kept: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation and log what it gave."""
        kwargs = dict(kwargs or {})
        writes = False
        if isinstance(func, private_torch.HigherOrderOperator):
            reads = self._note_reads((args, kwargs))
            if str(func) in _CONTROL_FLOW:  # inside the operator, torch has turned this mode off
                args = tuple(self._observed(arg) if callable(arg) else arg for arg in args)
            result = func(*args, **kwargs)
        else:
            with self:
                # In inference mode and inside torch.cond, linear and its like come here whole.
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
            reads = self._note_reads((args, kwargs))
            result = func(*args, **kwargs)
            writes = self._note_writes(func, args, kwargs)
        self._note_op(func, reads, result, writes=writes)
        if func in self._with_parts:
            with self:
                private_torch.decomposition_table[func](*args, **kwargs)
        return result

    def run_call(
        self, call: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run one module call, hooks and all; a module that the model does not register makes no call."""
        scope = self.call_recorder.enter(module)
        if scope is None:
            return call(module, *args, **kwargs)
        reads = self._note_reads((args, kwargs), kept=True)
        self.passed.note_received(scope, module, args, kwargs)
        reads += _list_others(self.passed.calls[scope].received, reads)
        self.calls[scope] = CallRecord(*scope, self._kept_of(reads), (), reads)
        try:
            result = call(module, *args, **kwargs)
        finally:
            self.call_recorder.leave(scope)
        gives = self._note_reads(result, kept=True)
        self.passed.note_returned(scope, result)
        self.calls[scope] = replace(self.calls[scope], outputs=self._kept_of(gives), gives=gives)
        return result

    def _observed(self, branch: Callable[..., Any]) -> Callable[..., Any]:
        def run_branch(*args: Any, **kwargs: Any) -> Any:
            with self:
                return branch(*args, **kwargs)

        return run_branch

    def _note_op(self, func: Any, reads: tuple[int, ...], result: object, *, writes: bool) -> None:
        with private_torch.disable_dispatch_modes():
            tensors = _tensors(result)
            gives = tuple(self._numbers.add(tensor) for tensor in tensors)
            self._kept.update((number, self._keep(tensor)) for number, tensor in zip(gives, tensors, strict=True))
        if gives or writes:
            views = isinstance(func, private_torch.OpOverload) and func.is_view
            scope = self.call_recorder.current or ROOT
            self.ops.append(OpRecord(str(func), scope, self._kept_of(gives), reads, gives, views))

    def _note_reads(self, values: object, *, kept: bool = False) -> tuple[int, ...]:
        """Number the tensors among some values; those that were written to have a new value.

        Parameters are kept only where that is asked for: there are many, and who wants them has them.
        """
        with private_torch.disable_dispatch_modes():
            return tuple(self._note_read(tensor, kept) for tensor in _tensors(values))

    def _note_passed(self, tensors: Sequence[Tensor]) -> list[int | None]:
        """Number the tensors that a call received or returned; one inside vmap has no number."""
        with private_torch.disable_dispatch_modes():
            return [None if _is_in_vmap(tensor) else self._note_read(tensor, kept=True) for tensor in tensors]

    def _note_read(self, tensor: Tensor, kept: bool) -> int:
        number, writer = self._numbers.find(tensor)
        if writer is not None:
            write, old = self.ops[writer], number
            number = self._numbers.add(tensor)
            self._kept[number] = self._keep(tensor)
            reads = (old, *write.gives, *write.reads)
            self.ops.append(OpRecord(f"{write.op} seen", write.scope, (self._kept[number],), reads, (number,)))
        elif number not in self._kept and (kept or number not in self.parameters):
            self._kept[number] = self._keep(tensor)
        return number

    def _note_writes(self, func: private_torch.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Note what an operation that just ran has written to; say whether that is anything."""
        written = [
            args[position] if position < len(args) else kwargs.get(argument.name)
            for position, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        with private_torch.disable_dispatch_modes():
            for tensor in _tensors(written):
                self._numbers.writers[_memory_of(tensor)] = len(self.ops)
        return bool(written)

    def _kept_of(self, numbers: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple(self._kept[number] for number in numbers)


class _Numbers:
    """Numbers for the values that tensors have; what is written to has another value, and all views of it."""

    def __init__(self) -> None:
        self.writers: dict[int, int] = {}
        """For each piece of memory that was written to the operation that did so last."""
        self._numbered = WeakIdKeyDictionary()
        self._count = count()

    def add(self, tensor: Tensor) -> int:
        """Give the present value of a tensor a number of its own."""
        number = next(self._count)
        self._numbered[tensor] = number, self.writers.get(_memory_of(tensor))
        return number

    def find(self, tensor: Tensor) -> tuple[int, int | None]:
        """Return the number of a tensor's value; and if that is its value of before, which operation wrote to it."""
        if tensor not in self._numbered:
            return self.add(tensor), None
        number, writer = self._numbered[tensor]
        last = self.writers.get(_memory_of(tensor))
        return number, last if last != writer else None


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def _tensors(values: object) -> list[Tensor]:
    """Return the tensors among some values, but those inside vmap."""
    tensors = (leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor))
    return [tensor for tensor in tensors if not _is_in_vmap(tensor)]


def _is_in_vmap(tensor: Tensor) -> bool:
    """Say whether a tensor stands for one of many, and dies with the map that it is in."""
    return private_torch.is_functorch_wrapped_tensor(tensor)


def _list_others(passed: NumberedTensors | None, known: Sequence[int]) -> tuple[int, ...]:
    """Return the values that were passed and are not among those that are known, each once."""
    found = dict.fromkeys(number for _, number in passed or () if number is not None)
    return tuple(number for number in found if number not in known)
