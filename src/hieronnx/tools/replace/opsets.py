"""A part brought into the operator sets of the model that it goes into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir

from hieronnx.errors import HieronnxError, describe_error
from hieronnx.files.opening import OpenedModel, load_ir_model, open_structure
from hieronnx.graph.walks import walk_nodes

_STANDARD = ("", "ai.onnx")


def bring_together(part: OpenedModel, opsets: Mapping[str, int]) -> OpenedModel:
    """Return a part whose operators mean in the model's operator sets what they mean in its own.

    Where no operator of the part changed between the two, nothing has to be done; else onnx converts it.

    Raises:
        HieronnxError: If an operator is not known, or cannot be converted.
    """
    kinds = sorted({(node.domain, node.op_type) for _, node in walk_nodes(part.model)})
    functions = {(domain, name) for domain, name, _ in part.model.functions}
    own = part.model.opset_imports
    outdated = []
    for domain, name in kinds:
        mine, theirs = own.get(domain), opsets.get(domain, own.get(domain))
        if (domain, name) in functions or mine is None:
            continue
        before, after = (_find_version(domain, name, version) for version in (mine, theirs or mine))
        if domain in _STANDARD and before is None:
            raise HieronnxError(
                f"the part '{part.name}' has the operator {name}, which opset {mine} of ONNX does not have, as far as "
                "this onnx knows; export it with an opset that is known here"
            )
        if before != after:
            outdated.append(f"{name} ({domain or 'ai.onnx'})")
    return part if not outdated else _convert(part, opsets, outdated)


def _find_version(domain: str, name: str, opset: int) -> int | None:
    """Return the version of an operator that an opset has; None where it has none."""
    if opset > onnx.defs.onnx_opset_version() and domain in _STANDARD:
        return None
    try:
        return int(onnx.defs.get_schema(name, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return None


def _convert(part: OpenedModel, opsets: Mapping[str, int], outdated: Iterable[str]) -> OpenedModel:
    target = next((opsets[domain] for domain in _STANDARD if domain in opsets), None)
    what = f"the part '{part.name}' is in another opset than the model, which changes {', '.join(outdated)}"
    if target is None:
        raise HieronnxError(f"{what}; export the part with the model's opset")
    try:
        model = load_ir_model(part.path or part.model)
        converted = onnx.version_converter.convert_version(ir.serde.serialize_model(model), target)
    except Exception as error:  # of many kinds
        raise HieronnxError(
            f"{what}, and onnx cannot convert it to opset {target} ({describe_error(error)}); "
            "export the part with the model's opset"
        ) from error
    opened = open_structure(converted)
    return OpenedModel(part.name, None, opened.model, part.hierarchy)
