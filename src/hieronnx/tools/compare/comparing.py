"""Comparing two ONNX files: are they the same computation, and if not, what was done to the one to get the other."""

from __future__ import annotations

import os

from hieronnx.files.opening import OpenedModel, load_ir_model, open_model
from hieronnx.graph.view import ModelLike
from hieronnx.match.align.alignment import Alignment, Preference
from hieronnx.match.align.numbering import NumberedGraph, Numbers, Side
from hieronnx.match.align.signatures import make_side
from hieronnx.match.align.wiring import Wiring
from hieronnx.tools.compare.differences import find_differences
from hieronnx.tools.compare.places import place_changes
from hieronnx.tools.compare.result import CompareResult

# Each gives an alignment, and the smallest edit is the answer; among equally small ones names are the better guide.
_PREFERENCES = (
    Preference(),
    Preference(from_below=True),
    Preference(initializer_names=True),
    Preference(initializer_names=True, output_names=True),
)


def compare(a: ModelLike, b: ModelLike, *, names: bool = False, values: bool = False) -> CompareResult:
    """Compare two ONNX models.

    What counts: operators and their versions, attributes, how nodes are connected, inputs and outputs with their
    types, shapes and dynamic axes, types and shapes of initializers; bodies and functions too. The order of
    independent nodes does not count, and an attribute that is left out is its default.

    Args:
        a: The first model: a path, a ModelProto or an ir.Model.
        b: The second.
        names: Whether the names of nodes, tensors and dynamic axes count.
        values: Whether the contents of initializers count; only then are weights read.

    Raises:
        HieronnxError: If a file cannot be read.

    Example:
        >>> hieronnx.compare("model.onnx", "optimized.onnx").describe()
        'different: 24 nodes removed, 12 nodes added; 70 nodes the same'
    """
    opened_a, opened_b = open_model(a), open_model(b)
    numbers = Numbers()
    side_a = _open_side(a, opened_a, numbers, values)
    side_b = _open_side(b, opened_b, numbers, values)
    numbered: dict[tuple[int, int], NumberedGraph] = {}
    best: tuple[CompareResult, Wiring] | None = None
    no_names = _share_no_names(side_a, side_b)
    for preference in _PREFERENCES:
        if no_names and preference.initializer_names:
            break
        wiring = Wiring(Alignment(side_a, side_b, numbers, preference, numbered).run())
        found = find_differences(wiring, opened_a, opened_b, names=names, values=values)
        if best is None or found.size <= best[0].size:
            best = found, wiring
        if not found.size:
            break
    assert best is not None
    return place_changes(*best, opened_a.hierarchy, opened_b.hierarchy)


def _share_no_names(a: Side, b: Side) -> bool:
    return set(a.view.names).isdisjoint(filter(None, b.view.names))


def _open_side(model: ModelLike, opened: OpenedModel, numbers: Numbers, values: bool) -> Side:
    with_weights = values and isinstance(model, str | os.PathLike)
    return make_side(load_ir_model(model) if with_weights else opened.model, numbers, values=values)
