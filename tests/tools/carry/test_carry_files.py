"""Carrying a hierarchy from file to file: what comes out, what stays as it was, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from benchmarks.anonymize import anonymize

import hieronnx
from hieronnx import HieronnxError, load
from hieronnx.files.opening import sidecar_path
from hieronnx.hierarchy.records import ROOT, BoundTensor, CallId
from hieronnx.runtime.inputs import draw_feeds, read_inputs
from hieronnx.tools.carry import CarryResult, carry
from hieronnx.tools.carry.carrying import transfer
from hieronnx.tools.carry.pair import open_pair
from hieronnx.tools.optimize import OPTIMIZERS
from support.annotated import annotated
from support.cli import run
from support.exports import export_ours, shared_folder
from support.layered import write_layered

MODELS = [("bert", "dynamo"), ("bert", "torchscript"), ("gpt2", "torchscript"), ("conv_batch_norm_residual", "dynamo")]
MORE = ["conv_batch_norm_bottlenecks", "gru_bidirectional", "called_in_loop", "tied_weights", "cond", "nested_cond"]


@cache
def optimized(name: str, exporter: str, tool: str) -> tuple[Path, Path]:
    """Return a zoo model as exported, and what a tool made of it."""
    source = export_ours(name, exporter)
    folder = Path(mkdtemp(prefix=f"{name}-{exporter}-{tool}-", dir=shared_folder()))
    OPTIMIZERS[tool](source, folder / "made.onnx")
    return source, folder / "made.onnx"


def bare(path: Path) -> onnx.ModelProto:
    """Load a file without what hieronnx writes into it."""
    model = onnx.load(path)
    pending = [model.graph, *model.functions]
    while pending:
        graph = pending.pop()
        for node in graph.node:
            kept = [e for e in node.metadata_props if not e.key.startswith("hieronnx.") and e.key != "namespace"]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
            pending += [body for attribute in node.attribute for body in (attribute.g, *attribute.graphs)]
    kept = [entry for entry in model.metadata_props if not entry.key.startswith("hieronnx.")]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    return model


def outputs(path: Path) -> list[np.ndarray]:
    feeds = draw_feeds(read_inputs(path), 1)[0]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, dict(feeds))


# --- what comes out ---


@pytest.mark.parametrize("tool", ["ort-basic", "ort-extended", "ort-all", "onnxsim", "onnxslim"])
@pytest.mark.parametrize(("name", "exporter"), MODELS)
def test_only_metadata_changes(name: str, exporter: str, tool: str, tmp_path: Path) -> None:
    source, made = optimized(name, exporter, tool)
    result = carry(source, made, output=tmp_path / "out.onnx")
    assert bare(tmp_path / "out.onnx") == bare(made)
    for ours, theirs in zip(outputs(tmp_path / "out.onnx"), outputs(made), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert result.hierarchy.coverage() > 0.99
    assert result.untouched + result.rewritten + result.inserted == len(result.hierarchy.nodes)
    assert sum(result.by_evidence.values()) == len(result.hierarchy.nodes)


@pytest.mark.parametrize("name", MORE)
def test_small_models_come_out_whole(name: str, tmp_path: Path) -> None:
    source, made = optimized(name, "dynamo", "ort-extended")
    result = carry(source, made, output=tmp_path / "out.onnx")
    assert bare(tmp_path / "out.onnx") == bare(made)
    assert {node.evidence for node in result.hierarchy.nodes} <= {
        "captured",
        "carried",
        "dataflow",
        "name",
        "parameter",
    }
    assert hieronnx.validate(tmp_path / "out.onnx").count("error") == 0


@pytest.mark.parametrize(("name", "exporter"), MODELS)
def test_an_untouched_file_gets_back_what_it_had(name: str, exporter: str, tmp_path: Path) -> None:
    source = export_ours(name, exporter)
    plain = tmp_path / "plain.onnx"
    onnx.save(bare(source), plain)
    result = carry(source, plain, output=plain)
    assert result.hierarchy.nodes == load(source).nodes
    assert result.hierarchy.initializers == load(source).initializers
    assert result.hierarchy.calls == load(source).calls
    assert (result.untouched, result.rewritten, result.inserted) == (len(result.hierarchy.nodes), 0, 0)
    assert result.lost == ()


def test_the_sidecar_tells_of_the_new_file_and_of_the_old_model(tmp_path: Path) -> None:
    source, made = optimized("bert", "dynamo", "ort-extended")
    model = carry(source, made, output=tmp_path / "out.onnx").hierarchy.model
    assert (model["file"], model["class"], model["exporter"]) == ("out.onnx", "BertModel", "dynamo")
    assert "com.microsoft" in model["opset"]
    assert load(tmp_path / "out.onnx").modules == load(source).modules


def test_every_node_gets_a_namespace(tmp_path: Path) -> None:
    source, made = optimized("bert", "dynamo", "ort-extended")
    carry(source, made, output=tmp_path / "out.onnx")
    nodes = onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.node
    assert all(any(entry.key == "namespace" for entry in node.metadata_props) for node in nodes)


def test_metadata_alone_is_enough_of_an_original(tmp_path: Path) -> None:
    source, made = optimized("bert", "torchscript", "ort-extended")
    alone = tmp_path / "alone.onnx"
    shutil.copy(source, alone)
    found = carry(alone, made).hierarchy
    assert found.coverage() == 1.0
    assert [(n.scope, n.origins) for n in found.nodes] == [
        (n.scope, n.origins) for n in carry(source, made).hierarchy.nodes
    ]


def test_models_in_memory_are_carried(tmp_path: Path) -> None:
    source, made = optimized("gpt2", "torchscript", "ort-basic")
    result = carry(onnx.load(source), onnx.load(made), output=tmp_path / "out.onnx")
    assert result.hierarchy.coverage() == 1.0
    assert load(tmp_path / "out.onnx").nodes == result.hierarchy.nodes


def test_nothing_is_written_unless_asked(tmp_path: Path) -> None:
    source, made = optimized("bert", "dynamo", "ort-basic")
    before = sorted(made.parent.iterdir())
    result = carry(source, made)
    assert (result.path, result.sidecar) == (None, None)
    assert sorted(made.parent.iterdir()) == before


def test_weights_are_not_needed(tmp_path: Path) -> None:
    source, made = optimized("bert", "dynamo", "ort-basic")
    for path, name in ((source, "a.onnx"), (made, "b.onnx")):
        shutil.copy(path, tmp_path / name)
    assert carry(tmp_path / "a.onnx", tmp_path / "b.onnx").hierarchy.coverage() == 1.0


# --- what it tells ---


def test_fused_nodes_name_all_whose_work_they_do() -> None:
    source, made = optimized("conv_batch_norm_residual", "dynamo", "ort-extended")
    result = carry(source, made)
    fused = next(item for item in result.rewritten_by_call if item.op_type == "FusedConv")
    assert len(fused.origins) > 1
    assert result.rewritten == sum(item.nodes for item in result.rewritten_by_call)


def test_a_call_that_was_folded_is_lost_and_found() -> None:
    source, made = optimized("gpt2", "torchscript", "ort-extended")
    lost = carry(source, made).lost
    assert [item.call for item in lost] == [CallId("transformer.wpe", 0)]
    held = {tensor.name for tensor in onnx.load(made).graph.initializer}
    assert lost[0].folded_into
    assert held.issuperset(lost[0].folded_into)


def test_initializers_keep_their_parameters() -> None:
    source, made = optimized("bert", "dynamo", "ort-extended")
    before = {held.name: held.parameter for held in load(source).initializers}
    after = {held.name: held.parameter for held in carry(source, made).hierarchy.initializers}
    kept = before.keys() & after.keys()
    assert len(kept) > 20
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_what_calls_took_and_gave_is_named_as_in_the_new_file() -> None:
    text = "net (float[2] x) => (float[2] y) { a = Relu(x)  b = Exp(a)  y = Neg(b) }"
    other = "net (float[2] p) => (float[2] s) { q = Relu(p)  r = Exp(q)  s = Neg(r) }"
    before, after = annotated(text, ["m", "m", ""]), annotated(other, ["", "", ""])
    pair = open_pair(before, after)
    told = tuple(
        replace(call, received=(BoundTensor("x", "x"), BoundTensor("gone", None)), returned=(BoundTensor("", "b"),))
        if call.id.module == "m"
        else call
        for call in pair.hierarchy.calls
    )
    found = transfer(replace(pair, hierarchy=replace(pair.hierarchy, calls=told))).hierarchy.calls
    assert found[1].received == (BoundTensor("x", "p"), BoundTensor("gone", None))
    assert found[1].returned == (BoundTensor("", "r"),)
    assert (found[0].received, found[0].returned) == (None, None)


# --- chains ---


def test_a_chain_of_tools_loses_nothing_more(tmp_path: Path) -> None:
    source, made = optimized("bert", "torchscript", "onnxslim")
    first = carry(source, made, output=tmp_path / "first.onnx")
    OPTIMIZERS["ort-extended"](tmp_path / "first.onnx", tmp_path / "second.onnx")
    chained = carry(tmp_path / "first.onnx", tmp_path / "second.onnx", output=tmp_path / "second.onnx")
    direct = carry(source, tmp_path / "second.onnx")
    assert chained.hierarchy.coverage() == 1.0
    assert first.hierarchy.coverage() == 1.0
    differing = [
        (a, b)
        for a, b in zip(chained.hierarchy.nodes, direct.hierarchy.nodes, strict=True)
        if not {a.scope, *a.origins} & {b.scope, *b.origins}
    ]
    assert differing == []


# --- by value ---


@pytest.mark.parametrize(("tool", "least"), [("ort-extended", 0.4), ("onnxsim", 1.0)])
def test_values_tell_what_names_do_not(tool: str, least: float, tmp_path: Path) -> None:
    source, made = optimized("bert", "dynamo", tool)
    onnx.save(anonymize(onnx.load(made)), tmp_path / "renamed.onnx")
    by_structure = carry(source, tmp_path / "renamed.onnx")
    by_value = carry(source, tmp_path / "renamed.onnx", by_value=True, output=tmp_path / "out.onnx")
    assert [("--by-value" in note) for note in by_structure.notes] == ([True] if least < 1 else [])
    assert by_value.notes == ()
    named = carry(source, made).hierarchy.nodes
    for result, share in ((by_structure, least), (by_value, 0.8)):
        pairs = zip(result.hierarchy.nodes, named, strict=True)
        right = sum(not {a.scope, *a.origins}.isdisjoint({b.scope, *b.origins}) for a, b in pairs)
        assert right >= share * len(named)


def test_inputs_to_run_on_can_be_given(tmp_path: Path) -> None:
    source, made = optimized("conv_batch_norm_residual", "dynamo", "ort-extended")
    feeds = draw_feeds(read_inputs(source), 1)[0]
    np.savez(tmp_path / "inputs.npz", **feeds)
    arguments = ["carry", source, made, "-o", tmp_path / "out.onnx", "--inputs", tmp_path / "inputs.npz"]
    assert run(*arguments, "--by-value").exit_code == 0
    refused = run(*arguments)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    with pytest.raises(HieronnxError, match="set by_value, too"):
        carry(source, made, inputs=feeds)


# --- the other tools on what was carried ---


@pytest.mark.parametrize(("name", "exporter"), MODELS)
def test_the_other_tools_take_a_carried_file(name: str, exporter: str, tmp_path: Path) -> None:
    source, made = optimized(name, exporter, "ort-extended")
    output = tmp_path / "out.onnx"
    hierarchy = carry(source, made, output=output).hierarchy
    assert hieronnx.validate(output).count("error") == 0
    assert hieronnx.analyze(output).hierarchy == load(output)
    call = next(node.scope for node in reversed(hierarchy.nodes) if node.scope.module)
    part = hieronnx.extract(output, str(call), output=tmp_path / "part.onnx")
    assert part.nodes
    ort.InferenceSession(tmp_path / "part.onnx", providers=["CPUExecutionProvider"])
    changes = hieronnx.compare(source, output).nodes
    assert changes
    assert all(change.scope is not None for change in changes)


# --- what is refused ---


def test_files_that_have_nothing_to_do_with_each_other_are_refused(tmp_path: Path) -> None:
    bert, gpt2 = export_ours("bert", "dynamo"), export_ours("gpt2", "torchscript")
    result = run("carry", bert, gpt2, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: '{gpt2}' does not seem to be made of '{bert}'")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", ["mpnet", "albert", "electra"])
def test_names_and_shapes_alone_do_not_make_files_related(other: str) -> None:
    for by_value in (False, True):
        with pytest.raises(HieronnxError, match="does not seem to be made of"):
            carry(export_ours("bert", "dynamo"), export_ours(other, "dynamo"), by_value=by_value)


@pytest.mark.parametrize("name", ["conv_batch_norm", "conv_batch_norm_residual", "resnet"])
def test_weights_that_are_laid_out_in_another_way_are_not_held_against_a_file(name: str, tmp_path: Path) -> None:
    source, made = optimized(name, "dynamo", "ort-all")
    onnx.save(anonymize(onnx.load(made)), tmp_path / "renamed.onnx")
    assert carry(source, tmp_path / "renamed.onnx").hierarchy.nodes


def test_per_channel_scales_are_not_taken_for_weights(tmp_path: Path) -> None:
    source = export_ours("resnet", "dynamo")
    hieronnx.quantize(source, output=tmp_path / "q.onnx", tool="static", random_calibration=1, per_channel=True)
    onnx.save(anonymize(onnx.load(tmp_path / "q.onnx")), tmp_path / "renamed.onnx")
    assert carry(source, tmp_path / "q.onnx").hierarchy.coverage() == 1.0
    assert carry(source, tmp_path / "renamed.onnx").notes


@pytest.mark.parametrize("tool", ["ort-extended", "onnxsim"])
def test_a_file_with_other_names_is_not_refused(tool: str, tmp_path: Path) -> None:
    source, made = optimized("bert", "torchscript", tool)
    onnx.save(anonymize(onnx.load(made)), tmp_path / "renamed.onnx")
    result = carry(source, tmp_path / "renamed.onnx", output=tmp_path / "out.onnx")
    assert result.hierarchy.coverage() > 0.5


def test_what_ran_somewhere_in_the_model_does_not_count_as_known(tmp_path: Path) -> None:
    source, made = optimized("segformer", "torchscript", "ort-extended")
    onnx.save(anonymize(onnx.load(made)), tmp_path / "renamed.onnx")
    hierarchy = carry(source, tmp_path / "renamed.onnx").hierarchy
    at_root = [node for node in hierarchy.nodes if node.scope == ROOT]
    assert {node.evidence for node in at_root if node.origins == (ROOT,)} <= {"captured", "root"}
    assert 0.5 < hierarchy.coverage() < 1


def test_an_original_without_a_hierarchy_is_refused(tmp_path: Path) -> None:
    _, made = optimized("bert", "dynamo", "ort-basic")
    with pytest.raises(HieronnxError, match="has no hierarchy"):
        carry(made, made)


def test_the_original_is_not_overwritten(tmp_path: Path) -> None:
    source, made = optimized("gpt2", "torchscript", "ort-basic")
    original = tmp_path / "model.onnx"
    shutil.copy(source, original)
    shutil.copy(sidecar_path(source), sidecar_path(original))
    before = original.read_bytes()
    with pytest.raises(HieronnxError, match="would overwrite"):
        carry(original, made, output=original)
    assert original.read_bytes() == before


# --- the command ---


def test_the_command_shows_what_was_done(tmp_path: Path) -> None:
    source, made = optimized("gpt2", "torchscript", "ort-extended")
    result = run("carry", source, made, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 0, result.stderr
    assert "176 nodes became 75, 100.0 % of them with a module call: " in result.stdout
    assert "FastGelu" in result.stdout
    assert "transformer.wpe" in result.stdout
    assert f"next: hieronnx compare {source} {tmp_path / 'out.onnx'}" in result.stdout


def test_the_command_writes_json(tmp_path: Path) -> None:
    source, made = optimized("gpt2", "torchscript", "ort-extended")
    result = run("carry", source, made, "-o", tmp_path / "out.onnx", "--json")
    told = json.loads(result.stdout)
    assert told["nodes_before"] == 176
    assert told["hierarchy"]["summary"]["nodes"] == 75
    assert told["lost"][0]["call"]["module"] == "transformer.wpe"
    assert told["hierarchy"]["summary"]["coverage"] == 100.0
    assert {Path(file["path"]).name for file in told["files"]} == {"out.onnx", "out_hierarchy.json"}


@pytest.mark.parametrize(("option", "inside", "beside"), [("--no-embed", False, True), ("--no-sidecar", True, False)])
def test_either_form_can_be_left_out(option: str, inside: bool, beside: bool, tmp_path: Path) -> None:
    source, made = optimized("gpt2", "torchscript", "ort-basic")
    output = tmp_path / "out.onnx"
    assert run("carry", source, made, "-o", output, option).exit_code == 0
    assert (b"hieronnx.module" in output.read_bytes()) is inside
    assert sidecar_path(output).exists() is beside


def test_a_result_is_short_in_print() -> None:
    source, made = optimized("gpt2", "torchscript", "ort-extended")
    result = carry(source, made)
    assert isinstance(result, CarryResult)
    assert repr(result) == "CarryResult(176 nodes to 75, coverage 100.0%)"


# --- what the transformed file has left of a hierarchy ---


def spoil_embedded(path: Path, key: str, value: str) -> None:
    model = onnx.load(path, load_external_data=False)
    for entry in (*model.metadata_props, *(entry for node in model.graph.node for entry in node.metadata_props)):
        if entry.key == f"hieronnx.{key}":
            entry.value = value
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("key", "value"), [("calls", "[]"), ("call", "x"), ("module", "gone"), ("format_version", "9.0")]
)
def test_what_is_damaged_in_the_transformed_file_is_replaced(key: str, value: str, tmp_path: Path) -> None:
    source = export_ours("called_in_loop", "torchscript")
    damaged = Path(shutil.copy(source, tmp_path / "damaged.onnx"))
    spoil_embedded(damaged, key, value)
    with pytest.raises(HieronnxError):
        load(damaged)
    carry(source, damaged, output=damaged)
    assert load(damaged).nodes == load(source).nodes
    assert hieronnx.validate(damaged, strict=True).passed


@pytest.mark.parametrize("content", ["", "{", '{"format_version": "9.0"}'])
def test_a_damaged_sidecar_of_the_transformed_file_is_replaced(content: str, tmp_path: Path) -> None:
    source = export_ours("called_in_loop", "torchscript")
    damaged = Path(shutil.copy(source, tmp_path / "damaged.onnx"))
    sidecar_path(damaged).write_text(content)
    carry(source, damaged, output=damaged)
    assert load(damaged).nodes == load(source).nodes


def test_a_damaged_original_is_refused(tmp_path: Path) -> None:
    source = export_ours("called_in_loop", "torchscript")
    damaged = Path(shutil.copy(source, tmp_path / "damaged.onnx"))
    spoil_embedded(damaged, "calls", "[]")
    with pytest.raises(HieronnxError, match="not a hierarchy"):
        carry(damaged, source)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_model_that_onnx_cut_out_is_told_alike_by_all_and_carried(exporter: str, tmp_path: Path) -> None:
    source, cut = export_ours("bert", exporter), tmp_path / "cut.onnx"
    call = load(source).find_call("encoder.layer.0.intermediate")
    ends = ([item.tensor for item in bound or ()] for bound in (call.received, call.returned))
    onnx.utils.extract_model(source, cut, *ends)
    reason = "its nodes name their calls, but the tree of calls is missing"
    (finding,) = (item for item in hieronnx.validate(cut) if item.severity == "error")
    assert reason in finding.message
    assert "hieronnx carry" in finding.remedy
    for result in (run("tree", cut), run("extract", cut, "encoder", "-o", tmp_path / "part.onnx")):
        assert result.exit_code == 2
        assert reason in result.stderr
        assert "hieronnx carry" in result.stderr
    assert reason in run("analyze", cut).stdout
    carried = carry(source, cut, output=cut).hierarchy
    assert carried.nodes_in("encoder.layer.0.intermediate.dense")
    assert not carried.nodes_in("encoder.layer.1")
    assert hieronnx.validate(cut).passed
    assert run("tree", cut).exit_code == 0


@pytest.mark.parametrize("forms", [{}, {"embed": False}, {"sidecar": False}], ids=str)
def test_carrying_in_place_through_a_link_writes_the_file_behind_it(forms: dict[str, bool], tmp_path: Path) -> None:
    original = write_layered(tmp_path / "original.onnx")
    real = write_layered(tmp_path / "real.onnx", embed=False, sidecar=False)
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "link.onnx"
    link.symlink_to(real)
    shutil.copy(sidecar_path(original), sidecar_path(link))  # an older one
    result = hieronnx.carry(original, link, output=link, **forms)
    assert link.is_symlink()
    assert result.hierarchy.coverage() == 1.0
    assert result.sidecar == (sidecar_path(real) if forms.get("sidecar", True) else None)
    assert not sidecar_path(link).exists()
    for path in (link, real):
        assert load(path).strategy == "carried"
        assert hieronnx.validate(path).passed
