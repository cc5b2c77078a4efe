"""Zoo models exported with dynamic axes, and inputs of other sizes than at export."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import hieronnx
from support.exports import quiet
from support.zoo import CASES

TEXT_MODELS = """
    bert roberta distilbert albert electra deberta modernbert mpnet fnet gpt2 llama qwen mistral llama_with_past
    mixtral mamba t5 bart
"""
DYNAMIC_EXPORTS = [(name, exporter) for name in TEXT_MODELS.split() for exporter in CASES[name].exporters]
# The scan over the positions is unrolled at export, as often as the example has positions: it has dynamic rows alone.
LENGTH_FIXED = {"mamba"}


def export_dynamic(name: str, exporter: str, path: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Export a zoo model with dynamic axes; return it, and inputs by name that have one more along each of these."""
    model = CASES[name].build()
    inputs = named_inputs(name, model)
    with quiet():
        options = dynamic_options(name, exporter, inputs)
        hieronnx.export(model, (), path, inputs, exporter=exporter, **options)
    return model, {key: tree_map(lambda leaf: widen(name, leaf), value) for key, value in inputs.items()}


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
