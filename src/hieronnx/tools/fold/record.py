"""What a folded file says so that it can be unfolded exactly: relative scopes on nodes, names and order on the model.

The nodes of a function that many calls share have one name for each of their tensors; the names that the nodes had in
each call are on the model, with their evidence where it differs, and the order of the nodes where it had to change.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable, Sequence

import msgspec
import onnx
from google.protobuf.message import DecodeError, Message

from hieronnx.errors import HieronnxError
from hieronnx.hierarchy.records import CONFIDENCE

SCOPE_KEY = "hieronnx_fold.scope"
"""The key of a relative scope in the metadata of a node of a function."""
ORIGINS_KEY = "hieronnx_fold.origins"
"""The key of its relative origins, where it has others than its scope."""
RECORD_KEY = "hieronnx_fold.record"
"""The key of all else in the metadata of the model."""
_LARGEST_RECORD = 1 << 26
"""Of bytes before they are compressed: what someone else wrote may be anything."""


class CallRecord(msgspec.Struct, frozen=True, array_like=True):
    """The nodes of a call as they were: for each its name and outputs, for each body the names that it has itself."""

    names: list[list[str]]
    operators: str
    """Of the nodes, as `digest_operators` gives them: so it shows where the function's nodes are others."""
    evidence: dict[int, tuple[str, str]] = {}
    """Evidence and rule of the nodes, by their places, where the function's node says something else."""
    metadata: dict[int, dict[str, str | None]] = {}
    """What others wrote on the nodes, by their places, where calls differ in it; None for what the function's says."""


class FoldRecord(msgspec.Struct, frozen=True):
    """How the nodes of a folded file were named and ordered.

    Attributes:
        calls: by the call, those that no other function has in it.
        order: where in the file each node of the main graph was, as runs of a first place and a length; nothing where
            the order is as it was.
        ir_version: that of the file as it was.
        functions: the keys of the functions that folding made.
        domains: those that only these need.
        bound: what calls received and returned that lies deeper in functions than the calls: the call, 0 or 1 for
            received or returned, the place in that, the graph and the tensor.
        types: what the file said of tensors, where calls that share a function differ in it: the graph, the name, and a
            ValueInfoProto.
        annotations: what the main graph said of the quantization of tensors that are in functions now, as
            TensorAnnotation.
    """

    calls: dict[str, CallRecord]
    order: list[tuple[int, int]]
    ir_version: int
    functions: list[str]
    domains: list[str]
    bound: list[tuple[str, int, int, str, str]]
    types: list[tuple[str, str, bytes]]
    annotations: list[bytes] = []


def encode_record(record: FoldRecord) -> str:
    """Encode a record as text for metadata; what others wrote on nodes is left out where it would get too large.

    Raises:
        HieronnxError: If it is larger than what is read again.
    """
    content = msgspec.json.encode(record)
    if len(content) > _LARGEST_RECORD:
        bare = {key: msgspec.structs.replace(call, metadata={}) for key, call in record.calls.items()}
        content = msgspec.json.encode(msgspec.structs.replace(record, calls=bare))
    if len(content) > _LARGEST_RECORD:
        raise HieronnxError(
            f"a folded file has a record of at most {_LARGEST_RECORD:,} bytes, and the names of so many nodes are "
            f"{len(content):,}; fold fewer calls: by a pattern, their depth or their classes"
        )
    return base64.b64encode(zlib.compress(content, 9)).decode()


def decode_record(text: str) -> FoldRecord:
    """Decode a record.

    Raises:
        ValueError: If the text is none.
    """
    try:
        stream = zlib.decompressobj()
        content = stream.decompress(base64.b64decode(text, validate=True), _LARGEST_RECORD)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not stream.eof:
        raise ValueError("it is cut off, or too large")
    record = msgspec.json.decode(content, type=FoldRecord)
    said = {evidence for call in record.calls.values() for evidence, _ in call.evidence.values()}
    if unknown := sorted(said - CONFIDENCE.keys()):
        raise ValueError(f"'{unknown[0]}' is no evidence")
    _check_messages(onnx.ValueInfoProto, (content for _, _, content in record.types), "type")
    _check_messages(onnx.TensorAnnotation, record.annotations, "annotation")
    return record


def _check_messages(kind: type[Message], contents: Iterable[bytes], name: str) -> None:
    try:
        for content in contents:
            kind.FromString(content)
    except DecodeError as error:
        raise ValueError(f"it has a {name} of a tensor that is none") from error


def digest_operators(op_types: Iterable[str]) -> str:
    """Return a short text that two lists of operators share only where they are the same."""
    return hashlib.blake2b("\0".join(op_types).encode(), digest_size=8).hexdigest()


def encode_ways(ways: Iterable[str]) -> str:
    """Encode relative scopes as text for metadata."""
    return msgspec.json.encode(list(ways)).decode()


def decode_ways(text: str) -> list[str]:
    """Decode relative scopes.

    Raises:
        ValueError: If the text is none.
    """
    return msgspec.json.decode(text, type=list[str])


def find_runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """Return places as runs of a first one and a length; nothing where they are in order."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][0] + runs[-1][1] == place:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    return runs if len(runs) > 1 else []
