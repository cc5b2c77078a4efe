"""Running a quantizer of others on a model, all but chosen modules, with the hierarchy carried through it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx

from hieronnx.errors import InputError, check_known, list_some, require
from hieronnx.graph.view import ModelLike
from hieronnx.graph.walks import walk_bodies
from hieronnx.hierarchy.hierarchy import Hierarchy, NodeKey
from hieronnx.runtime.fitting import draw_fitting
from hieronnx.runtime.inputs import Feeds, read_inputs, read_outputs
from hieronnx.runtime.runs import split_inputs
from hieronnx.runtime.saturation import clips_products
from hieronnx.runtime.sessions import CPU, Array, Session, open_session
from hieronnx.tools.carry import CarryResult
from hieronnx.tools.carry.carrying import Transfer
from hieronnx.tools.carry.pair import Pair
from hieronnx.tools.precision.accounting import ToolReach, count_bits, report_precision
from hieronnx.tools.precision.calibration import Calibration, list_runs
from hieronnx.tools.precision.four_bits import name_products, quantize_to_four_bits, separate_transposed
from hieronnx.tools.precision.half import convert_to_half
from hieronnx.tools.precision.own_weights import find_sources, join_weights, separate_weights
from hieronnx.tools.precision.ranges import advise_on_ranges
from hieronnx.tools.precision.result import PrecisionReport
from hieronnx.tools.running import (
    calling,
    copy_for_tool,
    copy_permissions,
    declare_types,
    has_external_data,
    look_through_copies,
    run_tool,
)
from hieronnx.tools.select import choose_nodes

Quantizer: TypeAlias = Literal["dynamic", "static", "fp16", "int4"]

_INT8 = ("dynamic", "static")
_OURS: Mapping[str, tuple[str, ...]] = {
    "operators": (*_INT8, "int4"),
    "weight_type": _INT8,
    "activation_type": ("static",),
    "calibration_method": ("static",),
    "symmetric": ("static", "int4"),
    "block_size": ("int4",),
}
"""The options that have names of ours, and the tools that they are for."""
_TYPES = {f"{sign}int{bits}": f"Q{sign.upper()}Int{bits}" for sign in ("", "u") for bits in (4, 8, 16)}
_METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
_FOLLOWERS = frozenset({"AveragePool", "Clip", "MaxPool", "Relu", "Resize", "TopK", "Where"})
"""What `quantize_static` quantizes only where what they read is, beside what moves values."""
_NEEDING_WEIGHT = frozenset({"Attention", "Conv"})
"""What `quantize_dynamic` takes to have its weight in an initializer."""
_SATURATED = (
    "on this processor ONNX Runtime clips sums of products with int8 weights, which may make the model far worse than "
    "8 bits need; --weight-type uint8 is exact here, as are processors with VNNI"
)


def run_quantizer(
    model: ModelLike,
    *,
    output: str | os.PathLike[str],
    tool: Quantizer,
    exclude: str | Sequence[str] = (),
    calibration: Calibration = (),
    random_calibration: int = 0,
    embed: bool = True,
    sidecar: bool = True,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> CarryResult:
    """Quantize a model once, all but what is excluded; `quantize` says what the arguments are.

    Raises:
        HieronnxError: If the model has no hierarchy, nothing matches a pattern, the tool is missing or fails, or the
            output cannot be written.
    """
    check_known("tool", tool, QUANTIZERS)
    patterns = [exclude] if isinstance(exclude, str) else exclude
    translated = translate_options(tool, options)
    sources: set[NodeKey] = set()

    def examine(pair: Pair, moved: Transfer) -> PrecisionReport:
        excluded = {node.key for node in choose_nodes(pair.hierarchy, patterns)[0]} | sources
        return report_precision(pair, moved, describe_reach(tool, translated, excluded))

    def run(source: Path, made: Path, hierarchy: Hierarchy) -> Iterator[str]:
        # A module's path stands for all its calls: they share its weights.
        nodes, shared = choose_nodes(hierarchy, patterns)
        inner = next((node for node in nodes if node.graph), None)
        if tool == "fp16" and inner is not None:  # the converter would write a broken file
            raise InputError(
                f"fp16 can leave no node in float that is in a body of control flow or in a function, as "
                f"'{inner.name or inner.output}' of '{inner.scope}' is; exclude other modules"
            )
        feeds = read_samples(source, calibration, random_calibration)
        chosen = {node.key for node in nodes}
        sources.update(find_sources(source, chosen))
        copy = copy_for_tool(source, made.with_name("copy"), chosen | sources)
        if tool != "fp16":
            look_through_copies(copy.path)
        copies = separate_weights(copy.path, lambda node: node.name in copy.chosen, "float") if copy.chosen else {}
        QUANTIZERS[tool](copy.path, made, copy.chosen, feeds, **translated)
        join_weights(made, copies)
        if shared:
            names = list_some([node.name or node.output for node in shared], 3)
            yield f"{len(shared)} of the nodes left in float work for other calls, too: {names}"
        if copy.named:
            yield f"{copy.named} nodes had no name of their own, which the tool needs; they got the names of outputs"
        if random_calibration:
            drawn = f"the ranges are those of {random_calibration} random inputs, not of your data"
            yield f"{drawn}; --calibration takes real ones"
        if tool == "static":
            yield from advise_on_ranges(made, hierarchy)
        if tool == "dynamic" and _may_clip(options) and clips_products():
            yield _SATURATED

    return run_tool(model, output, f"'{tool}'", run, embed=embed, sidecar=sidecar, progress=progress, examine=examine)


def translate_options(tool: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as ONNX Runtime's quantizers take them; what is not one of ours is passed on as it is.

    Raises:
        InputError: If one has no such value, or is not for this tool.
    """
    translated = {name: value for name, value in options.items() if name not in _OURS}
    given = {name: options[name] for name in _OURS if options.get(name) not in (None, (), False)}
    for name in given:
        if tool not in _OURS[name]:
            raise InputError(f"{name.replace('_', ' ')} is not for '{tool}'; it is for {' and '.join(_OURS[name])}")
    if "operators" in given:
        listed = given["operators"]
        translated["op_types_to_quantize"] = [listed] if isinstance(listed, str) else list(listed)
    for name in ("weight_type", "activation_type"):
        if name in given:
            translated[name] = _find_type(given[name])
    if "calibration_method" in given:
        from onnxruntime.quantization import CalibrationMethod

        check_known("method of calibration", given["calibration_method"], _METHODS)
        translated["calibrate_method"] = CalibrationMethod[_METHODS[given["calibration_method"]]]
    if "block_size" in given:
        translated["block_size"] = given["block_size"]
    if "symmetric" in given and tool == "int4":
        translated["is_symmetric"] = True
    elif "symmetric" in given:
        extra = {"ActivationSymmetric": True, "WeightSymmetric": True}
        translated["extra_options"] = {**extra, **translated.get("extra_options", {})}
    return translated


def describe_reach(tool: str, options: Mapping[str, Any], excluded: Collection[NodeKey]) -> ToolReach:
    """Describe what a tool quantizes with some options, as its own tables have it."""
    chosen: Collection[str] | None = options.get("op_types_to_quantize")
    if tool == "fp16":
        from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

        return ToolReach(tool, 16, None, None, excluded, blocked=options.get("op_block_list") or DEFAULT_OP_BLOCK_LIST)
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry

    if tool == "static":
        standard = options.get("quant_format") is not QuantFormat.QOperator
        known = {*QLinearOpsRegistry, *(QDQRegistry if standard else ())}
        bits = count_bits(options.get("weight_type"))
        return ToolReach(tool, bits, known, chosen, excluded, followers=_FOLLOWERS)
    # The others make a MatMul and an Add of every Gemm, and want a constant weight.
    if tool == "int4":
        known, bits, bodies = {"MatMul", "Gather"}, options.get("bits", 4), True
        chosen = chosen or ["MatMul"]
    else:
        known, bits = set(IntegerOpsRegistry), count_bits(options.get("weight_type"))
        bodies = bool((options.get("extra_options") or {}).get("EnableSubgraph"))
    if chosen and "MatMul" in chosen:
        chosen = [*chosen, "Gemm"]
    return ToolReach(tool, bits, {*known, "Gemm"}, chosen, excluded, needs_weight=True, enters_bodies=bodies)


def _may_clip(options: Mapping[str, Any]) -> bool:
    """Say whether weights are signed, as they are if nothing else is asked for, and use their whole range."""
    kind = options.get("weight_type")
    return not options.get("reduce_range") and (kind is None or "U" not in str(getattr(kind, "name", kind)).upper())


def _find_type(name: Any) -> Any:
    """Return ONNX Runtime's type of a name; a type of its own is that already."""
    from onnxruntime.quantization import QuantType

    if not isinstance(name, str):
        return name
    check_known("type", name, _TYPES)
    return QuantType[_TYPES[name]]


def read_samples(source: Path, given: Calibration, drawn: int) -> list[dict[str, Array]]:
    """Return the inputs of each run: those given, or so many at random.

    Raises:
        HieronnxError: If they do not fit the file, or it runs on none.
    """
    inputs = read_inputs(source)
    runs = list_runs(given, inputs)
    if isinstance(runs, Path) or runs:
        return split_inputs(inputs, runs, 1)
    return draw_samples(source, drawn) if drawn else []


def stack_samples(source: Path, given: Calibration, most: int) -> dict[str, Array]:
    """Return the first inputs of a calibration, those that are of one size, with an axis for the samples before others.

    Raises:
        HieronnxError: If they do not fit the file.
    """
    samples = [{name: np.asarray(array) for name, array in feeds.items()} for feeds in read_samples(source, given, 0)]
    alike = [feeds for feeds in samples if all(feeds[name].shape == samples[0][name].shape for name in feeds)]
    return {name: np.stack([feeds[name] for feeds in alike[:most]]) for name in samples[0]}


def draw_samples(source: Path, count: int) -> list[dict[str, Array]]:
    """Draw inputs at random that fit one another.

    Raises:
        HieronnxError: If the file runs on none.
    """
    require("onnxruntime", "runtime")
    names, sessions = read_outputs(source), list[Session]()

    def attempt(feeds: Feeds) -> None:
        if not sessions:
            sessions.append(open_session(source, providers=[CPU], optimized=True))
        sessions[0].run(feeds, names)

    return [dict(feeds) for feeds in draw_fitting(read_inputs(source), attempt, count)]


# -- the tools, imported when they run --------------------------------------------------------------------


def _quantize_dynamic(source: Path, target: Path, excluded: list[str], feeds: list[Feeds], **options: Any) -> None:
    require("onnxruntime", "runtime")
    from onnxruntime.quantization import quantize_dynamic

    if feeds:
        raise InputError("dynamic quantization finds ranges as it runs; it takes no calibration inputs")
    external = has_external_data(source)
    separate_transposed(source)
    declare_types(source)
    names = [*name_products(source, excluded), *_name_computed(source)]
    with calling("'dynamic'"), _without_advice():
        quantize_dynamic(source, target, nodes_to_exclude=names, use_external_data_format=external, **options)
    _restore_inputs(source, target, excluded)
    copy_permissions(target)


@contextmanager
def _without_advice() -> Iterator[None]:
    """Leave out the advice to run ONNX Runtime's own tool first: `hieronnx optimize` keeps the hierarchy."""

    def is_other(record: logging.LogRecord) -> bool:
        return "pre-processing before quantization" not in record.getMessage()

    root = logging.getLogger()
    root.addFilter(is_other)
    try:
        yield
    finally:
        root.removeFilter(is_other)


def _name_computed(source: Path) -> list[str]:
    """Name the nodes whose weight the file computes: on these the tool would give up."""
    model = onnx.load(source, load_external_data=False)
    initializers = {tensor.name for tensor in model.graph.initializer}
    nodes = (node for node in model.graph.node if node.op_type in _NEEDING_WEIGHT and len(node.input) > 1)
    computed = [node for node in nodes if node.input[1] not in initializers]
    unnamed = [node for node in computed if not node.name]
    for node in unnamed:
        node.name = node.output[0]
    if unnamed:
        source.write_bytes(model.SerializeToString())
    return [node.name for node in computed]


def _quantize_static(source: Path, target: Path, excluded: list[str], feeds: list[Feeds], **options: Any) -> None:
    require("onnxruntime", "runtime")
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    if not feeds:
        raise InputError(
            "static quantization needs inputs to find ranges with: give --calibration, "
            "or --random-calibration if no better ones are at hand"
        )

    remaining = iter(feeds)

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # its package has no types
        def get_next(self) -> dict[str, Any] | None:
            return dict(given) if (given := next(remaining, None)) is not None else None

    external = has_external_data(source)
    declare_types(source)
    with calling("'static'"), _without_advice():
        quantize_static(
            source, target, Reader(), nodes_to_exclude=excluded, use_external_data_format=external, **options
        )
    _restore_inputs(source, target, excluded)
    copy_permissions(target)


def _restore_inputs(source: Path, target: Path, excluded: Sequence[str]) -> None:
    """Let nodes that stay in float read what others of them made, not what is left of it after a rounding.

    The tool quantizes a tensor for one of its readers, and all of them read the result.
    """
    if not excluded:
        return
    before, after = (onnx.load(path, load_external_data=False) for path in (source, target))
    names = set(excluded)
    old = {node.name: node for node in before.graph.node if node.name in names}
    made = {output for node in old.values() for output in node.output}
    changed = False
    for node in after.graph.node:
        for position, name in enumerate(old[node.name].input if node.name in old else ()):
            if node.input[position] != name and name in made:
                node.input[position] = name
                changed = True
    if changed:
        _remove_unread(after.graph, "DequantizeLinear")
        target.write_bytes(after.SerializeToString())


def _remove_unread(graph: onnx.GraphProto, op_type: str) -> None:
    """Remove the nodes of one operator whose outputs nobody reads."""
    read = {name for _, body in walk_bodies(graph) for node in body.node for name in node.input}
    read |= {value.name for value in graph.output}
    kept = [node for node in graph.node if node.op_type != op_type or not read.isdisjoint(node.output)]
    del graph.node[:]
    graph.node.extend(kept)


QUANTIZERS: Mapping[Quantizer, Callable[..., None]] = {
    "dynamic": _quantize_dynamic,
    "static": _quantize_static,
    "fp16": convert_to_half,
    "int4": quantize_to_four_bits,
}
"""Each takes the file to read, the file to write, the names of nodes to leave alone, inputs to run on, and options."""
