"""Example inputs by forward's parameter names, and which of their axes are dynamic.

torch is imported in the functions that need it, so that the command line can parse without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from hieronnx.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

__all__ = ["DTYPES", "InputSpec", "make_inputs", "to_dynamic_shapes"]

_Parameters: TypeAlias = Mapping[str, inspect.Parameter]
_Given: TypeAlias = Mapping[str, "InputSpec"]
_Shape: TypeAlias = tuple[int, ...]

DTYPES = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input to make: a forward parameter's name, dtype and shape.

    Attributes:
        name: of the parameter.
        dtype: torch's name of it, one of `DTYPES`.
        shape: the sizes; empty for a scalar.
        range: the lowest and the highest value, both included. Without it floats are normal, integers are
            ids where the model says how many there are, else 0 or 1.

    Raises:
        InputError: the dtype is unknown, a size is negative or the range is empty.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            message = f"input '{self.name}': unknown dtype '{self.dtype}'"
            hint = _suggest(self.dtype, DTYPES) or f"; expected one of {', '.join(DTYPES)}"
            raise InputError(message + hint)
        if any(size < 0 for size in self.shape):
            raise InputError(f"input '{self.name}': shape {list(self.shape)} has a negative size")
        if self.range is not None and self.range[0] > self.range[1]:
            raise InputError(f"input '{self.name}': range {list(self.range)} must be [lowest, highest]")


# --- what the conventional parameter names of Hugging Face models mean ----------------------------


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


# --- making inputs --------------------------------------------------------------------------------


def make_inputs(model: nn.Module, specs: Iterable[InputSpec] = ()) -> dict[str, Any]:
    """Return example inputs by parameter name, in the order of forward's signature.

    Specs are used as they are. The rest comes from the model: its `example_inputs` (an attribute or method),
    or for a Hugging Face model its config. The values are the same each time; no global generator is used.

    Raises:
        InputError: a spec does not fit the model, or an input is missing that nothing tells how to make.
    """
    parameters = _read_parameters(model)
    given = _index_specs(specs)
    _check_names(model, parameters, given, what="input")
    example = _read_example(model, "example_inputs", parameters)
    if example is None and _is_pretrained(model):
        made = _make_pretrained(model, parameters, given)
    else:
        if example is None:
            example = _read_example(model, "dummy_inputs", parameters)
        made = _make_plain(model, parameters, given, example)
    return _sort(made, parameters)


def _read_parameters(model: nn.Module) -> _Parameters:
    return inspect.signature(model.forward).parameters


def _required(parameters: _Parameters) -> list[str]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters.values() if p.default is p.empty and p.kind not in variadic]


def _index_specs(specs: Iterable[InputSpec]) -> dict[str, InputSpec]:
    given: dict[str, InputSpec] = {}
    for spec in specs:
        if spec.name in given:
            raise InputError(f"input '{spec.name}' is given twice")
        given[spec.name] = spec
    return given


def _check_names(model: nn.Module, parameters: _Parameters, names: Iterable[str], *, what: str) -> None:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = [p.name for p in parameters.values() if p.kind in by_name]
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        # A model that takes anything is trusted with it, but for a name so near that it must be a slip.
        wrong = [name for name in names if name not in known and _suggest(name, known, cutoff=0.85)]
    else:
        wrong = [name for name in names if name not in known]
    for name in wrong:
        hint = _suggest(name, known) or f"; its parameters are {', '.join(known) or 'none'}"
        raise InputError(f"no {what} '{name}' in {type(model).__name__}.forward{hint}")


def _sort(made: Mapping[str, Any], parameters: _Parameters) -> dict[str, Any]:
    """Order inputs by the signature; what only **kwargs takes comes last."""
    names = [name for name in parameters if name in made]
    names += [name for name in made if name not in parameters]
    return {name: made[name] for name in names}


# --- a plain module -------------------------------------------------------------------------------


def _read_example(model: nn.Module, attribute: str, parameters: _Parameters) -> dict[str, Any] | None:
    """Return the inputs that a model offers: a mapping, a tensor or a sequence, or what makes one."""
    from torch import Tensor, nn

    try:
        found = getattr(model, attribute, None)
        if callable(found) and not isinstance(found, nn.Module):
            found = found()
    except Exception as error:
        raise InputError(f"{type(model).__name__}.{attribute} raised {_describe(error)}") from error
    if isinstance(found, Mapping):
        return dict(found)
    if isinstance(found, Tensor):
        found = (found,)
    return dict(zip(parameters, found, strict=False)) if isinstance(found, (tuple, list)) else None


def _make_plain(
    model: nn.Module,
    parameters: _Parameters,
    given: _Given,
    example: Mapping[str, Any] | None,
) -> dict[str, Any]:
    if example is not None and not given:
        return dict(example)
    generator = _make_generator()
    device = _read_device(model)
    made: dict[str, Any] = {name: _draw(spec, generator, _Limits()).to(device) for name, spec in given.items()}
    # Beside given inputs only the required ones are taken over: an optional one may be of another size.
    missing = [name for name in _required(parameters) if name not in made]
    made |= {name: example[name] for name in missing if example and name in example}
    _check_complete(model, parameters, made)
    return made


def _check_complete(model: nn.Module, parameters: _Parameters, made: Mapping[str, Any]) -> None:
    name = type(model).__name__
    kinds = {p.name: p.kind for p in parameters.values()}
    unnamed = [p for p in _required(parameters) if kinds[p] is inspect.Parameter.POSITIONAL_ONLY]
    if unnamed or (not made and set(kinds.values()) & {inspect.Parameter.VAR_POSITIONAL}):
        takes = ", ".join(unnamed) or "its inputs"
        raise InputError(f"{name}.forward takes {takes} by position only; export it from Python, with args=…")
    missing = [parameter for parameter in _required(parameters) if parameter not in made]
    if missing:
        raise InputError(_describe_missing(model, missing))


def _describe_missing(model: nn.Module, missing: Sequence[str]) -> str:
    options = " ".join(f"--input '{name}=dtype[shape]'" for name in missing)
    listed = ", ".join(missing)
    return (
        f"cannot tell what {type(model).__name__}.forward takes as {listed}; "
        f"pass {options}, for example --input '{missing[0]}=float32[1,3]'"
    )


# --- a Hugging Face model -------------------------------------------------------------------------


def _is_pretrained(model: nn.Module) -> bool:
    return hasattr(model, "config") and hasattr(model, "main_input_name")


def _make_pretrained(model: nn.Module, parameters: _Parameters, given: _Given) -> dict[str, Any]:
    """Make inputs from a config; where it allows several shapes, the first that the model runs with."""
    for spec in given.values():
        _check_spec(model, spec)
    names = _choose_names(model, parameters, given)
    shapes = {name: _list_shapes(model, name, given) for name in names if name in _MEANINGS}
    shapes = {name: found for name, found in shapes.items() if found}
    rest = _take_dummies(model, parameters, [name for name in names if name not in shapes])
    candidates = [
        {**_draw_all(model, [*given.values(), *_make_specs(model, choice)]), **rest} for choice in _combine(shapes)
    ]
    return candidates[0] if len(candidates) == 1 else _try_each(model, candidates)


def _take_dummies(model: nn.Module, parameters: _Parameters, names: Sequence[str]) -> dict[str, Any]:
    """Take what no table tells how to make from the model's own `dummy_inputs`."""
    dummies = (_read_example(model, "dummy_inputs", parameters) if names else None) or {}
    missing = [name for name in names if name not in dummies]
    if missing:
        raise InputError(_describe_missing(model, missing))
    return {name: dummies[name] for name in names}


def _choose_names(model: nn.Module, parameters: _Parameters, given: _Given) -> list[str]:
    """List the parameters to make: the main input, required ones and those that go with them."""
    config: Any = model.config
    main: Any = model.main_input_name
    names = [main] if isinstance(main, str) else list(main)
    names += _required(parameters)
    names += _list_modalities(model, parameters)
    if getattr(config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    # A mask beside images or audio is over patches or frames, whose number only the model knows.
    texts = {"input_ids", "inputs_embeds"} & {name for name in (*names, *given) if name in parameters}
    names += ["attention_mask"] if texts else []
    names += ["token_type_ids"] if texts and _read_config(config, ("type_vocab_size",)) else []
    known = (name for name in dict.fromkeys(names) if name in parameters and name not in given)
    return [name for name in known if _ALTERNATIVES.get(name) not in given]


def _list_modalities(model: nn.Module, parameters: _Parameters) -> list[str]:
    """List the inputs of the other modalities, but those that the text has placeholder tokens for."""
    modalities: Any = getattr(model, "input_modalities", ())
    if isinstance(modalities, str):
        return []
    placeholders = ("{}_token_id", "{}_token_index")
    names = []
    for modality in modalities:
        fields = tuple(field.format(modality) for field in placeholders)
        if _read_config(model.config, fields) is None:
            names += [name for name in _MODALITIES.get(modality, ()) if name in parameters][:1]
    return names


def _list_shapes(model: nn.Module, name: str, given: _Given) -> tuple[_Shape, ...]:
    """List the shapes that a parameter may have, by the model's config and the inputs given."""
    shapes = (tuple(_read_size(model, size, name, given) for size in shape) for shape in _MEANINGS[name].shapes)
    complete = (tuple(size for size in shape if size is not None) for shape in shapes if None not in shape)
    return tuple(dict.fromkeys(complete))


def _read_size(model: nn.Module, size: str, parameter: str, given: _Given) -> int | None:
    if size in ("batch", "sequence"):
        return _read_text_size(model, size, parameter, given)
    fields, default = _SIZES[size]
    found = _read_config(model.config, fields)
    if isinstance(found, (list, tuple)) and found:
        found = found[-1] if size == "width" else found[0]
    if not isinstance(found, int):
        return default
    return found * _count_stride(model) if size == "positions" else found


def _read_text_size(model: nn.Module, size: str, parameter: str, given: _Given) -> int:
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


def _count_stride(model: nn.Module) -> int:
    """Return by how much the model's 1-d convolutions shorten a sequence."""
    from torch import nn

    return prod(module.stride[0] for module in model.modules() if isinstance(module, nn.Conv1d))


def _combine(shapes: Mapping[str, tuple[_Shape, ...]]) -> Iterator[dict[str, _Shape]]:
    for choice in product(*shapes.values()):
        yield dict(zip(shapes, choice, strict=True))


def _make_specs(model: nn.Module, shapes: Mapping[str, _Shape]) -> list[InputSpec]:
    floating = str(_read_dtype(model)).removeprefix("torch.")
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
    found = {size: _read_config(model.config, _SIZES[size][0]) for size in _FIXED_SIZES}
    return tuple(found[size] if isinstance(found.get(size), int) else size for size in shape)


def _fits(shape: Sequence[int], expected: Sequence[str | int]) -> bool:
    return len(shape) == len(expected) and all(
        isinstance(wanted, str) or size == wanted for size, wanted in zip(shape, expected, strict=True)
    )


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
    tried = " and ".join(_describe_shapes(inputs) for inputs in candidates)
    raise InputError(
        f"{type(model).__name__} did not run with the inputs made from its config ({tried}); "
        f"pass --input name=dtype[shape]. The last error: {_describe(errors[-1])}"
    ) from errors[-1]


def _describe_shapes(inputs: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}{list(tensor.shape)}" for name, tensor in inputs.items())


# --- reading configs ------------------------------------------------------------------------------


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


# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Limits:
    """How to choose an input's values: by `kind`, below `count`, without `excluded`, `end` in last place."""

    kind: str = ""
    count: int = 2
    excluded: frozenset[int] = frozenset()
    end: int | None = None


def _read_limits(model: nn.Module, name: str) -> _Limits:
    config: Any = model.config
    kind = _MEANINGS[name].values if name in _MEANINGS else ""
    if kind == "types":
        return _Limits(kind, _read_config(config, ("type_vocab_size",)) or 1)
    if kind != "ids":
        return _Limits(kind)
    special = _read_special_ids(config)
    if name.startswith("decoder_"):
        text = config.get_text_config(decoder=True)
        return _Limits(kind, _read_config(text, ("vocab_size",)) or 2, special)
    count = _read_config(config, ("vocab_size",)) or 2
    # Some models pool at the end token, and refuse a text without one.
    end = _read_config(config, ("eos_token_id",))
    return _Limits(kind, count, special, end if isinstance(end, int) and 0 <= end < count else None)


def _draw_all(model: nn.Module, specs: Iterable[InputSpec]) -> dict[str, Any]:
    generator = _make_generator()
    device = _read_device(model)
    return {spec.name: _draw(spec, generator, _read_limits(model, spec.name)).to(device) for spec in specs}


def _make_generator() -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(0)


def _draw(spec: InputSpec, generator: torch.Generator, limits: _Limits) -> Tensor:
    """Make the values of one input."""
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    if spec.range is not None:
        return _draw_range(spec, generator, dtype)
    if limits.kind == "mask":
        return _draw_mask(spec.shape, dtype)
    if dtype.is_floating_point:
        return torch.randn(spec.shape, generator=generator).to(dtype)
    allowed = [value for value in range(limits.count) if value not in limits.excluded]
    choice = torch.tensor(allowed or [0])
    drawn = choice[torch.randint(len(choice), spec.shape, generator=generator)]
    if limits.end is not None:
        drawn[..., -1:] = limits.end
    return drawn.to(dtype)


def _draw_range(spec: InputSpec, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    import torch

    low, high = spec.range or (0, 1)
    if dtype.is_floating_point:
        return (low + (high - low) * torch.rand(spec.shape, generator=generator)).to(dtype)
    bounds = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not (bounds[0] <= low and high <= bounds[1] and low == int(low) and high == int(high)):
        raise InputError(
            f"input '{spec.name}': range [{low}, {high}] must be of whole numbers "
            f"between {bounds[0]} and {bounds[1]} for {spec.dtype}"
        )
    return torch.randint(int(low), int(high) + 1, spec.shape, generator=generator).to(dtype)


def _draw_mask(shape: _Shape, dtype: torch.dtype) -> Tensor:
    """Return ones, but 0 at the last position of the last row: a mask of ones alone would be folded away."""
    import torch

    mask = torch.ones(shape, dtype=dtype)
    if shape and shape[-1] > 1:
        mask.view(-1)[-1:] = 0
    return mask


def _read_device(model: nn.Module) -> torch.device:
    import torch

    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _read_dtype(model: nn.Module) -> torch.dtype:
    import torch

    dtypes = (parameter.dtype for parameter in model.parameters())
    return next((dtype for dtype in dtypes if dtype.is_floating_point), torch.float32)


# --- dynamic axes ---------------------------------------------------------------------------------


def to_dynamic_shapes(
    model: nn.Module, kwargs: Mapping[str, Any], dynamic: Mapping[str, Mapping[int, str]]
) -> dict[str, Any] | None:
    """Return the `dynamic_shapes` of an export, None where nothing is dynamic.

    Example:
        `{"x": {0: "batch"}}` with inputs x and mask gives `{"x": {0: "batch"}, "mask": None}`.

    Raises:
        InputError: there is no such input, or it has no such axis.
    """
    if not dynamic:
        return None
    _check_dynamic(model, kwargs, dynamic)
    parameters = _read_parameters(model)
    shapes: dict[str, Any] = {}
    for name in _sort(kwargs, parameters):
        axes = dict(dynamic[name]) if name in dynamic else None
        if name in parameters:
            shapes[name] = axes
        else:  # torch.export sees what **kwargs took as one mapping under the name of that parameter
            variadic = next(p.name for p in parameters.values() if p.kind is p.VAR_KEYWORD)
            shapes.setdefault(variadic, {})[name] = axes
    return shapes


def _check_dynamic(model: nn.Module, kwargs: Mapping[str, Any], dynamic: Mapping[str, Mapping[int, str]]) -> None:
    _check_names(model, _read_parameters(model), dynamic, what="dynamic input")
    for name, axes in dynamic.items():
        if name not in kwargs:
            hint = _suggest(name, list(kwargs)) or f"; the inputs are {', '.join(kwargs) or 'none'}"
            raise InputError(f"dynamic input '{name}' is not among the inputs of this export{hint}")
        shape = getattr(kwargs[name], "shape", None)
        if shape is None:
            raise InputError(f"dynamic input '{name}' is a {type(kwargs[name]).__name__}, not a tensor")
        wrong = [axis for axis in axes if not 0 <= axis < len(shape)]
        if wrong:
            raise InputError(f"input '{name}' of shape {list(shape)} has no axis {wrong[0]}")


def _suggest(name: str, known: Sequence[str], *, cutoff: float = 0.6) -> str:
    near = get_close_matches(name, known, cutoff=cutoff)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _describe(error: Exception) -> str:
    """Return an error's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
