"""`quantize --target` beside a greedy search by nodes: how much stays in 8 bits, and how many candidates were measured.

Not a matter of time. Both searches have the same samples, the same quantizer and the same measure.
"""

from __future__ import annotations

import logging
import math
import shutil
import tempfile
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Section
from benchmarks.page import use_zoo

if TYPE_CHECKING:
    from support.sensitive import Sensitive

SAMPLES = 18
_HEADER = (
    "model",
    "with",
    "target, dB",
    "by modules, 8 bits",
    "by nodes, 8 bits",
    "by modules, candidates",
    "allowed",
    "by nodes, candidates",
    "in float",
    "by modules, unseen, dB",
    "by nodes, unseen, dB",
)
_TEXT = (
    "Models of the zoo, in each of which one number in a weight of one module was made a hundred times as large as the "
    "largest: 8 bits lose the other numbers of that weight. `hieronnx quantize --target`, which goes by modules, "
    "beside a greedy search by nodes, which measures the model with each node in float, keeps the best, and so on "
    "until the target is met; of several that meet it, it keeps what leaves most in 8 bits. The first target is "
    "halfway between all in 8 bits and that module in float, the second 2 dB more than that module in float gives. In "
    "8 bits: the share of the multiply-adds of the file that was written. Candidates: how many were built and "
    "measured; allowed are 2·√n + depth for n modules that are quantized. Unseen: on samples that neither the "
    "calibration nor the search saw. The aim: at least as much in 8 bits as the greedy search leaves, with no more "
    "candidates than allowed."
)


@dataclass(frozen=True, slots=True)
class Found:
    """What a search kept in float, the share of multiply-adds in 8 bits, and how many candidates it measured."""

    kept: tuple[str, ...]
    share: float
    candidates: int


def run(_repeats: int) -> Section:
    """Search in all models, once: nothing is timed."""
    use_zoo()
    from support.sensitive import CALIBRATED, INDIFFERENT, MODELS

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rows = []
    for model in (*MODELS, CALIBRATED, INDIFFERENT):
        with tempfile.TemporaryDirectory(prefix="hieronnx-target-") as folder:
            trial = Comparison(model, Path(folder))
            rows += [trial.compare(target) for target in trial.targets()[: 1 if model == CALIBRATED else 2]]
    return Section("Target", _TEXT, _HEADER, tuple(rows))


class Comparison:
    """One model, searched in both ways."""

    def __init__(self, model: Sensitive, folder: Path) -> None:
        self.model, self.folder, self.source = model, folder, model.write(folder)
        self._samples = model.draw(SAMPLES, seed=0)
        self._seen = [sample for number, sample in enumerate(self._samples) if number % 3 != 2]
        held = [sample for number, sample in enumerate(self._samples) if number % 3 == 2]
        self._held = held if model.tool == "static" else self._samples

    def targets(self) -> tuple[float, float]:
        """Return the targets, in decibels."""
        whole, without = (self._measure(self._quantize(kept), self._held) for kept in ((), (self.model.module,)))
        return round((whole + without) / 2, 1), round(without + 2, 1)

    def compare(self, target: float) -> tuple[str, ...]:
        """Search for a target in both ways; return the line of the table."""
        modules, nodes = self.search_modules(target), self.search_nodes(target)
        samples = self.model.draw(60, seed=1)
        unseen = [self._measure(self.folder / f"{kind}.onnx", samples) for kind in ("modules", "nodes")]
        return (
            self.model.name,
            self.model.tool,
            f"{target:.1f}",
            f"{modules.share:.2%}",
            f"{nodes.share:.2%}",
            str(modules.candidates),
            str(self.count_allowed()),
            str(nodes.candidates),
            ", ".join(f"`{name}`" for name in modules.kept),
            *(f"{value:.1f}" for value in unseen),
        )

    def count_allowed(self) -> int:
        """Return how many candidates a search may measure."""
        import hieronnx

        quantized = hieronnx.load(self._quantize(()))
        few = ("MatMulInteger", "ConvInteger", "DequantizeLinear")
        modules = {node.scope.module for node in quantized.nodes if node.op_type in few}
        depth = max(quantized.tree.depth(call.id) for call in quantized.calls)
        return int(2 * math.sqrt(len(modules))) + depth

    def search_modules(self, target: float) -> Found:
        """Search as `quantize --target` does."""
        import hieronnx

        made = self.folder / "modules.onnx"
        result = hieronnx.quantize(
            self.source,
            output=made,
            tool=self.model.tool,  # type: ignore[arg-type]  # it is one of them
            calibration=self._samples,
            target=f"snr>={target}",
            **self.model.options,
        )
        assert result.search is not None
        assert result.search.chosen is not None
        return Found(result.search.chosen.kept, self._share(made), len(result.search.trials))

    def search_nodes(self, target: float) -> Found:
        """Put into float whatever node helps most, until the target is met."""
        names, candidates = self._list_nodes(), 1
        kept: tuple[str, ...] = ()
        value = self._measure(self._quantize_nodes(kept), self._held)
        while value < target:
            left = [name for name in names if name not in kept]
            values = {name: self._measure(self._quantize_nodes((*kept, name)), self._held) for name in left}
            candidates += len(left)
            met = [name for name in left if values[name] >= target]
            shares = {name: self._share(self._quantize_nodes((*kept, name))) for name in met}
            best = max(left, key=lambda name: (shares.get(name, -1.0), values[name]))
            kept, value = (*kept, best), values[best]
        return Found(kept, self._share(self._quantize_nodes(kept)), candidates)

    # -- quantizing and measuring

    def _list_nodes(self) -> list[str]:
        """Return the nodes that the quantizer changes."""
        import onnx
        from onnxruntime.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry

        calibrated = {**QLinearOpsRegistry, **QDQRegistry}
        registry = calibrated if self.model.tool == "static" else {**IntegerOpsRegistry, "Gemm": None}
        return [node.name for node in onnx.load(self.source).graph.node if node.op_type in registry]

    def _quantize(self, kept: Sequence[str]) -> Path:
        import hieronnx

        made = self.folder / "quantized.onnx"
        static = self.model.tool == "static"
        hieronnx.quantize(
            self.source,
            output=made,
            tool=self.model.tool,  # type: ignore[arg-type]  # it is one of them
            exclude=list(kept),
            calibration=self._seen if static else (),
            **self.model.options,
        )
        return made

    def _quantize_nodes(self, kept: Collection[str]) -> Path:
        from hieronnx.tools.quantize import QUANTIZERS, translate_options

        copied, made = self.folder / "copied.onnx", self.folder / "nodes.onnx"
        shutil.copy(self.source, copied)
        static = self.model.tool == "static"
        options: dict[str, Any] = translate_options(self.model.tool, self.model.options)
        if static:
            options["calibration_cache_path"] = str(self.folder / "ranges.json")
        run = QUANTIZERS[self.model.tool]  # type: ignore[index]  # it is one of them
        run(copied, made, list(kept), self._seen if static else [], **options)
        return made

    def _measure(self, made: Path, samples: Sequence[Mapping[str, Any]]) -> float:
        from hieronnx.tools.precision.measuring import Judge, Target

        return Judge(self.source, Target("snr", 0.0), samples, None).measure(made)

    def _share(self, made: Path) -> float:
        """Return the share of multiply-adds that a file does in 8 bits."""
        import hieronnx
        from hieronnx.tools.precision.units import list_products

        whole = hieronnx.analyze(self.source).total.multiply_adds
        return sum(node.multiply_adds or 0 for node in list_products(made, {})) / whole
