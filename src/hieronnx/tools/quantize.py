"""Running a quantizer of others on a model, all but chosen modules, with the hierarchy carried through it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import onnx
import onnx_ir as ir

from hieronnx.errors import InputError, check_known, list_some, require
from hieronnx.files.staging import data_name
from hieronnx.files.wire import read_skeleton
from hieronnx.graph.view import SMALL_TENSOR_BYTES, ModelLike
from hieronnx.graph.walks import walk_bodies
from hieronnx.hierarchy.hierarchy import Hierarchy, NodeKey
from hieronnx.runtime.fitting import draw_fitting
from hieronnx.runtime.inputs import Feeds, check_feeds, read_feeds, read_inputs, read_outputs
from hieronnx.runtime.saturation import clips_products
from hieronnx.runtime.sessions import CPU, Session, open_session
from hieronnx.tools.carry import CarryResult
from hieronnx.tools.carry.carrying import Transfer
from hieronnx.tools.carry.pair import Pair
from hieronnx.tools.precision.accounting import ToolReach, count_bits, report_precision
from hieronnx.tools.precision.calibration import Calibration, list_runs
from hieronnx.tools.precision.result import PrecisionReport
from hieronnx.tools.running import (
    calling,
    copy_for_tool,
    copy_permissions,
    declare_types,
    has_external_data,
    run_tool,
)
from hieronnx.tools.select import choose_nodes

Quantizer: TypeAlias = Literal["dynamic", "static", "fp16"]

_INT8 = ("dynamic", "static")
_OURS: Mapping[str, tuple[str, ...]] = {
    "operators": _INT8,
    "weight_type": _INT8,
    "activation_type": ("static",),
    "calibration_method": ("static",),
    "symmetric": ("static",),
}
"""The options that have names of ours, and the tools that they are for."""
_TYPES = {f"{sign}int{bits}": f"Q{sign.upper()}Int{bits}" for sign in ("", "u") for bits in (4, 8, 16)}
_METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
_SATURATED = (
    "on this processor ONNX Runtime clips sums of products with int8 weights, which may make the model far worse than "
    "8 bits need; --weight-type uint8 is exact here, as are processors with VNNI"
)
_TO_HALF, _TO_FLOAT = "_cast_to_fp16_node", "_cast_to_fp32_node"


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

    def examine(pair: Pair, moved: Transfer) -> PrecisionReport:
        excluded = {node.key for node in choose_nodes(pair.hierarchy, patterns)[0]}
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
        feeds = _get_feeds(source, calibration, random_calibration)
        copy = copy_for_tool(source, made.with_name("copy"), {node.key for node in nodes})
        QUANTIZERS[tool](copy.path, made, copy.chosen, feeds, **translated)
        if shared:
            names = list_some([node.name or node.output for node in shared], 3)
            yield f"{len(shared)} of the nodes left in float work for other calls, too: {names}"
        if copy.named:
            yield f"{copy.named} nodes had no name of their own, which the tool needs; they got the names of outputs"
        if random_calibration:
            drawn = f"the ranges are those of {random_calibration} random inputs, not of your data"
            yield f"{drawn}; --calibration takes real ones"
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
    if "symmetric" in given:
        extra = {"ActivationSymmetric": True, "WeightSymmetric": True}
        translated["extra_options"] = {**extra, **translated.get("extra_options", {})}
    return translated


def describe_reach(tool: str, options: Mapping[str, Any], excluded: Collection[NodeKey]) -> ToolReach:
    """Describe what a tool quantizes with some options, as its own tables have it."""
    if tool == "fp16":
        from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

        return ToolReach(tool, 16, None, None, excluded, blocked=options.get("op_block_list") or DEFAULT_OP_BLOCK_LIST)
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry

    bits, extra = count_bits(options.get("weight_type")), options.get("extra_options") or {}
    chosen = options.get("op_types_to_quantize") or None
    if tool == "dynamic":  # which makes a MatMul and an Add of every Gemm
        chosen = [*chosen, *(["Gemm"] if "MatMul" in chosen else [])] if chosen else None
        known = {*IntegerOpsRegistry, "Gemm"}
        bodies = bool(extra.get("EnableSubgraph"))
        return ToolReach(tool, bits, known, chosen, excluded, needs_weight=True, enters_bodies=bodies)
    known = {*QLinearOpsRegistry, *(() if options.get("quant_format") is QuantFormat.QOperator else QDQRegistry)}
    return ToolReach(tool, bits, known, chosen, excluded)


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


def _get_feeds(source: Path, given: Calibration, drawn: int) -> list[Feeds]:
    inputs = read_inputs(source)
    runs = list_runs(given, inputs)
    if isinstance(runs, Path):
        return read_feeds(runs, inputs)
    checked = [check_feeds(feeds, inputs, f"run {number} of the calibration") for number, feeds in enumerate(runs)]
    return checked or (draw_samples(source, drawn) if drawn else [])


def draw_samples(source: Path, count: int) -> list[Feeds]:
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

    return draw_fitting(read_inputs(source), attempt, count)


# -- the tools, imported when they run --------------------------------------------------------------------


def _quantize_dynamic(source: Path, target: Path, excluded: list[str], feeds: list[Feeds], **options: Any) -> None:
    require("onnxruntime", "runtime")
    from onnxruntime.quantization import quantize_dynamic

    if feeds:
        raise InputError("dynamic quantization finds ranges as it runs; it takes no calibration inputs")
    # The tool makes a MatMul and an Add of every Gemm before it looks at its list.
    external, chosen = has_external_data(source), set(excluded)
    _separate_weights(source)
    declare_types(source)
    gemms = (node.name for node in read_skeleton(source).graph.node if node.op_type == "Gemm")
    names = [*excluded, *(f"{name}_MatMul" for name in gemms if name in chosen)]
    with calling("'dynamic'"):
        quantize_dynamic(source, target, nodes_to_exclude=names, use_external_data_format=external, **options)
    copy_permissions(target)


def _separate_weights(source: Path) -> None:
    """Give each Gemm that reads its weight transposed a weight of its own.

    The tool transposes that weight in its place, for each Gemm once, whoever else reads it.
    """
    model = onnx.load(source, load_external_data=False)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    readers = Counter(name for _, graph in walk_bodies(model.graph) for node in graph.node for name in node.input)
    shared = [
        node
        for node in model.graph.node
        if node.op_type == "Gemm" and node.input[1] in weights and readers[node.input[1]] > 1 and _is_transposed(node)
    ]
    for number, node in enumerate(shared):
        copied = model.graph.initializer.add()
        copied.CopyFrom(weights[node.input[1]])
        copied.name = f"{node.input[1]}/{number}"
        node.input[1] = copied.name
    if shared:
        source.write_bytes(model.SerializeToString())


def _is_transposed(node: onnx.NodeProto) -> bool:
    return any(attribute.name == "transB" and attribute.i for attribute in node.attribute)


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
    with calling("'static'"):
        quantize_static(
            source, target, Reader(), nodes_to_exclude=excluded, use_external_data_format=external, **options
        )
    _restore_inputs(source, target, excluded)
    copy_permissions(target)


def _restore_inputs(source: Path, target: Path, excluded: Sequence[str]) -> None:
    """Let nodes that stay in float read what they read before, where that is in float as well.

    The tool quantizes a tensor for one of its readers, and all of them read the result.
    """
    before, after = (onnx.load(path, load_external_data=False) for path in (source, target))
    names, initializers = set(excluded), {tensor.name for tensor in before.graph.initializer}
    old = {node.name: node for node in before.graph.node if node.name in names}
    restorable = initializers | {output for node in old.values() for output in node.output}
    restored = set()
    for node in after.graph.node:
        for position, name in enumerate(old[node.name].input if node.name in old else ()):
            if node.input[position] != name and name in restorable:
                node.input[position] = name
                restored.add(name)
    if not restored:
        return
    missing = (restored & initializers) - {tensor.name for tensor in after.graph.initializer}
    after.graph.initializer.extend(_load_floats(source, missing).values())
    target.write_bytes(after.SerializeToString())


def _load_floats(source: Path, names: Collection[str]) -> dict[str, onnx.TensorProto]:
    """Load initializers with their contents."""
    tensors = {}
    for tensor in onnx.load(source, load_external_data=False).graph.initializer if names else ():
        if tensor.name in names:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                onnx.external_data_helper.load_external_data_for_tensor(tensor, str(source.parent))
                tensor.ClearField("data_location")
                del tensor.external_data[:]
            tensors[tensor.name] = tensor
    return tensors


# -- half precision ---------------------------------------------------------------------------------------


def _convert_to_half(source: Path, target: Path, excluded: list[str], feeds: list[Feeds], **options: Any) -> None:
    require("onnxruntime", "runtime")
    from onnxruntime.transformers.float16 import convert_float_to_float16

    if feeds:
        raise InputError("conversion to half precision takes no calibration inputs")
    # As a string: of any other path it would take the model for one in memory.
    with calling("'fp16'"):
        converted = convert_float_to_float16(str(source), node_block_list=excluded, **options)
    _restore_weights(source, converted.graph)
    _join_casts(converted.graph)
    model = ir.serde.deserialize_model(converted)
    model.graph.sort()  # the converter puts its Casts at the end
    external = data_name(target) if has_external_data(source) else None
    ir.save(model, target, external_data=external, size_threshold_bytes=SMALL_TENSOR_BYTES)


def _restore_weights(source: Path, graph: onnx.GraphProto) -> None:
    """Put the weights themselves in place of the Casts that would make them float again, after they were rounded."""
    initializers = {tensor.name for tensor in graph.initializer}
    casts = {n.output[0]: n.input[0] for n in graph.node if n.name.endswith(_TO_FLOAT) and n.input[0] in initializers}
    floats = _load_floats(source, set(casts.values()))
    for output, name in casts.items():
        restored = graph.initializer.add()
        restored.CopyFrom(floats[name])
        restored.name = output
    _replace_nodes(graph, [n for n in graph.node if not (n.name.endswith(_TO_FLOAT) and n.output[0] in casts)])


def _join_casts(graph: onnx.GraphProto) -> None:
    """Repair what the converter leaves around nodes that stay in float.

    It makes a Cast for each of them that reads a tensor, all with one output; between two of them it rounds to half.
    """
    casts = [node for node in graph.node if node.name.endswith((_TO_HALF, _TO_FLOAT))]
    halved = {node.output[0]: node.input[0] for node in casts if node.name.endswith(_TO_HALF)}
    direct = {node.output[0]: halved[node.input[0]] for node in casts if node.input[0] in halved}
    for node in graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = direct.get(name, name)
    read = {name for node in graph.node if not direct.keys() & set(node.output) for name in node.input}
    read |= {value.name for value in graph.output}
    kept: dict[str, onnx.NodeProto] = {}
    for number, node in enumerate(graph.node):
        if not node.name.endswith((_TO_HALF, _TO_FLOAT)):
            kept[f"node {number}"] = node
        elif node.output[0] in read:
            kept.setdefault(f"cast {node.output[0]}", node)
    _replace_nodes(graph, kept.values())


def _replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    kept = onnx.GraphProto(node=nodes)
    del graph.node[:]
    graph.node.extend(kept.node)


QUANTIZERS: Mapping[Quantizer, Callable[..., None]] = {
    "dynamic": _quantize_dynamic,
    "static": _quantize_static,
    "fp16": _convert_to_half,
}
"""Each takes the file to read, the file to write, the names of nodes to leave alone, inputs to run on, and options."""
