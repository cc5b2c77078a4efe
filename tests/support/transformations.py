"""The tools whose work carry must see through, each as a function from a file to a file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime as ort

Feeds = Mapping[str, np.ndarray]
Transform = Callable[[Path, Path, Feeds], None]

OPSET = 21
_LEVELS = {
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class ToolError(Exception):
    """A tool failed on a model by itself: what it said."""


@dataclass(frozen=True, slots=True)
class Column:
    """One tool: how to run it, how near its values stay to the original's, and what carry must reach."""

    run: Transform
    precision: str = "float"
    """`float`, `half` or `int8`."""
    least: float = 0.99


def transform(column: str, source: Path, target: Path, feeds: Feeds) -> None:
    """Run one tool.

    Raises:
        ToolError: If the tool fails.
    """
    with _silent(), TemporaryDirectory() as folder:
        # One file with its weights inside: some tools leave them where they are, some write beside what they read.
        whole = Path(folder) / "model.onnx"
        onnx.save(_load_bare(source), whole)
        try:
            COLUMNS[column].run(whole, target, feeds)
        except Exception as error:
            target.unlink(missing_ok=True)
            first = next(iter(str(error).strip().splitlines()), "")
            raise ToolError(f"{type(error).__name__}: {first}") from error


def _load_bare(source: Path) -> onnx.ModelProto:
    """Load a file without the declared types of its initializers, which the int8 quantizer alters and trips over."""
    model = onnx.load(source)
    constants = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.value_info if value.name not in constants]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    return model


def _optimize_with_onnxruntime(level: str, source: Path, target: Path, feeds: Feeds) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = _LEVELS[level]
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def _fuse_for_transformers(source: Path, target: Path, feeds: Feeds) -> None:
    from onnxruntime.transformers import optimizer

    optimizer.optimize_model(str(source), opt_level=0, only_onnxruntime=False).save_model_to_file(str(target))


def _simplify(source: Path, target: Path, feeds: Feeds) -> None:
    import onnxsim

    simplified, checked = onnxsim.simplify(onnx.load(source))
    if not checked:
        raise ValueError("onnxsim's own check failed")
    onnx.save(simplified, target)


def _slim(source: Path, target: Path, feeds: Feeds) -> None:
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), target)


def _optimize_with_onnxscript(source: Path, target: Path, feeds: Feeds) -> None:
    from onnxscript import optimizer, rewriter

    onnx.save(rewriter.rewrite(optimizer.optimize(onnx.load(source))), target)


def _convert_with_onnx(source: Path, target: Path, feeds: Feeds) -> None:
    from onnx import version_converter

    onnx.save(version_converter.convert_version(onnx.load(source), OPSET), target)


def _convert_with_onnxscript(source: Path, target: Path, feeds: Feeds) -> None:
    import onnx_ir as ir
    from onnxscript import version_converter

    model = ir.load(source)
    version_converter.convert_version(model, OPSET)
    ir.save(model, target)


def _quantize_dynamic(source: Path, target: Path, feeds: Feeds) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, target)


def _quantize_static(source: Path, target: Path, feeds: Feeds, *, form: str = "QDQ") -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._rounds = iter([dict(feeds)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._rounds, None)

    quantize_static(source, target, Reader(), quant_format=QuantFormat[form])


def _convert_to_half(source: Path, target: Path, feeds: Feeds, *, keep_io_types: bool) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=keep_io_types), target)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep the tools' advice out of the test report."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


COLUMNS: dict[str, Column] = {
    "ort-basic": Column(partial(_optimize_with_onnxruntime, "basic")),
    "ort-extended": Column(partial(_optimize_with_onnxruntime, "extended")),
    "ort-all": Column(partial(_optimize_with_onnxruntime, "all")),
    "ort-transformers": Column(_fuse_for_transformers),
    "onnxsim": Column(_simplify),
    "onnxslim": Column(_slim),
    "onnxscript": Column(_optimize_with_onnxscript),
    "opset-onnx": Column(_convert_with_onnx),
    "opset-onnxscript": Column(_convert_with_onnxscript),
    "fp16": Column(partial(_convert_to_half, keep_io_types=False), "half"),
    "fp16-keep-io": Column(partial(_convert_to_half, keep_io_types=True), "half"),
    "int8-dynamic": Column(_quantize_dynamic, "int8", 0.97),
    "int8-static": Column(_quantize_static, "int8", 0.97),
    "int8-operators": Column(partial(_quantize_static, form="QOperator"), "int8", 0.97),
}
