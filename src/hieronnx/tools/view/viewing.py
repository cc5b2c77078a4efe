"""View: write one HTML page that shows a model by its modules, or the picture of one of its calls."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from hieronnx.errors import InputError
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import open_model
from hieronnx.files.staging import new_files, write_whole
from hieronnx.files.torch_scopes import note_torch_scopes
from hieronnx.files.writing import check_kept, list_own_files
from hieronnx.graph.view import ModelLike
from hieronnx.tools.analyze.counting import analyze
from hieronnx.tools.extract.source import Source, prepare
from hieronnx.tools.fold.unfolding import unfold_opened
from hieronnx.tools.results import Result, WrittenFile, dump_record
from hieronnx.tools.view.data import collect, make_pictures
from hieronnx.tools.view.explorer import make_graphs, make_node_data
from hieronnx.tools.view.measured import Measured, read_measured
from hieronnx.tools.view.mermaid import make_mermaid
from hieronnx.tools.view.page import make_page
from hieronnx.tools.view.png import make_png
from hieronnx.tools.view.statistics import measure_weights
from hieronnx.tools.view.svg import make_svg

if TYPE_CHECKING:
    from hieronnx.tools.profile.result import ProfileResult
    from hieronnx.tools.verify.result import VerifyResult

_PICTURES = ("svg", "png", "mermaid")
_FORMS_WITH: Mapping[str, tuple[str, ...]] = {
    "output": ("html", *_PICTURES),
    "profile": ("html", "model-explorer"),
    "verify": ("html", "model-explorer"),
    **dict.fromkeys(("dims", "against", "statistics"), ("html",)),
    "unfold": _PICTURES,
}
"""Which forms each option has a say in."""

Saved: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any]"
"""What a command printed with `--json`: a file, or the values themselves."""


@dataclass(frozen=True, slots=True)
class ViewResult(Result):
    """A page that shows a model, a picture of one of its calls, or what another viewer shows.

    Attributes:
        model: the file's path as it was given; `model` for a model in memory.
        form: `html` for a page; `svg`, `png` or `mermaid` for a picture; `model-explorer`.
        path: where it was written, a folder for Model Explorer; None where it was not written.
        content: the page or the picture itself; for Model Explorer the graph.
        calls: how many calls the model has.
        nodes: how many nodes.
        files: what was written.
        notes: what a reader should know.
    """

    model: str
    form: str
    path: Path | None
    content: str | bytes
    calls: int
    nodes: int
    files: tuple[WrittenFile, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else str(self.path)
        return f"ViewResult({self.model}: {self.calls} calls, {self.nodes} nodes, {where})"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values; the page or picture itself is in its file."""
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
    statistics: bool = False,
    svg: str | None = None,
    png: str | None = None,
    mermaid: str | None = None,
    unfold: bool = False,
    model_explorer: str | os.PathLike[str] | None = None,
) -> ViewResult:
    """Show a model by its modules in one HTML page, which needs no network and no server.

    Args:
        model: The model, with its hierarchy: a file, a ModelProto or an ir.Model.
        output: Where to write the page or picture; without it, it is in the result alone.
        profile: Times to show: a result of `profile`, or the file that its command printed with `--json`.
        verify: Errors to show: a result of `verify`, or the file that its command printed with `--json`.
        dims: Sizes of dynamic axes, by the axes' names, to count multiply-adds with.
        against: Another form of the model, or several, each with a hierarchy: what optimizers or quantizers made of
            it. They are shown beside it, call by call, with what was added, removed and changed from each to the next.
        statistics: Whether the page has statistics of the weights. No weights are read otherwise.
        svg: A call, by its path or tag: write its picture alone, as SVG.
        png: A call: write its picture alone, as PNG, which a browser on this machine draws.
        mermaid: A call: write its picture alone, as a Mermaid flowchart for Markdown.
        unfold: Whether a picture shows long repeats of one class one by one.
        model_explorer: A folder: write the graph, nested by calls, and data of its nodes for Model Explorer.

    Raises:
        HieronnxError: If the model cannot be read or has no hierarchy, or the output cannot be written.
        InputError: If there is no such call, several forms are asked for, or an option has no say in that form.

    Example:
        >>> hieronnx.view("model.onnx", output="model.html")
        ViewResult(model.onnx: 215 calls, 443 nodes, model.html)
    """
    forms = {"svg": svg, "png": png, "mermaid": mermaid, "model-explorer": model_explorer}
    form, others = _find_form(forms), _list_models(against)
    _check_options(form, output=output, profile=profile, verify=verify, dims=dims, against=others)
    _check_options(form, statistics=statistics, unfold=unfold)
    opened = unfold_opened(open_model(model))
    source = prepare(opened)
    measured = read_measured(source.hierarchy.calls, profile, verify)
    contents: dict[str, str | bytes]
    if form == "html":
        contents = {"": _make_page(model, source, measured, others, dims, statistics=statistics)}
    elif form == "model-explorer":
        contents = _make_explorer(source, measured)
    else:
        contents = {"": _make_picture(source, form, str(forms[form]), folded=not unfold)}
    place = model_explorer if output is None else output
    path = None if place is None else Path(place)
    read = _list_read((model, *others), (profile, verify))
    files = () if path is None else _write(path, {path / name: item for name, item in contents.items()}, read)
    return ViewResult(
        model=opened.name,
        form=form,
        path=path,
        content=next(iter(contents.values())),
        calls=len(source.hierarchy.calls),
        nodes=len(source.hierarchy.nodes),
        files=files,
        notes=tuple(note_torch_scopes(opened.name, source.hierarchy.strategy)),
    )


def _find_form(forms: Mapping[str, Any]) -> str:
    """Return the form that was asked for: a page, unless it is another.

    Raises:
        InputError: If there are several.
    """
    asked = [name for name, given in forms.items() if given is not None]
    if len(asked) > 1:
        raise InputError(f"ask for one form at a time, not for {' and '.join(asked)}")
    return asked[0] if asked else "html"


def _check_options(form: str, **options: Any) -> None:
    """Make sure that every option that is given has a say in the form that was asked for.

    Raises:
        InputError: If one has none.
    """
    for name, given in options.items():
        if given and form not in _FORMS_WITH[name]:
            raise InputError(
                f"'{name}' is for {' and '.join(_FORMS_WITH[name])}, not for {form}; leave one of the two out"
            )


def _list_models(against: ModelLike | Sequence[ModelLike]) -> list[ModelLike]:
    return list(against) if isinstance(against, list | tuple) else [cast("ModelLike", against)]


def _list_read(models: Iterable[ModelLike], measured: Iterable[Any]) -> set[Path]:
    """Return the files that are read."""
    files = {file for model in models for file in list_own_files(model)}
    return files | {Path(given) for given in measured if isinstance(given, str | os.PathLike)}


def _write(path: Path, contents: Mapping[Path, str | bytes], read: Collection[Path]) -> tuple[WrittenFile, ...]:
    """Write a file, or several in a folder of this path."""
    check_kept(path, contents, read, "which is read for it")
    with nullcontext() if path in contents else new_files(path):
        for file, content in contents.items():
            write_whole(file, content)
    return tuple(WrittenFile(file, file.stat().st_size) for file in contents)


# -- the forms --------------------------------------------------------------------------------------------


def _make_picture(source: Source, form: str, target: str, *, folded: bool) -> str | bytes:
    call = source.hierarchy.calls.index(source.hierarchy.find_call(target))
    pictures = make_pictures(source)
    if form == "mermaid":
        return make_mermaid(pictures, call, folded=folded)
    svg = make_svg(pictures, call, folded=folded)
    return make_png(svg) if form == "png" else svg


def _make_page(
    model: ModelLike,
    source: Source,
    measured: Measured,
    others: Sequence[ModelLike],
    dims: Mapping[str, int] | None,
    *,
    statistics: bool,
) -> str:
    """Make the page: the model, what was measured, and what differs from each form of it to the next."""
    data = collect(make_pictures(source), analyze(source.opened, all_calls=True, dims=dims), measured)
    if statistics:
        data["statistics"] = measure_weights(source)
    _add_others(data, (model, source), others, dims)
    return make_page(data, f"{data['title']} · {data['file'] or 'hieronnx'}")


def _make_explorer(source: Source, measured: Measured) -> dict[str, str | bytes]:
    """Make what Model Explorer reads, by the names of its files; the graph is the first."""
    name = source.opened.path.stem if source.opened.path is not None else "model"
    kinds = {f"{name}.{kind}.json": data for kind, data in make_node_data(source, measured).items()}
    values = {f"{name}.json": make_graphs(source, measured), **kinds}
    return {file: msgspec.json.encode(value).decode() for file, value in values.items()}


def _add_others(
    data: dict[str, Any],
    first: tuple[ModelLike, Source],
    others: Sequence[ModelLike],
    dims: Mapping[str, int] | None,
) -> None:
    """Add other forms of the model to the page's data, and what differs from each to the next."""
    from hieronnx.tools.view.differences import find_kinds  # matching takes long to import, and most pages need none

    before, known = first, data
    data["others"] = []
    for other in others:
        source = prepare(unfold_opened(open_model(other)))
        entry = collect(make_pictures(source), analyze(source.opened, all_calls=True, dims=dims), Measured())
        lost, new = find_kinds(before, (other, source))
        known["after"], entry["before"] = lost, new
        data["others"].append(entry)
        before, known = (other, source), entry
