"""Models cut into stages: every node once, and what comes out is what the whole model gives, to the last bit."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import onnx
import pytest

import hieronnx
from hieronnx import HieronnxError, InputError
from hieronnx.files.pipeline import PipelineDocument
from support.annotated import annotated
from support.cli import run
from support.dynamic import DYNAMIC_EXPORTS, export_dynamic
from support.exports import exported
from support.marks import over
from support.whole import assert_equal, feed, feeds_of, run_file
from support.zoo import CASES

SCHEMA = msgspec.json.schema(PipelineDocument)
EXPORTERS = ["dynamo", "torchscript"]
CHAIN = "net (float[2] x, float[2] m) => (float[2] y) "
CHAIN += "{ k = Constant<value = float[1] {2.0}>()  a = Mul(x, k)  b = Add(a, m)  c = Mul(b, k)  d = Add(c, a) "
CHAIN += " y = Mul(d, m) }"


def check_split(path: Path, folder: Path, feeds: dict[str, np.ndarray], **options: Any) -> hieronnx.SplitResult:
    """Split a file and make sure that nothing is lost, nothing twice, and nothing different."""
    result = hieronnx.split(path, into=folder, **options)
    hierarchy = hieronnx.load(path)
    nodes = [node.key for stage in result.stages for node in stage.nodes]
    assert sorted(nodes) == sorted(node.key for node in hierarchy.nodes if not node.graph)
    whole = run_file(path, feeds)
    given = hieronnx.Pipeline(folder, optimization="none").run(feeds)
    assert_equal(given, whole, whole)
    for stage in result.stages:
        onnx.checker.check_model(stage.path, full_check=True)
        assert [f for f in hieronnx.validate(stage.path).findings if f.severity == "error"] == []
        made = {o for node in onnx.load(stage.path).graph.node for o in node.output}
        assert {node.output for node in (*stage.nodes, *stage.repeated)} <= made
        assert all(node.op_type not in ("MatMul", "Gemm", "Conv", "Add") or _is_size(node) for node in stage.repeated)
    document = json.loads((folder / "pipeline.json").read_text())
    jsonschema.validate(document, SCHEMA)
    return result


def _is_size(node: hieronnx.Node) -> bool:
    return node.op_type == "Add"  # of sizes


def top_calls(hierarchy: hieronnx.Hierarchy) -> list[str]:
    """Return the calls below the lowest call that has several with nodes."""
    call = hierarchy.calls[0].id
    scopes = {above for node in hierarchy.nodes if not node.graph for above in hierarchy.tree.ancestors(node.scope)}
    while True:
        below = [child for child in hierarchy.tree.children[call] if child in scopes]
        if len(below) != 1:
            return [str(child) for child in below]
        call = below[0]


def split_anyhow(path: Path, folder: Path, feeds: dict[str, np.ndarray], **options: Any) -> int:
    """Split a file as asked if it can be; return into how many stages."""
    try:
        return len(check_split(path, folder, feeds, **options).stages)
    except HieronnxError as error:
        if "a stage would be empty" not in str(error) and "places to cut it into stages" not in str(error):
            raise
        return 0


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", ["bert", "gpt2", "called_in_loop"])
def test_stages_give_what_the_whole_model_gives(name: str, exporter: str, tmp_path: Path) -> None:
    whole = exported(name, exporter)
    feeds = feeds_of(whole)
    calls = top_calls(whole.hierarchy)
    assert split_anyhow(whole.result.path, tmp_path / "at", feeds, at=calls[1::2]) == len(calls[1::2]) + 1
    for count in (2, 3):
        assert split_anyhow(whole.result.path, tmp_path / "n", feeds, stages=count) == count


@pytest.mark.long
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", CASES)
def test_every_model_of_the_zoo_can_be_split(name: str, exporter: str, tmp_path: Path) -> None:
    if exporter not in CASES[name].exporters:
        return
    whole = exported(name, exporter)
    feeds = feeds_of(whole)
    if calls := top_calls(whole.hierarchy)[1::2]:
        split_anyhow(whole.result.path, tmp_path / "at", feeds, at=calls)
    for count in (2, 3, 5):
        split_anyhow(whole.result.path, tmp_path / "n", feeds, stages=count)


@pytest.mark.parametrize(("name", "exporter"), [("bart", "dynamo")])
def test_a_tied_weight_has_the_name_that_its_stage_knows(name: str, exporter: str, tmp_path: Path) -> None:
    whole = exported(name, exporter)
    assert "shared.weight" in {item.parameter for item in whole.hierarchy.initializers}
    first = check_split(whole.result.path, tmp_path / "stages", feeds_of(whole), stages=2).stages[0]
    hierarchy = hieronnx.load(first.path)
    assert "shared" not in hierarchy.modules
    assert "decoder.embed_tokens.weight" in {item.parameter for item in hierarchy.initializers}


def test_what_crosses_is_told_and_handed_through(tmp_path: Path) -> None:
    onnx.save(annotated(CHAIN, ["p", "p", "q", "q", "r", "s"]), tmp_path / "m.onnx")
    feeds = {"x": np.float32([1, 2]), "m": np.float32([3, 4])}
    result = check_split(tmp_path / "m.onnx", tmp_path / "stages", feeds, at=["q", "r", "s"])
    crossing = [[(t.name, t.made_by, t.read_by, t.bytes) for t in cut.tensors] for cut in result.cuts]
    assert crossing == [
        [("m", None, (1, 3), 8), ("a", 0, (1, 2), 8)],
        [("m", None, (1, 3), 8), ("a", 0, (1, 2), 8), ("c", 1, (2,), 8)],
        [("m", None, (1, 3), 8), ("d", 2, (3,), 8)],
    ]
    assert [cut.bytes for cut in result.cuts] == [16, 24, 16]
    assert [str(cut.before) for cut in result.cuts] == ["q", "r", "s"]
    assert [[node.output for node in stage.repeated] for stage in result.stages] == [[], ["k"], [], []]
    assert [stage.inputs for stage in result.stages] == [("x",), ("m", "a"), ("c", "a"), ("m", "d")]


def test_a_stage_is_a_model_with_its_own_hierarchy(tmp_path: Path) -> None:
    path = exported("bert", "dynamo").result.path
    result = hieronnx.split(path, at="encoder.layer.1", into=tmp_path / "stages")
    first, second = (hieronnx.load(stage.path) for stage in result.stages)
    assert "encoder.layer.0" in first.modules
    assert "encoder.layer.0" not in second.modules
    assert "encoder.layer.1.output.dense" in second.modules
    assert [str(call) for call in result.stages[1].calls] == ["encoder.layer.1", "pooler"]
    for stage in result.stages:
        assert hieronnx.validate(stage.path, strict=True).passed
        assert hieronnx.compare(stage.path, stage.path).same
    part = hieronnx.extract(result.stages[1].path, "encoder.layer.1.output")
    assert hieronnx.compare(part.model, hieronnx.extract(path, "encoder.layer.1.output").model, values=True).same


@over(DYNAMIC_EXPORTS, quick=["gpt2"])
def test_stages_run_at_other_sizes_than_at_export(name: str, exporter: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model, inputs = export_dynamic(name, exporter, path)
    feeds = feed(path, model, (), inputs)
    calls = top_calls(hieronnx.load(path))[1::2]
    assert calls
    assert split_anyhow(path, tmp_path / "at", feeds, at=calls) == len(calls) + 1


def test_dynamic_axes_stay_dynamic(tmp_path: Path) -> None:
    dynamic = {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "sequence"}}
    whole = exported_dynamic("bert", tuple((k, tuple(v.items())) for k, v in dynamic.items()))
    for count in (2, 3):
        hieronnx.split(whole, stages=count, into=tmp_path / "s", dims={"batch": 1, "sequence": 8})
        pipeline = hieronnx.Pipeline(tmp_path / "s", optimization="none")
        for batch, length in ((1, 8), (3, 5), (2, 1)):
            ids = np.arange(batch * length, dtype=np.int64).reshape(batch, length) % 7
            feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            expected = run_file(whole, feeds)
            assert_equal(pipeline.run(feeds), expected, expected)
    cut = hieronnx.split(whole, at="encoder.layer.1", into=tmp_path / "s").cuts[0]
    assert cut.bytes is None
    sized = hieronnx.split(whole, at="encoder.layer.1", into=tmp_path / "s", dims={"batch": 2, "sequence": 8}).cuts[0]
    assert sized.bytes == sum(item.bytes for item in sized.tensors) > 0
    with pytest.raises(InputError, match="--dim batch=SIZE --dim sequence=SIZE"):
        hieronnx.split(whole, stages=2, into=tmp_path / "s")


def exported_dynamic(name: str, axes: tuple[tuple[str, tuple[tuple[int, str], ...]], ...]) -> Path:
    case = CASES[name]
    path = exported(name, "torchscript").result.path.with_name("dynamic.onnx")
    if not path.exists():
        hieronnx.export(
            case.build(),
            (),
            path,
            {k: v for k, v in case.kwargs().items() if k in dict(axes)},
            exporter="torchscript",
            dynamic_axes={key: dict(value) for key, value in axes},
        )
    return path


def test_shared_weights_are_told_and_copied_byte_for_byte(tmp_path: Path) -> None:
    text = "net (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1.0, 2.0, 3.0, 4.0}> "
    onnx.save(annotated(text + "{ a = MatMul(x, w)  y = MatMul(a, w) }", ["p", "q"]), tmp_path / "m.onnx")
    result = hieronnx.split(tmp_path / "m.onnx", at="q", into=tmp_path / "s", check=True)
    assert result.shared_weights == {"w": (0, 1)}
    assert result.check is not None
    assert result.check.equal
    whole = onnx.load(tmp_path / "m.onnx").graph.initializer[0]
    for stage in result.stages:
        assert onnx.load(stage.path).graph.initializer[0].SerializeToString() == whole.SerializeToString()


def test_external_weights_are_copied_range_by_range(tmp_path: Path) -> None:
    text = "net (float[1,64] x) => (float[1,64] y) { a = MatMul(x, v)  y = MatMul(a, w) }"
    model = annotated(text, ["p", "q"])
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal((64, 64), np.float32) for name in ("v", "w")}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    result = hieronnx.split(tmp_path / "m.onnx", at="q", into=tmp_path / "s", check=True)
    assert result.passed
    for stage, name in zip(result.stages, arrays, strict=True):
        assert (tmp_path / "s" / f"{stage.path.name}.data").read_bytes() == arrays[name].tobytes()
        assert stage.weight_bytes == arrays[name].nbytes


def test_the_check_sees_a_difference(tmp_path: Path) -> None:
    onnx.save(annotated(CHAIN, ["p", "p", "q", "q", "r", "s"]), tmp_path / "m.onnx")
    done = run("split", tmp_path / "m.onnx", "--at", "r", "--into", tmp_path / "s", "--check")
    assert done.exit_code == 0, done.output
    assert "bit for bit" in done.stdout
    from hieronnx.tools.split.splitting import check_pipeline

    stage = onnx.load(tmp_path / "s" / "stage_1.onnx")
    stage.graph.node[0].op_type = "Sub"
    onnx.save(stage, tmp_path / "s" / "stage_1.onnx")
    check = check_pipeline(tmp_path / "m.onnx", tmp_path / "s")
    assert not check.equal
    assert check.different["y"] > 0


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    onnx.save(annotated(CHAIN, ["p", "p", "q", "q", "r", "s"]), tmp_path / "m.onnx")
    folder = tmp_path / "s"
    hieronnx.split(tmp_path / "m.onnx", at=["q", "r"], into=folder)
    hieronnx.split(tmp_path / "m.onnx", at=["r"], into=folder)  # an earlier split is replaced
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["pipeline.json", *(f"stage_{n}{end}" for n in (0, 1) for end in (".onnx", "_hierarchy.json"))]
    with pytest.raises(HieronnxError, match="a stage would be empty"):
        hieronnx.split(tmp_path / "m.onnx", at=["p"], into=folder)
    assert sorted(path.name for path in folder.iterdir()) == names
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")
    with pytest.raises(HieronnxError, match="has other files in it"):
        hieronnx.split(tmp_path / "m.onnx", at=["r"], into=tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "other", "s"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "say where to cut"),
        ({"at": "q", "stages": 2}, "nothing is left to choose"),
        ({"stages": 9}, "has 4 places to cut it into stages, too few for 9"),
        ({"at": "t"}, "no module call 't'"),
        ({"stages": 2, "balance": "time"}, "needs a profile"),
        ({"stages": 2, "balance": "luck"}, "no balance 'luck'"),
        ({"stages": 2, "profile": {"calls": [{"module": "z", "call": 0, "own_us": 1}]}}, "is of another model"),
        ({"stages": 2, "profile": {"nothing": 1}}, "the profile cannot be read"),
    ],
)
def test_what_cannot_be_done_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    onnx.save(annotated(CHAIN, ["p", "p", "q", "q", "r", "s"]), tmp_path / "m.onnx")
    with pytest.raises(InputError, match=message):
        hieronnx.split(tmp_path / "m.onnx", into=tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


def test_a_pipeline_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(HieronnxError, match=r"no pipeline\.json in it"):
        hieronnx.Pipeline(tmp_path)
    onnx.save(annotated(CHAIN, ["p", "p", "q", "q", "r", "s"]), tmp_path / "m.onnx")
    hieronnx.split(tmp_path / "m.onnx", at="q", into=tmp_path / "s")
    pipeline = hieronnx.Pipeline(tmp_path / "s", providers=[["CPUExecutionProvider"]] * 2)
    assert (pipeline.input_names, pipeline.output_names) == (("x", "m"), ("y",))
    with pytest.raises(InputError, match="no array for input 'm'"):
        pipeline.run({"x": np.zeros(2, np.float32)})
    with pytest.raises(InputError, match="no input 'z'"):
        pipeline.run({"z": np.zeros(2, np.float32)})
    with pytest.raises(InputError, match="providers for 3 stages"):
        hieronnx.Pipeline(tmp_path / "s", providers=[["CPUExecutionProvider"]] * 3)


def test_the_schema_that_ships_is_the_one_of_the_code() -> None:
    shipped = resources.files("hieronnx") / "files" / "pipeline.schema.json"
    assert shipped.read_text("utf-8") == json.dumps(SCHEMA, indent=1) + "\n"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_a_model_without_nodes_has_nothing_to_split(tmp_path: Path) -> None:
    empty = "<ir_version: 10, opset_import: ['' : 21]> net (float[2] x) => (float[2] x) { }".replace("'", '"')
    onnx.save(annotated(onnx.parser.parse_model(empty), []), tmp_path / "m.onnx")
    with pytest.raises(InputError, match="has nothing to split"):
        hieronnx.split(tmp_path / "m.onnx", stages=2, into=tmp_path / "s")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
