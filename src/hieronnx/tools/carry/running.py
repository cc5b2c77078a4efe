"""Running a model and what was made of it on the same inputs, to find the tensors that hold the same values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hieronnx.errors import HieronnxError
from hieronnx.files.opening import OpenedModel
from hieronnx.graph.view import View
from hieronnx.match.by_value import pair_by_fingerprints
from hieronnx.match.fingerprints import Fingerprint, take_fingerprint
from hieronnx.runtime.sessions import Array, FileInput, Runner, open_runner

_DYNAMIC_SIZES = (4, 2, 1)


def match_tensors_by_value(
    original: OpenedModel, transformed: OpenedModel, a: View, b: View, inputs: Mapping[str, Array] | None = None
) -> dict[int, int]:
    """Return for tensors of B the tensors of A that hold the same values; both run as they are written.

    Args:
        original: The model A.
        transformed: The model B.
        a: The view of A.
        b: The view of B.
        inputs: An array for each input of A; random ones by default.

    Raises:
        HieronnxError: If one of the files cannot be run on these inputs.
    """
    with open_runner(original) as runner_a, open_runner(transformed) as runner_b:
        feeds = _choose_feeds(runner_a, runner_b, inputs)
        prints_a = _take_fingerprints(runner_a, feeds, a)
        prints_b = _take_fingerprints(runner_b, _fit(runner_b.inputs, runner_a.inputs, feeds), b)
    return pair_by_fingerprints(a, b, prints_a, prints_b)


def _choose_feeds(a: Runner, b: Runner, inputs: Mapping[str, Array] | None) -> Mapping[str, Array]:
    """Return inputs on which both files run: those that were given, or random ones."""
    if inputs is not None:
        missing = [item.name for item in a.inputs if item.name not in inputs]
        if missing:
            raise HieronnxError(f"there is no array for the input '{missing[0]}'; give one for each input")
        return inputs
    failure: HieronnxError | None = None
    for size in _DYNAMIC_SIZES if any(None in (item.shape or ()) for item in a.inputs) else _DYNAMIC_SIZES[:1]:
        feeds = _draw_inputs(a.inputs, size)
        try:
            a.run(feeds)
            b.run(_fit(b.inputs, a.inputs, feeds))
        except HieronnxError as error:
            failure = failure or error
        else:
            return feeds
    raise HieronnxError(f"{failure}; give inputs of your own, an array for each") from failure


def _draw_inputs(inputs: Iterable[FileInput], dynamic_size: int) -> dict[str, Array]:
    """Draw inputs: normal floats, and 0 or 1 for all else, which is good for ids and masks alike."""
    random = np.random.default_rng(0)
    drawn: dict[str, Array] = {}
    for item in inputs:
        if item.dtype is None:
            raise HieronnxError(f"the input '{item.name}' is not a tensor of numbers; it cannot be drawn at random")
        shape = tuple(dynamic_size if size is None else size for size in item.shape or ())
        floating = np.issubdtype(item.dtype, np.floating)
        values = random.standard_normal(shape) if floating else random.integers(0, 2, shape)
        drawn[item.name] = np.asarray(values).astype(item.dtype)
    return drawn


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
