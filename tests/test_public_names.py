"""The public names are what they say, in whatever order they are imported and whatever was imported before."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hieronnx


@pytest.mark.parametrize(
    "first",
    [
        "import hieronnx",
        "from hieronnx import load, HieronnxError",
        "from hieronnx import ExportResult",
        "import hieronnx; hieronnx.HierarchyExporter",
        "import hieronnx.tools.export",
        "import hieronnx.tools.compare; import hieronnx.cli.compare",
        "import hieronnx.tools.validate.validating; import hieronnx.cli.validate",
        "import hieronnx.tools.carry; import hieronnx.cli.carry; import hieronnx.cli.optimize",
        "import hieronnx; hieronnx.export; import hieronnx.cli.export",
    ],
)
def test_functions_are_functions_whatever_was_imported_before(first: str) -> None:
    names = ("analyze", "annotate", "carry", "compare", "export", "extract", "load", "optimize", "quantize", "validate")
    code = f"{first}\nimport hieronnx\nfor name in {names}: assert callable(getattr(hieronnx, name)), name"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there() -> None:
    assert all(hasattr(hieronnx, name) for name in hieronnx.__all__)
    assert set(hieronnx.__all__) <= set(dir(hieronnx))
    with pytest.raises(AttributeError, match="module 'hieronnx' has no attribute 'nothing'"):
        _ = hieronnx.nothing
