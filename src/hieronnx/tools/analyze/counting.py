"""What a model is made of: its nodes by evidence, category and module, its parameters, its multiply-adds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from hieronnx.errors import HieronnxError, check_known
from hieronnx.files.opening import OpenedModel, open_model, require_hierarchy
from hieronnx.graph.building import view_model
from hieronnx.graph.view import ModelLike
from hieronnx.graph.walks import first_output, function_key, walk_nodes
from hieronnx.hierarchy.categories import CATEGORIES, category_of, read_thresholds
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CONFIDENCE, CallId, Node
from hieronnx.hierarchy.rows import TreeRows, select_rows
from hieronnx.hierarchy.tags import label_call
from hieronnx.tools.analyze.holdings import Holding, find_holdings, hold_by_call
from hieronnx.tools.analyze.multiply_adds import Operation, count_multiply_adds, needs_shapes
from hieronnx.tools.analyze.result import AnalysisResult, AnalyzedNode, CategoryShare, ModuleLine, Tally, TensorUse
from hieronnx.tools.analyze.shapes import Shapes

_NAMED = 3
"""So many functions are named in a note."""


def analyze(
    onnx: ModelLike,
    *,
    category: str | None = None,
    module: str | None = None,
    op: str | None = None,
    evidence: str | None = None,
    thresholds: Mapping[str, float] | None = None,
    dims: Mapping[str, int] | None = None,
    all_calls: bool = False,
    tensors: bool = False,
) -> AnalysisResult:
    """Count what a model is made of; any ONNX model will do, and no weights are read.

    Args:
        onnx: The model: a file, a ModelProto or an ir.Model.
        category: Count only nodes of this category of operators.
        module: Count only nodes in the regions of calls that this glob over module paths and tags matches.
        op: Count only nodes of this operator.
        evidence: Count only nodes whose scope is known by this evidence.
        thresholds: The percent of a category's nodes that should be attributed, where not the default.
        dims: Sizes of dynamic axes, by the axes' names.
        all_calls: Whether calls without a tag of their own have a line too.
        tensors: Whether to list the tensors.

    Raises:
        HieronnxError: If the model cannot be read, or a filter names what is not there.

    Example:
        >>> hieronnx.analyze("model.onnx", op="MatMul").total.nodes
        16
    """
    limits = read_thresholds(thresholds or {})
    filters = _read_filters(category=category, module=module, op=op, evidence=evidence)
    opened = open_model(onnx)
    hierarchy = opened.hierarchy
    if module is not None or evidence is not None or tensors:
        hierarchy = require_hierarchy(hierarchy, opened.path, opened.model)
    lines = None if hierarchy is None else select_rows(hierarchy, pattern=module, all_calls=all_calls)
    located = _locate(opened.model, hierarchy)
    nodes, notes = _describe_nodes(opened.model, list(_choose(located, lines, filters)), dims or {}, hierarchy)
    scopes = {item.node: item.attribution.scope for item in located if item.attribution is not None}
    holdings = find_holdings(opened.model, hierarchy, scopes)
    return AnalysisResult(
        model=opened.name,
        hierarchy=hierarchy,
        filters=filters,
        file_nodes=len(located),
        total=_tally(nodes),
        nodes=nodes,
        by_evidence=_count_evidence(nodes) if hierarchy else {},
        by_confidence=_count_confidence(nodes) if hierarchy else {},
        categories=tuple(_share(nodes, limits, hierarchy is not None)),
        modules=() if lines is None else tuple(_make_lines(lines, nodes, holdings)),
        initializers=len(holdings),
        elements=sum(holding.elements for holding in holdings),
        bytes=sum(holding.bytes for holding in holdings),
        parameters=hierarchy.modules[""].parameter_count if hierarchy and hierarchy.model else None,
        tensors=tuple(_list_tensors(opened.model, hierarchy, nodes)) if tensors and hierarchy else (),
        notes=(*_explain_absence(opened), *notes, *_note_fused(nodes), *_note_axes(opened.model, nodes, dims or {})),
    )


def _explain_absence(opened: OpenedModel) -> tuple[str, ...]:
    """Say why there is no hierarchy, and what to do to get one."""
    try:
        require_hierarchy(opened.hierarchy, opened.path, opened.model)
    except HieronnxError as absent:
        return (str(absent),)
    return ()


# -- what was asked for -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Located:
    """A node in its graph, with what the hierarchy says of it."""

    graph: str
    node: ir.Node
    output: str
    attribution: Node | None


def _read_filters(**filters: str | None) -> dict[str, str]:
    given = {name: text for name, text in filters.items() if text is not None}
    for name, known in (("category", CATEGORIES), ("evidence", CONFIDENCE)):
        if name in given:
            check_known(name, given[name], known)
    return given


def _locate(model: ir.Model, hierarchy: Hierarchy | None) -> list[_Located]:
    known = {} if hierarchy is None else {(node.graph, node.output): node for node in hierarchy.nodes}
    named = ((graph, node, first_output(node)) for graph, node in walk_nodes(model))
    return [_Located(graph, node, output, known.get((graph, output))) for graph, node, output in named]


def _choose(located: Sequence[_Located], lines: TreeRows | None, filters: Mapping[str, str]) -> Iterator[_Located]:
    """Yield the nodes that were asked for."""
    category, op, evidence = filters.get("category"), filters.get("op"), filters.get("evidence")
    if op is not None:
        check_known("operator", op, _operator_names(located), "the model has")
    inside = _find_inside(lines) if lines is not None and "module" in filters else None
    for item in located:
        node, found = item.node, item.attribution
        if category is not None and category_of(node.op_type, node.domain) != category:
            continue
        if op is not None and op not in (node.op_type, f"{node.domain}::{node.op_type}"):
            continue
        if evidence is not None and (found is None or found.evidence != evidence):
            continue
        if inside is None or (found is not None and found.scope in inside):
            yield item


def _operator_names(located: Sequence[_Located]) -> list[str]:
    kinds = {(item.node.domain, item.node.op_type) for item in located}
    return sorted({op_type for _, op_type in kinds} | {f"{domain}::{op_type}" for domain, op_type in kinds if domain})


def _find_inside(lines: TreeRows) -> set[CallId]:
    """Return the calls in the regions of those that were asked for."""
    inside: set[CallId] = set()
    for call in lines.hierarchy.calls:
        if call.id in lines.matches or call.parent in inside:
            inside.add(call.id)
    return inside


# -- nodes ------------------------------------------------------------------------------------------------


def _describe_nodes(
    model: ir.Model, wanted: Sequence[_Located], dims: Mapping[str, int], hierarchy: Hierarchy | None
) -> tuple[tuple[AnalyzedNode, ...], tuple[str, ...]]:
    """Describe the nodes that were asked for; say what kept their multiply-adds from being known, if anything."""
    nodes = [item.node for item in wanted]
    counts, notes = _count_all(model, nodes, dims)
    described = tuple(_describe(item, count, hierarchy) for item, count in zip(wanted, counts, strict=True))
    return described, (*notes, *_note_functions(model, wanted))


def _note_fused(nodes: Sequence[AnalyzedNode]) -> Iterator[str]:
    """Say where nodes count that stand for several calls: not at any of these, but at the one above them all."""
    origins = [set(node.attribution.origins) for node in nodes if node.attribution is not None]
    scopes = [node.attribution.scope for node in nodes if node.attribution is not None]
    fused = sum(len(several) > 1 and scope not in several for several, scope in zip(origins, scopes, strict=True))
    if fused:
        yield (
            f"nodes that do the work of several calls, as a Conv with its BatchNorm does, count at the lowest call "
            f"above these: {fused:,}"
        )


def _note_axes(model: ir.Model, nodes: Iterable[AnalyzedNode], dims: Mapping[str, int]) -> Iterator[str]:
    """Say which axes would have to be known for all multiply-adds to be."""
    axes = {dim.value for value in model.graph.inputs for dim in value.shape or () if isinstance(dim, ir.SymbolicDim)}
    names = sorted(name for name in axes if name is not None and name not in dims)
    if names and any(node.multiply_adds is None for node in nodes):
        options = " ".join(f"--dim {name}=SIZE" for name in names)
        yield f"the sizes of dynamic axes are not known; {options} counts the multiply-adds that depend on them"


def _note_functions(model: ir.Model, wanted: Iterable[_Located]) -> Iterator[str]:
    """Say where nodes of functions would have multiply-adds: a function is there once, and without shapes."""
    keys = {function_key(*function.identifier()) for function in model.functions.values()}
    graphs = dict.fromkeys(
        item.graph
        for item in wanted
        if item.graph and item.node.op_identifier() not in model.functions
        if needs_shapes(item.node.op_type, item.node.domain)
    )
    # A body has the key of its function before it.
    names = [key for key in sorted(keys) if any(graph == key or graph.startswith(f"{key}/") for graph in graphs)]
    if names:
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        yield (
            f"the nodes of a function count once, however often it is called, and their shapes are not known: "
            f"the multiply-adds in {', '.join(names[:_NAMED])}{more} are not counted"
        )


def _describe(item: _Located, multiply_adds: int | None, hierarchy: Hierarchy | None) -> AnalyzedNode:
    node, found = item.node, item.attribution
    return AnalyzedNode(
        graph=item.graph,
        name=node.name or "",
        op_type=node.op_type,
        domain=node.domain,
        output=item.output,
        category=category_of(node.op_type, node.domain),
        multiply_adds=multiply_adds,
        attribution=found,
        tag=hierarchy.tag_of(found.scope) if hierarchy is not None and found is not None else None,
    )


def _count_all(
    model: ir.Model, nodes: Sequence[ir.Node], dims: Mapping[str, int]
) -> tuple[list[int | None], list[str]]:
    """Count the multiply-adds of nodes; shapes are inferred only if some are missing that are needed."""
    shapes = Shapes(model, dims)
    kinds = {node.op_identifier() for node in nodes}
    shaped = {kind for kind in kinds if kind not in model.functions and needs_shapes(kind[1], kind[0])}
    fixed = {kind: _count_kind(model, kind) for kind in kinds - shaped}
    counts = [fixed.get(node.op_identifier()) for node in nodes]
    open_ = [position for position, node in enumerate(nodes) if node.op_identifier() in shaped]
    for position in open_:
        counts[position] = _count(nodes[position], shapes)
    unknown = [position for position in open_ if counts[position] is None]
    tensors = (value for position in unknown for value in (*nodes[position].inputs, *nodes[position].outputs))
    if not any(map(shapes.could_be_inferred, tensors)):
        return counts, []
    problem = shapes.infer()
    for position in unknown:
        counts[position] = _count(nodes[position], shapes)
    return counts, [] if problem is None else [problem]


def _count_kind(model: ir.Model, kind: ir.OperatorIdentifier) -> int | None:
    """Count the multiply-adds of an operator whatever its shapes; a function's own nodes are counted, not its calls."""
    return 0 if kind in model.functions else count_multiply_adds(Operation(kind[1], kind[0], (), (), {}))


def _count(node: ir.Node, shapes: Shapes) -> int | None:
    return count_multiply_adds(
        Operation(
            op_type=node.op_type,
            domain=node.domain,
            inputs=[shapes.find(value) for value in node.inputs],
            outputs=[shapes.find(value) for value in node.outputs],
            attributes={name: found.value for name, found in node.attributes.items() if not found.is_ref()},
        )
    )


# -- counting ---------------------------------------------------------------------------------------------


class _Counter:
    """Adds up nodes; the totals of lines are sums of these."""

    def __init__(self) -> None:
        self.operators: Counter[str] = Counter()
        self.multiply_adds = 0
        self.uncounted = 0

    def add_node(self, node: AnalyzedNode) -> None:
        self.operators[node.operator] += 1
        if node.multiply_adds is None:
            self.uncounted += 1
        else:
            self.multiply_adds += node.multiply_adds

    def add(self, other: _Counter) -> None:
        self.operators.update(other.operators)
        self.multiply_adds += other.multiply_adds
        self.uncounted += other.uncounted

    def to_tally(self) -> Tally:
        operators = dict(sorted(self.operators.items(), key=lambda item: (-item[1], item[0])))
        return Tally(sum(operators.values()), operators, self.multiply_adds, self.uncounted)


def _tally(nodes: Iterable[AnalyzedNode]) -> Tally:
    counter = _Counter()
    for node in nodes:
        counter.add_node(node)
    return counter.to_tally()


def _count_evidence(nodes: Iterable[AnalyzedNode]) -> dict[str, int]:
    found = Counter(node.attribution.evidence for node in nodes if node.attribution is not None)
    return {evidence: found[evidence] for evidence in CONFIDENCE}


def _count_confidence(nodes: Iterable[AnalyzedNode]) -> dict[str, int]:
    counts = dict.fromkeys(("high", "medium", "low"), 0)
    for evidence, count in _count_evidence(nodes).items():
        counts[CONFIDENCE[evidence]] += count
    return counts


def _share(nodes: Iterable[AnalyzedNode], limits: Mapping[str, float], known: bool) -> Iterator[CategoryShare]:
    totals: Counter[str] = Counter()
    attributed: Counter[str] = Counter()
    for node in nodes:
        totals[node.category] += 1
        attributed[node.category] += node.attributed
    for name, category in CATEGORIES.items():
        if totals[name]:
            share = attributed[name] if known else None
            yield CategoryShare(name, totals[name], share, limits[name], category.critical)


# -- modules ----------------------------------------------------------------------------------------------


def _make_lines(lines: TreeRows, nodes: Iterable[AnalyzedNode], holdings: Sequence[Holding]) -> Iterator[ModuleLine]:
    """Yield the lines in the order of a tree."""
    hierarchy = lines.hierarchy
    own, total = _count_lines(lines, nodes)
    told = bool(hierarchy.model)  # only a sidecar counts parameters; it always describes the file too
    held = hold_by_call(holdings, hierarchy) if told else {}
    seen: set[str] = set()
    for call, parent, level in _arrange(lines):
        module = hierarchy.modules[call.module]
        mine = [holdings[position] for position in held.get(call, ())]
        found = hierarchy.call_by_id[call]
        yield ModuleLine(
            call=found,
            class_name=module.class_name,
            label=label_call(found, module.class_name),
            parent=parent,
            level=level,
            own=own[call].to_tally(),
            total=total[call].to_tally(),
            parameters=module.parameter_count if told else None,
            parameter_bytes=sum(item.bytes for item in mine if item.parameter) if told else None,
            other_bytes=sum(item.bytes for item in mine if not item.parameter) if told else None,
            repeated=call.module in seen,
        )
        seen.add(call.module)


def _count_lines(
    lines: TreeRows, nodes: Iterable[AnalyzedNode]
) -> tuple[Mapping[CallId, _Counter], Mapping[CallId, _Counter]]:
    """Count the nodes of each line: its own, and all of its region."""
    own: dict[CallId, _Counter] = defaultdict(_Counter)
    total: dict[CallId, _Counter] = defaultdict(_Counter)
    for node in nodes:
        if node.attribution is not None:
            own[lines.nearest[node.attribution.scope]].add_node(node)
    for call in reversed(lines.hierarchy.calls):  # every call comes after the one above it
        if lines.nearest[call.id] != call.id:
            continue
        total[call.id].add(own[call.id])
        if call.parent is not None:
            total[lines.nearest[call.parent]].add(total[call.id])
    return own, total


def _arrange(lines: TreeRows) -> Iterator[tuple[CallId, int | None, int | None]]:
    """Yield each line that is shown, the position of the one above it, and its level below the root or a match."""
    waiting: list[tuple[CallId, int | None, int | None]] = [(lines.hierarchy.calls[0].id, None, None)]
    position = 0
    while waiting:
        call, parent, level = waiting.pop()
        if call in lines.matches:
            level = 0
        yield call, parent, level
        below = [child for child in lines.below[call] if level is not None or child in lines.ways]
        deeper = None if level is None else level + 1
        waiting += [(child, position, deeper) for child in reversed(below)]
        position += 1


# -- tensors ----------------------------------------------------------------------------------------------


def _list_tensors(model: ir.Model, hierarchy: Hierarchy, nodes: Iterable[AnalyzedNode]) -> Iterator[TensorUse]:
    """Yield the tensors that the nodes make or read, with the tags of all who do so."""
    view = view_model(model)
    tags = {(node.graph, node.output): hierarchy.tag_of(node.scope) for node in hierarchy.nodes}
    asked = {(node.graph, node.output) for node in nodes}
    keys = [view.node_key(index) for index in range(len(view.nodes))]
    for tensor, readers in enumerate(view.consumers):
        producer = view.producers[tensor]
        users = [keys[index] for index in (*readers, *(() if producer is None else (producer,)))]
        if view.names[tensor] and any(key in asked for key in users):
            yield TensorUse(
                graph=view.graphs[view.tensor_graphs[tensor]].key,
                name=view.names[tensor],
                producer=None if producer is None else tags[keys[producer]],
                consumers=tuple(dict.fromkeys(tags[keys[reader]] for reader in readers)),
            )
