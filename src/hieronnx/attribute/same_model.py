"""The one decision whether a file is of a model: a file of another one is refused with a `MismatchError`.

A file is of a model in PyTorch if they have the same weights, and give the same on the same inputs. An optimizer, half
precision or quantization changes neither much; other weights, a layer more or a layer less change one of them:

    check_same_model    before nodes are attributed: outputs of one run, and weights where these prove nothing
    check_same_values   after: neither has a layer that the other lacks, however little that adds to the outputs

A file is of another file (`check_related`, for carry) if what goes in and out fits, and weights agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import onnx_ir as ir

from hieronnx.attribute.weights import compare_files
from hieronnx.errors import HieronnxError, MismatchError, list_some
from hieronnx.files.opening import OpenedModel
from hieronnx.graph.view import TensorType, View
from hieronnx.graph.walks import walk_nodes
from hieronnx.hierarchy.categories import category_of
from hieronnx.hierarchy.records import CallId

if TYPE_CHECKING:
    from hieronnx.attribute.request import Projected, Request

# How far apart outputs may be, as a part of their spread. Single precision leaves less than a ten-thousandth, half a
# thousandth and in deep models more, 8 bits some hundredths and more. Beyond it the weights must be the model's.
_ROUNDING = 0.002
_HALVING = 0.03
_QUANTIZING = 0.5
_HALF = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

_LEAST_OF_WEIGHTS = 0.95
"""Of a file's weights the model has all but a few, which exporters compute from others."""
_LEAST_OF_VALUES = 0.3
"""Of what a file computes the model computes most; with 8 bits still half."""
_MOST_NAMED = 5
_TRAINING = " (the model is in training mode: call eval() on it)"

# Of two files.
_FEWEST_ELEMENTS = 8  # shapes, axes and scales tell nothing
_SAME_CONTENT = 0.25  # tools leave nine in ten as they are; models of one seed may begin alike
_NAMED_ALIKE = 0.1
_SHAPED_ALIKE = 0.8
_COMPUTED_ALIKE = 0.1
_CARRIED = 0.25


# -- a file and a model -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the outputs of a file and a model are the same.

    Attributes:
        outputs: How far they are apart, as a part of their spread; None if no two could be compared.
        proven: Whether they alone say that the file is of the model, wherever its weights are from: they are the same,
            and can hardly be so by chance.
        same: Whether they are the same but for the precision.
        near: Whether they are so near that no module can be missing which does much.
    """

    outputs: float | None
    proven: bool
    same: bool
    near: bool

    @classmethod
    def of(cls, request: Request) -> Agreement:
        """Run the file and the model once, and compare their outputs; rounding may add up until nothing agrees."""
        outputs, unrounded = request.first_run.apart, request.first_run.unrounded
        apart = min((found for found in (outputs, unrounded) if found is not None), default=math.inf)
        nodes = [node for _, node in walk_nodes(request.opened.model)]
        quantized = any(category_of(node.op_type, node.domain) == "quantization" for node in nodes)
        halved = any(v is not None and v.dtype in _HALF for node in nodes for v in (*node.inputs, *node.outputs))
        return cls(
            outputs=outputs,
            proven=request.first_run.distinctive and apart <= (_HALVING if halved or quantized else _ROUNDING),
            same=apart <= (_QUANTIZING if quantized else _HALVING if halved else _ROUNDING),
            near=apart <= (_QUANTIZING if quantized else _HALVING),
        )


def check_same_model(request: Request) -> Agreement:
    """Make sure that the file has the model's weights, and gives what it gives.

    A file may well give something else: what is computed from the model's outputs. But then it lacks nothing of the
    model, and has no weights of its own.

    Raises:
        MismatchError: If it is not so.
        InputError: If the model cannot be run on these inputs.
        HieronnxError: If the file cannot.
    """
    agreement = Agreement.of(request)
    if not agreement.proven:
        check_same_weights(request)
        if not agreement.near:
            apart, weights = _describe_outputs(request, agreement), request.weights
            if weights.unmatched:
                reason = f"{apart}, and it has no parameters of modules of the model"
                raise _mismatch(request, reason, weights.agreement, weights.unmatched)
            _check_no_unknown_weights(request, apart)
    return agreement


def check_same_weights(request: Request) -> None:
    """Make sure that the model has the weights of the file; nothing is run.

    Raises:
        MismatchError: If it has not.
    """
    share = request.weights.agreement
    if share < _LEAST_OF_WEIGHTS:
        part = f"only {share:.0%}" if share else "none"
        raise _mismatch(request, f"the model has {part} of its weights", share, request.weights.unmatched)


def check_same_values(request: Request, agreement: Agreement, projected: Projected) -> None:
    """Make sure that neither has a layer that the other lacks, and that both compute the same on the way.

    Raises:
        MismatchError: If it is not so.
    """
    if projected.missing:
        reason = "on the way to its outputs the model has modules of which it has neither parameters nor values"
        raise _mismatch(request, reason, projected.agreement, projected.missing)
    if (count := projected.unknown_weights) > 1:  # a single one an exporter may have computed from others
        reason = f"{count} of its weights are not the model's, and lead to nothing that the model computes"
        raise _mismatch(request, reason, projected.agreement, ())
    if agreement.same:
        return
    _check_no_unknown_weights(request, _describe_outputs(request, agreement))
    if projected.agreement < _LEAST_OF_VALUES:
        share = f"of the tensors that it computes only {projected.agreement:.0%} have values that the model computes"
        reason = share + _TRAINING * request.model.training
        raise _mismatch(request, reason, projected.agreement, projected.unmatched)


def _describe_outputs(request: Request, agreement: Agreement) -> str:
    hint = _TRAINING * request.model.training
    if agreement.outputs is None:
        return f"none of its outputs has the size of one of the model{hint}"
    return f"their outputs are {agreement.outputs:.2%} of their spread apart{hint}"


def _check_no_unknown_weights(request: Request, apart: str) -> None:
    """Make sure that a file that gives something else has no weights of its own."""
    if count := len(request.weights.unknown):
        weights = "one of its weights is" if count == 1 else f"{count} of its weights are"
        raise _mismatch(request, f"{apart}, and {weights} not the model's", request.weights.agreement, ())


def _mismatch(request: Request, reason: str, agreement: float, unmatched: Sequence[CallId]) -> MismatchError:
    named = list_some([str(call) or "the root" for call in unmatched], _MOST_NAMED)
    missing = f"; it has nothing of {named}" if unmatched else ""
    return MismatchError(
        f"'{request.opened.name}' is not of this model: {reason}{missing}; check that weights, inputs and version of "
        "the model are those that the file was made with. Nothing was written",
        agreement,
        tuple(unmatched),
    )


# -- two files --------------------------------------------------------------------------------------------


_Weight: TypeAlias = tuple[str, tuple[int, ...]]


class ViewedFile(NamedTuple):
    """A file and its structure."""

    opened: OpenedModel
    view: View


def check_related(
    original: ViewedFile,
    transformed: ViewedFile,
    carried: Iterable[int | None],
    by_value: Mapping[int, int] | None = None,
) -> None:
    """Make sure that one file can have been made of the other.

    Args:
        original: The file that a tool is said to have been run on.
        transformed: What is said to be made of it.
        carried: For each tensor of the original the one of the transformed file that holds its value.
        by_value: The tensors of the transformed file that hold the values of one of the original, where both were run.

    Raises:
        HieronnxError: If nothing speaks for it.
    """
    b = transformed.view
    computed = {tensor for tensor in by_value or () if b.producers[tensor] is not None}
    # An output agrees, or many values on the way: a few do in any two models that are fed the same.
    if not computed.isdisjoint(b.graphs[0].outputs) or len(computed) >= _COMPUTED_ALIKE * len(b.nodes):
        return
    if _are_related(original, transformed, {tensor for tensor in carried if tensor is not None}):
        return
    reason, remedy = "too few values agree", ""
    if by_value is None:
        reason = "too little agrees of their weights, inputs and outputs"
        remedy = ", or --by-value (by_value=True), which runs both to find out"
    raise HieronnxError(
        f"'{transformed.opened.name}' does not seem to be made of '{original.opened.name}': {reason}; give the file "
        f"that the tool was run on{remedy}"
    )


def _are_related(original: ViewedFile, transformed: ViewedFile, carried: set[int]) -> bool:
    a, b = original.view, transformed.view
    old, new = _list_weights(a), _list_weights(b)
    named = _share_named(old, new) >= _NAMED_ALIKE
    if not named and not _is_interface_alike(a, b):
        return False
    shared = compare_files(original.opened, a, transformed.opened, b)
    if shared.compared and shared.agreeing >= _SAME_CONTENT * shared.compared:
        return True
    if shared.compared and not shared.quantized:
        return False
    # Contents tell nothing: the weights are new, or not there.
    shapes = {shape for _, shape in old}
    if named or not old or not new or sum(shape in shapes for _, shape in new) >= _SHAPED_ALIKE * len(new):
        return True
    return sum(not carried.isdisjoint(node.outputs) for node in b.nodes) >= _CARRIED * len(b.nodes)


def is_renamed(a: View, b: View) -> bool:
    """Say whether hardly a tensor that graph B computes has a name of graph A."""
    names = set(a.names)
    computed = [tensor for tensor, producer in enumerate(b.producers) if producer is not None]
    return sum(b.names[tensor] in names for tensor in computed) < _NAMED_ALIKE * len(computed)


def _list_weights(view: View) -> list[_Weight]:
    """List the names of weights with their sizes in order of size: a transposed weight has them too."""
    types = ((view.names[tensor], view.types[tensor]) for tensor in view.constants)
    shapes = ((name, tuple(sorted(n for n in t.shape if n is not None)) if t is not None else ()) for name, t in types)
    return [(name, shape) for name, shape in shapes if math.prod(shape) >= _FEWEST_ELEMENTS]


def _share_named(old: Sequence[_Weight], new: Sequence[_Weight]) -> float:
    """Return the share of weights that have the shape and the name of an old one, or begin with its name.

    Tools add to names: `weight_quantized` was `weight`.
    """
    old_weights, alike = set(old), 0
    for name, shape in new:
        ends = (end for end in range(1, len(name) + 1) if end == len(name) or name[end] in "_/:")
        alike += any((name[:end], shape) in old_weights for end in ends)
    return alike / len(new) if new else 0.0


def _is_interface_alike(a: View, b: View) -> bool:
    """Say whether each input and output of B has a place for it in A, names and precision aside."""
    main_a, main_b = a.graphs[0], b.graphs[0]
    for old, new in ((main_a.inputs, main_b.inputs), (main_a.outputs, main_b.outputs)):
        free = [a.types[tensor] for tensor in old if tensor not in a.constants]
        for tensor in (t for t in new if t not in b.constants):
            fitting = next((i for i, type_ in enumerate(free) if _agree(type_, b.types[tensor])), None)
            if fitting is None:
                return False
            del free[fitting]
    return True


def _agree(a: TensorType | None, b: TensorType | None) -> bool:
    if a is None or b is None:
        return True
    sizes = zip(a.shape, b.shape, strict=False)
    same_kind = ("FLOAT" in a.dtype) == ("FLOAT" in b.dtype)
    return same_kind and len(a.shape) == len(b.shape) and all(m == n or None in (m, n) for m, n in sizes)
