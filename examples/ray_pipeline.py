"""The stages that `hieronnx split` wrote, as Ray actors: one for each stage, with many requests in flight.

    pip install 'hieronnx[ray]'
    hieronnx split model.onnx --stages 3 --into stages
    python examples/ray_pipeline.py stages inputs.npz

While a stage works on one request, the stages before it work on the next ones. An actor can be put on a machine or a
device of its own: give `options`, what Ray's `.options()` takes, for each stage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray

from hieronnx import Pipeline


@ray.remote
class Stage:
    """One stage, loaded once."""

    def __init__(self, folder: str, number: int, providers: Sequence[str]) -> None:
        self.pipeline, self.number = Pipeline(folder, providers=list(providers)), number

    def run(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the stage; hand on what it gives, and what later stages need of the rest."""
        return self.pipeline.advance(self.number, values)


class RayPipeline:
    """All stages of a folder as actors."""

    def __init__(
        self,
        folder: str | Path,
        *,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        options: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        count = len(Pipeline(folder).document.stages)
        given = [*options, *({} for _ in range(count - len(options)))]
        self.actors = [
            Stage.options(**given[number]).remote(str(Path(folder).resolve()), number, providers)
            for number in range(count)
        ]

    def submit(self, inputs: Mapping[str, np.ndarray]) -> Any:
        """Send one request through all stages; return what `ray.get` turns into its outputs."""
        values: Any = dict(inputs)
        for actor in self.actors:
            values = actor.run.remote(values)  # Ray hands it over when it is there
        return values

    def run_all(self, requests: Iterable[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        """Run many requests, all in flight at once."""
        results: list[dict[str, np.ndarray]] = ray.get([self.submit(request) for request in requests])
        return results


if __name__ == "__main__":
    ray.init()
    with np.load(sys.argv[2]) as arrays:
        for name, array in RayPipeline(sys.argv[1]).run_all([dict(arrays)])[0].items():
            print(name, array.shape)
