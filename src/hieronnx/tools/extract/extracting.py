"""Extract: any module call out of an ONNX model, or several together, as a model of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx

from hieronnx.errors import HieronnxError, InputError
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import open_model
from hieronnx.files.staging import new_files
from hieronnx.files.weights import find_inner_weights, find_weights
from hieronnx.files.writing import ModelPieces, assemble, check_output, list_own_files, write
from hieronnx.graph.view import ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import Call, CallId, Node
from hieronnx.hierarchy.tags import escape
from hieronnx.hierarchy.targets import find_outermost
from hieronnx.tools.extract.find import Part, explain_no_nodes, find_fused, find_part, find_shared
from hieronnx.tools.extract.hierarchy import Rebased, rebase_hierarchy, rebase_parameter, rebase_part
from hieronnx.tools.extract.model import ValueTypes, build_model, find_names, rename_tensors
from hieronnx.tools.extract.result import ConstantArgument, ExtractResult, PartInput, PartOutput
from hieronnx.tools.extract.source import Source, prepare
from hieronnx.tools.fold.unfolding import unfold_opened


@reads_files
def extract(
    model: ModelLike, *targets: str, output: str | os.PathLike[str] | None = None, relative_names: bool = False
) -> ExtractResult:
    """Extract module calls from a model, together as one, with the weights that they need and no others read.

    Args:
        model: The model, with its hierarchy: a file, a ModelProto or an ir.Model.
        *targets: Tags, modules' paths (`encoder.layer.0`), `path@n` for a later call, ranges in the order of execution
            (`encoder.layer.0..encoder.layer.5`), or selections. What lies between several calls comes along.
        output: Where to write the part; its sidecar goes beside it. None: the result holds it.
        relative_names: Whether parameters get their names as the module itself has them.

    Raises:
        HieronnxError: If there is no such call, or the file has no node of it, or a file is missing or in the way.

    Example:
        >>> hieronnx.extract("model.onnx", "encoder.layer.0", output="layer.onnx").input_names
        ('embeddings', 'attention_mask')
    """
    if not targets:
        raise InputError("extract takes a target: a module's path, a tag, a range such as 'layers.0..layers.3'")
    extractor = Extractor(model, relative_names=relative_names)
    found = {call.id for target in targets for call in extractor.hierarchy.find_range(target)}
    outermost = find_outermost(extractor.hierarchy.calls, found)
    return extractor.extract([call for call in extractor.hierarchy.calls if call.id in outermost], output)


@reads_files
def extract_all(
    model: ModelLike,
    target: str,
    folder: str | os.PathLike[str],
    *,
    relative_names: bool = False,
    skipped: Callable[[str], None] = lambda _: None,
) -> list[ExtractResult]:
    """Extract every call that a target matches into a folder, each as a file named after it.

    Args:
        model: The model, with its hierarchy.
        target: A tag, a module's path, `path@n`, or a glob over these. Of calls inside one another the outermost is
            taken.
        folder: Where to write the parts; it is made if it is not there.
        relative_names: Whether parameters get their names as the modules themselves have them.
        skipped: Called with a line about each call that has no nodes.

    Raises:
        HieronnxError: If no call matches, or none that does has nodes, or a file is missing or in the way.

    Example:
        >>> [part.module for part in hieronnx.extract_all("model.onnx", "encoder.layer.*", "layers")]
        ['encoder.layer.0', 'encoder.layer.1']
    """
    extractor = Extractor(model, relative_names=relative_names)
    hierarchy = extractor.hierarchy
    calls = hierarchy.find_calls(target)
    empty = {call: explain_no_nodes(hierarchy, call.id) for call in calls if extractor.find(call.id) is None}
    if len(empty) == len(calls):
        raise HieronnxError(f"none of the {len(calls)} calls that '{target}' matches has nodes; {empty[calls[0]]}")
    for line in empty.values():
        skipped(line)
    # All that can be wrong with the model shows before anything is written.
    parts = [extractor.cut([call]) for call in calls if call not in empty]
    with new_files(Path(folder)):
        outputs = [Path(folder) / f"{_file_stem(part.call, hierarchy)}.onnx" for part in parts]
        for output in outputs:
            check_output(output, extractor.files)
        return [extractor.finish(part, output) for part, output in zip(parts, outputs, strict=True)]


def _file_stem(call: Call, hierarchy: Hierarchy) -> str:
    name = escape(call.id.module or hierarchy.modules[""].class_name)
    name = "".join(c if c.isprintable() and c != "\\" else f"~x{ord(c):x}~" for c in name)
    return str(CallId(name, call.id.number))


class Extractor:
    """One model, opened once, to take many calls out of."""

    def __init__(self, model: ModelLike, *, relative_names: bool = False) -> None:
        self.source = prepare(unfold_opened(open_model(model)))
        self.hierarchy = self.source.hierarchy
        self.types = ValueTypes(self.source)
        self._relative_names = relative_names
        self.files = list_own_files(self.source.opened.path or self.source.opened.model)

    def find(self, *calls: CallId) -> Part | None:
        """Find the part that a call is, or several together; None where the file has no node of it."""
        return find_part(self.source, calls)

    def extract(self, calls: Sequence[Call], output: str | os.PathLike[str] | None = None) -> ExtractResult:
        """Extract one call, or several as one.

        Raises:
            HieronnxError: If the file has no node of it, or a file is missing or in the way.
        """
        if output is not None:
            check_output(Path(output), self.files)
        return self.finish(self.cut(calls), output)

    def cut(self, calls: Sequence[Call]) -> _Cut:
        """Cut calls out as one part, without reading its weights.

        Raises:
            HieronnxError: If the file has no node of it, or a file of weights is missing.
        """
        part = self.find(*(call.id for call in calls))
        if part is None:
            raise HieronnxError(explain_no_nodes(self.hierarchy, calls[0].id))
        pieces, hierarchy = self.make_pieces(part, rebase_part(self.source, part))
        return _Cut(self.hierarchy.call_by_id[part.call], part, pieces, hierarchy)

    def make_pieces(self, part: Part, rebased: Rebased) -> tuple[ModelPieces, Hierarchy]:
        """Return the model of a part, ready to be written, and its hierarchy.

        Raises:
            HieronnxError: If a type is not known, or a file is missing.
        """
        source = self.source
        _check_inputs(source, part)
        model = build_model(source, part, self.types)
        names = _relative_names(source, part, rebased, find_names(model)) if self._relative_names else {}
        if names:
            rename_tensors(model, names)
        initializers = (source.values[tensor] for tensor in part.initializers)
        weights = find_weights(source.opened, initializers, source.located, names)
        pieces = ModelPieces(model, weights, find_inner_weights(source.opened, model), frozenset(self.files))
        return pieces, rebase_hierarchy(source, part, rebased, names)

    def finish(self, cut: _Cut, output: str | os.PathLike[str] | None) -> ExtractResult:
        """Write what was cut out, or put it together in memory.

        Raises:
            HieronnxError: If it cannot be written.
        """
        if output is None:
            model = assemble(cut.pieces, cut.hierarchy)
            return _make_result(self.source, cut.part, cut.call, cut.hierarchy, model)
        described = write(cut.pieces, cut.hierarchy, output, exporter=self.hierarchy.model.get("exporter", ""))
        return _make_result(self.source, cut.part, cut.call, described, Path(output))


def _check_inputs(source: Source, part: Part) -> None:
    """Make sure that a part reads no sparse initializer: onnx-ir has none, so that it looks like an input.

    Raises:
        HieronnxError: If it does.
    """
    view = source.view
    for tensor in part.inputs:
        graph = view.tensor_graphs[tensor]
        if view.producers[tensor] is None and tensor not in view.graphs[graph].inputs:
            raise HieronnxError(
                f"'{view.names[tensor]}', which the part reads, is a sparse initializer, and parts have none; make it "
                f"dense in '{source.opened.name}' first"
            )


class _Cut(NamedTuple):
    """A part that is ready to be written."""

    call: Call
    part: Part
    pieces: ModelPieces
    hierarchy: Hierarchy


def _relative_names(source: Source, part: Part, rebased: Rebased, taken: set[str]) -> dict[str, str]:
    """Return the new names of the initializers that hold a parameter of the module as it is; none that is taken."""
    parameters = {item.name: item.parameter for item in source.hierarchy.initializers if not item.origins}
    names: dict[str, str] = {}
    for tensor in part.initializers:
        old = source.view.names[tensor]
        # Without a sidecar, what holds a parameter is known by its name alone.
        parameter = parameters.get(old) if source.hierarchy.initializers else old
        new = old if parameter is None else rebase_parameter(parameter, rebased)
        if new != old and new not in taken:
            names[old] = new
            taken.add(new)
    return names


def _make_result(
    source: Source, part: Part, call: Call, hierarchy: Hierarchy, model: onnx.ModelProto | Path
) -> ExtractResult:
    names, nodes = source.view.names, source.view.nodes
    entering, leaving = set(part.inputs), set(part.outputs)
    boundary = (i for i in part.region if entering.intersection(nodes[i].reads) or leaving.intersection(nodes[i].makes))
    shared = find_shared(source, part)

    def describe_input(tensor: int) -> PartInput:
        producer = source.view.producers[tensor]
        if producer is None:
            producer = source.view.graphs[source.view.tensor_graphs[tensor]].owner
        maker = None if producer is None else source.attributions[producer]
        return PartInput(names[tensor], part.arguments.get(tensor, ()), maker)

    def pick(chosen: Iterable[int]) -> tuple[Node, ...]:
        return tuple(source.attributions[index] for index in chosen)

    return ExtractResult(
        targets=part.calls,
        module=call.id.module,
        call=call.id.number,
        tag=call.tag,
        calls=sum(other.id.module == call.id.module for other in source.hierarchy.calls),
        nodes=pick(part.nodes),
        inputs=tuple(map(describe_input, part.inputs)),
        outputs=tuple(PartOutput(names[t], part.places.get(t, ())) for t in part.outputs),
        recorded=part.io.recorded,
        undeclared_inputs=tuple(map(describe_input, part.undeclared_inputs)),
        constant_arguments=tuple(_constant_arguments(source, part)),
        lost_arguments=part.io.lost,
        lost_outputs=part.io.lost_returned,
        internal_tensors=tuple(names[t] for i in part.nodes for t in nodes[i].makes if t not in leaving),
        boundary_nodes=pick(boundary),
        shared_nodes=pick(shared),
        fused_with=find_fused(source, part, shared),
        between_nodes=pick(part.between),
        pulled_in_nodes=pick(part.pulled_in),
        initializers=tuple(item.name for item in hierarchy.initializers),
        hierarchy=hierarchy,
        model=model,
    )


def _constant_arguments(source: Source, part: Part) -> Iterator[ConstantArgument]:
    """Yield the arguments that the part has as initializers or literals."""
    parameters = {item.name: item.parameter for item in source.hierarchy.initializers}
    literals = {t for index in part.nodes for t in source.view.nodes[index].makes if source.is_literal(t)}
    for tensor, arguments in part.io.received.items():
        if tensor in literals or tensor in part.initializers:
            name = source.view.names[tensor]
            yield from (ConstantArgument(argument, name, parameters.get(name)) for argument in arguments)
