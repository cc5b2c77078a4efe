"""Annotate: an ONNX file that exists gets the hierarchy of its model in PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hieronnx.errors import InputError, check_known, require
from hieronnx.files.boundary import reads_files
from hieronnx.files.external import check_data
from hieronnx.files.opening import find_beside, find_exporter, load, open_structure
from hieronnx.files.writing import check_output, is_same_file, list_own_files, write
from hieronnx.graph.view import ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import LEVELS, CallId
from hieronnx.hierarchy.tags import TagPolicy
from hieronnx.tools.written import WritingResult

if TYPE_CHECKING:
    from torch import nn

    from hieronnx.attribute.file import Disagreement


@dataclass(frozen=True, slots=True)
class AnnotateResult(WritingResult):
    """A file with its hierarchy, and how far it and the model agree.

    Attributes:
        path: The file that was written; None if none was.
        sidecar: The hierarchy beside it, if it was written.
        strategy: How the nodes were attributed.
        hierarchy: The hierarchy, of a file that was written as it is there.
        agreement: Of `htp`, the share of the file's distinctive tensors whose values the model computed too; of
            `usage_based`, the share of the file's weights that the model has.
        outputs: How far the outputs of file and model are apart, as a part of their spread; None where nothing was run
            or no two could be compared.
        unmatched: The calls of which nothing is in the file; of `usage_based`, the modules of whose parameters it has
            none: unused ones, and what was folded into others, too.
        contradictions: The nodes of which two kinds of evidence say different things; the first one won.
        input_sets: On how many sets of inputs file and model were compared: 2, those given and others like them; 1
            where one of the two cannot be run on others, or does something else there; 0 where nothing was run.
    """

    _derived: ClassVar[tuple[str, ...]] = ("matched", "files")
    matched: ClassVar[bool] = True
    """That the file is of the model; where it is not, there is a `MismatchError` and no result."""

    path: Path | None
    sidecar: Path | None
    strategy: str
    hierarchy: Hierarchy
    agreement: float
    outputs: float | None
    unmatched: tuple[CallId, ...]
    contradictions: tuple[Disagreement, ...]
    input_sets: int = 0

    def __repr__(self) -> str:
        path = None if self.path is None else str(self.path)
        return f"AnnotateResult(path={path!r}, strategy={self.strategy!r}, hierarchy={self.hierarchy!r})"


@reads_files
def annotate(
    model: ModelLike,
    reference: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    strategy: Literal["htp", "usage_based"] = "htp",
    torch_nn: str | Sequence[str] = "default",
    embed: bool = True,
    sidecar: bool = True,
    min_confidence: str = "low",
    progress: Callable[[str], None] | None = None,
) -> AnnotateResult:
    """Give an ONNX file the hierarchy of its model, every node with how that is known.

    The graph stays as it is; a hierarchy that the file has is replaced.

    Args:
        model: The ONNX file, or a model in memory.
        reference: The model in PyTorch, with the file's weights, in the mode in which it was exported.
        args: Example inputs by position. With none by keyword either, those that the file takes are made, of its types
            and sizes; `usage_based` needs none.
        kwargs: Example inputs by keyword.
        output: Where to write, the sidecar beside it; the file itself may be given. By default nothing is written.
        strategy: `htp`, by what the model and the file compute; or `usage_based`, by parameters and dataflow alone.
        torch_nn: Which modules of torch.nn get a tag of their own: default, all, none, or class names.
        embed: Whether to write the hierarchy into the file as metadata.
        sidecar: Whether to write it beside the file as JSON.
        min_confidence: The least confidence, high, medium or low, with which a node counts as attributed in the result.
        progress: Called with the name of each stage as it begins.

    Raises:
        MismatchError: If the model is not that of the file. Nothing is written.
        HieronnxError: If something cannot be read, run or written. Nothing is left behind.

    Example:
        >>> annotated = hieronnx.annotate("from_optimum.onnx", model, (x,), output="annotated.onnx")
        >>> annotated.hierarchy.coverage()
        1.0
    """
    report = progress or (lambda _stage: None)
    policy = _check(model, reference, output, strategy, torch_nn)
    check_known("level of confidence", min_confidence, LEVELS)
    from hieronnx.attribute.file import attribute_file
    from hieronnx.attribute.request import Request
    from hieronnx.attribute.same_model import check_same_model, check_same_values, check_same_weights

    report("reading the file")
    opened = open_structure(model)
    if opened.path is not None:
        check_data(opened.path)
    report(f"attributing by {strategy}")
    given = args if isinstance(args, tuple) else (args,)
    if strategy == "htp" and not given and not kwargs:
        from hieronnx.attribute.file_inputs import make_file_inputs
        from hieronnx.attribute.nested_inputs import read_recorded_file
        from hieronnx.runtime.sessions import open_runner

        with open_runner(opened) as runner:
            recorded = read_recorded_file(opened.path)
            kwargs = make_file_inputs(runner.inputs, reference, name=opened.name, recorded=recorded)
    request = Request(opened, reference, given, dict(kwargs or {}))
    agreement = check_same_model(request) if strategy == "htp" else None
    if agreement is None:
        check_same_weights(request)
    attributed = attribute_file(request, strategy=strategy, policy=policy)
    if agreement is not None:
        check_same_values(request, agreement, attributed.projected)
    hierarchy, path, beside = attributed.hierarchy, None, None
    if output is not None:
        report("writing")
        path = Path(output)
        write(model, hierarchy, path, exporter=find_exporter(model), embed=embed, sidecar=sidecar)
        beside = find_beside(path) if sidecar else None
        hierarchy = load(path) if embed or sidecar else hierarchy
    return AnnotateResult(
        path=path,
        sidecar=beside,
        strategy=strategy,
        hierarchy=hierarchy.require_confidence(min_confidence),
        agreement=attributed.projected.agreement,
        outputs=None if agreement is None else agreement.outputs,
        unmatched=attributed.projected.unmatched,
        contradictions=attributed.contradictions,
        input_sets=attributed.projected.input_sets,
    )


def _check(
    model: ModelLike,
    reference: nn.Module,
    output: str | os.PathLike[str] | None,
    strategy: str,
    torch_nn: str | Sequence[str],
) -> TagPolicy:
    """Refuse what cannot work before anything is run."""
    require("torch", "torch")
    from torch import nn

    from hieronnx.attribute.file import STRATEGIES

    if not isinstance(reference, nn.Module):
        raise InputError(f"the reference is a {type(reference).__name__}; it must be a torch.nn.Module")
    check_known("strategy", strategy, STRATEGIES)
    if strategy == "htp":
        require("onnxruntime", "runtime")
    policy = TagPolicy.parse(torch_nn, dir(nn))
    if output is not None:
        check_output(Path(output), () if is_same_file(model, Path(output)) else list_own_files(model))
    return policy
