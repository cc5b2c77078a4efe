"""Analyze: what a model is made of: nodes by evidence, category and module, parameters, multiply-adds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import onnx_ir as ir

from hieronnx.errors import HieronnxError, check_known, list_some
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import OpenedModel, open_model, require_hierarchy
from hieronnx.files.torch_scopes import note_torch_scopes
from hieronnx.graph.building import view_model
from hieronnx.graph.view import ModelLike
from hieronnx.graph.walks import first_output, function_key, walk_nodes
from hieronnx.hierarchy.categories import CATEGORIES, category_of, read_thresholds
from hieronnx.hierarchy.hierarchy import Hierarchy, TreeRows, select_rows
from hieronnx.hierarchy.records import CONFIDENCE, LEVELS, CallId
from hieronnx.hierarchy.tags import label_call
from hieronnx.tools.analyze.formulas import Formula, Size, add
from hieronnx.tools.analyze.initializers import InitializerSize, group_by_call, measure_initializers
from hieronnx.tools.analyze.multiply_adds import needs_shapes
from hieronnx.tools.analyze.result import AnalysisResult, AnalyzedNode, CategoryShare, ModuleLine, Tally, TensorUse
from hieronnx.tools.analyze.shapes import count_nodes, list_axes
from hieronnx.tools.fold.unfolding import FOLDED_NOTE, unfold_opened


@reads_files
def analyze(
    model: ModelLike | OpenedModel,
    *,
    category: str | None = None,
    module: str | None = None,
    op: str | None = None,
    evidence: str | None = None,
    thresholds: Mapping[str, float] | None = None,
    dims: Mapping[str, int] | None = None,
    all_calls: bool = False,
    tensors: bool = False,
    min_confidence: str = "low",
) -> AnalysisResult:
    """Count what a model is made of; any ONNX model will do, and no weights are read.

    Args:
        model: The model: a file, a ModelProto or an ir.Model.
        category: Count only nodes of this category of operators.
        module: Count only the nodes that this selection names: in a path, a tag, a glob over these, `class:Block`, ….
        op: Count only nodes of this operator.
        evidence: Count only nodes whose scope is known by this evidence.
        thresholds: The percent of a category's nodes that should be attributed, where not the default.
        dims: Sizes of dynamic axes, by the axes' names.
        all_calls: Whether calls without a tag of their own have a line too.
        tensors: Whether to list the tensors.
        min_confidence: The least confidence, high, medium or low, with which a node counts as attributed.

    Raises:
        HieronnxError: If the model cannot be read, or a filter names what is not there.

    Example:
        >>> hieronnx.analyze("model.onnx", op="MatMul").total.nodes
        16
    """
    limits, sizes = read_thresholds(thresholds or {}), dims or {}
    given = {"category": category, "module": module, "op": op, "evidence": evidence}
    filters = {name: text for name, text in given.items() if text is not None}
    if category is not None:
        check_known("category", category, CATEGORIES)
    if evidence is not None:
        check_known("evidence", evidence, CONFIDENCE)
    read = model if isinstance(model, OpenedModel) else open_model(model)
    opened = unfold_opened(read)
    hierarchy, graph = opened.hierarchy, opened.model
    if module is not None or evidence is not None or tensors:
        hierarchy = require_hierarchy(hierarchy, opened.path, graph)
    check_known("level of confidence", min_confidence, LEVELS)
    hierarchy = None if hierarchy is None else hierarchy.require_confidence(min_confidence)
    rows = None if hierarchy is None else select_rows(hierarchy, pattern=module, all_calls=all_calls)
    described = list(_describe(graph, hierarchy))
    chosen = list(_choose(described, rows, filters))
    counts, problems = count_nodes(graph, [node for node, _ in chosen], sizes)
    nodes = tuple(_add_count(item, count) for (_, item), count in zip(chosen, counts, strict=True))
    known = {node: item.attribution for node, item in described if item.attribution is not None}
    initializers = measure_initializers(graph, hierarchy, known)
    levels = LEVELS if hierarchy else ()
    found_by = Counter(node.attribution.evidence for node in nodes if node.attribution is not None)
    by_evidence = {evidence: found_by[evidence] for evidence in CONFIDENCE} if hierarchy else {}
    return AnalysisResult(
        model=opened.name,
        hierarchy=hierarchy,
        filters=filters,
        file_nodes=len(described),
        total=_tally(nodes),
        nodes=nodes,
        by_evidence=by_evidence,
        by_confidence={level: sum(found_by[e] for e in CONFIDENCE if CONFIDENCE[e] == level) for level in levels},
        categories=tuple(_share(nodes, limits, hierarchy is not None)),
        modules=() if rows is None else tuple(_make_lines(rows, nodes, initializers)),
        initializers=len(initializers),
        elements=sum(item.elements for item in initializers),
        bytes=sum(item.bytes for item in initializers),
        parameters=hierarchy.modules[""].parameter_count if hierarchy and hierarchy.model else None,
        tensors=tuple(_list_tensors(graph, hierarchy, nodes)) if tensors and hierarchy else (),
        notes=(
            *_note_absence(opened),
            *note_torch_scopes(opened.name, None if hierarchy is None else hierarchy.strategy),
            *problems,
            *([FOLDED_NOTE] if opened is not read else []),
            *_note_functions(graph, chosen),
            *_note_fused(nodes),
            *_note_axes(graph, nodes, sizes),
        ),
    )


# -- the nodes that were asked for ------------------------------------------------------------------------


_NodesByCall: TypeAlias = defaultdict[CallId, list[AnalyzedNode]]


_Described: TypeAlias = tuple[ir.Node, AnalyzedNode]


def _describe(model: ir.Model, hierarchy: Hierarchy | None) -> Iterator[_Described]:
    """Yield each node with what is known of it, its multiply-adds aside."""
    attributions, least = ({}, "low") if hierarchy is None else (hierarchy.node_by_key, hierarchy.min_confidence)
    for key, node in walk_nodes(model):
        output = first_output(node)
        attribution = attributions.get((key, output))
        described = AnalyzedNode(
            graph=key,
            name=node.name or "",
            op_type=node.op_type,
            domain=node.domain,
            output=output,
            category=category_of(node.op_type, node.domain),
            multiply_adds=None,
            formula=None,
            attribution=attribution,
            tag=hierarchy.tag_of(attribution.scope) if hierarchy is not None and attribution is not None else None,
            attributed=attribution is not None and attribution.is_attributed(least),
        )
        yield node, described


def _add_count(node: AnalyzedNode, count: Size | None) -> AnalyzedNode:
    return replace(node, formula=count) if isinstance(count, Formula) else replace(node, multiply_adds=count)


def _choose(described: Sequence[_Described], rows: TreeRows | None, filters: Mapping[str, str]) -> Iterator[_Described]:
    """Yield the nodes that were asked for."""
    category, op, evidence = filters.get("category"), filters.get("op"), filters.get("evidence")
    if op is not None:
        names = {name for _, item in described for name in (item.op_type, item.operator)}
        check_known("operator", op, sorted(names), "the model has")
    inside: set[tuple[str, str]] | None = None
    if rows is not None and "module" in filters:
        inside = {selected.key for selected in rows.hierarchy.nodes_in(filters["module"])}
    for node, item in described:
        attribution = item.attribution
        if category not in (None, item.category) or op not in (None, item.op_type, item.operator):
            continue
        if evidence is not None and (attribution is None or attribution.evidence != evidence):
            continue
        if inside is None or (attribution is not None and attribution.key in inside):
            yield node, item


# -- notes ------------------------------------------------------------------------------------------------


def _note_absence(opened: OpenedModel) -> Iterator[str]:
    """Say why there is no hierarchy, and what to do to get one."""
    try:
        require_hierarchy(opened.hierarchy, opened.path, opened.model)
    except HieronnxError as absent:
        yield str(absent)


def _note_functions(model: ir.Model, chosen: Iterable[_Described]) -> Iterator[str]:
    """Say where nodes of functions would have multiply-adds: a function is there once, and without shapes."""
    graphs = dict.fromkeys(
        item.graph
        for node, item in chosen
        if item.graph and node.op_identifier() not in model.functions and needs_shapes(item.op_type, item.domain)
    )
    keys = sorted({function_key(*function.identifier()) for function in model.functions.values()})
    # A body has the key of its function before it.
    names = [key for key in keys if any(graph == key or graph.startswith(f"{key}/") for graph in graphs)]
    if names:
        yield (
            f"the nodes of a function count once, however often it is called, and their shapes are not known: "
            f"the multiply-adds in {list_some(names, 3)} are not counted"
        )


def _note_fused(nodes: Sequence[AnalyzedNode]) -> Iterator[str]:
    """Say where nodes count that stand for several calls: not at any of these, but at the one above them all."""
    attributions = [node.attribution for node in nodes if node.attribution is not None]
    fused = sum(len(set(item.origins)) > 1 and item.scope not in item.origins for item in attributions)
    if fused:
        yield (
            f"nodes that do the work of several calls, as a Conv with its BatchNorm does, count at the lowest call "
            f"above these: {fused:,}"
        )


def _note_axes(model: ir.Model, nodes: Iterable[AnalyzedNode], dims: Mapping[str, int]) -> Iterator[str]:
    """Say which axes would have to be known for all multiply-adds to be numbers."""
    names = sorted(name for name in list_axes(model) if name not in dims)
    if names and any(node.multiply_adds is None for node in nodes):
        options = " ".join(f"--dim {name}=SIZE" for name in names)
        yield f"the sizes of dynamic axes are not known; {options} counts the multiply-adds that depend on them"


# -- counting ---------------------------------------------------------------------------------------------


def _tally(nodes: Sequence[AnalyzedNode]) -> Tally:
    operators = Counter(node.operator for node in nodes)
    ordered = dict(sorted(operators.items(), key=lambda item: (-item[1], item[0])))
    known = sum(node.multiply_adds or 0 for node in nodes)
    unknown = [node.formula for node in nodes if node.multiply_adds is None]
    formulas = [formula for formula in unknown if formula is not None]
    total = add(*formulas, known)
    formula = total if isinstance(total, Formula) else None
    return Tally(len(nodes), ordered, known, len(unknown) - len(formulas), formula)


def _share(nodes: Sequence[AnalyzedNode], limits: Mapping[str, float], known: bool) -> Iterator[CategoryShare]:
    totals = Counter(node.category for node in nodes)
    attributed = Counter(node.category for node in nodes if node.attributed)
    for name, category in CATEGORIES.items():
        if totals[name]:
            share = attributed[name] if known else None
            yield CategoryShare(name, totals[name], share, limits[name], category.critical)


# -- modules ----------------------------------------------------------------------------------------------


def _make_lines(
    rows: TreeRows, nodes: Iterable[AnalyzedNode], initializers: Sequence[InitializerSize]
) -> Iterator[ModuleLine]:
    """Yield the lines in the order of a tree."""
    hierarchy = rows.hierarchy
    own, total = _group_nodes(rows, nodes)
    counted = hierarchy.has_parameter_counts
    by_call = group_by_call(initializers, hierarchy) if counted else {}
    seen: set[str] = set()
    for call_id, parent, level in _arrange(rows):
        call, module = hierarchy.call_by_id[call_id], hierarchy.modules[call_id.module]
        mine = [initializers[position] for position in by_call.get(call_id, ())]
        yield ModuleLine(
            call=call,
            class_name=module.class_name,
            label=label_call(call, module.class_name),
            parent=parent,
            level=level,
            own=_tally(own[call_id]),
            total=_tally(total[call_id]),
            parameters=module.parameter_count if counted else None,
            parameter_bytes=sum(item.bytes for item in mine if item.parameter) if counted else None,
            other_bytes=sum(item.bytes for item in mine if not item.parameter) if counted else None,
            repeated=call_id.module in seen,
        )
        seen.add(call_id.module)


def _group_nodes(rows: TreeRows, nodes: Iterable[AnalyzedNode]) -> tuple[_NodesByCall, _NodesByCall]:
    """Return the nodes of each row: its own, and all of its region."""
    own, total = _NodesByCall(list), _NodesByCall(list)
    for node in nodes:
        if node.attribution is not None:
            own[rows.nearest[node.attribution.scope]].append(node)
    for call in reversed(rows.hierarchy.calls):  # every call comes after the one above it
        if rows.nearest[call.id] == call.id:
            total[call.id] += own[call.id]
            if call.parent is not None:
                total[rows.nearest[call.parent]] += total[call.id]
    return own, total


def _arrange(rows: TreeRows) -> Iterator[tuple[CallId, int | None, int | None]]:
    """Yield each line that is shown, the position of the one above it, and its level below the root or a match."""
    waiting: list[tuple[CallId, int | None, int | None]] = [(rows.hierarchy.calls[0].id, None, None)]
    position = 0
    while waiting:
        call, parent, level = waiting.pop()
        if call in rows.matches:
            level = 0
        yield call, parent, level
        below = [child for child in rows.below[call] if level is not None or child in rows.ways]
        deeper = None if level is None else level + 1
        waiting += [(child, position, deeper) for child in reversed(below)]
        position += 1


# -- tensors ----------------------------------------------------------------------------------------------


def _list_tensors(model: ir.Model, hierarchy: Hierarchy, nodes: Iterable[AnalyzedNode]) -> Iterator[TensorUse]:
    """Yield the tensors that the nodes make or read, with the tags of all who do so."""
    view = view_model(model)
    tags = {node.key: hierarchy.tag_of(node.scope) for node in hierarchy.nodes}
    asked = {(node.graph, node.output) for node in nodes}
    keys = [view.node_key(index) for index in range(len(view.nodes))]
    for tensor, readers in enumerate(view.consumers):
        producer = view.producers[tensor]
        users = [keys[index] for index in (*readers, *(() if producer is None else (producer,)))]
        if view.names[tensor] and any(key in asked for key in users):
            yield TensorUse(
                *view.tensor_key(tensor),
                producer=None if producer is None else tags[keys[producer]],
                consumers=tuple(dict.fromkeys(tags[keys[reader]] for reader in readers)),
            )
