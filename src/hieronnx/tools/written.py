"""The base of the results of what writes a model: the files that were written, and a page that shows them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hieronnx.errors import InputError
from hieronnx.tools.results import Result, WrittenFile, list_files

if TYPE_CHECKING:
    from hieronnx.tools.view.viewing import ViewResult


class WritingResult(Result):
    """The base of the results of what writes a model."""

    __slots__ = ()
    _derived: ClassVar[tuple[str, ...]] = ("files",)
    path: Path | None
    sidecar: Path | None

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """The model, the files that its weights are in, and the sidecar, as they are on the disk now."""
        return list_files(self.path, self.sidecar)

    def view(self, output: str | os.PathLike[str] | None = None, **options: Any) -> ViewResult:
        """Show what was written in a page, as `hieronnx.view` does, with its options.

        Raises:
            InputError: If nothing was written.
        """
        from hieronnx.tools.view.viewing import view

        if self.path is None:
            raise InputError("the model was not written; give 'output', or hand the model to hieronnx.view")
        return view(self.path, output=output, **options)
