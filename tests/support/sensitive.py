"""Zoo models of which one module does not bear 8 bits, and samples for them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import hieronnx
from support.exports import export_ours, feeds_of

Feeds = Mapping[str, np.ndarray[Any, Any]]
PRODUCTS = ("MatMul", "Gemm", "Conv")
FACTOR = 100


@dataclass(frozen=True)
class Sensitive:
    """A zoo model, its route, a quantizer, and the module that is made sensitive."""

    name: str
    exporter: str
    tool: str
    module: str

    @property
    def options(self) -> dict[str, Any]:
        """Weights in a type that every processor multiplies exactly."""
        return {"weight_type": "uint8"} if self.tool == "dynamic" else {}

    def write(self, folder: Path) -> Path:
        """Write the model with one number of the module's weight far larger than all others: 8 bits lose these."""
        made = folder / f"{self.name}.onnx"
        source = Path(export_ours(self.name, self.exporter))
        shutil.copy(source.with_name("model_hierarchy.json"), made.with_name(f"{self.name}_hierarchy.json"))
        model = onnx.load(source)
        nodes = [node for node in hieronnx.load(source).nodes_in(self.module) if node.op_type in PRODUCTS]
        (index,) = (i for i, node in enumerate(model.graph.node) if node.output[0] == nodes[0].output)
        weight = next(t for t in model.graph.initializer if t.name == model.graph.node[index].input[1])
        array = numpy_helper.to_array(weight).copy()
        array.flat[array.size // 2] = FACTOR * np.abs(array).max()
        weight.CopyFrom(numpy_helper.from_array(array, weight.name))
        onnx.save(model, made)
        return made

    def draw(self, count: int, seed: int) -> list[dict[str, np.ndarray[Any, Any]]]:
        """Draw inputs: floats and ids at random, masks as they are."""
        random = np.random.default_rng(seed)

        def draw_one(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            if array.dtype.kind == "f":
                return random.standard_normal(array.shape).astype(array.dtype)
            is_mask = array.max() <= 1
            return array if is_mask else random.integers(array.min(), array.max() + 1, array.shape, array.dtype)

        example = feeds_of(self.name, self.exporter)
        return [{name: draw_one(array) for name, array in example.items()} for _ in range(count)]


MODELS = (
    Sensitive("bert", "torchscript", "dynamic", "encoder.layer.1.output.dense"),
    Sensitive("vit", "torchscript", "dynamic", "vit.layers.0.mlp.fc1"),
    Sensitive("convnext", "torchscript", "dynamic", "encoder.stages.1.layers.0.pwconv2"),
    Sensitive("distilbert", "torchscript", "dynamic", "transformer.layer.0.ffn.lin2"),
    Sensitive("bart", "torchscript", "dynamic", "decoder.layers.0.fc2"),
)
"""Text and images, by attention and by convolutions."""
CALIBRATED = Sensitive("bert", "torchscript", "static", "pooler.dense")
"""One with ranges."""
INDIFFERENT = Sensitive("resnet", "torchscript", "static", "resnet.embedder.embedder")
"""One with ranges, in which nothing is sensitive, in spite of the number: see docs/benchmarks.md."""
