"""Export: a PyTorch model to ONNX as `torch.onnx.export` writes it, every node with the call that made it."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hieronnx.errors import ExportError, HieronnxError, InputError, MissingExtraError, check_known, require, writing
from hieronnx.files.encoding import describe_file, encode_sidecar
from hieronnx.files.opening import load, open_model, sidecar_path
from hieronnx.files.staging import move_into_place, staging
from hieronnx.files.writing import write_with_hierarchy
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.tags import TagPolicy

if TYPE_CHECKING:
    from torch import nn

    from hieronnx.capture.captured import ExportRequest
    from hieronnx.tools.compare import CompareResult

_EXPORTERS = ("auto", "dynamo", "torchscript")
_STRATEGIES = ("captured", "htp", "usage_based")
_LOG = logging.getLogger("hieronnx")


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What an export wrote, read back from the files."""

    path: Path
    sidecar: Path | None
    exporter: str
    hierarchy: Hierarchy
    fallback: str | None = None
    """Why dynamo was not used, where `auto` fell back to TorchScript."""
    topology: CompareResult | None = None
    """How the file compares with what torch alone exports, where that was asked for."""

    def __repr__(self) -> str:
        return f"ExportResult(path={str(self.path)!r}, exporter={self.exporter!r}, hierarchy={self.hierarchy!r})"


def export(
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    output: str | os.PathLike[str],
    exporter: str = "auto",
    strategy: str = "captured",
    torch_nn: str = "default",
    embed: bool = True,
    sidecar: bool = True,
    strip_torch_metadata: bool = False,
    verify_topology: bool = False,
    progress: Callable[[str], None] | None = None,
    **torch_options: Any,
) -> ExportResult:
    """Export a model to ONNX with its module hierarchy.

    The file is, node for node, what `torch.onnx.export` writes with the same arguments; the hierarchy is
    metadata on its nodes and a JSON file beside it.

    Args:
        model: The model, in the mode in which it is to be exported.
        args: Example inputs by position.
        kwargs: Example inputs by keyword.
        output: Where to write; the sidecar goes beside it.
        exporter: `dynamo`, `torchscript`, or `auto`: dynamo, and TorchScript where that fails.
        strategy: How nodes are attributed: `captured`, what the exporter itself recorded; or as `annotate` does it,
            `htp` or `usage_based`.
        torch_nn: Which modules of torch.nn get a tag of their own: default, all, none, or class names.
        embed: Whether to write the hierarchy into the file as metadata.
        sidecar: Whether to write it beside the file as JSON.
        strip_torch_metadata: Whether to leave out torch's own node metadata.
        verify_topology: Whether to export with torch alone as well, and compare: `ExportResult.topology`.
        progress: Called with the name of each stage as it begins.
        **torch_options: Any option of `torch.onnx.export`: opset_version, dynamic_shapes, input_names, …

    Raises:
        InputError: If an option or an input does not fit.
        ExportError: If torch cannot export the model, or the files cannot be written. Nothing is left behind.

    Example:
        >>> result = hieronnx.export(model, (x,), output="model.onnx")
        >>> result.hierarchy.coverage()
        1.0
    """
    _require_torch()
    from hieronnx.capture.captured import ExportRequest

    options = _Options(exporter, strategy, torch_nn, embed, sidecar)
    destination = _check(model, options, Path(output), torch_options)
    report = progress or (lambda _stage: None)
    given = args if isinstance(args, tuple) else (args,)
    with staging(destination) as staged, _undisturbed(model):
        request = ExportRequest(
            model, given, dict(kwargs or {}), staged, destination, torch_options, strip_torch_metadata
        )
        used, fallback = _run_routes(request, options, report)
        report("writing")
        with writing(destination):
            move_into_place(staged, destination)
    report("reading back")
    result = _read_back(destination, options, used, fallback)
    _note_opset(result, torch_options.get("opset_version"))
    if verify_topology:
        report("exporting with torch alone")
        result = replace(result, topology=_compare_with_baseline(request, used))
    return result


@dataclass(frozen=True, slots=True)
class HierarchyExporter:
    """The same export as a class: options once, many models.

    Example:
        >>> HierarchyExporter(exporter="dynamo").export(model, {"x": x}, "model.onnx")
    """

    strategy: str = "captured"
    exporter: str = "auto"
    torch_nn: str = "default"
    options: Mapping[str, Any] = field(default_factory=dict)

    def export(
        self, model: nn.Module, example_inputs: Any, output_path: str | os.PathLike[str], **options: Any
    ) -> ExportResult:
        """Export one model; `example_inputs` is a tuple of positional inputs or a dict of keyword inputs."""
        by_keyword = isinstance(example_inputs, Mapping)
        return export(
            model,
            () if by_keyword else example_inputs,
            example_inputs if by_keyword else None,
            output=output_path,
            **{
                "strategy": self.strategy,
                "exporter": self.exporter,
                "torch_nn": self.torch_nn,
                **self.options,
                **options,
            },
        )


@dataclass(frozen=True, slots=True)
class _Options:
    exporter: str
    strategy: str
    torch_nn: str
    embed: bool
    sidecar: bool


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("onnxscript") is None:
        raise MissingExtraError("torch and onnxscript", "torch")


def _check(model: nn.Module, options: _Options, output: Path, torch_options: Mapping[str, Any]) -> Path:
    """Refuse what cannot work before anything is run."""
    from torch import nn, onnx

    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}; hieronnx exports a torch.nn.Module")
    check_known("exporter", options.exporter, _EXPORTERS)
    check_known("strategy", options.strategy, _STRATEGIES)
    if options.strategy == "htp":
        require("onnxruntime", "runtime")
    for name in TagPolicy.parse(options.torch_nn).torch_nn or ():
        check_known("class in torch.nn", name, dir(nn))
    if reserved := sorted({"dynamo", "f", "verbose"} & set(torch_options)):
        raise InputError(f"{reserved[0]!r} is set by hieronnx itself; use exporter= and output=")
    for name in torch_options:
        check_known("option", name, list(inspect.signature(onnx.export).parameters))
    with writing(output):
        if output.is_dir():
            raise ExportError(f"'{output}' is a folder; give the name of a file in it, such as {output / 'model.onnx'}")
        if not output.parent.is_dir():
            raise ExportError(f"no folder '{output.parent}' to write '{output.name}' into; make it first")
    return output


# -- the routes -------------------------------------------------------------------------------------------


def _run_routes(request: ExportRequest, options: _Options, report: Callable[[str], None]) -> tuple[str, str | None]:
    """Run the route that was asked for; for `auto`, dynamo and then TorchScript. Return which, and why not dynamo."""
    names = ("dynamo", "torchscript") if options.exporter == "auto" else (options.exporter,)
    failures: dict[str, Exception] = {}
    for name in names:
        report(f"exporting with {name}")
        try:
            _run_route(name, request, options)
        except (HieronnxError, MemoryError):
            raise
        except Exception as error:
            failures[name] = error
            _empty(request.output.parent)
            if options.exporter == "auto" and name == "dynamo":
                _LOG.warning("dynamo could not export the model (%s); trying TorchScript", first_line(error))
            continue
        return name, first_line(failures["dynamo"]) if failures else None
    raise _failed(failures) from next(iter(failures.values()))


def _run_route(name: str, request: ExportRequest, options: _Options) -> None:
    """Run one route, and write the sidecar beside the file that it staged."""
    from hieronnx.attribute.captured import attribute_captured, embed
    from hieronnx.capture.captured import Captured, Embedding
    from hieronnx.capture.dynamo import export_dynamo
    from hieronnx.capture.torchscript import export_torchscript

    policy = TagPolicy.parse(options.torch_nn)
    held: list[tuple[Hierarchy, View]] = []

    def annotate(captured: Captured) -> Embedding:
        if options.strategy != "captured":
            return Embedding({}, {})
        hierarchy = attribute_captured(captured, request.model, policy)
        held.append((hierarchy, captured.view))
        return embed(hierarchy) if options.embed else Embedding({}, {})

    run = export_dynamo if name == "dynamo" else export_torchscript
    run(request, annotate)
    if options.strategy != "captured":
        _attribute_file(name, request, options)
    elif options.sidecar:
        hierarchy, view = held[-1]
        described = replace(hierarchy, model=describe_file(request.output, type(request.model).__qualname__, name))
        with writing(request.destination):
            sidecar_path(request.output).write_bytes(encode_sidecar(described, view))


def _attribute_file(exporter: str, request: ExportRequest, options: _Options) -> None:
    """Attribute the file that a route has staged by another strategy than what the route captured."""
    from hieronnx.attribute.file import attribute_file
    from hieronnx.attribute.request import Request

    exported = Request(open_model(request.output), request.model, request.args, request.kwargs)
    found = attribute_file(exported, strategy=options.strategy, policy=TagPolicy.parse(options.torch_nn))
    described = replace(found.hierarchy, model={"class": type(request.model).__qualname__})
    write_with_hierarchy(
        request.output, described, request.output, exporter=exporter, embed=options.embed, sidecar=options.sidecar
    )


def _compare_with_baseline(request: ExportRequest, exporter: str) -> CompareResult:
    """Export with torch alone, beside the destination, and compare."""
    from hieronnx.capture.baseline import export_baseline
    from hieronnx.tools.compare import compare

    with staging(request.destination) as staged, _undisturbed(request.model):
        try:
            export_baseline(replace(request, output=staged), exporter)
        except Exception as error:
            raise ExportError(
                f"'{request.destination}' was written, but torch alone could not export the model to compare with "
                f"({first_line(error)})"
            ) from error
        found = compare(staged, request.destination)
        return replace(found, a="torch.onnx.export")


def first_line(error: BaseException) -> str:
    """Say in one line why torch failed: the innermost cause, which is the one that says something."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    count = next((n for n, line in enumerate(lines, 1) if not line.endswith(":")), len(lines))
    return f"{type(error).__name__}: {' '.join(lines[:count])}"


def _failed(failures: Mapping[str, Exception]) -> ExportError:
    """Make one error of what each route said."""
    causes = "; ".join(f"{name}: {first_line(error)}" for name, error in failures.items())
    other = {"dynamo": "torchscript", "torchscript": "dynamo"}
    remedy = (
        "run the model itself on these inputs first; if that works, try other example inputs or another opset"
        if len(failures) > 1
        else f"try exporter '{other[next(iter(failures))]}'"
    )
    return ExportError(f"torch could not export the model ({causes}); {remedy}")


# -- files and state --------------------------------------------------------------------------------------


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Export alone, and leave the model's training mode and the random state as they were, whatever happens."""
    import torch

    from hieronnx.capture.private_torch import exclusive

    modes = [(module, module.training) for module in model.modules()]
    devices = list(range(torch.cuda.device_count()))
    try:
        with exclusive(), torch.random.fork_rng(devices=devices):
            yield
    finally:
        for module, training in modes:
            module.training = training


def _note_opset(result: ExportResult, asked: int | None) -> None:
    """Say so if the file has another opset than was asked for: torch keeps what it cannot convert, without a word."""
    written = result.hierarchy.model.get("opset", {}).get("")
    if asked is not None and written not in (None, asked):
        _LOG.warning("asked for opset %d, torch wrote %d: it cannot convert this model to %d", asked, written, asked)


def _read_back(output: Path, options: _Options, exporter: str, fallback: str | None) -> ExportResult:
    """Count from the files as they are on disk, not from what was meant to be written."""
    sidecar = sidecar_path(output) if options.sidecar else None
    hierarchy = load(output) if options.sidecar or options.embed else Hierarchy({}, (), ())
    return ExportResult(output, sidecar, exporter, hierarchy, fallback)
