"""Where the run's values come from: views and copies lead back to the value that they show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from hieronnx.attribute.by_value.classes import Classes
from hieronnx.attribute.by_value.trace import Trace


class Origins:
    """The values of a run, those told apart that were computed and those that were only moved.

    Attributes:
        above: For a value that an operation only moved the value that it moved.
        makers: For each class the values that were computed, in order.
        reads: For two classes the values of the first from which a value of the second was computed.
    """

    def __init__(self, trace: Trace, classes: Classes) -> None:
        self.above: dict[int, int] = {}
        self.makers: dict[int, list[int]] = defaultdict(list)
        self.reads: dict[tuple[int, int], list[int]] = defaultdict(list)
        of_value = classes.of_value
        for op in trace.ops:
            known = [value for value in op.reads if value in of_value]
            read = {of_value[value]: value for value in reversed(known)}
            for value in op.gives:
                made = of_value.get(value)
                if made is None:
                    continue
                if made in read and classes.telling[made]:
                    self.above[value] = read[made]
                else:
                    self.makers[made].append(value)
                    for source in known:
                        self.reads[of_value[source], made].append(source)

    def chain(self, value: int) -> Iterator[int]:
        """Yield a value and those that it shows, the nearest first."""
        yield value
        while value in self.above:
            value = self.above[value]
            yield value

    def chains_to(self, made: int, wanted: frozenset[int]) -> set[int]:
        """Return the values of a class from which values of other classes were computed, and all that those show."""
        found: set[int] = set()
        for other in wanted:
            for value in self.reads.get((made, other), ()):
                for shown in self.chain(value):
                    if shown in found:
                        break
                    found.add(shown)
        return found
