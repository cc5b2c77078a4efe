"""Annotate: an ONNX file that exists gets the hierarchy of its model in PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hieronnx.errors import InputError, MismatchError, check_known, require
from hieronnx.files.opening import OpenedModel, load, open_model, sidecar_path
from hieronnx.files.writing import check_output, list_own_files, write
from hieronnx.graph.view import ModelLike
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId
from hieronnx.hierarchy.tags import TagPolicy
from hieronnx.tools.results import WritingResult

if TYPE_CHECKING:
    from torch import nn

    from hieronnx.attribute.file import AttributedFile, Disagreement
    from hieronnx.attribute.same_model import Agreement

_MOST_NAMED = 5
_TRAINING = " (the model is in training mode: call eval() on it)"
_LEAST_OF_WEIGHTS = 0.95
"""Of a file's weights the model has all but a few, which exporters compute from others."""
_LEAST_OF_VALUES = 0.3
"""Of what a file computes the model computes most; with 8 bits still half."""


@dataclass(frozen=True, slots=True)
class AnnotateResult(WritingResult):
    """A file with its hierarchy, and how far it and the model agree.

    Attributes:
        path: The file that was written; None if none was.
        sidecar: The hierarchy beside it, if it was written.
        strategy: How the nodes were attributed.
        hierarchy: The hierarchy, of a file that was written as it is there.
        agreement: Of `htp`, the share of the file's telling tensors whose values the model computed too; of
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


def annotate(
    onnx: ModelLike,
    model: nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    strategy: str = "htp",
    torch_nn: str = "default",
    embed: bool = True,
    sidecar: bool = True,
    progress: Callable[[str], None] | None = None,
) -> AnnotateResult:
    """Give an ONNX file the hierarchy of its model, every node with how that is known.

    The graph stays as it is; a hierarchy that the file has is replaced.

    Args:
        onnx: The file, or a model in memory.
        model: The model in PyTorch, with the file's weights, in the mode in which it was exported.
        args: Example inputs by position; `usage_based` needs none.
        kwargs: Example inputs by keyword.
        output: Where to write, the sidecar beside it; the file itself may be given. By default nothing is written.
        strategy: `htp`, by what the model and the file compute; or `usage_based`, by parameters and dataflow alone.
        torch_nn: Which modules of torch.nn get a tag of their own: default, all, none, or class names.
        embed: Whether to write the hierarchy into the file as metadata.
        sidecar: Whether to write it beside the file as JSON.
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
    policy = _check(onnx, model, output, strategy, torch_nn)
    report("reading the file")
    opened = open_model(onnx)
    report(f"attributing by {strategy}")
    given = args if isinstance(args, tuple) else (args,)
    found, outputs = _attribute(opened, model, given, dict(kwargs or {}), strategy, policy)
    hierarchy, path, beside = found.hierarchy, None, None
    if output is not None:
        report("writing")
        path = Path(output)
        write(onnx, hierarchy, path, exporter=_exporter(opened), embed=embed, sidecar=sidecar)
        beside = sidecar_path(path) if sidecar else None
        hierarchy = load(path) if embed or sidecar else hierarchy
    return AnnotateResult(
        path=path,
        sidecar=beside,
        strategy=strategy,
        hierarchy=hierarchy,
        agreement=found.agreement,
        outputs=outputs,
        unmatched=found.unmatched,
        contradictions=found.contradictions,
        input_sets=found.input_sets,
    )


def _check(
    onnx: ModelLike, model: nn.Module, output: str | os.PathLike[str] | None, strategy: str, torch_nn: str
) -> TagPolicy:
    """Refuse what cannot work before anything is run."""
    require("torch", "torch")
    from torch import nn

    from hieronnx.attribute.file import STRATEGIES

    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}; it must be a torch.nn.Module")
    check_known("strategy", strategy, STRATEGIES)
    if strategy == "htp":
        require("onnxruntime", "runtime")
    policy = TagPolicy.parse(torch_nn)
    for name in policy.torch_nn or ():
        check_known("class in torch.nn", name, dir(nn))
    if output is not None:
        path = Path(output)
        in_place = isinstance(onnx, str | os.PathLike) and path.exists() and path.samefile(onnx)
        check_output(path, () if in_place else list_own_files(onnx))
    return policy


def _attribute(
    opened: OpenedModel,
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    strategy: str,
    policy: TagPolicy,
) -> tuple[AttributedFile, float | None]:
    """Attribute the nodes of a file that is of the model for sure; return how far outputs are apart, too."""
    from hieronnx.attribute.file import attribute_file

    if strategy == "usage_based":
        found = attribute_file(opened, model, args, kwargs, strategy=strategy, policy=policy)
        _check_weights(opened, found.agreement, found.unmatched)
        return found, None
    from hieronnx.attribute.same_model import check_same_model

    belonging = check_same_model(opened, model, args, kwargs)
    _check_belonging(opened, belonging, training=model.training)
    found = attribute_file(opened, model, args, kwargs, strategy=strategy, policy=policy)
    _check_nothing_lacks(opened, found)
    if not belonging.same_outputs:
        _check_strange(opened, belonging, _describe_outputs(belonging))
        _check_values(opened, found, training=model.training)
    return found, belonging.outputs


def _exporter(opened: OpenedModel) -> str | None:
    told = opened.hierarchy.model.get("exporter") if opened.hierarchy is not None else None
    return None if told is None else str(told)


# -- is it the model? -------------------------------------------------------------------------------------


def _check_belonging(opened: OpenedModel, found: Agreement, *, training: bool) -> None:
    """Make sure that the file has the model's weights, and gives what it gives.

    A file may well give something else: what is computed from the model's outputs. But then it lacks nothing of the
    model, and has no weights of its own.

    Raises:
        MismatchError: If it is not so.
    """
    apart, hint = _describe_outputs(found), _TRAINING * training
    if found.proven:
        return
    _check_weights(opened, found.weights, found.unmatched)
    if not found.near_outputs and found.unmatched:
        reason = f"{apart}{hint}, and it has no parameters of modules of the model"
        raise _mismatch(opened, reason, found.weights, found.unmatched)
    if not found.near_outputs:
        _check_strange(opened, found, f"{apart}{hint}")


def _describe_outputs(found: Agreement) -> str:
    if found.outputs is None:
        return "none of its outputs has the size of one of the model"
    return f"their outputs are {found.outputs:.2%} of their spread apart"


def _check_strange(opened: OpenedModel, found: Agreement, apart: str) -> None:
    """Make sure that a file that gives something else has no weights of its own."""
    if found.strange:
        weights = "one of its weights is" if found.strange == 1 else f"{found.strange} of its weights are"
        raise _mismatch(opened, f"{apart}, and {weights} not the model's", found.weights, ())


def _check_weights(opened: OpenedModel, share: float, unmatched: Sequence[CallId]) -> None:
    if share < _LEAST_OF_WEIGHTS:
        told = f"the model has only {share:.0%} of its weights" if share else "the model has none of its weights"
        raise _mismatch(opened, told, share, unmatched)


def _check_nothing_lacks(opened: OpenedModel, found: AttributedFile) -> None:
    """Make sure that neither has a layer that the other lacks, however little it adds."""
    if found.missing:
        reason = "on the way to its outputs the model has modules of which it has neither parameters nor values"
        raise _mismatch(opened, reason, found.agreement, found.missing)
    if found.foreign > 1:  # a single one an exporter may have computed from others
        reason = f"{found.foreign} of its weights are not the model's, and lead to nothing that the model computes"
        raise _mismatch(opened, reason, found.agreement, ())


def _check_values(opened: OpenedModel, found: AttributedFile, *, training: bool) -> None:
    """Make sure that a file that gives something else computes what the model computes on the way."""
    if found.agreement < _LEAST_OF_VALUES:
        told = f"of the tensors that it computes only {found.agreement:.0%} have values that the model computes"
        raise _mismatch(opened, told + _TRAINING * training, found.agreement, found.unmatched)


def _mismatch(opened: OpenedModel, reason: str, agreement: float, unmatched: Sequence[CallId]) -> MismatchError:
    named = ", ".join(str(call) or "the root" for call in unmatched[:_MOST_NAMED])
    more = f" and {len(unmatched) - _MOST_NAMED:,} more" * (len(unmatched) > _MOST_NAMED)
    missing = f"; it has nothing of {named}{more}" if unmatched else ""
    return MismatchError(
        f"'{opened.name}' is not of this model: {reason}{missing}; check that weights, inputs and version of the model "
        "are those that the file was made with. Nothing was written",
        agreement,
        tuple(unmatched),
    )
