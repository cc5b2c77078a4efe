"""An analysis adds up, says what it does not know, works on any file, and reads no weights."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from torch import nn

import support.cli
from hieronnx import AnalysisResult, HieronnxError, analyze, load
from hieronnx.files.opening import read_sidecar, sidecar_path
from hieronnx.report.analysis import SORT_KEYS, analysis_to_csv, analysis_to_markdown, render_analysis
from hieronnx.tools.analyze.result import ModuleLine
from hieronnx.tools.validate.repair import repair
from support import onnxdata
from support.exports import exported

BOTH = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


def path_of(name: str, exporter: str = "dynamo") -> Path:
    return exported(name, exporter).result.path


run = partial(support.cli.run, "analyze")


def find_line(analysis: AnalysisResult, call: str) -> ModuleLine:
    return next(line for line in analysis.modules if str(line.call.id) == call)


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


# --- the numbers add up ---


@BOTH
@pytest.mark.parametrize("name", ["bert", "shared_under_two_parents", "scripted_loop", "recursive_child"])
def test_own_nodes_sum_to_the_total_and_everything_to_the_file(name: str, exporter: str) -> None:
    path = path_of(name, exporter)
    for all_calls in (False, True):
        analysis = analyze(path, all_calls=all_calls)
        root = analysis.modules[0]
        assert root.total.nodes == analysis.total.nodes == analysis.file_nodes == len(load(path).nodes)
        assert sum(line.own.nodes for line in analysis.modules) == root.total.nodes
        assert sum(line.own.multiply_adds for line in analysis.modules) == analysis.total.multiply_adds
        for position, line in enumerate(analysis.modules):
            below = [child for child in analysis.modules if child.parent == position]
            assert line.total.nodes == line.own.nodes + sum(child.total.nodes for child in below)
            operators = sum((Counter(child.total.operators) for child in below), Counter(line.own.operators))
            assert operators == Counter(line.total.operators)
        assert sum(share.total for share in analysis.categories) == analysis.file_nodes
        assert sum(analysis.by_evidence.values()) == sum(analysis.by_confidence.values()) == analysis.file_nodes


@BOTH
@pytest.mark.parametrize("name", ["bert", "tied_weights", "shared_under_two_names", "unused_modules"])
def test_parameters_are_those_of_pytorch(name: str, exporter: str) -> None:
    model = exported(name, exporter).model
    lines = analyze(path_of(name, exporter), all_calls=True).modules
    assert len(lines) > 1
    for line in lines:
        module = model.get_submodule(line.call.id.module)
        assert line.parameters == sum(parameter.numel() for parameter in module.parameters())


@BOTH
@pytest.mark.parametrize("name", ["bert", "shared_under_two_parents", "conv_batch_norm_chain"])
def test_the_roots_bytes_are_all_that_nodes_read_and_no_module_has_more_than_the_one_above(
    name: str, exporter: str
) -> None:
    path = path_of(name, exporter)
    analysis = analyze(path, all_calls=True)
    initializers = onnx.load(path, load_external_data=False).graph.initializer
    sizes = [int(ir.DataType(t.data_type).itemsize * max(1, _size(t))) for t in initializers]
    assert analysis.modules[0].bytes == analysis.bytes == sum(sizes)
    for line in analysis.modules:
        if line.parent is not None:
            assert (line.bytes or 0) <= (analysis.modules[line.parent].bytes or 0)


def _size(tensor: TensorProto) -> int:
    product = 1
    for dim in tensor.dims:
        product *= dim
    return product


def test_weights_that_an_exporter_renamed_belong_to_the_module_whose_nodes_read_them() -> None:
    analysis = analyze(path_of("bert", "torchscript"), all_calls=True)
    query = find_line(analysis, "encoder.layer.0.attention.self.query")
    assert query.parameters is not None
    assert query.bytes == 4 * query.parameters


def test_a_module_that_is_called_again_is_marked_as_repeated() -> None:
    analysis = analyze(path_of("called_in_loop"))
    repeated = [line for line in analysis.modules if line.repeated]
    assert repeated
    assert all(line.call.id.number > 0 for line in repeated)
    first = find_line(analysis, repeated[0].call.id.module)
    assert (first.parameters, first.bytes) == (repeated[0].parameters, repeated[0].bytes)
    assert f"({first.parameters:,})" in render_analysis(analysis)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (TensorProto.FLOAT, 12),
        (TensorProto.INT4, 2),
        (TensorProto.FLOAT4E2M1, 2),
        (TensorProto.BFLOAT16, 6),
        (TensorProto.BOOL, 3),
        (TensorProto.STRING, 0),
    ],
)
def test_bytes_go_by_the_element_type(kind: int, expected: int) -> None:
    graph = helper.make_graph([], "main", [], [], [TensorProto(name="w", data_type=kind, dims=[3])])
    analysis = analyze(helper.make_model(graph))
    assert (analysis.initializers, analysis.elements, analysis.bytes) == (1, 3, expected)


# --- attribution ---


def rewrite_evidence(path: Path, folder: Path, evidence: str) -> Path:
    """Copy a model with every node in the root, known by this evidence."""
    shutil.copy(path, folder / "model.onnx")
    document = json.loads(sidecar_path(path).read_text())
    for node in document["nodes"]:
        node.update(module="", call=0, origins=[{"module": "", "call": 0}], evidence=evidence)
    (folder / "model_hierarchy.json").write_text(json.dumps(document))
    return folder / "model.onnx"


@pytest.mark.parametrize(("evidence", "percent"), [("captured", 100.0), ("root", 0.0)])
def test_a_node_in_the_root_counts_as_attributed_only_if_it_truly_ran_there(
    evidence: str, percent: float, tmp_path: Path
) -> None:
    analysis = analyze(rewrite_evidence(path_of("linear_root"), tmp_path, evidence))
    assert {share.percent for share in analysis.categories} == {percent}
    assert {share.under for share in analysis.categories} == {evidence == "root"}
    assert analysis.to_dict()["coverage"] == percent


def test_a_category_is_marked_by_the_threshold_that_was_asked_for(tmp_path: Path) -> None:
    path = rewrite_evidence(path_of("bert"), tmp_path, "root")
    low = analyze(path, thresholds={"activation": 0})
    shares = {share.name: share for share in low.categories}
    assert (shares["activation"].under, shares["mathematical"].under) == (False, True)
    text = render_analysis(low)
    assert re.search(r"activation +\d+ +0 +0\.0 +0  ok", text)
    assert re.search(r"mathematical +\d+ +0 +0\.0 +95  under", text)
    assert run(path).exit_code == 0


# --- filters ---


@pytest.mark.parametrize("filters", [{"op": "MatMul"}, {"category": "activation"}, {"evidence": "captured"}])
def test_a_filter_restricts_the_nodes_everywhere(filters: dict[str, str]) -> None:
    path = path_of("bert")
    whole, part = analyze(path), analyze(path, **filters)
    (name, value), *_ = filters.items()
    expected = [n for n in whole.nodes if value in (n.op_type, n.category, n.attribution and n.attribution.evidence)]
    assert part.nodes == tuple(expected), name
    assert part.total.nodes == part.modules[0].total.nodes == sum(share.total for share in part.categories)
    assert part.file_nodes == whole.file_nodes


def test_a_module_filter_takes_whole_regions_by_path_or_by_tag() -> None:
    path = path_of("bert")
    region = find_line(analyze(path), "encoder.layer.1").total
    by_path = analyze(path, module="encoder.layer.1")
    by_tag = analyze(path, module="*/BertLayer.1")
    assert by_path.total == by_tag.total == region
    assert [line.level for line in by_path.modules[:3]] == [None, None, 0]
    assert {line.call.id.module for line in by_path.modules[2:]} >= {"encoder.layer.1", "encoder.layer.1.output"}
    assert analyze(path, module="encoder.layer.1", op="MatMul").total.nodes == region.operators["MatMul"]


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"op": "Matmul"}, "no operator 'Matmul'; did you mean 'MatMul'"),
        ({"op": "Zzz"}, "no operator 'Zzz'; the model has Add, "),
        ({"category": "activations"}, "no category 'activations'; did you mean 'activation'"),
        ({"category": "zzz"}, "no category 'zzz'; choose one of mathematical, "),
        ({"evidence": "guessed"}, "no evidence 'guessed'; choose one of captured, carried, "),
        ({"module": "encoder.layer.1.atten"}, r"no module call 'encoder.layer.1.atten'; did you mean '\*encoder"),
        ({"thresholds": {"activation": 101}}, "threshold of category 'activation' is 101"),
        ({"thresholds": {"activation": float("nan")}}, "threshold of category 'activation' is nan"),
        ({"thresholds": {"nothing": 1}}, "no category 'nothing'"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(filters: dict[str, object], message: str) -> None:
    with pytest.raises(HieronnxError, match=message):
        analyze(path_of("bert"), **filters)  # type: ignore[arg-type]


# --- any file ---


@pytest.mark.parametrize("path", onnxdata.SHIPPED, ids=lambda path: path.parent.name)
def test_every_model_that_onnx_ships_can_be_analyzed(path: Path) -> None:
    analysis = analyze(path)
    nodes = sum(1 for _ in onnxdata.walk(onnx.load(path, load_external_data=False)))
    assert analysis.total.nodes == sum(share.total for share in analysis.categories) == nodes
    assert analysis.hierarchy is None
    assert all(share.percent is None and not share.under for share in analysis.categories)


@pytest.mark.parametrize("name", onnxdata.MADE)
def test_bodies_functions_and_odd_tensors_are_counted(name: str) -> None:
    model = onnxdata.MADE[name]()
    analysis = analyze(model)
    assert Counter(node.op_type for node in analysis.nodes) == Counter(n.op_type for _, n in onnxdata.walk(model))
    assert read_csv(analysis_to_csv(analysis, detailed=True))[0]["op_type"] == analysis.nodes[0].op_type


def test_a_file_without_a_hierarchy_says_so_and_what_to_do() -> None:
    text = run(onnxdata.SHIPPED[0]).stdout
    assert "no hierarchy" in text
    assert "'hieronnx export' makes a file that has one" in text


@pytest.mark.parametrize("options", [{"module": "*"}, {"evidence": "captured"}, {"tensors": True}])
def test_what_needs_a_hierarchy_asks_for_one(options: dict[str, str]) -> None:
    with pytest.raises(HieronnxError, match="has no hierarchy"):
        analyze(onnxdata.SHIPPED[0], **options)  # type: ignore[arg-type]


def test_no_weights_are_read(tmp_path: Path) -> None:
    onnx.save(onnxdata.weights_elsewhere(1_000_000), tmp_path / "model.onnx")
    analysis = analyze(tmp_path / "model.onnx")
    assert (analysis.elements, analysis.bytes) == (1_000_000, 4_000_000)


def test_without_the_sidecar_attribution_stays_and_parameters_are_unknown(tmp_path: Path) -> None:
    shutil.copy(path_of("bert"), tmp_path / "model.onnx")
    whole, bare = analyze(path_of("bert")), analyze(tmp_path / "model.onnx")
    assert [line.total for line in bare.modules] == [line.total for line in whole.modules]
    assert bare.parameters is None
    assert all((line.parameters, line.bytes) == (None, None) for line in bare.modules)
    assert "parameters unknown without the sidecar of the export" in render_analysis(bare)
    with pytest.raises(HieronnxError, match=r"the sidecar, the _hierarchy\.json beside the model"):
        bare.make_module_table()


def test_a_sidecar_written_from_the_metadata_is_not_called_absent(tmp_path: Path) -> None:
    shutil.copy(path_of("bert"), tmp_path / "model.onnx")
    repair(tmp_path / "model.onnx")
    text = render_analysis(analyze(tmp_path / "model.onnx"))
    assert re.search(r"^parameters +unknown without the sidecar of the export$", text, re.MULTILINE)
    assert "parameters unknown without the sidecar of the export" in text


def test_that_nodes_of_functions_count_once_is_said_where_they_would_count() -> None:
    text = onnxdata.FUNCTIONS.replace("Add (x, x)", "MatMul (x, x)")
    assert text != onnxdata.FUNCTIONS
    analysis = analyze(onnx.parser.parse_model(text))
    (note,) = [note for note in analysis.notes if "function" in note]
    assert "count once, however often" in note
    assert "local::twice" in note
    assert "local::choose" not in note
    plain = analyze(onnx.parser.parse_model(onnxdata.FUNCTIONS))
    assert not any("function" in note for note in plain.notes)


def test_a_file_that_lost_its_scopes_is_one_without_a_hierarchy(tmp_path: Path) -> None:
    model = onnx.load(path_of("bert"), load_external_data=False)
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.save(model, tmp_path / "model.onnx")
    analysis = analyze(tmp_path / "model.onnx")
    assert (analysis.hierarchy, analysis.modules, analysis.by_evidence) == (None, (), {})
    assert "no node names its own" in " ".join(analysis.notes)


def test_the_same_model_as_file_proto_and_ir_gives_the_same_counts() -> None:
    path = path_of("bert")
    forms = [path, onnx.load(path), ir.load(path)]
    first, *others = [analyze(form) for form in forms]
    for other in others:
        assert (other.total, other.by_evidence, other.bytes) == (first.total, first.by_evidence, first.bytes)


def test_neither_torch_nor_onnxruntime_is_imported() -> None:
    code = "import sys; sys.modules.update(torch=None, onnxruntime=None)\nfrom hieronnx.cli import main; main()"
    args = ["analyze", str(path_of("bert")), "--detailed", "--tensors", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["coverage"] == 100.0


def test_a_chain_of_many_nodes_is_no_deep_recursion_and_prints_few_lines(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", [f"t{n}"], [f"t{n + 1}"]) for n in range(20_000)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("t0", "t20000")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "main", ends[:1], ends[1:])), tmp_path / "chain.onnx")
    result = run(tmp_path / "chain.onnx")
    assert "20,000" in result.stdout
    assert len(result.stdout.splitlines()) < 20
    assert len(run(tmp_path / "chain.onnx", "--detailed").stdout.splitlines()) > 20_000


# --- tensors ---


@BOTH
def test_tensors_are_those_of_the_sidecar(exporter: str) -> None:
    path = path_of("cond" if exporter == "dynamo" else "bert", exporter)
    entries = json.loads(sidecar_path(path).read_text())["tensors"]
    told = {(e["graph"], e["name"]): (e["producer"], tuple(e["consumers"])) for e in entries}
    found = {(t.graph, t.name): (t.producer, t.consumers) for t in analyze(path, tensors=True).tensors}
    assert found.items() <= told.items()
    unused = {key for key, (producer, consumers) in told.items() if producer is None and not consumers}
    assert told.keys() - found.keys() == unused


def test_filters_restrict_the_tensors_to_what_the_nodes_make_or_read() -> None:
    path = path_of("bert")
    names = {t.name for t in analyze(path, op="Gemm", tensors=True).tensors}
    gemm = next(node for node in onnx.load(path).graph.node if node.op_type == "Gemm")
    assert names == {*gemm.input, *gemm.output}


# --- output ---


def test_json_has_everything_and_lists_on_demand() -> None:
    path = path_of("bert")
    plain = json.loads(run(path, "--json").stdout)
    assert not {"nodes", "tensors"} & plain.keys()
    full = json.loads(run(path, "--json", "--detailed", "--tensors").stdout)
    assert len(full["nodes"]) == plain["total"]["nodes"]
    assert full["tensors"]
    assert {share["name"]: share["threshold"] for share in plain["categories"]}["activation"] == 95
    assert plain["modules"][0]["total"]["operators"] == plain["total"]["operators"]


def test_csv_has_a_row_for_each_module_node_or_tensor() -> None:
    path = path_of("bert")
    analysis = analyze(path, tensors=True)
    modules = read_csv(run(path, "--csv").stdout)
    assert [(row["tag"], int(row["nodes"])) for row in modules] == [
        (line.call.tag, line.total.nodes) for line in analysis.modules
    ]
    assert len(read_csv(run(path, "--csv", "--detailed").stdout)) == analysis.total.nodes
    assert len(read_csv(run(path, "--csv", "--tensors").stdout)) == len(analysis.tensors)
    whole = read_csv(run(onnxdata.SHIPPED[0], "--csv").stdout)
    assert len(whole) == 1


def test_the_flat_table_is_sorted_and_depth_cuts_it() -> None:
    analysis = analyze(path_of("bert"))
    keys = {
        "nodes": lambda line: line.total.nodes,
        "parameters": lambda line: line.parameters,
        "bytes": lambda line: line.bytes,
        "multiply-adds": lambda line: line.total.multiply_adds,
    }
    assert tuple(keys) == SORT_KEYS
    for sort, key in keys.items():
        rows = re.findall(r"^(/BertModel\S*) ", render_analysis(analysis, sort=sort), re.MULTILINE)
        assert rows == [line.call.tag for line in sorted(analysis.modules, key=key, reverse=True)]
    tree = render_analysis(analysis, depth=1)
    assert "├─ BertEncoder" in tree
    assert "BertLayer.0" not in tree
    assert re.search(r"\n4 calls shown; \d+ deeper", tree)


def test_the_tree_as_it_is_printed() -> None:
    text = render_analysis(analyze(path_of("shared_under_two_names", "torchscript")))
    assert text.endswith(
        """
category      nodes  attributed  percent  threshold
mathematical      2           2    100.0         95  ok
activation        3           3    100.0         95  ok

operator  nodes
Gemm          2
Tanh          2
Relu          1

call                 module  nodes  own  parameters    bytes  multiply-adds  operators
SharedUnderTwoNames              5    1          72    288 B            384  Gemm 2, Tanh 2, Relu 1
├─ Block             first       2    2          72    288 B            192  Gemm 1, Tanh 1
└─ Block@1           first       2    2        (72)  (288 B)            192  Gemm 1, Tanh 1

3 calls shown; 2 without a tag of their own are counted in these: --all lists them; (…): the parameters of an earlier \
call's module"""
    )


def test_nodes_that_stand_for_several_calls_are_told() -> None:
    analysis = analyze(path_of("conv_batch_norm"))
    (note,) = analysis.notes
    assert note.startswith("nodes that do the work of several calls")
    assert note.endswith(": 1")
    assert "  conv, norm" in render_analysis(analysis, detailed=True)


ODD = "a|b`c\n\x1b[31m*_<i>"


def odd_names(folder: Path) -> Path:
    """Write a model whose node and tensor names have in them what tables and terminals obey."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", ODD)]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], [ODD], name=ODD)], "main", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph), folder / "odd.onnx")
    return folder / "odd.onnx"


def test_names_cannot_break_a_table(tmp_path: Path) -> None:
    path = odd_names(tmp_path)
    for options in ([], ["--csv"], ["--json"]):
        result = run(path, "--detailed", *options)
        assert result.exit_code == 0
        assert "\x1b" not in result.stdout
    row = next(line for line in analysis_to_markdown(analyze(path), detailed=True).splitlines() if "Relu | a" in line)
    assert len(re.findall(r"(?<!\\)\|", row)) == 10
    assert "\\`c\\\\n\\\\x1b" in row
    assert "\\<i\\>" in row


def test_markdown_and_the_module_table_are_written_whole(tmp_path: Path) -> None:
    path = path_of("bert")
    result = run(path, "--markdown", tmp_path / "report.md", "--modules-json", tmp_path / "modules.json")
    assert result.exit_code == 0, result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["modules.json", "report.md"]
    report = (tmp_path / "report.md").read_text()
    assert [line for line in report.splitlines() if line.startswith("## ")] == [
        "## Totals",
        "## Evidence",
        "## Categories",
        "## Operators",
        "## Modules",
    ]
    tables = [line for line in report.splitlines() if line.startswith("|")]
    assert all(line.endswith(" |") for line in tables)


def test_the_module_table_is_the_ground_truth(tmp_path: Path) -> None:
    export = exported("unused_modules", "dynamo")
    run(export.result.path, "--modules-json", tmp_path / "modules.json")
    table = json.loads((tmp_path / "modules.json").read_text())
    hierarchy = read_sidecar(sidecar_path(export.result.path))
    assert list(table) == [path for path, _ in export.model.named_modules()]
    for path, module in export.model.named_modules():
        assert table[path]["class_name"] == type(module).__name__
        assert table[path]["parameters"] == [name for name, _ in module.named_parameters()]
        assert table[path]["children"] == [name for name, _ in module.named_children()]
        assert list(table[path]["child_classes"]) == table[path]["children"]
        assert table[path]["depth"] == (path.count(".") + 1 if path else 0)
        assert (table[path]["expected_tag"] is None) == (type(module).forward is nn.Module.forward)
    called = {call.id.module for call in hierarchy.calls}
    assert {path for path, entry in table.items() if entry["tag"] is None} == set(table) - called != set()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--json", "--csv"], "give one of them"),
        (["--csv", "--detailed", "--tensors"], "CSV is one table"),
        (["--threshold", "activation"], "cannot read threshold 'activation'; expected category=percent"),
        (["--threshold", "activation=150"], "cannot read threshold 'activation=150'"),
        (["--threshold", "activation=nan"], "cannot read threshold 'activation=nan'"),
        (["--dim", "batch=x"], "cannot read the size of an axis 'batch=x'; expected name=size"),
        (["--markdown", "no/such/folder/report.md"], "cannot write into 'no/such/folder'"),
    ],
)
def test_a_mistake_is_one_line(options: list[str], message: str) -> None:
    result = run(path_of("bert"), *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_record_is_short_to_print() -> None:
    analysis = analyze(path_of("bert"))
    assert repr(analysis).endswith(f"{analysis.file_nodes} of {analysis.file_nodes} nodes, 26 module lines)")
    assert replace(analysis, model="x") != analysis
