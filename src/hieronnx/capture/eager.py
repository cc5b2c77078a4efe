"""The eager log: one plain run of the model, every operation with the module call that it ran in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.weak import WeakIdKeyDictionary

from hieronnx.capture.calls import CallRecorder, module_calls_through
from hieronnx.capture.private_torch import (
    HigherOrderOperator,
    OpOverload,
    TorchDispatchMode,
    decomposition_table,
    disable_dispatch_modes,
    is_functorch_wrapped_tensor,
    tree_leaves,
)
from hieronnx.capture.untouched import copy_tensor, untouched
from hieronnx.hierarchy.records import ROOT, CallId
from hieronnx.hierarchy.tags import CallSite

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
    parent: CallId | None = None
    reads: tuple[int, ...] = ()
    """The numbers of the values that it took."""
    gives: tuple[int, ...] = ()
    """The numbers of those that it gave."""


@dataclass(frozen=True, slots=True)
class EagerLog:
    """All operations in the order they ran, and all calls in the order they began."""

    ops: tuple[OpRecord, ...]
    calls: tuple[CallRecord, ...]
    sites: tuple[CallSite, ...] = ()
    """The calls once more, with the attribute paths that they went through."""
    parameters: Mapping[int, str] = field(default_factory=dict)
    """The names of the parameters and buffers among the values, by their numbers."""


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
    recorder = _Recorder(model, keep, _WITH_PARTS if parts else frozenset())
    with ExitStack() as stack:
        inputs, named_inputs = stack.enter_context(untouched(model, args, kwargs))
        # Compiled functions, torch.cond among them, then run as the Python that they were written in.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_without_fast_path())
        # Fused attention would hide its scores and their softmax, which an ONNX file may have as nodes.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(module_calls_through(recorder.run_call))
        stack.enter_context(recorder)
        model(*inputs, **named_inputs)
    return EagerLog(tuple(recorder.ops), tuple(recorder.calls.values()), tuple(recorder.sites), recorder.parameters)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Listens to the dispatcher, and knows which module call is running."""

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module, keep: Callable[[Tensor], Any], with_parts: frozenset[OpOverload]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[OpRecord] = []
        self.calls: dict[CallId, CallRecord] = {}
        self._recorder = CallRecorder(model)
        self._keep = keep
        self._with_parts = with_parts
        self._numbers = _Numbers()
        named = (*model.named_parameters(), *model.named_buffers())
        self.parameters = {self._numbers.add(tensor): name for name, tensor in named}
        self._kept: dict[int, Any] = {}

    @property
    def sites(self) -> list[CallSite]:
        """The calls so far."""
        return self._recorder.sites

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operation and log what it gave."""
        kwargs = dict(kwargs or {})
        writes = False
        if isinstance(func, HigherOrderOperator):
            reads = self._note_reads((args, kwargs))
            result = self._run_higher_order(func, args, kwargs)
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
        parent = self._recorder.current
        scope = self._recorder.enter(module)
        if scope is None:
            return call(module, *args, **kwargs)
        reads = self._note_reads((args, kwargs), kept=True)
        self.calls[scope] = CallRecord(*scope, self._kept_of(reads), (), parent, reads)
        try:
            result = call(module, *args, **kwargs)
        finally:
            self._recorder.leave(scope)
        gives = self._note_reads(result, kept=True)
        self.calls[scope] = replace(self.calls[scope], outputs=self._kept_of(gives), gives=gives)
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
        return self._recorder.current or ROOT

    def _note_op(self, func: Any, reads: tuple[int, ...], result: object, *, writes: bool) -> None:
        with disable_dispatch_modes():
            tensors = [leaf for leaf in tree_leaves(result) if _holds_values(leaf)]
            gives = tuple(self._numbers.add(tensor) for tensor in tensors)
            self._kept.update((number, self._keep(tensor)) for number, tensor in zip(gives, tensors, strict=True))
        if gives or writes:
            views = isinstance(func, OpOverload) and func.is_view
            self.ops.append(OpRecord(str(func), self._scope(), self._kept_of(gives), reads, gives, views))

    def _note_reads(self, values: object, *, kept: bool = False) -> tuple[int, ...]:
        """Number the tensors among some values; those that were written to have a new value.

        Parameters are kept only where that is asked for: there are many, and who wants them has them.
        """
        with disable_dispatch_modes():
            return tuple(self._note_read(leaf, kept) for leaf in tree_leaves(values) if _holds_values(leaf))

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

    def _note_writes(self, func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Note what an operation that just ran has written to; say whether that is anything."""
        arguments = enumerate(func._schema.arguments)
        written = [
            args[position] if position < len(args) else kwargs.get(argument.name)
            for position, argument in arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        with disable_dispatch_modes():
            for leaf in tree_leaves(written):
                if _holds_values(leaf):
                    self._numbers.note_write(leaf, len(self.ops))
        return bool(written)

    def _kept_of(self, numbers: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple(self._kept[number] for number in numbers)


class _Numbers:
    """Numbers for the values that tensors have; what is written to has another value, and all views of it."""

    def __init__(self) -> None:
        self._known = WeakIdKeyDictionary()
        self._writers: dict[int, int] = {}
        """For each piece of memory that was written to the operation that did so last."""
        self._count = 0

    def add(self, tensor: Tensor) -> int:
        """Give the present value of a tensor a number of its own."""
        self._known[tensor] = self._count, self._writers.get(_memory_of(tensor))
        self._count += 1
        return self._count - 1

    def find(self, tensor: Tensor) -> tuple[int, int | None]:
        """Return the number of a tensor's value; and if that is its value of before, which operation wrote to it."""
        if tensor not in self._known:
            return self.add(tensor), None
        number, writer = self._known[tensor]
        last = self._writers.get(_memory_of(tensor))
        return number, last if last != writer else None

    def note_write(self, tensor: Tensor, operation: int) -> None:
        """Note that an operation has written to a tensor."""
        self._writers[_memory_of(tensor)] = operation


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


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
