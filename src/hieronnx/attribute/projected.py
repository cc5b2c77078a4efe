"""What a projection gives: the calls of an eager run, and what they made found again in the nodes of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hieronnx.hierarchy.records import Attribution, CallId
from hieronnx.hierarchy.tags import CallSite


@dataclass(frozen=True, slots=True)
class HeldParameter:
    """What an initializer holds: the names of the parameters and buffers, and how that is known."""

    parameters: tuple[str, ...]
    how: str
    """`name`, `value`, `transposed` (the values in another order), `scaled` (they go along with it channel by channel)
    or `fused` (several parameters in one)."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A node of which two kinds of evidence say different things; the first one won."""

    node: int
    says: tuple[tuple[str, CallId], ...]
    """Each evidence, and the call that it names."""


@dataclass(frozen=True, slots=True)
class Projected:
    """An eager run projected onto a file.

    Attributes:
        sites: The calls of the run, in order.
        nodes: The attribution of each node in the view's order; None where there is no evidence.
        initializers: For each initializer of the view the parameters that it holds, where that is known.
        unmatched: The calls that made values of which none is in the file.
        missing: Of `htp`, those of them that work on what the file gives, and of whose parameters it has none either.
        foreign: Of `htp`, how many weights of the file are not the model's, and lead to nothing that it computes.
        agreement: The share of the file's telling tensors whose values the run made too; 1 where there are none.
        contradictions: The nodes of which two kinds of evidence say different things.
        input_sets: On how many sets of inputs model and file were compared; 0 where nothing was run.
    """

    sites: tuple[CallSite, ...]
    nodes: list[Attribution | None]
    initializers: Mapping[int, HeldParameter] = field(default_factory=dict)
    unmatched: tuple[CallId, ...] = ()
    missing: tuple[CallId, ...] = ()
    foreign: int = 0
    agreement: float = 1.0
    contradictions: tuple[Contradiction, ...] = ()
    input_sets: int = 0
