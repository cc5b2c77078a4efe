"""Inputs of Hugging Face models, from the conventional names of their parameters and their configs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from hieronnx.capture.specs import (
    Given,
    InputSpec,
    Limits,
    Parameters,
    describe,
    describe_missing,
    draw_all,
    read_example,
    required,
)
from hieronnx.errors import InputError

if TYPE_CHECKING:
    from torch import nn

_Shape: TypeAlias = tuple[int, ...]


# --- what the conventional parameter names mean ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a parameter takes: `values` of a kind, in one of several `shapes` of named sizes."""

    values: str
    shapes: tuple[tuple[str, ...], ...]


_IDS = _Meaning("ids", (("batch", "sequence"),))
_IMAGES = _Meaning(
    "floats",
    (("batch", "frames", "channels", "height", "width"), ("batch", "channels", "height", "width")),
)
_MEANINGS: Mapping[str, _Meaning] = {
    "input_ids": _IDS,
    "decoder_input_ids": _IDS,
    "attention_mask": _Meaning("mask", (("batch", "sequence"),)),
    "token_type_ids": _Meaning("types", (("batch", "sequence"),)),
    "pixel_values": _IMAGES,
    "pixel_values_videos": _IMAGES,
    "input_values": _Meaning(
        "floats", (("batch", "length", "bins"), ("batch", "tracks", "samples"), ("batch", "samples"))
    ),
    "input_features": _Meaning(
        "floats",
        (
            ("batch", "bins", "steps"),
            ("batch", "steps", "bins"),
            ("batch", "bins", "positions"),
            ("batch", "positions", "bins"),
        ),
    ),
}
# The config fields that give a size, and the size where a config has none of them. A shape with a size that
# has neither is none of the model's.
_SIZES: Mapping[str, tuple[tuple[str, ...], int | None]] = {
    "batch": ((), 2),
    "sequence": ((), 8),
    "channels": (("num_channels", "in_channels"), 3),
    "height": (("image_size",), 64),
    "width": (("image_size",), 64),
    "frames": (("num_frames",), None),
    "bins": (("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim"), None),
    "length": (("max_length",), None),
    "tracks": (("audio_channels",), None),
    "samples": ((), 4000),
    "steps": ((), 100),
    "positions": (("max_source_positions",), None),
}
_FIXED_SIZES = ("channels", "bins", "tracks")  # weights depend on these: a given shape must agree
_MODALITIES: Mapping[str, tuple[str, ...]] = {
    "text": ("input_ids",),
    "image": ("pixel_values",),
    "video": ("pixel_values_videos", "pixel_values"),
    "audio": ("input_features", "input_values"),
}
_ALTERNATIVES: Mapping[str, str] = {
    "input_ids": "inputs_embeds",
    "decoder_input_ids": "decoder_inputs_embeds",
}


# --- a Hugging Face model -------------------------------------------------------------------------


def is_pretrained(model: nn.Module) -> bool:
    """Tell whether a model has what Hugging Face models have: a config and a main input."""
    return hasattr(model, "config") and hasattr(model, "main_input_name")


def make_pretrained(model: nn.Module, parameters: Parameters, given: Given) -> dict[str, Any]:
    """Make inputs from a config; where it allows several shapes, the first that the model runs with."""
    for spec in given.values():
        _check_spec(model, spec)
    names = _choose_names(model, parameters, given)
    shapes = {name: _list_shapes(model, name, given) for name in names if name in _MEANINGS}
    shapes = {name: possible for name, possible in shapes.items() if possible}
    rest = _take_dummies(model, parameters, [name for name in names if name not in shapes])
    candidates = [
        {**_draw_inputs(model, [*given.values(), *_make_specs(model, dict(zip(shapes, choice, strict=True)))]), **rest}
        for choice in product(*shapes.values())
    ]
    return candidates[0] if len(candidates) == 1 else _try_each(model, candidates)


def _take_dummies(model: nn.Module, parameters: Parameters, names: Sequence[str]) -> dict[str, Any]:
    """Take what no table tells how to make from the model's own `dummy_inputs`."""
    dummies = (read_example(model, "dummy_inputs", parameters) if names else None) or {}
    missing = [name for name in names if name not in dummies]
    if missing:
        raise InputError(describe_missing(model, missing))
    return {name: dummies[name] for name in names}


def _choose_names(model: nn.Module, parameters: Parameters, given: Given) -> list[str]:
    """List the parameters to make: the main input, required ones and those that go with them."""
    config: Any = model.config
    main: Any = model.main_input_name
    names = [main] if isinstance(main, str) else list(main)
    names += required(parameters)
    names += _list_modalities(model, parameters)
    if getattr(config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    # A mask beside images or audio is over patches or frames, whose number only the model knows.
    texts = {"input_ids", "inputs_embeds"} & {name for name in (*names, *given) if name in parameters}
    names += ["attention_mask"] if texts else []
    names += ["token_type_ids"] if texts and _read_config(config, ("type_vocab_size",)) else []
    known = (name for name in dict.fromkeys(names) if name in parameters and name not in given)
    return [name for name in known if _ALTERNATIVES.get(name) not in given]


def _list_modalities(model: nn.Module, parameters: Parameters) -> list[str]:
    """List the inputs of the other modalities, but those that the text has placeholder tokens for."""
    modalities: Any = getattr(model, "input_modalities", ())
    if isinstance(modalities, str):
        return []
    names = []
    for modality in modalities:
        if _read_config(model.config, (f"{modality}_token_id", f"{modality}_token_index")) is None:
            names += [name for name in _MODALITIES.get(modality, ()) if name in parameters][:1]
    return names


def _list_shapes(model: nn.Module, name: str, given: Given) -> tuple[_Shape, ...]:
    """List the shapes that a parameter may have, by the model's config and the inputs given."""
    shapes = (tuple(_read_size(model, size, name, given) for size in shape) for shape in _MEANINGS[name].shapes)
    complete = (tuple(size for size in shape if size is not None) for shape in shapes if None not in shape)
    return tuple(dict.fromkeys(complete))


def _read_size(model: nn.Module, size: str, parameter: str, given: Given) -> int | None:
    if size in ("batch", "sequence"):
        return _read_text_size(model, size, parameter, given)
    fields, default = _SIZES[size]
    number = _read_config(model.config, fields)
    if isinstance(number, (list, tuple)) and number:
        number = number[-1] if size == "width" else number[0]
    if not isinstance(number, int):
        return default
    if size != "positions":
        return number
    from torch import nn

    # The model's 1-d convolutions shorten a sequence.
    return number * prod(module.stride[0] for module in model.modules() if isinstance(module, nn.Conv1d))


def _read_text_size(model: nn.Module, size: str, parameter: str, given: Given) -> int:
    """Return the batch or sequence size: that of the inputs given, where there are any."""
    axis = 0 if size == "batch" else 1
    if axis == 0:
        sized = [spec.shape for spec in given.values() if spec.shape]
    else:
        texts = (given.get(name) for name in ("input_ids", "inputs_embeds", "attention_mask"))
        follows = not parameter.startswith("decoder_")
        sized = [spec.shape for spec in texts if follows and spec is not None and len(spec.shape) > 1]
    if sized:
        return sized[0][axis]
    default = _SIZES[size][1] or 1
    limit = _read_config(model.config, ("max_position_embeddings", "max_target_positions"))
    return min(default, limit) if axis == 1 and isinstance(limit, int) and limit > 0 else default


def _make_specs(model: nn.Module, shapes: Mapping[str, _Shape]) -> list[InputSpec]:
    dtypes = (parameter.dtype for parameter in model.parameters() if parameter.dtype.is_floating_point)
    floating = str(next(dtypes, "float32")).removeprefix("torch.")
    return [
        InputSpec(name, floating if _MEANINGS[name].values == "floats" else "int64", shape)
        for name, shape in shapes.items()
    ]


def _check_spec(model: nn.Module, spec: InputSpec) -> None:
    """Refuse a given dtype or shape that the model cannot take."""
    meaning = _MEANINGS.get(spec.name)
    if meaning is None or meaning.values == "mask":  # masks of more axes and of any dtype are in use
        return
    if meaning.values != "floats" and not spec.dtype.startswith(("int", "uint")):
        raise InputError(f"input '{spec.name}' takes integers; got {spec.dtype}, try int64")
    known = [_name_sizes(model, shape) for shape in meaning.shapes]
    if not any(_fits(spec.shape, shape) for shape in known):
        expected = " or ".join(f"[{','.join(map(str, shape))}]" for shape in known)
        shape = ",".join(map(str, spec.shape))
        raise InputError(f"input '{spec.name}' has shape [{shape}]; {type(model).__name__} takes {expected}")


def _name_sizes(model: nn.Module, shape: Sequence[str]) -> tuple[str | int, ...]:
    """Replace the sizes that the weights depend on by their numbers."""
    fixed = {size: _read_config(model.config, _SIZES[size][0]) for size in _FIXED_SIZES}
    return tuple(fixed[size] if isinstance(fixed.get(size), int) else size for size in shape)


def _fits(shape: Sequence[int], expected: Sequence[str | int]) -> bool:
    pairs = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(isinstance(wanted, str) or size == wanted for size, wanted in pairs)


def _draw_inputs(model: nn.Module, specs: Iterable[InputSpec]) -> dict[str, Any]:
    return dict(draw_all(model, {spec: _read_limits(model, spec.name) for spec in specs}))


def _try_each(model: nn.Module, candidates: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the first inputs that the model runs with; its modes and the random state stay as they were."""
    import torch

    modes = [(module, module.training) for module in model.modules()]
    errors: list[Exception] = []
    model.eval()
    try:
        with torch.random.fork_rng(), torch.no_grad():
            for inputs in candidates:
                try:
                    model(**inputs)
                    return inputs
                except Exception as error:  # any error means that these do not fit
                    errors.append(error)
    finally:
        for module, training in modes:
            module.training = training
    shapes = (", ".join(f"{name}{list(tensor.shape)}" for name, tensor in inputs.items()) for inputs in candidates)
    tried = " and ".join(shapes)
    raise InputError(
        f"{type(model).__name__} did not run with the inputs made from its config ({tried}); "
        f"pass --input name=dtype[shape]. The last error: {describe(errors[-1])}"
    ) from errors[-1]


# --- reading configs ------------------------------------------------------------------------------


def _read_limits(model: nn.Module, name: str) -> Limits:
    config: Any = model.config
    kind = _MEANINGS[name].values if name in _MEANINGS else ""
    if kind == "types":
        return Limits(kind, _read_config(config, ("type_vocab_size",)) or 1)
    if kind != "ids":
        return Limits(kind)
    special = _read_special_ids(config)
    if name.startswith("decoder_"):
        text = config.get_text_config(decoder=True)
        return Limits(kind, _read_config(text, ("vocab_size",)) or 2, special)
    count = _read_config(config, ("vocab_size",)) or 2
    # Some models pool at the end token, and refuse a text without one.
    end = _read_config(config, ("eos_token_id",))
    return Limits(kind, count, special, end if isinstance(end, int) and 0 <= end < count else None)


def _walk_configs(config: Any) -> Iterator[Any]:
    """Yield a config and those nested in it."""
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "model_type"):
            yield from _walk_configs(value)


def _read_config(config: Any, fields: Sequence[str]) -> Any:
    """Return the first of some fields that a config, or one nested in it, has; None where none does."""
    for part in _walk_configs(config):
        for field in fields:
            value = getattr(part, field, None)
            if value is not None:
                return value
    return None


def _read_special_ids(config: Any) -> frozenset[int]:
    """Return the token ids that mean something to the model (padding, end, image, …)."""
    endings = ("_token_id", "_token_index")
    fields = (item for part in _walk_configs(config) for item in vars(part).items())
    values = (value for field, value in fields if field.endswith(endings))
    flat = (item for value in values for item in (value if isinstance(value, (list, tuple)) else (value,)))
    return frozenset(item for item in flat if isinstance(item, int))
