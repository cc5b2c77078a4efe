"""What a hierarchy that lies beside a model must agree with: its nodes, and what each of them reads and makes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hieronnx.graph.operators import name_domain
from hieronnx.graph.walks import first_name, walk_nodes, walk_protos

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

Wired: TypeAlias = tuple[str, str, str, Sequence[str], Sequence[str]]
"""A node: the key of its graph, its domain and operator, and the names of what it reads and makes."""


class Wiring(NamedTuple):
    """The nodes of a model by what identifies them, and a digest of how they are wired.

    Weights, attributes, types, the names of nodes and their order do not count.
    """

    keys: frozenset[tuple[str, str]]
    digest: str


def make_wiring(nodes: Iterable[Wired]) -> Wiring:
    """Describe how nodes are wired."""
    keys, texts = set(), []
    for graph, domain, op_type, inputs, outputs in nodes:
        read = "\1".join(inputs).rstrip("\1")  # optional ones at the end may be there or not
        made = "\1".join(outputs).rstrip("\1")
        keys.add((graph, first_name(outputs)))
        texts.append("\0".join((graph, name_domain(domain), op_type, read, made)))
    joined = "\n".join(sorted(texts)).encode("utf-8", "surrogatepass")
    return Wiring(frozenset(keys), hashlib.blake2b(joined, digest_size=16).hexdigest())


def read_proto_wiring(model: onnx.ModelProto) -> Wiring:
    """Describe the wiring of a message."""
    return make_wiring(
        (key, node.domain, node.op_type, node.input, node.output)
        for key, graph in walk_protos(model)
        for node in graph.node
    )


def read_ir_wiring(model: ir.Model) -> Wiring:
    """Describe the wiring of a model of onnx-ir."""
    return make_wiring(
        (
            key,
            node.domain,
            node.op_type,
            ["" if value is None else value.name or "" for value in node.inputs],
            [value.name or "" for value in node.outputs],
        )
        for key, node in walk_nodes(model)
    )
