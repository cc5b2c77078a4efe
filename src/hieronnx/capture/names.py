"""Names for a file's inputs and outputs: those of `forward`'s arguments, and of what it returns.

torch is handed them as its own `input_names` and `output_names`, in lists that are empty when it begins: it reads them
when its graph is finished, and by then a route has filled in what it saw of the model. So nothing is run for them.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from torch import nn

from hieronnx.capture.modules import forward_signature
from hieronnx.capture.private_torch import pytree

_OUTPUT = "output"
"""The name of what is returned without one."""


@dataclass(frozen=True, slots=True)
class BoundaryNames:
    """The names to give, filled in by a route; None where the user gave names, or wants torch's."""

    inputs: list[str] | None = None
    outputs: list[str] | None = None

    @classmethod
    def beside(cls, options: Mapping[str, Any]) -> BoundaryNames:
        """Return empty lists for what torch's own options do not name."""
        return cls(*(None if options.get(option) else [] for option in ("input_names", "output_names")))

    @property
    def options(self) -> dict[str, Any]:
        """The lists as options of torch."""
        lists = {"input_names": self.inputs, "output_names": self.outputs}
        return {option: names for option, names in lists.items() if names is not None}

    def fill_inputs(self, names: Iterable[str]) -> None:
        """Put names in the place of those that an attempt before this one may have left."""
        if self.inputs is not None:
            self.inputs[:] = names

    def fill_outputs(self, names: Iterable[str]) -> None:
        """Put names in the place of those that an attempt before this one may have left."""
        if self.outputs is not None:
            self.outputs[:] = names


def name_arguments(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Name what a model is given, argument by argument in that order: as `forward` names it.

    What `*args` takes is named by its index; what `**kwargs` takes, by its keyword.
    """
    parameters = list_parameters(model).values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "input")
    names += [f"{rest}_{index}" for index in range(len(args) - len(names))]
    return [*zip(names, args, strict=False), *kwargs.items()]


def list_parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a model's `forward`; none where it does not tell, as one that torch traced."""
    try:
        return forward_signature(model).parameters
    except (TypeError, ValueError):
        return {}


def name_leaves(arguments: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Name the leaves of arguments by the way to each, as torch.export does: `pair_0`, `more_x`."""
    return [("_".join((name, *steps)), leaf) for name, value in arguments for steps, leaf in _walk(value)]


def name_results(result: Any) -> list[tuple[str, Any]]:
    """Name the leaves of what a model returned: by key or field; `output` or `output_0` where there is none.

    Example:
        `{"logits": a, "states": (b, c)}` has `logits`, `states_0`, `states_1`; `(a, b)` has `output_0`, `output_1`.
    """
    named = (
        (steps if steps and not steps[0].isdecimal() else (_OUTPUT, *steps), leaf) for steps, leaf in _walk(result)
    )
    return [("_".join(steps), leaf) for steps, leaf in named]


def _walk(value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the leaves of a structure that torch knows, with the way to each."""
    handler = pytree.SUPPORTED_NODES.get(pytree._get_node_type(value))
    if handler is None:
        yield (), value
        return
    children: Iterable[tuple[Any, Any]] = enumerate(handler.flatten_fn(value)[0])
    if handler.flatten_with_keys_fn is not None:
        children = handler.flatten_with_keys_fn(value)[0]
    for key, child in children:
        for steps, leaf in _walk(child):
            yield (_name_step(key), *steps), leaf


def _name_step(key: Any) -> str:
    if isinstance(key, pytree.SequenceKey):
        return str(key.idx)
    return str(key.key) if isinstance(key, pytree.MappingKey) else str(getattr(key, "name", key))


def make_unique(names: Iterable[str], taken: Collection[str], suffix: str) -> list[str]:
    """Return names that differ from each other and from those taken: a second `x` is `x_out`, a third `x_1`."""
    used = set(taken)
    unique = []
    for name in (name or _OUTPUT for name in names):
        choices = chain((name, f"{name}_{suffix}"), (f"{name}_{number}" for number in count(1)))
        unique.append(next(choice for choice in choices if choice not in used))
        used.add(unique[-1])
    return unique
