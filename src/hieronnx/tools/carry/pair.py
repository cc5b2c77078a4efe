"""The two models that a hierarchy is carried between: their views, and which tensors hold the same values."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import onnx_ir as ir

from hieronnx.errors import HieronnxError
from hieronnx.files.opening import OpenedModel, open_model, open_structure, require_hierarchy
from hieronnx.files.weights import Contents, read_external
from hieronnx.graph.building import view_model
from hieronnx.graph.view import SMALL_TENSOR_BYTES, ModelLike, View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.match.by_value import pair_by_fingerprints
from hieronnx.match.fingerprints import Fingerprint, take_fingerprint
from hieronnx.runtime.fitting import fit_inputs
from hieronnx.runtime.inputs import FileInput, draw_feeds
from hieronnx.runtime.sessions import Array, Runner, open_runner
from hieronnx.tools.fold.unfolding import unfold_opened


@dataclass(frozen=True, slots=True)
class Pair:
    """The graph before, with its hierarchy, and the graph after."""

    before: OpenedModel
    after: OpenedModel
    hierarchy: Hierarchy
    a: View
    b: View
    fixed: Mapping[int, int] | None = None
    """Tensors of the graph after that hold the values of one before, where both were run to find out."""


def open_pair(original: ModelLike | OpenedModel, transformed: ModelLike) -> Pair:
    """Open a model and what was made of it; of the weights only the smallest are read, others when they are asked for.

    What is left of a hierarchy in the transformed one is not read: it is to be replaced.

    Raises:
        HieronnxError: If one cannot be read, or the original has no hierarchy.
    """
    before = original if isinstance(original, OpenedModel) else unfold_opened(open_model(original))
    after = open_structure(transformed)
    hierarchy = require_hierarchy(before.hierarchy, before.path, before.model)
    a, b = (_view_opened(opened) for opened in (before, after))
    return Pair(before, after, hierarchy, a, b)


def _view_opened(opened: OpenedModel) -> View:
    view = view_model(opened.model, content=partial(_content_key, opened))
    find_contents = cache(partial(Contents.of, opened, view))
    view.read_digest = cache(lambda tensor: _digest(find_contents(), tensor))
    return view


def _digest(contents: Contents, tensor: int) -> Hashable:
    """Digest what a constant holds; None where it is not there: a hierarchy can be carried without the weights."""
    try:
        array = np.ascontiguousarray(contents.read(tensor)) if tensor in contents.tensors else None
    except HieronnxError:
        return None
    if array is None or array.dtype.hasobject:
        return None
    return array.dtype.str, array.shape, hashlib.blake2b(array.reshape(-1).view(np.uint8).data, digest_size=16).digest()


def _content_key(opened: OpenedModel, tensor: ir.TensorProtocol | None, name: str | None) -> Hashable:
    """Key a small initializer by its content, wherever that is; others by name: weights need not be there."""
    if tensor is None or tensor.nbytes > SMALL_TENSOR_BYTES or tensor.dtype == ir.DataType.STRING:
        return "named", name
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()
    content = read_external(opened, tensor)
    return ("named", name) if content is None else (tensor.dtype, tuple(tensor.shape.numpy()), content)


# -- by value ---------------------------------------------------------------------------------------------


def run_pair(pair: Pair, inputs: Mapping[str, Array] | None) -> Pair:
    """Run both models as they are written, on the same inputs, to see which tensors hold the same values.

    Args:
        pair: The models.
        inputs: An array for each input of the original; None: random ones.

    Raises:
        HieronnxError: If one of the files cannot be run on these inputs.
    """
    with open_runner(pair.before) as runner_a, open_runner(pair.after) as runner_b:
        feeds = _choose_feeds(runner_a, runner_b, inputs)
        prints_a = _take_fingerprints(runner_a, feeds, pair.a)
        prints_b = _take_fingerprints(runner_b, _fit(runner_b.inputs, runner_a.inputs, feeds), pair.b)
    return replace(pair, fixed=pair_by_fingerprints(pair.a, pair.b, prints_a, prints_b))


def _choose_feeds(a: Runner, b: Runner, inputs: Mapping[str, Array] | None) -> Mapping[str, Array]:
    """Return inputs on which both files run: those that were given, or random ones."""
    if inputs is not None:
        missing = [item.name for item in a.inputs if item.name not in inputs]
        if missing:
            raise HieronnxError(f"there is no array for the input '{missing[0]}'; give one for each input")
        return inputs

    def attempt(feeds: Mapping[str, Array]) -> None:
        a.run(feeds)
        b.run(_fit(b.inputs, a.inputs, feeds))

    return draw_feeds(fit_inputs(a.inputs, attempt), 1)[0]


def _fit(wanted: Sequence[FileInput], given: Sequence[FileInput], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs of A as those of B: by name, else in their order, in the types that B declares."""
    by_position = {w.name: g.name for w, g in zip(wanted, given, strict=False)} if len(wanted) == len(given) else {}
    fitted = {}
    for item in wanted:
        source = item.name if item.name in feeds else by_position.get(item.name)
        if source is None:
            raise HieronnxError(f"the transformed model has an input '{item.name}' that the original has not")
        fitted[item.name] = feeds[source] if item.dtype is None else feeds[source].astype(item.dtype)
    return fitted


def _take_fingerprints(runner: Runner, feeds: Mapping[str, Array], view: View) -> dict[int, Fingerprint]:
    """Take the fingerprints of all tensors that a run shows; in a loop those of the first iteration."""
    prints: dict[int, Fingerprint] = {}

    def visit(graph: str, name: str, array: Array) -> None:
        tensor = view.find_tensor(graph, name)
        if tensor is not None and tensor not in prints and array.size and array.dtype.kind in "biufc":
            prints[tensor] = take_fingerprint(array)

    runner.read_initializers(visit)
    for name, array in feeds.items():
        visit("", name, array)
    runner.run_exposed(feeds, visit)
    return {tensor: fingerprint for tensor, fingerprint in prints.items() if fingerprint.distinctive}
