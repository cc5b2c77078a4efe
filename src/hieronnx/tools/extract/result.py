"""The record of an extraction: one module call, or several, as a model of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hieronnx.errors import list_some
from hieronnx.files.opening import sidecar_path
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId, Node
from hieronnx.tools.results import Result, WrittenFile, dump_record, list_files

if TYPE_CHECKING:
    import onnx

    from hieronnx.tools.view.viewing import ViewResult


@dataclass(frozen=True, slots=True)
class PartInput:
    """One input of a part.

    Attributes:
        name: the tensor.
        arguments: what it is among the arguments of `forward`: `hidden_states`, `past.0.1`; several where one tensor
            was passed as several. Empty where the call did not receive it, or where that was not recorded.
        producer: the node of the whole model that makes it, or gives it to its body; None where it is an input there.
    """

    name: str
    arguments: tuple[str, ...]
    producer: Node | None


@dataclass(frozen=True, slots=True)
class PartOutput:
    """One output of a part.

    Attributes:
        name: the tensor.
        places: where it is in what `forward` returned: `0`, `hidden_states.1`, and nothing (`""`) where that is one
            tensor. Empty where the call did not return it and others read it, or where that was not recorded.
    """

    name: str
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConstantArgument:
    """An argument that is no input, for the part has what was passed: a parameter or a constant."""

    argument: str
    tensor: str
    parameter: str | None
    """Of the whole model; None where it is none."""


@dataclass(frozen=True, slots=True)
class ExtractResult(Result):
    """One module call, or several, as a model of its own. Nodes are those of the whole model, with their calls there.

    Attributes:
        targets: the calls that were extracted.
        module: the module's path in the whole model; of several calls, that of the lowest call above them.
        call: which of its calls it is.
        tag: the call's tag in the whole model.
        calls: how many calls the module has there.
        nodes: the nodes of the part.
        inputs: the part's inputs: those that are arguments, in their order, then others.
        outputs: the part's outputs: those that were returned, in their order, then others.
        recorded: whether the file tells what the call received and returned.
        undeclared_inputs: the inputs that the call did not receive: what the exporter computes for several calls,
            what it cancelled work against, what a module took from elsewhere than its arguments. Sizes alone where
            nothing was recorded.
        constant_arguments: the arguments that the part has in itself.
        lost_arguments: those whose tensors the file does not have any more.
        lost_outputs: the places in what `forward` returned whose tensors the file does not have any more: `1`,
            `attentions.0`, and nothing (`""`) where one tensor was returned.
        internal_tensors: what its nodes make and nobody outside reads.
        boundary_nodes: the nodes that read an input or make an output.
        shared_nodes: the nodes that other calls share: one node is left of several equal ones, or several became
            one. Their origins say which calls.
        fused_with: the calls whose work cannot be told from this one's: one node does both.
        between_nodes: the nodes of other calls that came along because they lie between several.
        pulled_in_nodes: the nodes from outside that came along: constants, sizes of the part's inputs, and what
            changes the form of these alone.
        initializers: what the part has of them, by the names there.
        hierarchy: of the part, rooted at the module.
        model: the part itself, or the file that it was written to.
    """

    _derived: ClassVar[tuple[str, ...]] = ("files", "input_names", "output_names")

    targets: tuple[CallId, ...]
    module: str
    call: int
    tag: str
    calls: int
    nodes: tuple[Node, ...]
    inputs: tuple[PartInput, ...]
    outputs: tuple[PartOutput, ...]
    recorded: bool
    undeclared_inputs: tuple[PartInput, ...]
    constant_arguments: tuple[ConstantArgument, ...]
    lost_arguments: tuple[str, ...]
    lost_outputs: tuple[str, ...]
    internal_tensors: tuple[str, ...]
    boundary_nodes: tuple[Node, ...]
    shared_nodes: tuple[Node, ...]
    fused_with: tuple[CallId, ...]
    between_nodes: tuple[Node, ...]
    pulled_in_nodes: tuple[Node, ...]
    initializers: tuple[str, ...]
    hierarchy: Hierarchy
    model: onnx.ModelProto | Path

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the part's inputs."""
        return tuple(item.name for item in self.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the part's outputs."""
        return tuple(item.name for item in self.outputs)

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """The part's file, the files that its weights are in, and its sidecar; none where it is in memory."""
        return list_files(self.model, sidecar_path(self.model)) if isinstance(self.model, Path) else ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values; `model` is the file that it was written to, or None."""
        return {**dump_record(self, {"model"}), "model": str(self.model) if isinstance(self.model, Path) else None}

    def view(self, output: str | os.PathLike[str] | None = None, **options: Any) -> ViewResult:
        """Show the part in a page, as `hieronnx.view` does, with its options."""
        from hieronnx.tools.view.viewing import view

        return view(self.model, output=output, **options)

    def __repr__(self) -> str:
        ends = f"{len(self.inputs)} inputs, {len(self.outputs)} outputs"
        names = list_some([repr(str(call)) for call in self.targets], 3)
        return f"ExtractResult({names}: {len(self.nodes)} nodes, {ends})"
