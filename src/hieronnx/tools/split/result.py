"""The records of a split."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hieronnx.errors import count
from hieronnx.files.opening import sidecar_path
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.results import Result, WrittenFile, list_files


@dataclass(frozen=True, slots=True)
class Stage(Result):
    """One stage of a model, a model of its own.

    Attributes:
        path: its file; its sidecar is beside it.
        calls: the calls of the whole model that begin in it, the outermost alone.
        nodes: its nodes, as they are in the whole model.
        repeated: the constants and sizes of earlier stages that it has, too.
        inputs: what it takes.
        outputs: what it gives.
        weights: its initializers.
        weight_bytes: how large these are.
        cost: in the unit that stages were balanced by; None where the cuts were given.
    """

    _derived: ClassVar[tuple[str, ...]] = ("files",)

    path: Path
    calls: tuple[CallId, ...]
    nodes: tuple[Node, ...]
    repeated: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...]
    weight_bytes: int
    cost: float | None

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """The stage's file, the files that its weights are in, and its sidecar."""
        return list_files(self.path, sidecar_path(self.path))

    def __repr__(self) -> str:
        return f"Stage({self.path.name!r}: {count(len(self.nodes), 'node')})"


@dataclass(frozen=True, slots=True)
class CrossingTensor:
    """A tensor that goes from one stage to a later one.

    Attributes:
        name: of the tensor, in all stages.
        dtype: its element type, as ONNX names it; None where it is not known.
        shape: its sizes, with names where they are dynamic; None where they are not known.
        made_by: the stage that makes it; None for an input of the model.
        read_by: the stages that read it.
        bytes: at the given sizes; None where some are not known.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None
    made_by: int | None
    read_by: tuple[int, ...]
    bytes: int | None


@dataclass(frozen=True, slots=True)
class Cut:
    """What crosses from the stages before a cut to those after it; tensors that are only handed through are there."""

    before: CallId
    """The call that the stage after it begins with."""
    tensors: tuple[CrossingTensor, ...]
    bytes: int | None
    """Of all of them; None where some are not known."""


@dataclass(frozen=True, slots=True)
class SplitCheck:
    """The whole model and its stages, run on the same inputs without optimization.

    Attributes:
        equal: whether all outputs are equal to the last bit.
        different: the outputs that are not, each with the largest difference of an element.
    """

    equal: bool
    different: dict[str, float]


@dataclass(frozen=True, slots=True)
class SplitResult(Result):
    """A model that was split.

    Attributes:
        model: its name.
        folder: where the stages are.
        stages: in the order in which they run.
        cuts: between them.
        balance: what the stages were balanced by: `time`, `multiply-adds`, `bytes` or `nodes`; None where cuts were
            given.
        shared_weights: the weights that several stages have, with these stages.
        check: what came of running both; None where that was not asked for.
        notes: what one should know.
    """

    _derived: ClassVar[tuple[str, ...]] = ("passed",)

    model: str
    folder: Path
    stages: tuple[Stage, ...]
    cuts: tuple[Cut, ...]
    balance: str | None
    shared_weights: dict[str, tuple[int, ...]]
    check: SplitCheck | None
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is known to be wrong: the stages give what the whole gives, or that was not asked for."""
        return self.check is None or self.check.equal

    def __repr__(self) -> str:
        nodes = sum(len(stage.nodes) for stage in self.stages)
        return f"SplitResult({self.model!r}: {nodes} nodes in {count(len(self.stages), 'stage')})"
