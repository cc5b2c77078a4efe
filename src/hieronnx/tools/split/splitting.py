"""Split: a model cut into stages at module calls, each a model of its own, and what goes from one to the next."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hieronnx.errors import HieronnxError, InputError, check_known, require
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import open_structure
from hieronnx.files.pipeline import (
    DOCUMENT,
    FORMAT_VERSION,
    CrossingEntry,
    CutEntry,
    PipelineDocument,
    StageEntry,
    TensorEntry,
    generator,
    writing_folder,
)
from hieronnx.files.writing import write
from hieronnx.graph.view import ModelLike
from hieronnx.hierarchy.records import CallId
from hieronnx.hierarchy.targets import find_outermost
from hieronnx.runtime.fitting import fit_inputs
from hieronnx.runtime.inputs import Feeds, draw_feeds, read_feeds, read_inputs, read_outputs
from hieronnx.runtime.sessions import as_file, open_session
from hieronnx.tools.extract.extracting import Extractor
from hieronnx.tools.extract.find import Part
from hieronnx.tools.extract.hierarchy import rebase_calls
from hieronnx.tools.split.balance import Costs, choose_cuts, count_stages
from hieronnx.tools.split.costs import join_all_weights, measure_crossings, measure_stages
from hieronnx.tools.split.pipeline import Pipeline, measure_run
from hieronnx.tools.split.result import CrossingTensor, Cut, SplitCheck, SplitResult, Stage
from hieronnx.tools.split.stages import Crossing, Stages, find_stages
from hieronnx.tools.split.timeline import TensorSizes, Timeline, count_weight, make_timeline
from hieronnx.tools.split.triton import write_triton

BALANCES = ("time", "multiply-adds", "bytes")


@reads_files
def split(
    model: ModelLike,
    *,
    at: str | Sequence[str] = (),
    stages: int | None = None,
    into: str | os.PathLike[str],
    balance: str | None = None,
    profile: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    memory_limit: int | None = None,
    dims: Mapping[str, int] | None = None,
    triton: str | os.PathLike[str] | None = None,
    check: bool = False,
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> SplitResult:
    """Split a model into stages that run one after the other; every node is in one of them.

    Args:
        model: The model, with its hierarchy: a file, a ModelProto or an ir.Model.
        at: The calls to cut before, as `extract` takes them.
        stages: How many stages, if the cuts are to be chosen: the slowest as fast as can be, then the fewest bytes
            that cross.
        into: The folder for the stages and `pipeline.json`: a new one, or one that `split` wrote.
        balance: What a stage costs: `multiply-adds` (the default), `time` (the default with a profile), `bytes` of
            weights.
        profile: For `time`: what `hieronnx profile --json` printed, or its file.
        memory_limit: The most bytes of weights that a stage may have; without `stages` it takes as few as it can.
        dims: Sizes of dynamic axes, by name, for multiply-adds and for the bytes that cross.
        triton: Where to write a model repository for NVIDIA Triton, if one is wanted.
        check: Whether to run the model and the stages on the same inputs, and compare to the last bit.
        inputs: For the check: a .npz file with an array for each input, or the arrays; random ones if none are given.

    Raises:
        HieronnxError: If the model has no hierarchy, there is no such call, a stage would be empty, no stages are
            within the limit, or the folder cannot be written.

    Example:
        >>> hieronnx.split("model.onnx", at=["encoder.layer.4", "encoder.layer.8"], into="stages").stages
    """
    targets = [at] if isinstance(at, str) else list(at)
    _check_request(targets, stages, memory_limit, balance, profile)
    extractor = Extractor(model)
    timeline = make_timeline(extractor.source)
    if not timeline.places:
        raise InputError(f"'{extractor.source.opened.name}' has nothing to split: no node of it computes anything")
    sizes = TensorSizes(extractor.source, extractor.types, dims or {})
    notes: list[str] = []
    if targets:
        chosen, costs, cuts = None, None, _find_cuts(timeline, targets)
    else:
        chosen, table = measure_stages(timeline, balance, profile, dims or {}, notes)
        crossing = np.asarray(measure_crossings(timeline, sizes), np.float64)
        weights = join_all_weights(timeline)
        if memory_limit is not None:
            table = np.where(weights <= memory_limit, table, np.inf)
        count = stages if stages is not None else count_stages(weights, memory_limit or 0)
        positions = choose_cuts(Costs(table, crossing), count)
        cuts = [timeline.places[position] for position in positions]
        costs = [float(table[i, j]) for i, j in zip([0, *positions], [*positions, len(timeline.places)], strict=True)]
    found = find_stages(timeline, cuts)
    folder = Path(into)
    with writing_folder(folder, DOCUMENT) as new:
        names = [f"stage_{number}.onnx" for number in range(len(found.parts))]
        for name, part in zip(names, found.parts, strict=True):
            _write_stage(extractor, part, new / name)
        records = _describe(timeline, found, cuts, costs, sizes, folder)
        _write_document(new, _make_document(extractor, chosen, records, sizes))
        if dims and any(cut.bytes is None for cut in records[1]):
            records = records[0], _measure_cuts(new, records[1], dims, notes)
            _write_document(new, _make_document(extractor, chosen, records, sizes))
        checked = check_pipeline(model, new, inputs, dims) if check else None
    if triton is not None:
        write_triton(folder, triton)
    return SplitResult(
        model=extractor.source.opened.name,
        folder=folder,
        stages=records[0],
        cuts=records[1],
        balance=chosen,
        shared_weights=_find_shared(records[0]),
        check=checked,
        notes=tuple(notes),
    )


def _check_request(
    targets: Sequence[str], stages: int | None, memory_limit: int | None, balance: str | None, profile: object
) -> None:
    if targets and (stages is not None or memory_limit is not None or balance is not None):
        raise InputError("the cuts are given, so that nothing is left to choose; leave out stages, balance and limit")
    if not targets and stages is None and memory_limit is None:
        raise InputError("say where to cut (at, --at), into how many stages (stages, --stages), or a memory limit")
    if stages is not None and stages < 1:
        raise InputError(f"a model cannot be split into {stages} stages; give 1 or more")
    if balance is not None:
        check_known("balance", balance, BALANCES)
    if balance == "time" and profile is None:
        raise InputError("balancing by time needs a profile: what 'hieronnx profile --json' prints (--profile FILE)")


def _find_cuts(timeline: Timeline, targets: Iterable[str]) -> list[int]:
    """Return the times of given cuts."""
    hierarchy, source = timeline.source.hierarchy, timeline.source
    order = {call.id: position for position, call in enumerate(hierarchy.calls)}
    calls = {call.id for target in targets for call in hierarchy.find_calls(target)}
    for call in calls:
        nodes = [i for below in hierarchy.tree.below(call) for i in source.nodes_of.get(below, ())]
        if nodes and all(source.view.nodes[index].graph for index in nodes):
            raise HieronnxError(
                f"call '{call}' runs inside the body of a control-flow node or a function, which cannot be cut; "
                "cut before the call that has that node"
            )
    return sorted(order[call] for call in calls)


# -- what is written --------------------------------------------------------------------------------------


def _write_stage(extractor: Extractor, part: Part, path: Path) -> None:
    hierarchy, tree = extractor.hierarchy, extractor.hierarchy.tree
    nodes = [extractor.source.attributions[index] for index in part.region]
    touched = {call for node in nodes for call in (node.scope, *node.origins)}
    inside = {above for call in touched for above in tree.ancestors(call)} | {part.call}
    pieces, stage = extractor.make_pieces(part, rebase_calls(hierarchy, part.call, inside))
    write(pieces, stage, path, exporter=hierarchy.model.get("exporter", ""))


def _write_document(folder: Path, document: PipelineDocument) -> None:
    (folder / DOCUMENT).write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def _measure_cuts(folder: Path, cuts: tuple[Cut, ...], dims: Mapping[str, int], notes: list[str]) -> tuple[Cut, ...]:
    """Return cuts with the bytes that shapes do not tell, seen in a run of the stages on random inputs."""
    try:
        seen = measure_run(folder, dims)
    except HieronnxError as error:
        notes.append(f"some of the bytes that cross are not known: {error}")
        return cuts
    measured = []
    for cut in cuts:
        tensors = tuple(replace(t, bytes=seen.get(t.name) if t.bytes is None else t.bytes) for t in cut.tensors)
        known = [item.bytes for item in tensors if item.bytes is not None]
        measured.append(replace(cut, tensors=tensors, bytes=sum(known) if len(known) == len(tensors) else None))
    return tuple(measured)


def _describe(
    timeline: Timeline,
    found: Stages,
    cuts: Sequence[int],
    costs: Sequence[float] | None,
    sizes: TensorSizes,
    folder: Path,
) -> tuple[tuple[Stage, ...], tuple[Cut, ...]]:
    source, names = timeline.source, timeline.source.view.names
    begun: dict[CallId, int] = {}
    for index in timeline.nodes:
        for call in source.hierarchy.tree.ancestors(source.attributions[index].scope):
            stage = timeline.stage_of(index, cuts)
            begun[call] = min(begun.get(call, stage), stage)
    stages = []
    for number, part in enumerate(found.parts):
        mine = {call for call, stage in begun.items() if stage == number}
        outermost = find_outermost(source.hierarchy.calls, mine)
        stages.append(
            Stage(
                path=folder / f"stage_{number}.onnx",
                calls=tuple(call.id for call in source.hierarchy.calls if call.id in outermost),
                nodes=tuple(source.attributions[index] for index in part.region),
                repeated=tuple(source.attributions[index] for index in part.pulled_in),
                inputs=tuple(names[t] for t in part.inputs),
                outputs=tuple(names[t] for t in part.outputs),
                weights=tuple(names[t] for t in part.initializers),
                weight_bytes=sum(count_weight(source, t) for t in part.initializers),
                cost=None if costs is None else costs[number],
            )
        )

    def describe(item: Crossing) -> CrossingTensor:
        dtype, shape = sizes.describe(item.tensor)
        size = sizes.count_bytes(item.tensor)
        fixed = None if shape is None else tuple(shape)
        return CrossingTensor(names[item.tensor], dtype, fixed, item.made_by, item.read_by, size)

    told = []
    for number, time in enumerate(cuts):
        tensors = tuple(map(describe, found.crossing_after(number)))
        known = [item.bytes for item in tensors if item.bytes is not None]
        told.append(Cut(timeline.name_cut(time), tensors, sum(known) if len(known) == len(tensors) else None))
    return tuple(stages), tuple(told)


def _find_shared(stages: Sequence[Stage]) -> dict[str, tuple[int, ...]]:
    holders: dict[str, list[int]] = {}
    for number, stage in enumerate(stages):
        for name in stage.weights:
            holders.setdefault(name, []).append(number)
    return {name: tuple(numbers) for name, numbers in holders.items() if len(numbers) > 1}


def _make_document(
    extractor: Extractor,
    balance: str | None,
    records: tuple[tuple[Stage, ...], tuple[Cut, ...]],
    sizes: TensorSizes,
) -> PipelineDocument:
    view = extractor.source.view
    main = view.graphs[0]
    fed = [t for t in main.inputs if t not in view.constants]

    def list_tensors(tensors: Iterable[int]) -> list[TensorEntry]:
        return [TensorEntry(view.names[t], *sizes.describe(t)) for t in tensors]

    stages, cuts = records
    return PipelineDocument(
        format_version=FORMAT_VERSION,
        generator=generator(),
        model=Path(extractor.source.opened.name).name,
        balance=balance,
        inputs=list_tensors(fed),
        outputs=list_tensors(main.outputs),
        stages=[
            StageEntry(
                file=stage.path.name,
                inputs=list(stage.inputs),
                outputs=list(stage.outputs),
                calls=list(map(str, stage.calls)),
                nodes=len(stage.nodes),
                repeated=[node.output for node in stage.repeated],
                weights=list(stage.weights),
                weight_bytes=stage.weight_bytes,
                cost=stage.cost,
            )
            for stage in stages
        ],
        cuts=[
            CutEntry(
                before=str(cut.before),
                tensors=[
                    CrossingEntry(
                        item.name,
                        item.dtype,
                        None if item.shape is None else list(item.shape),
                        item.made_by,
                        list(item.read_by),
                        item.bytes,
                    )
                    for item in cut.tensors
                ],
                bytes=cut.bytes,
            )
            for cut in cuts
        ],
        shared_weights={name: list(numbers) for name, numbers in _find_shared(stages).items()},
    )


# -- the check --------------------------------------------------------------------------------------------


def check_pipeline(
    model: ModelLike,
    folder: Path,
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    dims: Mapping[str, int] | None = None,
) -> SplitCheck:
    """Run a model and its stages on the same inputs, without optimization, and compare what they give.

    Raises:
        HieronnxError: If one cannot be run, or the inputs do not fit.
    """
    require("onnxruntime", "runtime")
    with as_file(open_structure(model)) as path:
        wanted = read_inputs(path)
        # In sessions of the same kind: prepacked weights, say, are multiplied by another kernel.
        session, outputs = open_session(path, providers=["CPUExecutionProvider"], optimized=False), read_outputs(path)
        feeds: Feeds
        if isinstance(inputs, Mapping):
            feeds = {name: np.asarray(array) for name, array in inputs.items()}
        elif inputs is not None:
            feeds = read_feeds(Path(inputs), wanted)[0]
        else:
            feeds = draw_feeds(fit_inputs(wanted, lambda drawn: session.run(drawn, outputs), dims or {}), 1)[0]
        whole = session.run(feeds, outputs)
    parts = Pipeline(folder, optimization="none").run(feeds)
    different = {}
    for name, expected in whole.items():
        got = parts[name]
        if (got.dtype, got.shape) != (expected.dtype, expected.shape):
            different[name] = float("inf")
        elif got.tobytes() != expected.tobytes():
            apart = np.abs(got.astype(np.float64) - expected.astype(np.float64))
            different[name] = float(np.nanmax(apart, initial=0.0))
    return SplitCheck(not different, different)
