"""Export: a PyTorch model to ONNX as `torch.onnx.export` writes it, every node with the call that made it."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from hieronnx.errors import (
    ExportError,
    HieronnxError,
    InputError,
    MissingExtraError,
    check_known,
    describe_error,
    innermost,
    require,
    writing,
)
from hieronnx.files.metadata import embed_in_nodes, embedded_model_metadata
from hieronnx.files.opening import load, open_model, sidecar_path
from hieronnx.files.staging import move_into_place, staging
from hieronnx.files.writing import check_output, write
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.tags import TagPolicy
from hieronnx.tools.results import WritingResult

if TYPE_CHECKING:
    from torch import nn

    from hieronnx.capture.captured import Captured, ExportRequest
    from hieronnx.tools.compare import CompareResult

Exporter: TypeAlias = Literal["auto", "dynamo", "torchscript"]
ExportStrategy: TypeAlias = Literal["captured", "htp", "usage_based"]
_LOG = logging.getLogger("hieronnx")


@dataclass(frozen=True, slots=True)
class ExportResult(WritingResult):
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
    output: str | os.PathLike[str] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    f: str | os.PathLike[str] | None = None,
    exporter: Exporter = "auto",
    strategy: ExportStrategy = "captured",
    torch_nn: str | Sequence[str] = "default",
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
        output: Where to write; the sidecar goes beside it.
        kwargs: Example inputs by keyword.
        f: The same as `output`, as `torch.onnx.export` spells it.
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
        >>> result = hieronnx.export(model, (x,), "model.onnx")
        >>> result.hierarchy.coverage()
        1.0
    """
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("onnxscript") is None:
        raise MissingExtraError("torch and onnxscript", "torch")
    from hieronnx.attribute.captured import attribute_captured
    from hieronnx.attribute.file import attribute_file
    from hieronnx.attribute.request import Request
    from hieronnx.capture.captured import ExportRequest

    destination = _choose_output(output, f)
    policy = _check(model, exporter, strategy, destination, torch_nn, torch_options)
    report = progress or (lambda _stage: None)
    given = args if isinstance(args, tuple) else (args,)
    with staging(destination) as staged, _undisturbed(model):
        inputs = given, dict(kwargs or {})
        request = ExportRequest(model, *inputs, staged, destination, torch_options, strip_torch_metadata)
        used, captured, fallback = _capture(request, exporter, report)
        own = strategy == "captured"
        hierarchy = attribute_captured(captured, model, policy) if own else None
        _write_model(captured, used, hierarchy if embed else None)
        view = captured.view
        del captured  # it holds the whole model
        if hierarchy is None:
            exported = Request(open_model(staged), model, *inputs)
            hierarchy = attribute_file(exported, strategy=strategy, policy=policy).hierarchy
        described = replace(hierarchy, model={"class": type(model).__qualname__})
        if sidecar or not own:  # what was captured is in the file already
            options: dict[str, Any] = {"exporter": used, "embed": None if own else embed, "sidecar": sidecar}
            write(staged, described, staged, **options, view=view, shown_as=destination)
        report("writing")
        with writing(destination):
            move_into_place(staged, destination)
    report("reading back")
    # From the files as they are on disk, not from what was meant to be written.
    hierarchy = load(destination) if sidecar or embed else Hierarchy({}, (), ())
    result = ExportResult(destination, sidecar_path(destination) if sidecar else None, used, hierarchy, fallback)
    asked, written = torch_options.get("opset_version"), hierarchy.model.get("opset", {}).get("")
    if asked is not None and written not in (None, asked):  # torch keeps silent where it cannot convert
        _LOG.warning("asked for opset %d, torch wrote %d: it cannot convert this model to %d", asked, written, asked)
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

    strategy: ExportStrategy = "captured"
    exporter: Exporter = "auto"
    torch_nn: str | Sequence[str] = "default"
    options: Mapping[str, Any] = field(default_factory=dict)

    def export(
        self, model: nn.Module, example_inputs: Any, output_path: str | os.PathLike[str], **options: Any
    ) -> ExportResult:
        """Export one model; `example_inputs` is a tuple of positional inputs or a dict of keyword inputs."""
        args, kwargs = ((), example_inputs) if isinstance(example_inputs, Mapping) else (example_inputs, None)
        own = {"strategy": self.strategy, "exporter": self.exporter, "torch_nn": self.torch_nn}
        return export(model, args, output_path, kwargs, **{**own, **self.options, **options})


# -- checks -----------------------------------------------------------------------------------------------


def _choose_output(output: str | os.PathLike[str] | None, f: str | os.PathLike[str] | None) -> Path:
    if output is not None and f is not None:
        raise InputError("output= and f= both say where to write; give one of them")
    path = f if output is None else output
    if path is None:
        raise InputError("nothing says where to write; give output=, such as output='model.onnx'")
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"the output is a {type(path).__name__}; give a path, and keyword inputs as kwargs=")
    return Path(path)


def _check(
    model: nn.Module,
    exporter: str,
    strategy: str,
    output: Path,
    torch_nn: str | Sequence[str],
    torch_options: Mapping[str, Any],
) -> TagPolicy:
    """Refuse what cannot work before anything is run; return the policy of tags."""
    from torch import nn, onnx

    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}; hieronnx exports a torch.nn.Module")
    check_known("exporter", exporter, get_args(Exporter))
    check_known("strategy", strategy, get_args(ExportStrategy))
    if strategy == "htp":
        require("onnxruntime", "runtime")
    if reserved := sorted({"dynamo", "verbose"} & set(torch_options)):
        raise InputError(f"{reserved[0]!r} is set by hieronnx itself; use exporter= and output=")
    for name in torch_options:
        check_known("option", name, list(inspect.signature(onnx.export).parameters))
    check_output(output, ())
    return TagPolicy.parse(torch_nn, dir(nn))


# -- capture and write ------------------------------------------------------------------------------------


def _capture(request: ExportRequest, exporter: str, report: Callable[[str], None]) -> tuple[str, Captured, str | None]:
    """Run the exporter that was asked for; for `auto`, dynamo and then TorchScript. Also return why not dynamo."""
    from hieronnx.capture.guard import TorchFailedError

    names = ("dynamo", "torchscript") if exporter == "auto" else (exporter,)
    failures: dict[str, BaseException] = {}
    for name in names:
        report(f"exporting with {name}")
        try:
            return name, _observe(request, name), describe_error(innermost(failures["dynamo"])) if failures else None
        except TorchFailedError as error:
            failures[name] = error.__cause__ or error
            _clear(request)
            if name != names[-1]:
                reason = describe_error(innermost(failures[name]))
                _LOG.warning("dynamo could not export the model (%s); trying TorchScript", reason)
    raise _failed(failures) from next(iter(failures.values()))


def _observe(request: ExportRequest, exporter: str) -> Captured:
    """Export and observe torch; in a torch where that does not work yet, go by what torch itself records.

    Raises:
        TorchFailedError: torch or the model failed.
        ExportError: hieronnx failed, in a torch that it was tested with: that is a bug.
    """
    import torch

    from hieronnx.capture.guard import NEWEST_TESTED, TorchFailedError, newer_than_tested

    version, newest = torch.__version__, ".".join(map(str, NEWEST_TESTED))
    if newer_than_tested():
        _LOG.warning("torch %s is newer than those that hieronnx was tested with (up to %s)", version, newest)
    try:
        if exporter == "dynamo":
            from hieronnx.capture.dynamo import capture_dynamo as capture
        else:
            from hieronnx.capture.torchscript.route import capture_torchscript as capture
        return capture(request)
    except (HieronnxError, MemoryError, TorchFailedError):
        raise
    except Exception as error:  # torch's are told apart: all else is ours
        reason = describe_error(innermost(error))
        if not newer_than_tested():
            raise _failed_ourselves(reason) from error
        from hieronnx.capture.recorded import capture_recorded

        _LOG.warning(
            "hieronnx cannot observe torch %s (%s); going by the names of modules that torch writes itself: "
            "calls of one module are not told apart. Please report it, or install torch %s",
            *(version, reason, newest),
        )
        _clear(request)
        return capture_recorded(request, exporter)


def _failed_ourselves(reason: str) -> ExportError:
    import torch

    from hieronnx.capture.guard import NEWEST_TESTED, OLDEST_TESTED, older_than_tested

    doing = f"hieronnx failed while it observed torch {torch.__version__} ({reason})"
    if older_than_tested():
        oldest, newest = (".".join(map(str, numbers)) for numbers in (OLDEST_TESTED, NEWEST_TESTED))
        return ExportError(f"{doing}; it supports torch {oldest} to {newest}: install one of these")
    return ExportError(
        f"{doing}; this is a bug of hieronnx, not of torch or of the model: please report it with the traceback "
        "(--debug shows it)"
    )


def _clear(request: ExportRequest) -> None:
    """Remove what an exporter left."""
    for path in request.output.parent.iterdir():
        path.unlink()


def _write_model(captured: Captured, exporter: str, hierarchy: Hierarchy | None) -> None:
    """Write the model, with a hierarchy inside if one is given."""
    from hieronnx.capture.guard import TorchFailedError

    metadata = ({}, {}) if hierarchy is None else (embed_in_nodes(hierarchy), embedded_model_metadata(hierarchy))
    try:
        captured.write(*metadata)
    except TorchFailedError as error:
        cause = error.__cause__ or error
        raise _failed({exporter: cause}) from cause


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
                f"({describe_error(innermost(error))})"
            ) from error
        return replace(compare(staged, request.destination), a="torch.onnx.export")


def _failed(failures: Mapping[str, BaseException]) -> ExportError:
    """Make one error of what each route said."""
    causes = "; ".join(f"{name}: {describe_error(innermost(error))}" for name, error in failures.items())
    remedy = "run the model itself on these inputs first; if that works, try other example inputs or another opset"
    if len(failures) == 1:
        remedy = f"try exporter '{'torchscript' if 'dynamo' in failures else 'dynamo'}'"
    return ExportError(f"torch could not export the model ({causes}); {remedy}")


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Export alone, and leave the model's training mode and the random state as they were, whatever happens."""
    import torch

    from hieronnx.capture.guard import EXCLUSIVE

    modes = [(m, m.training) for m in model.modules() if hasattr(m, "training")]  # TorchScript that is frozen has none
    devices = list(range(torch.cuda.device_count()))
    try:
        with EXCLUSIVE, torch.random.fork_rng(devices=devices):
            yield
    finally:
        for module, training in modes:
            module.training = training
