"""Stages on engines of others: NVIDIA Triton's configuration, and Ray's actors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from google.protobuf import text_format

import hieronnx
from hieronnx import HieronnxError
from support.annotated import annotated

ROOT = Path(__file__).parents[3]
TEXT = "net (float[N,4] x, float s) => (float[N,4] y) <float[4,4] w = {"
TEXT += ", ".join(str(float(i)) for i in range(16)) + "}> "
TEXT += "{ a = MatMul(x, w)  b = Mul(a, s)  c = Relu(b)  d = Add(c, a)  e = Mul(d, s)  y = MatMul(e, w) }"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(annotated(TEXT, ["p", "p", "q", "q", "r", "r"]), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_a_repository_has_a_model_for_each_stage_and_an_ensemble(model: Path, tmp_path: Path) -> None:
    hieronnx.split(model, at=["q", "r"], into=tmp_path / "s", triton=tmp_path / "repo")
    names = [f"net_stage_{number}" for number in range(3)]
    assert sorted(path.name for path in (tmp_path / "repo").iterdir()) == ["net", *names]
    for number, name in enumerate(names):
        written = (tmp_path / "repo" / name / "1" / "model.onnx").read_bytes()
        assert written == (tmp_path / "s" / f"stage_{number}.onnx").read_bytes()
        config = (tmp_path / "repo" / name / "config.pbtxt").read_text()
        assert config.startswith(f'name: "{name}"\nplatform: "onnxruntime_onnx"\nmax_batch_size: 0\n')
    assert "data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] }" in config  # a number without axes
    assert "dims: [ -1, 4 ]" in config
    assert (tmp_path / "repo" / "net" / "1").is_dir()
    hieronnx.split(model, at=["r"], into=tmp_path / "s", triton=tmp_path / "repo")  # takes the place of the other
    assert sorted(path.name for path in (tmp_path / "repo").iterdir()) == ["net", *names[:2]]


def test_what_triton_has_no_type_for_is_refused(tmp_path: Path) -> None:
    text = "net (complex64[2] x) => (complex64[2] y) { a = Identity(x)  y = Identity(a) }"
    onnx.save(annotated(text, ["p", "q"]), tmp_path / "m.onnx")
    with pytest.raises(HieronnxError, match="its type is COMPLEX64"):
        hieronnx.split(tmp_path / "m.onnx", at="q", into=tmp_path / "s", triton=tmp_path / "repo")
    assert not (tmp_path / "repo").exists()


@pytest.mark.long
def test_tritons_own_protobuf_reads_the_configuration(model: Path, tmp_path: Path) -> None:
    from tritonclient.grpc import model_config_pb2

    hieronnx.split(model, at=["q", "r"], into=tmp_path / "s", triton=tmp_path / "repo")
    configs = {
        path.parent.name: text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        for path in (tmp_path / "repo").glob("*/config.pbtxt")
    }
    whole = configs.pop("net")
    steps = whole.ensemble_scheduling.step
    assert [step.model_name for step in steps] == sorted(configs)
    have = {item.name for item in whole.input}
    for step in steps:
        stage = configs[step.model_name]
        assert set(step.input_map) == {item.name for item in stage.input}
        assert set(step.output_map) == {item.name for item in stage.output}
        assert set(step.input_map.values()) <= have
        have |= set(step.output_map.values())
    assert {item.name for item in whole.output} <= have


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ray_pipeline", ROOT / "examples" / "ray_pipeline.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_stages_run_as_actors_with_many_requests_in_flight(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # or it writes a token into the home folder
    import ray

    hieronnx.split(model, at=["q", "r"], into=tmp_path / "s")
    random = np.random.default_rng(0)
    sizes = [(1 + number % 3, 4) for number in range(32)]
    requests = [
        {"x": random.standard_normal(size, np.float32), "s": np.array(number, np.float32)}
        for number, size in enumerate(sizes)
    ]
    whole = hieronnx.Pipeline(tmp_path / "s")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        results = load_example().RayPipeline(tmp_path / "s", options=[{"num_cpus": 0}] * 3).run_all(requests)
    finally:
        ray.shutdown()
    import onnxruntime as ort

    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    for request, result in zip(requests, results, strict=True):
        np.testing.assert_allclose(result["y"], session.run(["y"], request)[0], rtol=1e-6)
        np.testing.assert_array_equal(result["y"], whole.run(request)["y"])
