"""The stages of a model, run in ONNX Runtime one after the other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hieronnx.errors import InputError, check_known, require
from hieronnx.files.pipeline import PipelineDocument, StageEntry, read_pipeline
from hieronnx.graph.sizes import evaluate_size
from hieronnx.runtime.inputs import FileInput, check_feeds, draw_feeds, read_inputs
from hieronnx.runtime.sessions import Array, Session, open_session


class Pipeline:
    """The stages in a folder that `split` wrote, as one model.

    Args:
        folder: Where the stages and `pipeline.json` are.
        providers: ONNX Runtime's execution providers: names for all stages, or a list of names for each.
        optimization: `all`, or `none` to run the stages as they are, bit for bit like the whole model run so.

    Raises:
        HieronnxError: If the folder is no pipeline, or ONNX Runtime is missing.

    Example:
        >>> hieronnx.Pipeline("stages").run({"input_ids": ids})["logits"]
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        providers: Sequence[str] | Sequence[Sequence[str]] = ("CPUExecutionProvider",),
        optimization: str = "all",
    ) -> None:
        require("onnxruntime", "runtime")
        check_known("optimization", optimization, ("all", "none"))
        self.folder = Path(folder)
        self.document: PipelineDocument = read_pipeline(self.folder)
        self._optimized = optimization == "all"
        self._providers = _spread_providers(providers, len(self.document.stages))

    def __repr__(self) -> str:
        return f"Pipeline({str(self.folder)!r}: {len(self.document.stages)} stages)"

    @property
    def input_names(self) -> tuple[str, ...]:
        """What the model takes."""
        return tuple(item.name for item in self.document.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """What the model gives."""
        return tuple(item.name for item in self.document.outputs)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run all stages on one set of inputs, by name.

        Raises:
            HieronnxError: If an input is missing, or does not fit, or a stage cannot be run.
        """
        for name in inputs:
            check_known("input", name, self.input_names, "the model has")
        values: dict[str, Array] = {name: np.asarray(array) for name, array in inputs.items()}
        for number in range(len(self.document.stages)):
            values = self.advance(number, values)
        return {name: values[name] for name in self.output_names}

    def advance(self, number: int, values: Mapping[str, Array]) -> dict[str, Array]:
        """Run one stage; return what is to be handed to the next: what it gave, and what others need of the rest.

        After the last stage, that is what the model gives.

        Raises:
            HieronnxError: If something that it takes is missing, or it cannot be run.
        """
        known = {**values, **self.run_stage(number, values)}
        needed = {name for stage in self.document.stages[number + 1 :] for name in stage.inputs} | {*self.output_names}
        return {name: array for name, array in known.items() if name in needed}

    def run_stage(self, number: int, values: Mapping[str, Array]) -> dict[str, Array]:
        """Run one stage on what it takes of some tensors; return what it gives.

        Raises:
            HieronnxError: If something that it takes is missing, or it cannot be run.
        """
        stage = self.document.stages[number]
        if missing := [name for name in stage.inputs if name not in values]:
            raise InputError(f"no array for input '{missing[0]}'; the model takes {', '.join(self.input_names)}")
        given = {name: values[name] for name in stage.inputs}
        feeds = check_feeds(given, self.stage_inputs[number], f"stage {number}")
        return self._session(number).run(feeds, stage.outputs)

    @cached_property
    def stage_inputs(self) -> list[tuple[FileInput, ...]]:
        """What each stage takes."""
        return [read_inputs(self._path(stage)) for stage in self.document.stages]

    def _path(self, stage: StageEntry) -> Path:
        return self.folder / stage.file

    @cached_property
    def _sessions(self) -> dict[int, Session]:
        return {}

    def _session(self, number: int) -> Session:
        if number not in self._sessions:
            path, providers = self._path(self.document.stages[number]), self._providers[number]
            self._sessions[number] = open_session(path, providers=providers, optimized=self._optimized)
        return self._sessions[number]


def _spread_providers(given: Sequence[str] | Sequence[Sequence[str]], stages: int) -> list[list[str]]:
    """Return the providers of each stage."""
    names = [item for item in given if isinstance(item, str)]
    if len(names) == len(given):
        return [names for _ in range(stages)]
    if len(given) != stages or names:
        raise InputError(f"providers for {len(given)} stages are given, and there are {stages}; a list for each")
    return [list(item) for item in given]


def measure_run(folder: Path, dims: Mapping[str, int]) -> dict[str, int]:
    """Run stages once, on random inputs of given sizes; return the bytes of what they take and give.

    Raises:
        HieronnxError: If ONNX Runtime is missing, a size is not given, or a stage cannot be run on such inputs.
    """
    pipeline = Pipeline(folder, optimization="none")
    wanted: dict[str, FileInput] = {}
    for item in (item for inputs in pipeline.stage_inputs for item in inputs if item.name in pipeline.input_names):
        sizes = (evaluate_size(size, dims) if isinstance(size, str) else size for size in item.shape or ())
        wanted[item.name] = replace(item, shape=None if item.shape is None else tuple(sizes))
    if unknown := [str(item) for item in wanted.values() if item.shape is None or item.is_dynamic]:
        raise InputError(f"the sizes of {', '.join(unknown)} are not all given")
    values: dict[str, Array] = dict(draw_feeds(list(wanted.values()), 1)[0])
    for number in range(len(pipeline.document.stages)):
        values |= pipeline.run_stage(number, values)
    return {name: array.nbytes for name, array in values.items()}
