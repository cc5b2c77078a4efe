"""Tensors of a trace that equal earlier ones: reshaped there and back, or copied.

torch leaves out what nobody reads before there is an ONNX graph. What a call returned may be no more than a copy of
what is kept:

    relu ─┬─ cat                  `stack` has the values of `relu`, in the same shape: where nobody reads it, and torch
          └─ squeeze ─ stack      leaves it out, `relu` is what was returned
"""

from __future__ import annotations

from collections.abc import Hashable

import torch

from hieronnx.capture.private_torch import works_in_place

_ATEN = torch.ops.aten
# They keep the values and their order, whatever the shape.
_RESHAPES = frozenset(
    {
        _ATEN.alias,
        _ATEN.clone,
        _ATEN.contiguous,
        _ATEN.detach,
        _ATEN.flatten,
        _ATEN.reshape,
        _ATEN.squeeze,
        _ATEN.unsqueeze,
        _ATEN.view,
        _ATEN._unsafe_view,
    }
)
_JOINS = frozenset({_ATEN.cat, _ATEN.stack})


def find_original(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the first node whose tensor has the values of this one's, in the same shape; None if it is this one.

    None also where a node between them works in place: it may have written to the memory of either.
    """
    original, shape, current = None, _read_type(node), _find_copied(node)
    while current is not None:
        if shape is not None and _read_type(current) == shape:
            original = current
        current = _find_copied(current)
    current = original
    while current is not None and current is not node:
        if works_in_place(current):
            return None
        current = current.next
    return original


def _find_copied(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the node whose values another one gives in any shape."""
    packet = getattr(node.target, "overloadpacket", None)
    source = node.args[0] if node.args and packet in _RESHAPES | _JOINS else None
    if packet in _JOINS and isinstance(source, list | tuple):
        source = source[0] if len(source) == 1 else None
    return source if isinstance(source, torch.fx.Node) else None


def _read_type(node: torch.fx.Node) -> Hashable:
    """Return the type and the sizes of a node's tensor, open ones as text: to compare them would close them."""
    value = node.meta.get("val")
    return (value.dtype, *map(str, value.shape)) if isinstance(value, torch.Tensor) else None
