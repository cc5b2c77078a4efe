"""Extract: every module call of every zoo model against PyTorch and against the whole file, and at other sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from hieronnx.tools.extract.find import explain_no_nodes
from support.dynamic import DYNAMIC_EXPORTS, export_dynamic
from support.exports import exported, shared_folder
from support.extracted import PartCheck, Verdicts
from support.marks import over
from support.zoo import CASES

EXPORTS = [(name, exporter) for name, case in CASES.items() for exporter in case.exporters]


every_export = over(EXPORTS)

# How many calls the check lets pass otherwise than as equal to PyTorch; for all other exports none.
# Of branches that are not taken, inside vmap and inside TorchScript, eager PyTorch shows no tensors: these parts run
# beside their modules.
UNSEEN = {"cond": 1, "nested_cond": 4, "vectorized_map": 2, "scripted_root": 5}
# One node stands for two calls: a Conv and its BatchNorm; or a Reshape that a call and the one around it both do.
FUSED = {
    "conv_batch_norm": 2,
    "conv_batch_norm_sequential": 4,
    "conv_batch_norm_chain": 10,
    "conv_batch_norm_residual": 8,
    "conv_batch_norm_bottlenecks": 18,
    "gpt2-dynamo": 2,
    "resnet": 18,
    "segformer": 2,
}
# Others read a Cast in a norm that changes nothing; the model returns the caches that its attentions fill.
EXTRA = {
    "llama-torchscript": 4,
    "qwen-torchscript": 4,
    "mistral-torchscript": 4,
    "llama_with_past-dynamo": 4,
    "llama_with_past-torchscript": 8,
    "mixtral-torchscript": 4,
    "mamba-torchscript": 2,
    "t5-torchscript": 10,
}
# A BatchNorm that is folded into a Conv did not receive what the Conv did; nor a projection what is reshaped for it.
UNRECEIVED = {
    "conv_batch_norm": 1,
    "conv_batch_norm_sequential": 2,
    "conv_batch_norm_chain": 5,
    "conv_batch_norm_residual": 4,
    "conv_batch_norm_bottlenecks": 9,
    "gpt2-dynamo": 2,
    "resnet": 9,
    "segformer": 1,
}
# Of calls inside bodies and inside TorchScript the exporter does not tell what they pass on.
UNRECORDED = {"cond-dynamo": 3, "nested_cond-dynamo": 8, "while_loop-dynamo": 2, "scripted_root": 6}
# What a cast that changes nothing gives, in a region that torch traces anew.
UNKNOWN = {"autocast_region-dynamo": 4}

# Those with a call whose nodes are all nodes of the calls that it makes.
COMPOSABLE = """
    albert autocast_region bart bert calls_interleaved clip conv_batch_norm_bottlenecks conv_batch_norm_chain
    conv_batch_norm_residual conv_batch_norm_sequential convnext custom_function deberta distilbert
    dropout_and_identity electra fnet
    gathered_bags gpt2 gru_bidirectional hooked layer_norm_by_hand llama llama_with_past lstm mamba
    mask_in_every_layer mixtral modernbert mpnet nested_cond no_grad_region odd_module_dict_keys resnet
    reversed_module_list roberta same_class_name scripted_if segformer sequential_in_sequential sequential_root
    shared_activation shared_at_two_depths sibling_borrowed swin t5 tied_weights transformer_encoder vit wav2vec2
    whisper
"""


def composes(name: str, exporter: str) -> bool:
    return not {name, f"{name}-{exporter}"}.isdisjoint(COMPOSABLE.split())


@cache
def check(name: str, exporter: str) -> PartCheck:
    """Open an export; the parts of every other one are checked as files, those of the rest in memory."""
    case, found = CASES[name], exported(name, exporter)
    in_files = (list(CASES).index(name) + (exporter == "dynamo")) % 2
    folder = Path(mkdtemp(prefix=f"{name}-{exporter}-parts-", dir=shared_folder())) if in_files else None
    return PartCheck(found.result.path, found.model, case.args(), case.kwargs(), folder)


@cache
def check_all(name: str, exporter: str) -> Verdicts:
    return check(name, exporter).check_all()


# -- every call of every model ----------------------------------------------------------------------------


@every_export
def test_every_part_gives_what_its_call_returned(
    name: str, exporter: str, record_property: Callable[[str, object], None]
) -> None:
    verdicts = check_all(name, exporter)
    for call, fate in verdicts.empty.items():
        record_property(f"no nodes: {call}", fate)
    for what in ("unseen", "fused", "extra", "undeclared_inputs"):
        for call, found in getattr(verdicts, what).items():
            record_property(f"{what}: {call}", found)
    record_property("equal", len(verdicts.equal))
    assert not verdicts.wrong
    assert len(verdicts.equal) + len(verdicts.empty) + len(verdicts.unseen) == len(
        exported(name, exporter).hierarchy.calls
    )


@every_export
def test_parts_that_differ_from_their_calls_are_known(name: str, exporter: str) -> None:
    verdicts = check_all(name, exporter)
    for known, found in (
        (UNSEEN, verdicts.unseen),
        (FUSED, verdicts.fused),
        (EXTRA, verdicts.extra),
        (UNRECEIVED, verdicts.undeclared_inputs),
        (UNRECORDED, verdicts.unrecorded),
        (UNKNOWN, verdicts.unknown),
    ):
        assert len(found) == known.get(f"{name}-{exporter}", known.get(name, 0)), found
    assert not verdicts.foreign


def test_only_copies_and_caches_leave_a_call_unreturned() -> None:
    assert {call.rpartition(".")[2] for call in check_all("t5", "torchscript").extra} == {"layer_norm"}
    layers = {f"model.layers.{number}{inner}" for number in range(2) for inner in ("", ".self_attn")}
    assert set(check_all("llama_with_past", "dynamo").extra) == layers


@every_export
def test_every_part_gives_what_its_siblings_read(name: str, exporter: str) -> None:
    assert check(name, exporter).find_misfits() == []


@every_export
def test_the_parts_of_a_call_compose_to_it(name: str, exporter: str) -> None:
    checked = check(name, exporter)
    found = checked.composable()
    assert bool(found) == composes(name, exporter)
    for call in found:
        checked.compose(call)


# Those with a call that computes nothing: a Dropout, an Identity.
WITH_PASSING_CALLS = """
    dropout_and_identity transformer_encoder bert roberta distilbert albert electra deberta modernbert mpnet fnet gpt2
    t5 vit convnext resnet swin segformer wav2vec2
"""


@every_export
def test_a_call_without_nodes_is_told_truly(name: str, exporter: str) -> None:
    checked = check(name, exporter)
    without_nodes = [c.id for c in checked.extractor.hierarchy.calls if checked.extractor.find(c.id) is None]
    passing = [
        call for call in without_nodes if "passes its input" in explain_no_nodes(checked.extractor.hierarchy, call)
    ]
    assert bool(passing) == (name in WITH_PASSING_CALLS.split())
    for call in passing:
        record = checked.eager.calls[call]
        assert all(any(np.array_equal(a, b) for b in record.received) for a in record.returned), call


# -- dynamic sizes ----------------------------------------------------------------------------------------

# One reads but the sizes of a slice that it receives and that the file has not. In the others one node unsqueezes
# positions both for a call and in it.
UNRECEIVED_AT_OTHER_SIZES = {
    f"{name}-dynamo": 1 for name in ("bart", "llama", "qwen", "mistral", "llama_with_past", "mixtral")
}
# Torch drops a sum with 0 and joins what reads it; or a Slice that takes all, whose sizes have no names.
UNKNOWN_AT_OTHER_SIZES = {
    "bart-torchscript": 1,
    "llama-dynamo": 1,
    "mixtral-dynamo": 1,
}


@over(DYNAMIC_EXPORTS, quick=["bert", "t5", "llama_with_past"])
def test_parts_run_at_other_sizes_than_at_export(name: str, exporter: str, tmp_path: Path) -> None:
    model, inputs = export_dynamic(name, exporter, tmp_path / "model.onnx")
    checked = PartCheck(tmp_path / "model.onnx", model, (), inputs)
    verdicts = checked.check_all()
    assert not verdicts.wrong
    assert checked.find_misfits() == []
    assert not verdicts.foreign
    known = UNRECEIVED | UNRECEIVED_AT_OTHER_SIZES
    assert len(verdicts.undeclared_inputs) == known.get(f"{name}-{exporter}", 0)
    assert len(verdicts.unknown) == UNKNOWN_AT_OTHER_SIZES.get(f"{name}-{exporter}", 0)
