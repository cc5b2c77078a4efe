"""A decoder with its cache of keys and values: flat inputs and outputs, named as optimum names them.

The cache is one of Transformers' own, made of what the model itself returned; nothing here knows a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hieronnx.capture.eager import untouched
from hieronnx.capture.inputs import make_inputs
from hieronnx.capture.names import list_parameters, name_arguments, name_leaves, name_results
from hieronnx.capture.private_torch import pytree
from hieronnx.capture.specs import InputSpec
from hieronnx.errors import InputError, describe_error

_CACHE = "past_key_values"
_WITHOUT = "export it without --with-past (hieronnx.with_past)"
_BATCH = 2
_LENGTHS = ((5, 3), (3, 4))
"""How many tokens are in the cache and how many are new, the second if a layer keeps fewer in its cache than the first.

All sizes are different, and none of them is 1: torch takes equal sizes for one.
"""
_SEQUENCE, _PAST_SEQUENCE = "sequence_length", "past_sequence_length"
_AXES: Mapping[str, Mapping[int, str]] = {
    "input_ids": {0: "batch_size", 1: _SEQUENCE},
    "attention_mask": {0: "batch_size", 1: f"{_PAST_SEQUENCE} + {_SEQUENCE}"},
    "position_ids": {0: "batch_size", 1: _SEQUENCE},
    _CACHE: {0: "batch_size", 2: _PAST_SEQUENCE},
}


def make_past_inputs(model: nn.Module, input_ids: Tensor | None = None) -> dict[str, Any]:
    """Return the inputs of a decoder with its cache, their names and those of the outputs, and the dynamic axes.

    Raises:
        InputError: The model has no cache of keys and values, or does not return it.
    """
    parameters, name = list_parameters(model), type(model).__name__
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise InputError(
            f"{name} has an encoder beside its decoder, and --with-past (hieronnx.with_past) makes caches of decoders "
            "alone; export it without: the file then has both, without a cache, and takes all tokens at each step"
        )
    if missing := [item for item in ("input_ids", "attention_mask", _CACHE) if item not in parameters]:
        raise InputError(f"{name}.forward takes no {missing[0]}, so it is no decoder with a cache; {_WITHOUT}")
    kwargs, returned = _run_step(model, input_ids)
    cache = returned.get(_CACHE) if isinstance(returned, Mapping) else None
    if cache is None:
        raise InputError(f"{type(model).__name__} does not return its cache; set config.use_cache = True")
    present = _name_pairs("present", cache)
    outputs = [present.get(id(leaf), name) for name, leaf in name_results(returned) if isinstance(leaf, Tensor)]
    past = _name_pairs(_CACHE, kwargs[_CACHE])
    inputs = [past.get(id(leaf), name) for name, leaf in name_leaves(name_arguments(model, (), kwargs))]
    shapes = {name: _spread(value, dict(_AXES[name])) for name, value in kwargs.items()}
    return {"kwargs": kwargs, "dynamic_shapes": shapes, "input_names": inputs, "output_names": outputs}


def _run_step(model: nn.Module, input_ids: Tensor | None) -> tuple[dict[str, Any], Any]:
    """Run a later step of a text, a made-up one if none is given; return its inputs and what the model returns."""
    for past, new in _LENGTHS:
        text = input_ids
        if text is None:
            text = make_inputs(model, [InputSpec("input_ids", "int64", (_BATCH, past + new))])["input_ids"]
        kwargs = _make_step(model, text, new)
        is_last = input_ids is not None or (past, new) == _LENGTHS[-1]
        if is_last or len({keys.shape[2:3] for keys, _ in _list_pairs(kwargs[_CACHE])}) == 1:
            break
    return kwargs, _run(model, kwargs)


def _make_step(model: nn.Module, input_ids: Tensor, new: int) -> dict[str, Any]:
    """Make the inputs of a later step: the cache of the text but its last tokens, `new` of them, and these."""
    parameters = list_parameters(model)
    mask = torch.ones_like(input_ids)
    mask[-1, 0] = 0  # a mask of ones alone would be folded away
    first = input_ids.shape[1] - new
    returned = _run(model, {"input_ids": input_ids[:, :first], "attention_mask": mask[:, :first], "use_cache": True})
    inputs = {"input_ids": input_ids[:, first:], "attention_mask": mask, "position_ids": _count(mask)[:, first:]}
    inputs[_CACHE] = _copy_cache(model, returned.get(_CACHE) if isinstance(returned, Mapping) else None)
    return {name: inputs[name] for name in parameters if name in inputs}


def _count(mask: Tensor) -> Tensor:
    """Number the tokens that a mask shows, as `generate` does."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def _run(model: nn.Module, kwargs: dict[str, Any]) -> Any:
    try:
        with untouched(model, (), kwargs) as (_, inputs):
            return model(**inputs)
    except Exception as error:
        raise InputError(f"{type(model).__name__} does not run with a cache: {describe_error(error)}") from error


def _copy_cache(model: nn.Module, cache: Any) -> Any:
    """Return the keys and values of a cache in one that grows, which torch can take apart."""
    from transformers import DynamicCache
    from transformers.exporters.exporter_dynamo import register_pytree_node

    pairs = _list_pairs(cache)
    if not pairs or not all(isinstance(tensor, Tensor) for pair in pairs for tensor in pair):
        kept = "returns no cache" if cache is None else f"keeps a {type(cache).__name__}"
        raise InputError(f"{type(model).__name__} {kept}, and no keys and values for each layer; {_WITHOUT}")
    register_pytree_node(DynamicCache)
    return DynamicCache(pairs)


def _list_pairs(cache: Any) -> list[tuple[Any, Any]]:
    """Return the keys and values of each layer of a cache, None where it has none."""
    return [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in getattr(cache, "layers", ())]


def _name_pairs(name: str, cache: Any) -> dict[int, str]:
    """Name the tensors of a cache, by their identities."""
    named = {}
    for index, layer in enumerate(cache.layers):
        named[id(layer.keys)] = f"{name}.{index}.key"
        named[id(layer.values)] = f"{name}.{index}.value"
    return named


def _spread(value: Any, axes: dict[int, str]) -> Any:
    """Return the dynamic shapes of an input: of a cache, in the structure that torch takes it apart into."""
    if isinstance(value, Tensor):
        return axes
    take_apart: Callable[[Any], tuple[Sequence[Any], Any]] = pytree.SUPPORTED_NODES[type(value)].flatten_fn
    return pytree.tree_map(lambda leaf: axes if isinstance(leaf, Tensor) else None, list(take_apart(value)[0]))
