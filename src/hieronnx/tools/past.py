"""A decoder with its cache: the arguments of its export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hieronnx.errors import require

if TYPE_CHECKING:
    from torch import Tensor, nn


def with_past(model: nn.Module, input_ids: Tensor | None = None) -> dict[str, Any]:
    """Return the arguments of `export` for a Transformers decoder with its cache.

    The file takes `input_ids`, `attention_mask`, `position_ids` where the model does, and `past_key_values.N.key` and
    `.value`; it gives what the model returns and `present.N.key` and `.value`. Batch and lengths are dynamic; a past
    of length 0 is the first step.

    Args:
        model: The model, with `config.use_cache` set.
        input_ids: An example text of at least three tokens for each sequence; by default it is drawn.

    Raises:
        InputError: The model has no cache of keys and values, or does not return it.
        MissingExtraError: Transformers is not installed.

    Example:
        >>> hieronnx.export(model, (), "decoder.onnx", **hieronnx.with_past(model))
    """
    require("transformers", "hf")
    from hieronnx.capture.past import make_past_inputs

    return make_past_inputs(model, input_ids)
