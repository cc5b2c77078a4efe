"""A whole file run as it is, with any of its tensors in sight: what parts, stages and replaced blocks are held to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from support.exports import Exported
from support.valuecheck import match_inputs, named_arrays


def feeds_of(exported: Exported) -> dict[str, np.ndarray]:
    """Return the inputs that a zoo model was exported with, by their names in the file."""
    return feed(exported.result.path, exported.model, exported.case.args(), exported.case.kwargs())


def feed(path: Path, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return inputs of a model by their names in its file."""
    arrays = list(named_arrays(model, args, kwargs))  # before the model runs, which adds to a cache that it is given
    with torch.no_grad():
        expected = tuple(torch.as_tensor(t) for t in tree_leaves(model(*args, **kwargs)))
    return match_inputs(onnx.load(path, load_external_data=False), arrays, expected)


def run_file(
    model: Path | onnx.ModelProto, feeds: Mapping[str, np.ndarray], names: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Run a file without optimization on what it takes of the inputs; return the tensors named, or its outputs."""
    proto = onnx.load(model) if isinstance(model, Path) else model
    if names is not None:
        proto = onnx.ModelProto.FromString(proto.SerializeToString())
        known = {value.name for value in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in dict.fromkeys(names) if n not in known)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = [value.name for value in session.get_outputs()] if names is None else list(names)
    taken = {value.name for value in session.get_inputs()}
    got = session.run(wanted, {name: array for name, array in feeds.items() if name in taken}) if wanted else []
    return dict(zip(wanted, got, strict=True))


def assert_equal(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], names: Iterable[str]) -> None:
    """Make sure that tensors are equal to the last bit."""
    for name in names:
        ours, theirs = np.asarray(got[name]), np.asarray(expected[name])
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
        assert ours.tobytes() == theirs.tobytes(), name
