"""Marks that several test files share."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest


def over(pairs: Sequence[tuple[str, str]], quick: Collection[str] | None = None) -> pytest.MarkDecorator:
    """Run over these exports; those of other models than the quick ones, if these are given, are long."""
    return pytest.mark.parametrize(
        ("name", "exporter"),
        [
            pytest.param(*pair, id="-".join(pair), marks=() if quick is None or pair[0] in quick else pytest.mark.long)
            for pair in pairs
        ],
    )
