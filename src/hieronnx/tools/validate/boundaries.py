"""The check `boundaries`: whether data goes from call to call by what they were recorded to receive and return.

    x ─ MatMul [query] ─ m ─ Add [key] ─ k       query did not return m, key did not receive it: MatMul is key's

A module may also hand a tensor on in other ways: in an attribute that another module reads, or by changing in place
what it was given. So what is found here is a warning, where `layers` finds errors. Left out are calls some of whose
tensors are no longer in the file, sizes and literals, of which a file has one where PyTorch had many, and nodes whose
call is not known exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache

from hieronnx.attribute.blocks import find_usual
from hieronnx.files.claims import Finding, call_place, node_place
from hieronnx.graph.operators import RESHAPE_OPS
from hieronnx.graph.view import TensorType, View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import BoundTensor, CallId
from hieronnx.tools.validate.layers import Placed, place_nodes

_OF_MATRICES = 2
_OTHERWISE = (
    "nothing, if the module hands the tensor on in another way (an attribute, in place); otherwise one of the nodes "
    "is in the wrong call"
)


def check_boundaries(hierarchy: Hierarchy, view: View) -> Iterator[Finding]:
    """Check that what leaves a call was returned or, where it enters another one, received."""
    nodes = [node if node and node.exact else None for node in place_nodes(hierarchy, view)]
    makers = _find_data(view, nodes)
    blocked = {usual: tensor for tensor, usual in find_usual(view).items()}
    received = {call.id: _find_tensors(view, call.received, blocked) for call in hierarchy.calls}
    returned = {call.id: _find_tensors(view, call.returned, blocked) for call in hierarchy.calls}
    yield from _check_crossings(hierarchy, view, nodes, makers, received, returned)
    for call, tensors in returned.items():
        known = received[call]
        for tensor in sorted(tensors or ()):
            maker = makers.get(tensor)
            if known is None or maker is None or tensor in known or call in hierarchy.tree.ancestors(maker.call):
                continue
            message = f"it returned '{view.names[tensor]}' and did not receive it, but {maker} makes it"
            yield Finding("boundaries", "warning", call_place(call), message, _OTHERWISE)


def _check_crossings(
    hierarchy: Hierarchy,
    view: View,
    nodes: Sequence[Placed | None],
    makers: dict[int, Placed],
    received: dict[CallId, set[int] | None],
    returned: dict[CallId, set[int] | None],
) -> Iterator[Finding]:
    fork = cache(hierarchy.tree.fork)
    for index, reader in enumerate(nodes):
        for tensor in () if reader is None else dict.fromkeys(view.nodes[index].inputs):
            if reader is None or tensor not in makers or makers[tensor].call == reader.call:
                continue
            _, left, entered = fork(makers[tensor].call, reader.call)
            gates = [(left, returned, "return"), (entered, received, "receive")]
            passed = [(call, tensors[call], verb) for call, tensors, verb in gates if call is not None]
            if all(tensors is not None and not _is_among(view, tensor, index, tensors) for _, tensors, _ in passed):
                why = ", and ".join(f"'{call}' did not {verb} it" for call, _, verb in passed)
                message = f"it reads '{view.names[tensor]}' of {makers[tensor]}, but {why}"
                yield Finding(
                    "boundaries", "warning", node_place(*reader.node.key, reader.node.name), message, _OTHERWISE
                )


def _is_among(view: View, tensor: int, reader: int, tensors: Set[int]) -> bool:
    """Say whether a tensor, or what others read of it in another shape, is among some: a matrix that a tool made.

    Gemm ─ m ─┬─ Reshape ─ y, which the call returned
              └─ Gemm
    """
    type_ = view.types[tensor]
    is_matrix = type_ is not None and len(type_.shape) == _OF_MATRICES
    is_form = is_matrix or view.nodes[reader].op in RESHAPE_OPS  # or the reader makes the matrix
    others = (view.nodes[other] for other in view.consumers[tensor] if is_form and other != reader)
    reshaped = (o for o in others if o.op in RESHAPE_OPS and o.inputs[0] == tensor)
    return tensor in tensors or any(not tensors.isdisjoint(node.outputs) for node in reshaped)


def _find_data(view: View, nodes: Sequence[Placed | None]) -> dict[int, Placed]:
    """Return the tensors that are computed from values, with the node that makes each.

    Not what is passed on as it is: to PyTorch a cast to the type that a tensor has is the tensor itself. Nor what a
    function gives that may be a size.
    """
    makers = ((index, node) for index, node in enumerate(nodes) if node is not None)
    return {
        tensor: node
        for index, node in makers
        if view.nodes[index].passes_on is None
        for tensor in view.nodes[index].makes
        if view.flow.is_data(tensor) and not view.flow.constant[tensor]
        if view.nodes[index].op not in view.functions or not _may_be_size(view.types[tensor])
    }


def _may_be_size(type_: TensorType | None) -> bool:
    """Say whether a tensor may be a number, or a list of numbers, that is computed from sizes."""
    return type_ is None or (type_.dtype == "INT64" and len(type_.shape) <= 1)


def _find_tensors(
    view: View, passed: Sequence[BoundTensor] | None, blocked: Mapping[int | None, int]
) -> set[int] | None:
    """Return the tensors of the file that a call received or returned, in blocks too; None where one is not known."""
    found = [view.find_tensor(item.graph, item.tensor) for item in passed or ()]
    known = {tensor for tensor in found if tensor is not None}
    known |= {blocked[tensor] for tensor in known if tensor in blocked}
    return known if passed is not None and None not in found else None
