"""What a call received and returned, as the export recorded it, by the tensors that the file still has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hieronnx.hierarchy.records import BoundTensor, CallId
from hieronnx.tools.extract.source import Source


@dataclass(frozen=True, slots=True)
class Ends:
    """The tensors that a call received and returned, in order, each with the names that it had there.

    Attributes:
        received: by the arguments that they were.
        returned: by their places in what was returned.
        lost: the arguments whose tensors the file has no more.
        recorded: whether all this is known.
    """

    received: Mapping[int, tuple[str, ...]]
    returned: Mapping[int, tuple[str, ...]]
    lost: tuple[str, ...]
    recorded: bool


def read_ends(source: Source, call: CallId) -> Ends:
    """Read what a call received and returned."""
    found = source.hierarchy.call_by_id[call]
    received, returned = found.received or (), found.returned or ()
    return Ends(
        received=_number(source, received),
        returned=_number(source, returned),
        lost=tuple(item.name for item in received if source.find_tensor(item) is None),
        recorded=found.received is not None and found.returned is not None,
    )


def _number(source: Source, passed: Iterable[BoundTensor]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for item in passed:
        tensor = source.find_tensor(item)
        if tensor is not None:
            found[tensor] = (*found.get(tensor, ()), item.name)
    return found


def name_equals(
    source: Source, tensors: Iterable[int], passed: Mapping[int, tuple[str, ...]]
) -> dict[int, tuple[str, ...]]:
    """Name tensors as those that were passed: themselves, or else one that is computed alike, such as a copy.

    The result has them in the order in which they were passed.
    """
    here = dict.fromkeys(tensors)
    missing = [tensor for tensor in here if tensor not in passed]
    equal: dict[int, int] = {}
    if missing and passed:
        numbers = source.numbers
        by_number = {numbers[tensor]: tensor for tensor in reversed(list(passed))}
        equal = {tensor: by_number[numbers[tensor]] for tensor in missing if numbers[tensor] in by_number}
    order = {tensor: position for position, tensor in enumerate(passed)}
    named = {tensor: equal.get(tensor, tensor) for tensor in here if tensor in passed or tensor in equal}
    return {tensor: passed[like] for tensor, like in sorted(named.items(), key=lambda pair: order[pair[1]])}
