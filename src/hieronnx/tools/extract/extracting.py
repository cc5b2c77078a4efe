"""Extract: any module call out of an ONNX model, as a model of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import onnx

from hieronnx.errors import HieronnxError
from hieronnx.files.opening import open_model
from hieronnx.files.weights import find_inner_weights, find_weights
from hieronnx.files.writing import ModelPieces, assemble, check_output, list_own_files, write
from hieronnx.graph.view import NO_TENSOR, ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Call, CallId, Node
from hieronnx.hierarchy.tags import escape
from hieronnx.tools.extract.fates import explain_no_nodes
from hieronnx.tools.extract.find import Part, find_part
from hieronnx.tools.extract.hierarchy import Rebased, rebase_calls, rebase_hierarchy, rebase_parameter
from hieronnx.tools.extract.model import ValueTypes, build_model, find_names, rename_tensors
from hieronnx.tools.extract.result import ConstantArgument, ExtractResult, PartInput, PartOutput
from hieronnx.tools.extract.shared import find_fused, find_shared
from hieronnx.tools.extract.source import Source, prepare


def extract(
    onnx: ModelLike,
    target: str,
    *,
    output: str | os.PathLike[str] | None = None,
    relative_names: bool = False,
) -> ExtractResult:
    """Extract one module call from a model, with the weights that it needs and no others read.

    Args:
        onnx: The model, with its hierarchy.
        target: A tag, a module's path (`encoder.layer.0`), `path@n` for a later call, or a glob that matches one.
        output: Where to write the part; its sidecar goes beside it. None: the result holds it.
        relative_names: Whether parameters get their names as the module itself has them.

    Raises:
        HieronnxError: If there is no such call, or the file has no node of it, or a file is missing or in the way.

    Example:
        >>> hieronnx.extract("model.onnx", "encoder.layer.0", output="layer.onnx").external_inputs
        ('embeddings', 'attention_mask')
    """
    extractor = Extractor(onnx, relative_names=relative_names)
    return extractor.extract(extractor.hierarchy.find_call(target), output)


def extract_all(
    onnx: ModelLike,
    target: str,
    folder: str | os.PathLike[str],
    *,
    relative_names: bool = False,
    skipped: Callable[[str], None] = lambda _: None,
) -> Iterator[ExtractResult]:
    """Extract every call that a target matches into a folder, each as a file named after it.

    Of calls inside one another the outermost is taken. `skipped` is called with a line about each that has no nodes.

    Raises:
        HieronnxError: As `extract` does.
    """
    extractor = Extractor(onnx, relative_names=relative_names)
    calls = extractor.hierarchy.find_calls(target)
    empty = {call.id: extractor.explain_no_nodes(call.id) for call in calls if extractor.find(call.id) is None}
    if len(empty) == len(calls):
        raise HieronnxError(f"none of the {len(calls)} calls that '{target}' matches has nodes; {empty[calls[0].id]}")
    place = _make_folder(Path(folder))
    outputs = {call.id: place / f"{_file_stem(call, extractor.hierarchy)}.onnx" for call in calls}
    for call in calls:
        if call.id not in empty:
            check_output(outputs[call.id], extractor.files)
    for call in calls:
        if call.id in empty:
            skipped(empty[call.id])
        else:
            yield extractor.extract(call, outputs[call.id])


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # a ValueError for a NUL in the name
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise HieronnxError(f"cannot make the folder '{folder}': {reason}") from error
    return folder


def _file_stem(call: Call, hierarchy: Hierarchy) -> str:
    path, number = call.id
    name = escape(path or hierarchy.modules[""].class_name)
    name = "".join(c if c.isprintable() and c != "\\" else f"~x{ord(c):x}~" for c in name)
    return f"{name}@{number}" if number else name


class Extractor:
    """One model, opened once, to take many calls out of."""

    def __init__(self, onnx: ModelLike, *, relative_names: bool = False) -> None:
        self.source = prepare(open_model(onnx))
        self._types = ValueTypes(self.source)
        self._relative_names = relative_names
        self._exporter = self.hierarchy.model.get("exporter", "")
        self.files = list_own_files(self.source.opened.path or self.source.opened.model)

    @property
    def hierarchy(self) -> Hierarchy:
        """Of the whole model."""
        return self.source.hierarchy

    def find(self, call: CallId) -> Part | None:
        """Find the part that a call is; None where the file has no node of it."""
        return find_part(self.source, call)

    def explain_no_nodes(self, call: CallId) -> str:
        """Say what became of a call that has no nodes."""
        return explain_no_nodes(self.hierarchy, call)

    def extract(self, call: Call, output: str | os.PathLike[str] | None = None) -> ExtractResult:
        """Extract one call.

        Raises:
            HieronnxError: If the file has no node of it, or a file is missing or in the way.
        """
        part = self.find(call.id)
        if part is None:
            raise HieronnxError(self.explain_no_nodes(call.id))
        source = self.source
        if output is not None:
            check_output(Path(output), self.files)
        model = build_model(source, part, self._types)
        rebased = rebase_calls(self.hierarchy, call.id)
        names = _relative_names(source, part, rebased, find_names(model)) if self._relative_names else {}
        rename_tensors(model, names)
        initializers = (source.values[tensor] for tensor in part.initializers)
        weights = find_weights(source.opened, initializers, source.located, names)
        pieces = ModelPieces(model, weights, find_inner_weights(source.opened, model), frozenset(self.files))
        hierarchy = rebase_hierarchy(source, part, rebased, names)
        if output is None:
            return _make_result(source, part, call, hierarchy, assemble(pieces, hierarchy))
        described = write(pieces, hierarchy, output, exporter=self._exporter)
        return _make_result(source, part, call, described, Path(output))


def _relative_names(source: Source, part: Part, rebased: Rebased, taken: set[str]) -> dict[str, str]:
    """Return the new names of the initializers that hold a parameter of the module as it is.

    Args:
        source: The whole model.
        part: The part.
        rebased: Its modules and calls.
        taken: The names that its tensors have.
    """
    held = {item.name: item.parameter for item in source.hierarchy.initializers if not item.origins}
    names: dict[str, str] = {}
    for tensor in part.initializers:
        old = source.view.names[tensor]
        # Without a sidecar, what holds a parameter is known by its name alone.
        parameter = held.get(old) if source.hierarchy.initializers else old
        new = old if parameter is None else rebase_parameter(parameter, rebased)
        if new != old and new not in taken:
            names[old] = new
            taken.add(new)
    return names


def _make_result(
    source: Source, part: Part, call: Call, hierarchy: Hierarchy, model: onnx.ModelProto | Path
) -> ExtractResult:
    view, nodes = source.view, source.attributions
    inputs, outputs = set(part.inputs), set(part.outputs)
    boundary = [
        i
        for i in part.region
        if inputs.intersection(view.nodes[i].reads) or outputs.intersection(view.nodes[i].outputs)
    ]
    made = (t for i in part.nodes for t in view.nodes[i].outputs if t != NO_TENSOR and t not in outputs)
    shared = find_shared(source, part)
    return ExtractResult(
        module=call.id.module,
        call=call.id.number,
        tag=call.tag,
        calls=sum(other.id.module == call.id.module for other in source.hierarchy.calls),
        operations=_pick(nodes, part.nodes),
        inputs=tuple(_describe_input(source, part, tensor) for tensor in part.inputs),
        results=tuple(PartOutput(view.names[t], part.places.get(t, ())) for t in part.outputs),
        recorded=part.ends.recorded,
        undeclared_inputs=tuple(_describe_input(source, part, tensor) for tensor in part.undeclared_inputs),
        constant_arguments=tuple(_find_held(source, part)),
        lost_arguments=part.ends.lost,
        internal_tensors=tuple(view.names[t] for t in made),
        boundary_operations=_pick(nodes, boundary),
        shared_operations=_pick(nodes, shared),
        fused_with=find_fused(source, part, shared),
        pulled_in_nodes=_pick(nodes, part.brought),
        initializers=tuple(held.name for held in hierarchy.initializers),
        hierarchy=hierarchy,
        model=model,
    )


def _pick(nodes: Sequence[Node], chosen: Iterable[int]) -> tuple[Node, ...]:
    return tuple(nodes[index] for index in chosen)


def _describe_input(source: Source, part: Part, tensor: int) -> PartInput:
    view, producer = source.view, source.view.producers[tensor]
    if producer is None:
        producer = view.graphs[view.tensor_graphs[tensor]].owner
    maker = None if producer is None else source.attributions[producer]
    return PartInput(view.names[tensor], part.arguments.get(tensor, ()), maker)


def _find_held(source: Source, part: Part) -> Iterator[ConstantArgument]:
    """Yield the arguments that the part has as initializers or literals."""
    parameters = {held.name: held.parameter for held in source.hierarchy.initializers}
    literals = {t for index in part.nodes for t in source.view.nodes[index].outputs if source.is_literal(t)}
    for tensor, arguments in part.ends.received.items():
        if tensor in literals or tensor in part.initializers:
            name = source.view.names[tensor]
            yield from (ConstantArgument(argument, name, parameters.get(name)) for argument in arguments)
