"""How much of each category of operators should be attributed, where the user says so."""

from __future__ import annotations

from collections.abc import Mapping

from hieronnx.errors import InputError, check_known
from hieronnx.hierarchy.categories import CATEGORIES


def read_thresholds(given: Mapping[str, float]) -> dict[str, float]:
    """Return the threshold of every category: the one that is given, else its own.

    Raises:
        InputError: If a category is not known, or its threshold is no percentage.
    """
    for name, percent in given.items():
        check_threshold(name, percent)
    return {name: given.get(name, category.threshold) for name, category in CATEGORIES.items()}


def check_threshold(name: str, percent: float) -> None:
    """Make sure that a threshold is one.

    Raises:
        InputError: If there is no such category, or the number is no percentage.
    """
    check_known("category", name, CATEGORIES)
    if not 0 <= percent <= 100:
        raise InputError(f"the threshold of category '{name}' is {percent:g}; it must be between 0 and 100")
