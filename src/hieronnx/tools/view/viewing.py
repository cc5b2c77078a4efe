"""View: write one HTML page that shows a model by its modules, or the picture of one of its calls."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from hieronnx.errors import InputError
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import open_model
from hieronnx.files.staging import write_whole
from hieronnx.files.torch_scopes import note_torch_scopes
from hieronnx.graph.view import ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.tools.analyze.counting import analyze
from hieronnx.tools.extract.source import Source, prepare
from hieronnx.tools.results import Result, WrittenFile
from hieronnx.tools.view.data import collect, make_pictures
from hieronnx.tools.view.differences import find_kinds
from hieronnx.tools.view.measured import Measured, read_measured
from hieronnx.tools.view.mermaid import make_mermaid
from hieronnx.tools.view.page import make_page
from hieronnx.tools.view.svg import make_svg

if TYPE_CHECKING:
    from hieronnx.tools.profile.result import ProfileResult
    from hieronnx.tools.verify.result import VerifyResult

Saved: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"
"""What a command printed with `--json`: a file, or the values themselves."""


@dataclass(frozen=True, slots=True)
class ViewResult(Result):
    """A page that shows a model, or a picture of one of its calls.

    Attributes:
        model: the file's path as it was given; `model` for a model in memory.
        form: `html` for a page, `svg` or `mermaid` for a picture.
        path: where it was written; None where it was not.
        content: the page or the picture itself.
        calls: how many calls the model has.
        nodes: how many nodes.
        notes: what a reader should know.
    """

    _derived: ClassVar[tuple[str, ...]] = ("files",)

    model: str
    form: str
    path: Path | None
    content: str
    calls: int
    nodes: int
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else str(self.path)
        return f"ViewResult({self.model}: {self.calls} calls, {self.nodes} nodes, {where})"

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """The page or picture, if it was written and is there."""
        there = self.path is not None and self.path.is_file()
        return (WrittenFile(self.path, self.path.stat().st_size),) if there and self.path is not None else ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values; the page or picture itself is in its file."""
        from hieronnx.tools.results import dump_record

        return dump_record(self, {"content"})


@reads_files
def view(
    model: ModelLike,
    *,
    output: str | os.PathLike[str] | None = None,
    profile: Saved | ProfileResult | None = None,
    verify: Saved | VerifyResult | None = None,
    dims: Mapping[str, int] | None = None,
    against: ModelLike | Sequence[ModelLike] = (),
    svg: str | None = None,
    mermaid: str | None = None,
    unfold: bool = False,
) -> ViewResult:
    """Show a model by its modules in one HTML page, which needs no network and no server; no weights are read.

    Args:
        model: The model, with its hierarchy: a file, a ModelProto or an ir.Model.
        output: Where to write the page; without it, the page is in the result alone.
        profile: Times to show: a result of `profile`, or the file that its command printed with `--json`.
        verify: Errors to show: a result of `verify`, or the file that its command printed with `--json`.
        dims: Sizes of dynamic axes, by the axes' names, to count multiply-adds with.
        against: Another form of the model, or several, each with a hierarchy: what optimizers or quantizers made of
            it. They are shown beside it, call by call, with what was added, removed and changed from each to the next.
        svg: A call, by its path or tag: write its picture alone, as SVG.
        mermaid: A call, by its path or tag: write its picture alone, as a Mermaid flowchart for Markdown.
        unfold: Whether a picture shows long repeats of one class one by one.

    Raises:
        HieronnxError: If the model cannot be read or has no hierarchy, or the output cannot be written.
        InputError: If there is no such call, or both kinds of pictures are asked for.

    Example:
        >>> hieronnx.view("model.onnx", output="model.html")
        ViewResult(model.onnx: 215 calls, 443 nodes, model.html)
    """
    if svg is not None and mermaid is not None:
        raise InputError("a picture is SVG or Mermaid, not both; ask for one at a time")
    opened = open_model(model)
    source = prepare(opened)
    hierarchy = source.hierarchy
    measured = read_measured(hierarchy.calls, profile, verify)
    pictures = make_pictures(source)
    if svg is not None:
        form, content = "svg", make_svg(pictures, _find(hierarchy, svg), folded=not unfold)
    elif mermaid is not None:
        form, content = "mermaid", make_mermaid(pictures, _find(hierarchy, mermaid), folded=not unfold)
    else:
        data = collect(pictures, analyze(model, all_calls=True, dims=dims), measured)
        _add_others(data, (model, source), _list_models(against), dims)
        form, content = "html", make_page(data, f"{data['title']} · {data['file'] or 'hieronnx'}")
    path = None if output is None else Path(output)
    if path is not None:
        write_whole(path, content)
    return ViewResult(
        model=opened.name,
        form=form,
        path=path,
        content=content,
        calls=len(hierarchy.calls),
        nodes=len(hierarchy.nodes),
        notes=tuple(note_torch_scopes(opened.name, hierarchy.strategy)),
    )


def _find(hierarchy: Hierarchy, target: str) -> int:
    """Return the number of the call that a target names."""
    return hierarchy.calls.index(hierarchy.find_call(target))


def _list_models(against: ModelLike | Sequence[ModelLike]) -> list[ModelLike]:
    return list(against) if isinstance(against, list | tuple) else [cast("ModelLike", against)]


def _add_others(
    data: dict[str, Any],
    first: tuple[ModelLike, Source],
    others: Sequence[ModelLike],
    dims: Mapping[str, int] | None,
) -> None:
    """Add other forms of the model to the page's data, and what differs from each to the next."""
    before, known = first, data
    data["others"] = []
    for other in others:
        source = prepare(open_model(other))
        entry = collect(make_pictures(source), analyze(other, all_calls=True, dims=dims), Measured())
        lost, new = find_kinds(before, (other, source))
        known.setdefault("kinds", lost)
        entry["kinds"] = new
        data["others"].append(entry)
        before, known = (other, source), entry
