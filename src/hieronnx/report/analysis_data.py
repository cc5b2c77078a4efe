"""An analysis as data for programs: JSON values and CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any

from hieronnx.errors import HieronnxError
from hieronnx.report.clean import clean_name
from hieronnx.tools.analyze.result import AnalysisResult, AnalyzedNode, CategoryShare, ModuleLine, Tally, TensorUse

# -- JSON -------------------------------------------------------------------------------------------------


def analysis_to_json(analysis: AnalysisResult, *, detailed: bool = False, tensors: bool = False) -> dict[str, Any]:
    """Return an analysis as JSON values, with its nodes and its tensors if asked."""
    values: dict[str, Any] = {
        "model": analysis.name,
        "filters": dict(analysis.filters),
        "has_hierarchy": analysis.hierarchy is not None,
        "totals": _totals_to_json(analysis),
        "by_evidence": dict(analysis.by_evidence),
        "by_confidence": dict(analysis.by_confidence),
        "category_statistics": {share.name: _share_to_json(share) for share in analysis.categories},
        "modules": [_line_to_json(line) for line in analysis.modules],
    }
    if detailed:
        values["nodes"] = [_node_to_json(node) for node in analysis.nodes]
    if tensors:
        values["tensors"] = [_tensor_to_json(tensor) for tensor in analysis.tensors]
    return {**values, "notes": list(analysis.notes)}


def _totals_to_json(analysis: AnalysisResult) -> dict[str, Any]:
    known = analysis.hierarchy is not None
    attributed = sum(node.attributed for node in analysis.nodes) if known else None
    share = None if attributed is None or not analysis.nodes else round(100 * attributed / len(analysis.nodes), 2)
    return {
        "file_nodes": analysis.file_nodes,
        **_tally_to_json(analysis.total),
        "attributed": attributed,
        "coverage": share,
        "initializers": analysis.initializers,
        "initializer_elements": analysis.elements,
        "initializer_bytes": analysis.bytes,
        "parameters": analysis.parameters,
        "calls": None if analysis.hierarchy is None else len(analysis.hierarchy.calls),
    }


def _tally_to_json(tally: Tally) -> dict[str, Any]:
    return {
        "nodes": tally.nodes,
        "operators": dict(tally.operators),
        "multiply_adds": tally.multiply_adds,
        "uncounted_nodes": tally.uncounted,
    }


def _share_to_json(share: CategoryShare) -> dict[str, Any]:
    return {
        "total": share.total,
        "attributed": share.attributed,
        "percent": None if share.percent is None else round(share.percent, 2),
        "threshold": share.threshold,
        "critical": share.critical,
        "under": share.under,
    }


def _line_to_json(line: ModuleLine) -> dict[str, Any]:
    return {
        "tag": line.call.tag,
        "tagged": line.call.tagged,
        "class": line.class_name,
        "module": line.call.id.module,
        "call": line.call.id.number,
        "via": line.call.via,
        "parent": line.parent,
        "level": line.level,
        "context": line.level is None,
        "own": _tally_to_json(line.own),
        "total": _tally_to_json(line.total),
        "parameters": line.parameters,
        "parameter_bytes": line.parameter_bytes,
        "other_bytes": line.other_bytes,
        "repeated": line.repeated,
    }


def _node_to_json(node: AnalyzedNode) -> dict[str, Any]:
    found = node.attribution
    return {
        "graph": node.graph,
        "name": node.name,
        "op_type": node.op_type,
        "domain": node.domain,
        "output": node.output,
        "category": node.category,
        "tag": node.tag,
        "module": None if found is None else found.scope.module,
        "call": None if found is None else found.scope.number,
        "origins": None if found is None else [{"module": o.module, "call": o.number} for o in found.origins],
        "evidence": None if found is None else found.evidence,
        "confidence": None if found is None else found.confidence,
        "multiply_adds": node.multiply_adds,
    }


def _tensor_to_json(tensor: TensorUse) -> dict[str, Any]:
    return {
        "graph": tensor.graph,
        "name": tensor.name,
        "producer": tensor.producer,
        "consumers": list(tensor.consumers),
    }


def modules_to_json(analysis: AnalysisResult) -> dict[str, Any]:
    """Return the module table alone as JSON values, by path; `tag` is null for a module that was never called.

    Raises:
        HieronnxError: If the model has no sidecar: the metadata inside a model has no module table.
    """
    hierarchy = analysis.hierarchy
    if hierarchy is None or not hierarchy.model:
        raise HieronnxError(
            f"'{analysis.name}' has no module table: it is in the sidecar, the _hierarchy.json beside the model; "
            "export the model with 'hieronnx export' to get one"
        )
    tags: dict[str, list[str]] = {}
    for call in hierarchy.calls:
        tags.setdefault(call.id.module, []).append(call.tag)
    return {
        path: {
            "class": module.class_name,
            "qualified_class": module.qualified_class,
            "forward_args": list(module.forward_args),
            "forward_defaults": dict(module.forward_defaults),
            "parameters": list(module.parameters),
            "direct_parameters": list(module.direct_parameters),
            "parameter_count": module.parameter_count,
            "children": list(module.children),
            "tag": tags[path][0] if path in tags else None,
            "call_tags": tags.get(path, []),
        }
        for path, module in hierarchy.modules.items()
    }


# -- CSV --------------------------------------------------------------------------------------------------

_NODE_COLUMNS = """
    graph name op_type domain output category tag module call evidence confidence multiply_adds
""".split()  # noqa: SIM905  reads better
_TENSOR_COLUMNS = ("graph", "name", "producer", "consumers")


def analysis_to_csv(analysis: AnalysisResult, *, detailed: bool = False, tensors: bool = False) -> str:
    """Return a row for each module line; for each node or tensor instead, if asked. Unknown values are empty.

    Raises:
        HieronnxError: If nodes and tensors are asked for together.
    """
    if detailed and tensors:
        raise HieronnxError("CSV is one table: ask for the nodes (--detailed) or the tensors (--tensors), not both")
    if tensors:
        rows = [{**_tensor_to_json(t), "consumers": json.dumps(t.consumers)} for t in analysis.tensors]
        return _write_csv(_TENSOR_COLUMNS, rows)
    if detailed:
        return _write_csv(_NODE_COLUMNS, map(_node_to_json, analysis.nodes))
    lines = [_line_to_csv(line) for line in analysis.modules if line.level is not None]
    # Without a hierarchy the file as a whole is all there is to tell of.
    rows = lines or [{**_tally_to_csv(analysis.total), "own_nodes": analysis.total.nodes}]
    return _write_csv(_LINE_COLUMNS, rows)


_LINE_COLUMNS = """
    tag class module call via level nodes own_nodes operators parameters parameter_bytes other_bytes repeated
    multiply_adds uncounted_nodes
""".split()  # noqa: SIM905  reads better


def _line_to_csv(line: ModuleLine) -> dict[str, Any]:
    return {**_line_to_json(line), **_tally_to_csv(line.total), "own_nodes": line.own.nodes}


def _tally_to_csv(tally: Tally) -> dict[str, Any]:
    return {**_tally_to_json(tally), "operators": " ".join(f"{name}={n}" for name, n in tally.operators.items())}


def _write_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = (row.get(column) for column in columns)
        writer.writerow(clean_name(value) if isinstance(value, str) else value for value in values)
    return text.getvalue().rstrip("\n")
