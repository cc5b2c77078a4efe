"""Reading the texts that come with the package."""

from __future__ import annotations

from importlib import resources


def read_shipped(name: str) -> str:
    """Return the text of a file in `files/page`."""
    return resources.files("hieronnx.files").joinpath("page", name).read_text(encoding="utf-8")
