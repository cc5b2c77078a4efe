"""The order and shape in which values lie: what tells a transpose from a reshape, and both from a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hieronnx.attribute.by_value.classes import far_in_order
from hieronnx.attribute.by_value.trace import Prints


class Layouts:
    """Compares the layouts of the run's values and of the file's tensors."""

    def __init__(self, values: Mapping[int, Prints], tensors: Mapping[int, Sequence[Prints]], tolerance: float) -> None:
        self._values, self._tensors, self._tolerance = values, tensors, tolerance

    def seen(self, tensor: int) -> bool:
        """Say whether the values of a tensor of the file were seen."""
        return tensor in self._tensors

    def kind(self, tensor: int) -> str:
        """Return what numbers a tensor of the file holds."""
        return self._tensors[tensor][0][0].kind if tensor in self._tensors else ""

    def size(self, tensor: int) -> int:
        """Return how many numbers a tensor of the file has that was seen."""
        return self._tensors[tensor][0][0].size

    def same_order(self, value: int, tensor: int) -> bool:
        """Say whether a value and a tensor have their numbers in the same order, whatever their shapes."""
        return tensor in self._tensors and self._near(self._values[value], self._tensors[tensor][0])

    def same(self, value: int, tensor: int) -> bool:
        """Say whether a value and a tensor have the same order and shape."""
        return tensor in self._tensors and self._equal(self._values[value], self._tensors[tensor][0])

    def same_values(self, value: int, other: int) -> bool:
        """Say whether two values of the run have the same order and shape."""
        return self._equal(self._values[value], self._values[other])

    def same_tensors(self, tensor: int, other: int) -> bool:
        """Say whether two tensors of the file have the same order and shape."""
        if tensor not in self._tensors or other not in self._tensors:
            return False
        return self._equal(self._tensors[tensor][0], self._tensors[other][0])

    def same_kinds(self, value: int, above: int, tensor: int, source: int) -> bool:
        """Say whether a step of the run and one of the file go from and to the same kinds of numbers."""
        kinds = self._values[value][0].kind, self._values[above][0].kind
        return kinds == (self.kind(tensor), self.kind(source))

    def _equal(self, a: Prints, b: Prints) -> bool:
        return a[0].shape == b[0].shape and self._near(a, b)

    def _near(self, a: Prints, b: Prints) -> bool:
        return far_in_order(a, b) <= self._tolerance
