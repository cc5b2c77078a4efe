"""Running a model so that nothing is left of it: neither in the inputs, nor in the model, nor in torch's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hieronnx.capture.private_torch import tree_leaves

_Inputs: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


@contextmanager
def untouched(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Iterator[_Inputs]:
    """Yield copies of the inputs to run the model on; afterwards its buffers and the random state are as before."""
    # A forward may write to a buffer, as normalizations in training mode do, or put another in its place.
    buffers = [
        (module, name, tensor, copy_tensor(tensor))
        for module in model.modules()
        for name, tensor in module._buffers.items()
        if tensor is not None
    ]
    with torch.random.fork_rng(devices=_cuda_devices(model)), torch.no_grad():
        try:
            yield copy_inputs(tuple(args), dict(kwargs or {}))
        finally:
            for module, name, tensor, before in buffers:
                module._buffers[name] = tensor
                if not tensor.is_meta and not torch.equal(tensor, before):
                    tensor.copy_(before)


def copy_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Inputs:
    """Copy the inputs, since a forward may write to them: a key-value cache grows with every run."""
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    # deepcopy refuses tensors that are the result of a differentiable computation.
    memo: dict[int, Any] = {id(leaf): copy_tensor(leaf) for leaf in leaves if not leaf.is_leaf}
    return deepcopy((args, kwargs), memo)


def copy_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor's values in memory of their own, since in-place operations may change them later."""
    return tensor.detach().clone()


def _cuda_devices(model: nn.Module) -> list[int]:
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    return sorted({device.index or 0 for device in devices if device.type == "cuda"})
