"""Export: a PyTorch model to ONNX as `torch.onnx.export` writes it, every node with the call that made it."""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import onnx

from hieronnx.errors import (
    ExportError,
    InputError,
    MissingExtraError,
    check_known,
    describe_error,
    innermost,
    require,
    writing,
)
from hieronnx.files.metadata import embed_in_nodes, embedded_model_metadata
from hieronnx.files.opening import load, open_structure, sidecar_path
from hieronnx.files.staging import move_into_place, staging
from hieronnx.files.writing import check_output, write
from hieronnx.graph.view import View
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import LEVELS
from hieronnx.hierarchy.tags import TagPolicy
from hieronnx.tools.axes import AxesCheck, check_axes
from hieronnx.tools.example import check_example
from hieronnx.tools.written import WritingResult

if TYPE_CHECKING:
    from torch import nn

    from hieronnx.capture.captured import Captured, ExportRequest
    from hieronnx.files.claims import Finding
    from hieronnx.tools.compare import CompareResult

Exporter: TypeAlias = Literal["auto", "dynamo", "torchscript"]
ExportStrategy: TypeAlias = Literal["captured", "htp", "usage_based"]
_LOG = logging.getLogger("hieronnx")


@dataclass(frozen=True, slots=True)
class ExportResult(WritingResult):
    """What an export wrote, read back from the files."""

    _derived: ClassVar[tuple[str, ...]] = ("files", "fixed_axes")

    path: Path
    sidecar: Path | None
    exporter: str
    hierarchy: Hierarchy
    fallback: str | None = None
    """Why dynamo was not used, where `auto` fell back to TorchScript."""
    topology: CompareResult | None = None
    """How the file compares with what torch alone exports, where that was asked for."""
    strategy: str = "captured"
    """How the nodes were attributed."""
    findings: tuple[Finding, ...] = ()
    """What `validate`'s check `layers` says of the hierarchy as it was written; anything is a fault of hieronnx."""
    axes: AxesCheck | None = None
    """Whether the dynamic axes are dynamic, as a run at other sizes shows; None where there are none."""
    problem: str | None = None
    """What the file gives otherwise than the model on the example inputs; None where it is right, or was not run."""
    made_up: Mapping[str, str] = field(default_factory=dict)
    """The inputs that nobody gave to the command line, and what it made them from: the model's config, …"""

    @property
    def fixed_axes(self) -> dict[str, dict[str, int]]:
        """The axes of the file's inputs that have one size only, that of the example."""
        from hieronnx.runtime.inputs import read_inputs

        shapes = {item.name: item.shape or () for item in read_inputs(self.path)}
        fixed = {name: {str(n): d for n, d in enumerate(sizes) if isinstance(d, int)} for name, sizes in shapes.items()}
        return {name: sizes for name, sizes in fixed.items() if sizes}

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
    torch_names: bool = False,
    train: bool = False,
    check: bool | None = None,
    verify_topology: bool = False,
    min_confidence: str = "low",
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
        torch_names: Whether to let torch name the inputs and outputs that `input_names` and `output_names` do not name.
            By default they are named after `forward`'s arguments and what it returns, and torch is handed these names.
        train: Whether to export in training mode, dropout and all. By default a model is exported in the mode that it
            is in, as torch does it (TorchScript: in eval mode), and one that trains is warned of.
        check: Whether to run file and model on the example, which shows whether the file is right:
            `ExportResult.problem`; and one with dynamic axes once at other sizes, which shows whether they are dynamic:
            `ExportResult.axes`. By default those with dynamic axes and up to 1 GB of weights are; True: all; False:
            none.
        verify_topology: Whether to export with torch alone as well, and compare: `ExportResult.topology`.
        min_confidence: The least confidence, high, medium or low, with which a node counts as attributed in the result.
        progress: Called with the name of each stage as it begins.
        **torch_options: Any option of `torch.onnx.export`: opset_version, dynamic_shapes, input_names, …

    Raises:
        InputError: If an option or an input does not fit; if axes are to be dynamic that neither exporter makes so.
        ExportError: If torch cannot export the model, or the files cannot be written. Nothing is left behind.

    Example:
        >>> result = hieronnx.export(model, (x,), "model.onnx")
        >>> result.hierarchy.coverage()
        1.0
    """
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("onnxscript") is None:
        raise MissingExtraError("torch and onnxscript", "torch")
    import torch

    from hieronnx.attribute.captured import attribute_captured
    from hieronnx.attribute.file import attribute_file
    from hieronnx.attribute.request import Request
    from hieronnx.capture.arguments import check_arguments
    from hieronnx.capture.captured import ExportRequest
    from hieronnx.capture.modes import settle_mode, undisturbed
    from hieronnx.capture.names import BoundaryNames
    from hieronnx.capture.routes import capture
    from hieronnx.capture.unsupported import describe_failure

    destination = _choose_output(output, f)
    policy = _check(model, exporter, strategy, destination, torch_nn, torch_options)
    check_known("level of confidence", min_confidence, LEVELS)
    report = progress or (lambda _stage: None)
    given = args if isinstance(args, tuple) else (args,)
    check_arguments(model, given, kwargs or {})
    with staging(destination) as staged, undisturbed(model, train=train):
        inputs = given, dict(kwargs or {})
        names = BoundaryNames() if torch_names else BoundaryNames.beside(torch_options)
        options = {**torch_options, **names.options}
        if train:
            options.setdefault("training", torch.onnx.TrainingMode.PRESERVE)
        request = ExportRequest(model, *inputs, staged, destination, options, strip_torch_metadata, names)
        used, captured, failure = capture(request, exporter, report)
        trained = settle_mode(request, used, train=train)
        own = strategy == "captured"
        hierarchy = attribute_captured(captured, model, policy) if own else None
        _write_model(captured, used, hierarchy if embed else None)
        view = captured.view
        del captured  # it holds the whole model
        problem = check_example(request, report, check=check, trained=trained)
        axes = check_axes(request, failure, report, check=check, trained=trained, wrong=problem is not None)
        if hierarchy is None:
            exported = Request(open_structure(staged), model, *inputs)
            hierarchy = attribute_file(exported, strategy=strategy, policy=policy).hierarchy
        described = replace(hierarchy, model={"class": type(model).__qualname__})
        if sidecar or not own:  # what was captured is in the file already
            kept = None if own else embed
            write(
                staged, described, staged, exporter=used, embed=kept, sidecar=sidecar, view=view, shown_as=destination
            )
        report("writing")
        with writing(destination):
            move_into_place(staged, destination)
    report("reading back")
    # From the files as they are on disk, not from what was meant to be written.
    hierarchy = load(destination) if sidecar or embed else Hierarchy({}, (), ())
    hierarchy = hierarchy.require_confidence(min_confidence)
    fallback = None if failure is None else describe_failure(failure)
    beside, findings = sidecar_path(destination) if sidecar else None, _check_layers(hierarchy, view)
    result = ExportResult(
        destination,
        beside,
        used,
        hierarchy,
        fallback,
        strategy=strategy,
        findings=findings,
        axes=axes,
        problem=problem,
    )
    asked, written = torch_options.get("opset_version"), hierarchy.model.get("opset", {}).get("")
    if asked is not None and written not in (None, asked):  # torch keeps silent where it cannot convert
        _LOG.warning("asked for opset %d, torch wrote %d: it cannot convert this model to %d", asked, written, asked)
    if verify_topology:
        report("exporting with torch alone")
        result = replace(result, topology=_compare_with_baseline(request, used, train=train))
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

    def __post_init__(self) -> None:
        chosen = {"strategy": self.strategy, "exporter": self.exporter, "torch_nn": self.torch_nn, **self.options}
        check_choices(chosen["exporter"], chosen["strategy"], chosen["torch_nn"], chosen.get("opset_version"))
        _check_option_names([name for name in self.options if name not in inspect.signature(export).parameters])

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


def check_choices(exporter: str, strategy: str, torch_nn: str | Sequence[str], opset: int | None = None) -> TagPolicy:
    """Refuse a value that an option cannot have, without importing torch; return the policy of tags.

    Raises:
        InputError: If there is one.
    """
    from hieronnx.capture.load import list_torch_nn

    check_known("exporter", exporter, get_args(Exporter))
    check_known("strategy", strategy, get_args(ExportStrategy))
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not (isinstance(opset, Integral) and 1 <= opset <= newest):
        raise InputError(f"no opset {opset!r}; onnx has 1 to {newest}")
    return TagPolicy.parse(torch_nn, list_torch_nn())


def _check_option_names(names: Collection[str]) -> None:
    """Refuse what is not an option of torch.onnx.export, or is set here."""
    if not names:
        return
    from torch import onnx as torch_onnx

    if reserved := sorted({"dynamo", "verbose"} & set(names)):
        raise InputError(f"{reserved[0]!r} is set by hieronnx itself; use exporter= and output=")
    for name in names:
        check_known("option", name, list(inspect.signature(torch_onnx.export).parameters))


def _check(
    model: nn.Module,
    exporter: str,
    strategy: str,
    output: Path,
    torch_nn: str | Sequence[str],
    torch_options: Mapping[str, Any],
) -> TagPolicy:
    """Refuse what cannot work before anything is run; return the policy of tags."""
    from torch import nn

    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}; hieronnx exports a torch.nn.Module")
    policy = check_choices(exporter, strategy, torch_nn, torch_options.get("opset_version"))
    if strategy == "htp":
        require("onnxruntime", "runtime")
    _check_option_names(torch_options)
    check_output(output, ())
    return policy


# -- capture and write ------------------------------------------------------------------------------------


def _write_model(captured: Captured, exporter: str, hierarchy: Hierarchy | None) -> None:
    """Write the model, with a hierarchy inside if one is given."""
    from hieronnx.capture.guard import TorchFailedError
    from hieronnx.capture.routes import explain_failure

    metadata = ({}, {}) if hierarchy is None else (embed_in_nodes(hierarchy), embedded_model_metadata(hierarchy))
    try:
        captured.write(*metadata)
    except TorchFailedError as error:
        cause = error.__cause__ or error
        raise explain_failure({exporter: cause}) from cause


def _check_layers(hierarchy: Hierarchy, view: View) -> tuple[Finding, ...]:
    """Check what was written, whatever its strategy; it takes milliseconds."""
    from hieronnx.tools.validate.layers import check_layers

    findings = tuple(check_layers(hierarchy, view))
    if findings:
        first, more = findings[0], f"; and {len(findings) - 1} more" if len(findings) > 1 else ""
        _LOG.warning("nodes are in calls that could not have run them (%s%s); please report it", first.message, more)
    return findings


def _compare_with_baseline(request: ExportRequest, exporter: str, *, train: bool) -> CompareResult:
    """Export with torch alone, beside the destination, and compare."""
    from hieronnx.capture.baseline import export_baseline
    from hieronnx.capture.modes import undisturbed
    from hieronnx.tools.compare import compare

    with staging(request.destination) as staged, undisturbed(request.model, train=train):
        try:
            export_baseline(replace(request, output=staged), exporter)
        except Exception as error:
            raise ExportError(
                f"'{request.destination}' was written, but torch alone could not export the model to compare with "
                f"({describe_error(innermost(error))})"
            ) from error
        return replace(compare(staged, request.destination), a="torch.onnx.export")
