"""Tensors of a trace that equal earlier ones: reshaped there and back, or copied.

torch leaves out what nobody reads before there is an ONNX graph. What a call returned may be no more than a copy of
what is kept:

    relu ─┬─ cat                  `stack` has the values of `relu`, in the same shape: where nobody reads it, and torch
          └─ squeeze ─ stack      leaves it out, `relu` is what was returned

or what torch made again from the same tensor, as it does with views of what is written to:

    silu ─┬─ split ─ getitem          what a call received, and torch leaves out
          └─ split_1 ─ getitem_1 ─ conv          or a slice, that shows the same
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch

from hieronnx.capture.private_torch import is_view, works_in_place

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


@dataclass(frozen=True, slots=True)
class FxView:
    """A view of a node's tensor: which of its elements it shows, in which form.

    Other operations may lead to the same view: a piece of a split is a slice.
    """

    base: torch.fx.Node
    layout: Hashable
    operations: tuple[str, ...] = field(compare=False)


def find_original(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the first node whose tensor has the values of this one's, in the same shape; None if it is this one.

    None also where a node between them works in place: it may have written to the memory of either.
    """
    original, shape, current = None, _read_type(node), _find_copied(node)
    while current is not None:
        if shape is not None and _read_type(current) == shape:
            original = current
        current = _find_copied(current)
    return None if original is None or is_written_between(original, node) else original


def find_view(node: torch.fx.Node) -> FxView | None:
    """Return what a node shows of which node's tensor; None if it computes something, or may copy it.

    That tensor has the type of what it shows: in another, the same memory holds other numbers.
    """
    base, value, operations = node, node.meta.get("val"), list[str]()
    while isinstance(source := base.args[0] if base.args else None, torch.fx.Node) and is_view(base):
        if len({_read_dtype(base), _read_dtype(source)} - {None}) > 1:
            break
        operations.append(str(base.target))
        base = source
    if base is node or not isinstance(value, torch.Tensor):
        return None
    layout = (_read_type(node), *map(str, value.stride()), str(value.storage_offset()))
    return FxView(base, layout, tuple(operations))


def is_written_between(first: torch.fx.Node, last: torch.fx.Node) -> bool:
    """Say whether a node from one to before another works in place: it may have written to the memory of either."""
    current = first
    while current is not last:
        if works_in_place(current):
            return True
        current = current.next
    return False


def _find_copied(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the node whose values another one gives in any shape."""
    packet = getattr(node.target, "overloadpacket", None)
    source = node.args[0] if node.args and packet in _RESHAPES | _JOINS else None
    if packet in _JOINS and isinstance(source, list | tuple):
        source = source[0] if len(source) == 1 else None
    return source if isinstance(source, torch.fx.Node) else None


def _read_dtype(node: torch.fx.Node) -> torch.dtype | None:
    """Return the type of the elements of a node's tensor, or of the first of its tensors; None if it is not known."""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, list | tuple) and value else value
    return first.dtype if isinstance(first, torch.Tensor) else None


def _read_type(node: torch.fx.Node) -> Hashable:
    """Return the type and the sizes of a node's tensor, open ones as text: to compare them would close them."""
    value = node.meta.get("val")
    return (value.dtype, *map(str, value.shape)) if isinstance(value, torch.Tensor) else None
