"""Exports of zoo models: hieronnx's own and torch's baseline, made once a test run and shared by all tests."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import hieronnx
from hieronnx.capture.captured import ExportRequest
from hieronnx.capture.torchscript.positional import by_position, name_traced_inputs
from support.valuecheck import match_inputs, named_arrays
from support.zoo import CASES, Case

FOLDER_VARIABLE = "HIERONNX_TEST_EXPORTS"


def shared_folder() -> str:
    """Return the folder of this run's exports; processes that it starts share it, and it goes with the run."""
    if FOLDER_VARIABLE not in os.environ:
        os.environ[FOLDER_VARIABLE] = mkdtemp(prefix="hieronnx-exports-")
        atexit.register(shutil.rmtree, os.environ[FOLDER_VARIABLE], ignore_errors=True)
    return os.environ[FOLDER_VARIABLE]


@dataclass(frozen=True)
class Exported:
    """One zoo model, exported through one route."""

    case: Case
    exporter: str
    model: nn.Module
    result: hieronnx.ExportResult

    @property
    def hierarchy(self) -> hieronnx.Hierarchy:
        return self.result.hierarchy

    @property
    def attributed(self) -> dict[tuple[str, str], frozenset[tuple[str, int]]]:
        """What each node is attributed to, in the value check's terms."""
        return {
            (node.graph, node.output): frozenset({tuple(node.scope), *map(tuple, node.origins)})
            for node in self.hierarchy.nodes
        }


@cache
def exported(name: str, exporter: str, **options: Any) -> Exported:
    """Export a zoo model with hieronnx; the same call gives the same files."""
    case = CASES[name]
    model = case.build()
    path = Path(mkdtemp(prefix=f"{name}-{exporter}-", dir=shared_folder())) / "model.onnx"
    with quiet():
        result = hieronnx.export(model, case.args(), path, case.kwargs(), exporter=exporter, **options)
    return Exported(case, exporter, model, result)


@cache
def feeds_of(name: str, exporter: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the example inputs of an exported zoo model, by the names that the file has for them."""
    case = exported(name, exporter)
    args, kwargs = case.case.args(), case.case.kwargs()
    arrays = list(named_arrays(case.model, args, kwargs))
    with torch.no_grad():
        outputs = tree_leaves(case.model(*args, **kwargs))
    tensors = [leaf for leaf in outputs if isinstance(leaf, torch.Tensor)]
    return dict(match_inputs(onnx.load(case.result.path), arrays, tensors))


def export_ours(name: str, exporter: str) -> Path:
    """Export a zoo model with hieronnx; return the file."""
    return exported(name, exporter).result.path


def run_in_new_process(function: Callable[..., Path], *args: str) -> Path:
    """Run one of these functions where nothing was exported before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def names_in(path: str | Path) -> dict[str, Any]:
    """Return the names of a file's inputs and outputs as the options of torch that give them."""
    graph = onnx.load(path, load_external_data=False).graph
    inputs, outputs = ([value.name for value in values] for values in (graph.input, graph.output))
    return {"input_names": inputs, "output_names": outputs}


def export_baseline(name: str, exporter: str, ours: str | Path, **options: Any) -> Path:
    """Export a zoo model with torch alone, with the arguments that hieronnx hands on and the names in its file."""
    case = CASES[name]
    path = Path(mkdtemp(prefix=f"{name}-{exporter}-baseline-", dir=shared_folder())) / "model.onnx"
    model, args, kwargs = case.build(), case.args(), case.kwargs()
    options = {**options, **names_in(ours)}
    with quiet():
        if exporter == "dynamo":
            torch.onnx.export(model, args, path, kwargs=kwargs, dynamo=True, verbose=False, **options)
        else:
            request = ExportRequest(model, args, kwargs, path, path)
            options["input_names"] = name_traced_inputs(request)  # of which torch drops those that nothing reads
            with by_position(request) as positional:
                torch.onnx.export(model, positional, str(path), dynamo=False, **options)
    return path


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's advice on exporting out of the test report."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def largest_difference(exported: Exported) -> float:
    """Run the file in ONNX Runtime and the model in PyTorch; return the largest difference of an output."""
    case, model = exported.case, exported.model
    with torch.no_grad():
        expected = [np.asarray(t) for t in tree_leaves(model(*case.args(), **case.kwargs()))]
    proto = onnx.load(exported.result.path, load_external_data=False)
    arrays = named_arrays(model, case.args(), case.kwargs())
    feeds = match_inputs(proto, arrays, tuple(map(torch.from_numpy, expected)))
    session = ort.InferenceSession(exported.result.path, providers=["CPUExecutionProvider"])
    got = session.run(None, feeds)
    assert len(got) == len(expected)
    differences = [0.0]
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.shape == theirs.shape
        if theirs.size:
            differences.append(float(np.max(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)))))
    return max(differences)
