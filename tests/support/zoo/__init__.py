"""The fixture zoo: one tiny model per edge case, each named for its case.

| file | what is in it |
|---|---|
| `_case.py` | the `Case` record, and what makes builds and inputs reproducible |
| `edge_cases.py` | the plain PyTorch cases, over the models of the next four files |
| `_calls.py` | who calls which module, how often, by which name |
| `_containers.py` | containers, and the names that they give |
| `_operators.py` | operators that exporters fold, fuse, merge or rewrite; unusual inputs and outputs |
| `_control_flow.py` | bodies: `torch.cond`, `torch.while_loop`, scripted functions |
| `transformers_models.py` | Transformers models from small configs, with random weights |
"""

from __future__ import annotations

from ._case import Case
from .edge_cases import EDGE_CASES
from .transformers_models import TRANSFORMERS_CASES

CASES: dict[str, Case] = {case.name: case for case in (*EDGE_CASES, *TRANSFORMERS_CASES)}


def case(name: str) -> Case:
    """Return the case of this name.

    Raises:
        KeyError: There is no such case.
    """
    try:
        return CASES[name]
    except KeyError as error:
        raise KeyError(f"no zoo case {name!r}; there are: {', '.join(CASES)}") from error


__all__ = ["CASES", "Case", "case"]
