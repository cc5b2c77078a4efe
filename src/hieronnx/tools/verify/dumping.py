"""What is needed to reproduce a culprit: the part as a model, its inputs, what it should give and gives, a script."""

from __future__ import annotations

from pathlib import Path

from hieronnx.errors import HieronnxError
from hieronnx.files.arrays import make_folder, write_arrays, write_text
from hieronnx.files.opening import OpenedModel, open_structure
from hieronnx.hierarchy.records import CallId
from hieronnx.hierarchy.tags import escape
from hieronnx.runtime.sessions import open_runner
from hieronnx.tools.extract.extracting import Extractor
from hieronnx.tools.verify.probing import SampleRun
from hieronnx.tools.verify.result import Culprit

_SCRIPT = '''"""{call}: what it gives on inputs.npz, and what it should give (expected.npz)."""

import numpy as np
import onnxruntime as ort

options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
session = ort.InferenceSession("part.onnx", options, providers=["CPUExecutionProvider"])
expected = np.load("expected.npz")
for name, array in zip(expected.files, session.run(expected.files, dict(np.load("inputs.npz"))), strict=True):
    print(name, "max abs", np.abs(array.astype("float64") - expected[name]).max())
'''


def dump_culprit(opened: OpenedModel, run: SampleRun, culprit: Culprit, part_of: CallId, folder: Path) -> Path:
    """Write the part of a culprit with what it was given and should give; return its folder.

    The part is that of `part_of`: the call itself or, where nobody knows what that should give, the nearest above it.

    Raises:
        HieronnxError: If the part cannot be taken out, run or written.
    """
    place = folder / escape(str(culprit.id) or "root").replace("/", "_")
    make_folder(place)
    part = place / "part.onnx"
    extractor = Extractor(opened.path or opened.model)
    extractor.extract([extractor.hierarchy.call_by_id[part_of]], part)
    with open_runner(open_structure(part)) as runner:
        inputs = run.collect([item.name for item in runner.inputs])
        actual = runner.run(inputs)
    expected = run.collect_expected(list(actual))
    if not expected:
        raise HieronnxError(f"nothing is known of what '{part_of}' should give")
    write_arrays(place / "inputs.npz", inputs)
    write_arrays(place / "actual.npz", {name: actual[name] for name in expected})
    write_arrays(place / "expected.npz", expected)
    write_text(place / "reproduce.py", _SCRIPT.format(call=str(part_of) or "the root"))
    return place
