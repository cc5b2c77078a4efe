"""Other tools with a selection: each in an environment of its own, on top of this one, leaves exactly that in float."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import hieronnx
from support.exports import exported
from support.whole import feeds_of

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = {
    "nncf": (["nncf==3.4.0"],),
    "olive": (["olive-ai==0.13.0"],),
    # What it asks for brings a GPU's ONNX Runtime, which would take the place of the one that is here.
    "modelopt": (["--no-deps", "nvidia-modelopt==0.47.0", "onnx-graphsurgeon", "polygraphy", "onnxconverter-common"],
                 ["scipy", "pulp", "lief", "rich", "ninja", "pydantic", "nvidia-ml-py"]),
    "aimet": (["aimet-onnx==2.42.0"],),
    "polygraphy": (["polygraphy==0.53.6"],),
}  # fmt: skip

READ = """
import json, sys
import numpy as np
import onnx
path, feeds, given, out = sys.argv[1:]
feeds, given = dict(np.load(feeds)), json.load(open(given))

def print_quantized():
    graph = onnx.load(out).graph
    made = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    names = [n.name for n in graph.node if n.op_type in ("MatMul", "Gemm") and made.issuperset(n.input[:2])]
    names += [n.name.removesuffix("_quant").removesuffix("_MatMul") for n in graph.node if n.op_type == "MatMulInteger"]
    print(json.dumps(names))
"""

RUN = {
    "nncf": """
import nncf
scope = nncf.IgnoredScope(**given)
onnx.save(nncf.quantize(onnx.load(path), nncf.Dataset([feeds]), ignored_scope=scope), out)
print_quantized()
""",
    "olive": """
from olive.model import ONNXModelHandler
from olive.passes.olive_pass import create_pass_from_dict
from olive.passes.onnx.quantization import OnnxDynamicQuantization
made = create_pass_from_dict(OnnxDynamicQuantization, {"quant_preprocess": False, **given}, disable_search=True)
made.run(ONNXModelHandler(path), out)
print_quantized()
""",
    "modelopt": """
from modelopt.onnx.quantization import quantize
options = dict(calibration_data=feeds, calibration_eps=["cpu"], high_precision_dtype="fp32")
quantize(path, output_path=out, **options, **given)
print_quantized()
""",
    "aimet": """
from aimet_onnx.quantsim import QuantizationSimModel
sim = QuantizationSimModel(onnx.load(path))
for name in given:
    if name in sim.qc_quantize_op_dict:
        sim.qc_quantize_op_dict[name].enabled = False
sim.compute_encodings([feeds])
print(json.dumps([name for name, quantizer in sim.qc_quantize_op_dict.items() if quantizer.enabled]))
""",
}


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("environments")


def make_environment(folder: Path, tool: str) -> Path:
    """Return the Python of an environment that has the packages of this one and the tool."""
    place = folder / tool
    python = place / "bin" / "python"
    if not place.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        beside = place / "lib" / version / "site-packages" / "beside.pth"
        beside.write_text(sysconfig.get_path("purelib"), encoding="utf-8")
        install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
        for packages in PACKAGES[tool]:
            subprocess.run([*install, *packages], check=True)
    return python


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("tool", RUN)
def test_a_tool_leaves_exactly_the_selected_in_float(
    tool: str, exporter: str, environments: Path, tmp_path: Path
) -> None:
    whole = exported("bert", exporter)
    python = make_environment(environments, tool)
    np.savez(tmp_path / "feeds.npz", **feeds_of(whole))
    (tmp_path / "run.py").write_text(READ + RUN[tool], encoding="utf-8")

    def quantize(given: object) -> set[str]:
        (tmp_path / "given.json").write_text(json.dumps(given), encoding="utf-8")
        command = [python, "run.py", whole.result.path, "feeds.npz", "given.json", "out.onnx"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return set(json.loads(done.stdout.splitlines()[-1]))

    selection = hieronnx.select(whole.result.path, "encoder.layer.0", "pooler")
    selected = {*selection.tensors, *selection.weights} if tool == "aimet" else {*selection.names}
    given = selection.for_tool(tool)
    nothing = {key: [] for key in given} if isinstance(given, dict) else []
    everything = quantize(nothing)
    assert everything & selected
    assert everything - selected
    assert quantize(given) == everything - selected


def test_polygraphy_asks_tensorrt_for_the_selected_layers(environments: Path, tmp_path: Path) -> None:
    python = make_environment(environments, "polygraphy")
    path = exported("bert", "dynamo").result.path
    selection = hieronnx.select(path, "encoder.layer.0", op="MatMul")
    command = [python.parent / "polygraphy", "run", path, "--trt", *selection.for_tool("polygraphy")]
    command += ["--gen-script", tmp_path / "script.py"]
    subprocess.run(command, check=True, capture_output=True)
    calls = [node for node in ast.walk(ast.parse((tmp_path / "script.py").read_text())) if isinstance(node, ast.Call)]
    keywords = {word.arg: word.value for call in calls for word in call.keywords}
    precisions = keywords["layer_precisions"]
    assert isinstance(precisions, ast.Dict)
    assert {ast.unparse(value) for value in precisions.values} == {"trt.float32"}
    assert [ast.literal_eval(key) for key in precisions.keys if key] == list(selection.names)
    assert ast.literal_eval(keywords["precision_constraints"]) == "obey"
