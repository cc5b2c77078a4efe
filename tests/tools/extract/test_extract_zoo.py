"""Extract: every module call of every zoo model against PyTorch and against the whole file, and at other sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from inspect import signature
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import hieronnx
from hieronnx.tools.extract.find import explain_no_nodes
from support.exports import exported, quiet, shared_folder
from support.extracted import PartCheck, Verdicts
from support.zoo import CASES

EXPORTS = [(name, exporter) for name, case in CASES.items() for exporter in case.exporters]


def over(pairs: Sequence[tuple[str, str]]) -> pytest.MarkDecorator:
    """Run over these exports."""
    return pytest.mark.parametrize(("name", "exporter"), pairs, ids=["-".join(pair) for pair in pairs])


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

TEXT_MODELS = """
    bert roberta distilbert albert electra deberta modernbert mpnet fnet gpt2 llama qwen mistral llama_with_past
    mixtral mamba t5 bart
"""
DYNAMIC_EXPORTS = [pair for pair in EXPORTS if pair[0] in TEXT_MODELS.split()]
# The scan over the positions is unrolled at export, as often as the example has positions: it has dynamic rows alone.
LENGTH_FIXED = {"mamba"}
# One reads but the sizes of a slice that it receives and that the file has not. In the others one node unsqueezes
# positions both for a call and in it.
UNRECEIVED_AT_OTHER_SIZES = {
    f"{name}-dynamo": 1 for name in ("bart", "llama", "qwen", "mistral", "llama_with_past", "mixtral")
}
# Torch drops a sum with 0 and joins what reads it; or a Slice that takes all, whose sizes have no names.
UNKNOWN_AT_OTHER_SIZES = {
    "bart-torchscript": 1,
    "llama-dynamo": 1,
    "llama_with_past-dynamo": 1,
    "mixtral-dynamo": 1,
}


def named_inputs(name: str, model: nn.Module) -> dict[str, Any]:
    """Return the example inputs by the names that the forward itself has for them."""
    case, taken = CASES[name], list(signature(model.forward).parameters)
    inputs = dict(zip(taken, case.args(), strict=False)) | case.kwargs()
    return {key: value for key, value in inputs.items() if key in taken}


def name_axes(name: str, tensor: torch.Tensor) -> dict[int, str]:
    """Return the axes that may change: rows, and positions; equal lengths have one name."""
    if tensor.dim() == 2 and name not in LENGTH_FIXED:
        return {0: "batch", 1: f"length_{tensor.shape[1]}"}
    return {0: "batch"} if tensor.dim() > 1 else {}


def dynamic_options(name: str, exporter: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return what tells an exporter of these axes."""
    axes = {
        key: [name_axes(name, leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        for key, value in inputs.items()
    }
    if exporter == "dynamo":
        hints = {key: [dict.fromkeys(leaf, torch.export.Dim.DYNAMIC) for leaf in found] for key, found in axes.items()}
        shapes = {key: hints[key][0] if isinstance(inputs[key], torch.Tensor) else hints[key] or None for key in hints}
        return {"dynamic_shapes": shapes}
    named = {
        key if len(found) == 1 else f"{key}_{number}": leaf
        for key, found in axes.items()
        for number, leaf in enumerate(found)
    }
    return {"dynamic_axes": named, "input_names": list(named)}


def widen(name: str, leaf: Any) -> Any:
    """Return a tensor with one more of all that may change; anything else as it is."""
    if isinstance(leaf, torch.Tensor):
        for axis in name_axes(name, leaf):
            leaf = torch.cat([leaf, leaf.narrow(axis, 0, 1)], axis)
    return leaf


@over(DYNAMIC_EXPORTS)
def test_parts_run_at_other_sizes_than_at_export(name: str, exporter: str, tmp_path: Path) -> None:
    path, model = tmp_path / "model.onnx", CASES[name].build()
    inputs = named_inputs(name, model)
    with quiet():
        options = dynamic_options(name, exporter, inputs)
        hieronnx.export(model, (), path, inputs, exporter=exporter, **options)
    checked = PartCheck(path, model, (), {key: tree_map(lambda leaf: widen(name, leaf), inputs[key]) for key in inputs})
    verdicts = checked.check_all()
    assert not verdicts.wrong
    assert checked.find_misfits() == []
    assert not verdicts.foreign
    known = UNRECEIVED | UNRECEIVED_AT_OTHER_SIZES
    assert len(verdicts.undeclared_inputs) == known.get(f"{name}-{exporter}", 0)
    assert len(verdicts.unknown) == UNKNOWN_AT_OTHER_SIZES.get(f"{name}-{exporter}", 0)
