"""Example inputs by forward's parameter names.

torch is imported in the functions that need it, so that the command line can parse without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from hieronnx.capture.specs import InputSpec, Limits, Parameters, draw_all, required, suggest
from hieronnx.errors import InputError, describe_error

if TYPE_CHECKING:
    from torch import nn

_Given: TypeAlias = Mapping[str, InputSpec]
NO_TENSOR = "what is no tensor is given with --inputs-from FILE.PY:FUNCTION, and all else with it"


@dataclass(frozen=True, slots=True)
class Examples:
    """Example inputs by parameter name, in the order of forward's signature.

    Attributes:
        values: The inputs.
        made_up: Those that no spec gave, and what they are made from: `config`, `example_inputs` or `dummy_inputs`.
    """

    values: dict[str, Any]
    made_up: dict[str, str]


def make_inputs(model: nn.Module, specs: Iterable[InputSpec] = ()) -> dict[str, Any]:
    """Return example inputs by parameter name, as `make_examples` makes them."""
    return make_examples(model, specs).values


def make_examples(
    model: nn.Module, specs: Iterable[InputSpec] = (), *, only: bool = False, without: Collection[str] = ()
) -> Examples:
    """Make example inputs.

    Specs are used as they are, and with `only` nothing else is made but what `forward` must be given; the parameters
    `without` are left out. The rest comes from the model: its `example_inputs` (an attribute or method), or for a
    Hugging Face model its config. The values are the same each time; no global generator is used.

    Raises:
        InputError: a spec does not fit the model, or an input is missing that nothing tells how to make.
    """
    from hieronnx.capture.modules import forward_signature

    parameters = {name: p for name, p in forward_signature(model).parameters.items() if name not in without}
    given: dict[str, InputSpec] = {}
    for spec in specs:
        if spec.name in given:
            raise InputError(f"input '{spec.name}' is given twice")
        given[spec.name] = spec
    check_names(model, parameters, given, what="input")
    source, example = "example_inputs", _read_example(model, "example_inputs", parameters)
    if example is None and hasattr(model, "config") and hasattr(model, "main_input_name"):  # of Hugging Face
        source, made = "config", _make_pretrained(model, parameters, given, only=only)
    else:
        if example is None:
            source, example = "dummy_inputs", _read_example(model, "dummy_inputs", parameters)
        made = _make_plain(model, parameters, given, example)
    inputs = sort_inputs(made, parameters)
    return Examples(inputs, {name: source for name in inputs if name not in given})


def check_names(model: nn.Module, parameters: Parameters, names: Iterable[str], *, what: str) -> None:
    """Make sure that a model's `forward` takes arguments of these names.

    Raises:
        InputError: If it does not.
    """
    accepted = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in names:
        # A model that takes anything is trusted with it, but for a name so near that it must be a slip.
        if name in accepted or (takes_any and not suggest(name, accepted, cutoff=0.85)):
            continue
        hint = suggest(name, accepted) or f"; its parameters are {', '.join(accepted) or 'none'}"
        if any(name.startswith(f"{parameter}_") for parameter in accepted):
            hint += f"; {NO_TENSOR}"
        raise InputError(f"no {what} '{name}' in {type(model).__name__}.forward{hint}")


def _read_example(model: nn.Module, attribute: str, parameters: Parameters) -> dict[str, Any] | None:
    """Return the inputs that a model offers: a mapping, a tensor or a sequence, or what makes one."""
    from torch import Tensor, nn

    try:
        example = getattr(model, attribute, None)
        if callable(example) and not isinstance(example, nn.Module):
            example = example()
    except Exception as error:
        raise InputError(f"{type(model).__name__}.{attribute} raised {describe_error(error)}") from error
    if isinstance(example, Mapping):
        return dict(example)
    values = (example,) if isinstance(example, Tensor) else example
    return dict(zip(parameters, values, strict=False)) if isinstance(values, (tuple, list)) else None


def _check_complete(model: nn.Module, missing: Sequence[str]) -> None:
    """Refuse to go on where nothing tells how to make some inputs."""
    if missing:
        options = " ".join(f"--input '{name}=dtype[shape]'" for name in missing)
        raise InputError(
            f"cannot tell what {type(model).__name__}.forward takes as {', '.join(missing)}; "
            f"pass {options}, for example --input '{missing[0]}=float32[{_imagine_shape(model)}]'; {NO_TENSOR}"
        )


def _imagine_shape(model: nn.Module) -> str:
    """Return a shape that the model's first weight would take: one sample, as many channels, a size for each axis."""
    from torch.nn.parameter import is_lazy

    weights = (weight for weight in model.parameters() if not is_lazy(weight) and weight.dim() > 1)
    channels, *kernel = next((weight.shape[1:] for weight in weights), (3,))
    return ",".join(map(str, (1, channels, *(64 for _ in kernel))))


def sort_inputs(inputs: Mapping[str, Any], parameters: Parameters) -> dict[str, Any]:
    """Order inputs by the signature; what only **kwargs takes comes last."""
    return {name: inputs[name] for name in dict.fromkeys((*parameters, *inputs)) if name in inputs}


def _make_plain(
    model: nn.Module, parameters: Parameters, given: _Given, example: Mapping[str, Any] | None
) -> dict[str, Any]:
    if example is not None and not given:
        return dict(example)
    inputs: dict[str, Any] = dict(draw_all(model, dict.fromkeys(given.values(), Limits())))
    # Beside given inputs only the required ones are taken over: an optional one may be of another size.
    missing = [name for name in required(parameters) if name not in inputs]
    inputs |= {name: example[name] for name in missing if example and name in example}
    unnamed = [p for p in required(parameters) if parameters[p].kind is inspect.Parameter.POSITIONAL_ONLY]
    if unnamed or (not inputs and any(p.kind is p.VAR_POSITIONAL for p in parameters.values())):
        takes = f"{type(model).__name__}.forward takes {', '.join(unnamed) or 'its inputs'}"
        raise InputError(f"{takes} by position only; export it from Python, with args=…")
    _check_complete(model, [name for name in missing if name not in inputs])
    return inputs


# --- Hugging Face models: from the conventional names of parameters, and configs ------------------

_IMAGES = ("batch frames channels height width", "batch channels height width")
# The shapes that a parameter may take, in named sizes.
_SHAPES: Mapping[str, tuple[str, ...]] = {
    "input_ids": ("batch sequence",),
    "decoder_input_ids": ("batch sequence",),
    "attention_mask": ("batch sequence",),
    "token_type_ids": ("batch sequence",),
    "pixel_values": _IMAGES,
    "pixel_values_videos": _IMAGES,
    "input_values": ("batch length bins", "batch tracks samples", "batch samples"),
    "input_features": ("batch bins steps", "batch steps bins", "batch bins positions", "batch positions bins"),
}
# The kind of values of those that take no floats.
_KINDS = {"input_ids": "ids", "decoder_input_ids": "ids", "attention_mask": "mask", "token_type_ids": "types"}
_BATCH, _SEQUENCE = 2, 8  # where no input that is given has a size
# The config fields that give another size, and the size where a config has none of them. A shape with a size that
# has neither is none of the model's.
_SIZES: Mapping[str, tuple[tuple[str, ...], int | None]] = {
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
_ALTERNATIVES = {"input_ids": "inputs_embeds", "decoder_input_ids": "decoder_inputs_embeds"}


def _make_pretrained(model: nn.Module, parameters: Parameters, given: _Given, *, only: bool) -> dict[str, Any]:
    """Make inputs from a config; where it allows several shapes, the first that the model runs with."""
    for spec in given.values():
        _check_spec(model, spec)
    missing = [name for name in required(parameters) if name not in given]
    names = missing if only else _choose_names(model, parameters, given)
    shapes = {name: possible for name in names if (possible := _list_shapes(model, name, given))}
    # What no table tells how to make comes from the model's own `dummy_inputs`.
    others = [name for name in names if name not in shapes]
    dummies = (_read_example(model, "dummy_inputs", parameters) if others else None) or {}
    _check_complete(model, [name for name in others if name not in dummies])
    floats = (parameter.dtype for parameter in model.parameters() if parameter.dtype.is_floating_point)
    dtype = str(next(floats, "float32")).removeprefix("torch.")
    candidates = []
    for choice in product(*shapes.values()):
        drawn = (InputSpec(n, "int64" if n in _KINDS else dtype, s) for n, s in zip(shapes, choice, strict=True))
        limits = {spec: _read_limits(model.config, spec.name) for spec in (*given.values(), *drawn)}
        candidates.append({**draw_all(model, limits), **{name: dummies[name] for name in others}})
    return candidates[0] if len(candidates) == 1 else try_each(model, candidates, "from its config")


def _choose_names(model: nn.Module, parameters: Parameters, given: _Given) -> list[str]:
    """List the parameters to make: the main input, required ones and those that go with them."""
    config: Any = model.config
    main: Any = model.main_input_name
    names = [*([main] if isinstance(main, str) else main), *required(parameters), *_list_modalities(model, parameters)]
    if getattr(config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    # A mask beside images or audio is over patches or frames, whose number only the model knows.
    texts = {"input_ids", "inputs_embeds"} & {name for name in (*names, *given) if name in parameters}
    names += ["attention_mask"] if texts else []
    names += ["token_type_ids"] if texts and _read_config(config, ("type_vocab_size",)) else []
    missing = (name for name in dict.fromkeys(names) if name in parameters and name not in given)
    return [name for name in missing if _ALTERNATIVES.get(name) not in given]


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


def _list_shapes(model: nn.Module, name: str, given: _Given) -> tuple[tuple[int, ...], ...]:
    """List the shapes that a parameter may have, by the model's config and the inputs given."""
    named = (shape.split() for shape in _SHAPES.get(name, ()))
    shapes = (tuple(_read_size(model, size, name, given) for size in shape) for shape in named)
    complete = (tuple(size for size in shape if size is not None) for shape in shapes if None not in shape)
    return tuple(dict.fromkeys(complete))


def _read_size(model: nn.Module, size: str, parameter: str, given: _Given) -> int | None:
    if size == "batch":
        return next((spec.shape[0] for spec in given.values() if spec.shape), _BATCH)
    if size == "sequence":
        return _read_length(model, parameter, given)
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


def _read_length(model: nn.Module, parameter: str, given: _Given) -> int:
    """Return the length of a text: that of the texts given, where there are any."""
    texts = [given[name].shape for name in ("input_ids", "inputs_embeds", "attention_mask") if name in given]
    lengths = [shape[1] for shape in texts if len(shape) > 1]
    if lengths and not parameter.startswith("decoder_"):
        return lengths[0]
    limit = _read_config(model.config, ("max_position_embeddings", "max_target_positions"))
    return min(_SEQUENCE, limit) if isinstance(limit, int) and limit > 0 else _SEQUENCE


def _check_spec(model: nn.Module, spec: InputSpec) -> None:
    """Refuse a given dtype or shape that the model cannot take."""
    kind = _KINDS.get(spec.name)
    if spec.name not in _SHAPES or kind == "mask":  # masks of more axes and of any dtype are in use
        return
    if kind is not None and not spec.dtype.startswith(("int", "uint")):
        raise InputError(f"input '{spec.name}' takes integers; got {spec.dtype}, try int64")
    fixed = {size: _read_config(model.config, _SIZES[size][0]) for size in _FIXED_SIZES}
    possible = [
        [fixed[size] if isinstance(fixed.get(size), int) else size for size in shape.split()]
        for shape in _SHAPES[spec.name]
    ]
    given = ",".join(map(str, spec.shape))
    if not any(_fits(spec.shape, shape) for shape in possible):
        expected = " or ".join(f"[{','.join(map(str, shape))}]" for shape in possible)
        raise InputError(f"input '{spec.name}' has shape [{given}]; {type(model).__name__} takes {expected}")


def _fits(shape: Sequence[int], expected: Sequence[str | int]) -> bool:
    pairs = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(isinstance(wanted, str) or size == wanted for size, wanted in pairs)


def try_each(model: nn.Module, candidates: Sequence[dict[str, Any]], source: str) -> dict[str, Any]:
    """Return the first inputs that the model runs with; its modes and the random state stay as they were.

    Raises:
        InputError: If it runs with none; it says from what source they were made.
    """
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
    shapes = (", ".join(f"{n}{_describe_shape(value)}" for n, value in inputs.items()) for inputs in candidates)
    raise InputError(
        f"{type(model).__name__} did not run with the inputs made {source} ({' and '.join(shapes)}); "
        f"pass --input name=dtype[shape]; {NO_TENSOR}. The last error: {describe_error(errors[-1])}"
    ) from errors[-1]


def _describe_shape(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f" (a {type(value).__name__})" if shape is None else str(list(shape))


# --- reading configs ------------------------------------------------------------------------------


def _read_limits(config: Any, name: str) -> Limits:
    kind = _KINDS.get(name, "")
    if kind == "types":
        return Limits(kind, _read_config(config, ("type_vocab_size",)) or 1)
    if kind != "ids":
        return Limits(kind)
    # Token ids that mean something to the model (padding, end, image, …) are left out.
    fields = (item for part in _walk_configs(config) for item in vars(part).items())
    values = (value for field, value in fields if field.endswith(("_token_id", "_token_index")))
    flat = (item for value in values for item in (value if isinstance(value, (list, tuple)) else (value,)))
    special = frozenset(item for item in flat if isinstance(item, int))
    if name.startswith("decoder_"):
        return Limits(kind, _read_config(config.get_text_config(decoder=True), ("vocab_size",)) or 2, special)
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
    values = (getattr(part, field, None) for part in _walk_configs(config) for field in fields)
    return next((value for value in values if value is not None), None)
