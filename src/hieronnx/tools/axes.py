"""The check of dynamic axes: a file that was just exported is run at other sizes than those of the example."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from hieronnx.errors import HieronnxError, InputError, describe_error, innermost
from hieronnx.tools.example import Inputs, find_difference, find_obstacle, is_random, run_file
from hieronnx.tools.results import Result

if TYPE_CHECKING:
    from hieronnx.capture.captured import ExportRequest
    from hieronnx.capture.dynamic import DynamicAxis

_LOG = logging.getLogger("hieronnx")


@dataclass(frozen=True, slots=True)
class AxesCheck(Result):
    """What a run of the file at other sizes says of its dynamic axes.

    Attributes:
        sizes: The sizes at which model and file were run, by the labels of the axes; empty where they were not.
        problem: What went wrong there; None where the file did what the model does.
        not_checked: Why nothing was run; None where it was.
    """

    _derived: ClassVar[tuple[str, ...]] = ("passed",)
    sizes: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None
    not_checked: str | None = None

    @property
    def passed(self) -> bool | None:
        """Whether the axes are dynamic; None where that was not checked."""
        return None if self.not_checked else self.problem is None


def check_axes(
    request: ExportRequest,
    failure: BaseException | None,
    report: Callable[[str], None],
    *,
    check: bool | None,
    trained: bool,
    wrong: bool = False,
) -> AxesCheck | None:
    """Check the dynamic axes, if there are any and it is wanted; say what is not dynamic.

    Args:
        request: The export.
        failure: Why dynamo did not make the file, if TorchScript did.
        report: Called with the name of the stage.
        check: Whether it is wanted; None: of models that are not large.
        trained: Whether the model was exported in training mode.
        wrong: Whether the file is known to give something else than the model at the example's sizes already.

    Raises:
        InputError: If dynamo refused the model, and what TorchScript made instead is not dynamic.
    """
    from hieronnx.capture.dynamic import advise, advise_on, list_dynamic_axes

    axes = list_dynamic_axes(request)
    if not axes or check is False:
        return AxesCheck(not_checked="nobody wanted it") if axes else None
    if wrong:
        return AxesCheck(not_checked="the file is wrong at the example's sizes already")
    report("running at other sizes")
    found = _run_at_other_sizes(request, axes, any_size=check is True, random=trained)
    advice = advise(request, axes)
    if failure is not None and (found.problem or (found.not_checked and advise_on(request, failure))):
        causes = f"dynamo: {describe_error(innermost(failure))}; TorchScript: {found.problem or found.not_checked}"
        raise InputError(
            f"torch cannot make the axes dynamic as asked{advice and ': '}{advice}; --no-check (check=False) "
            f"writes the file all the same ({causes})"
        ) from failure
    if found.problem:
        text = "; ".join(filter(None, (f"the file is not dynamic as asked: {found.problem}", advice)))
        _LOG.warning("%s", text)
    elif found.not_checked:
        _LOG.warning("that the dynamic axes are dynamic was not checked: %s", found.not_checked)
    return found


def _run_at_other_sizes(
    request: ExportRequest, axes: Sequence[DynamicAxis], *, any_size: bool, random: bool
) -> AxesCheck:
    """Run model and file at other sizes, and compare what they give.

    Args:
        request: The export.
        axes: What is to be dynamic.
        any_size: Whether to run large models, too.
        random: Whether the model was exported in training mode, so that values tell nothing.
    """
    from hieronnx.capture.dynamic import list_fixed_alike

    if (obstacle := find_obstacle(request, any_size=any_size)) is not None:
        return AxesCheck(not_checked=obstacle)
    ran, reason = _find_sizes(request, axes)
    if ran is not None:
        return _compare(request, ran, random)
    alike = list_fixed_alike(request, axes)
    together, _ = _find_sizes(request, (*axes, *alike)) if alike else (None, "")
    if together is not None:
        fixed = ", ".join(dict.fromkeys(axis.name for axis in alike))
        at = _name_sizes(together.sizes)
        return AxesCheck(together.sizes, f"at {at} the model itself runs only if {fixed} changes, too")
    return AxesCheck(not_checked=reason)


@dataclass(frozen=True, slots=True)
class _Ran:
    """A run of the model at other sizes."""

    sizes: Mapping[str, int]
    inputs: Inputs
    outputs: Sequence[Any]


def _find_sizes(request: ExportRequest, axes: Sequence[DynamicAxis]) -> tuple[_Ran | None, str]:
    """Run the model at the first of other sizes at which it can be; also say why not at any."""
    from hieronnx.capture.dynamic import resize
    from hieronnx.capture.noise import run_outputs

    reason = "no other size is allowed"
    for sizes in _list_sizes(axes):
        inputs = resize(request, axes, sizes)
        try:
            return _Ran(sizes, inputs, run_outputs(request.model, *inputs)), ""
        except Exception as error:  # the model's own: it need not run at every size
            reason = f"the model itself does not run at {_name_sizes(sizes)} ({describe_error(error)})"
    return None, reason


def _name_sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{label} {size}" for label, size in sizes.items())


def _list_sizes(axes: Sequence[DynamicAxis]) -> Iterator[dict[str, int]]:
    """Yield sizes to try: doubled, which keeps sums and multiples; one more each; one less.

    Within their bounds, and never 1, where what is left fixed would only be repeated.
    """
    example = {axis.label: axis.size for axis in axes}
    bounds = {axis.label: axis.bounds for axis in axes}
    for factor, more in ((2, 0), (1, 1), (1, -1)):
        sizes = {label: factor * size + more for label, size in example.items()}
        if all(max(bounds[label][0], 2) <= size <= bounds[label][1] for label, size in sizes.items()):
            yield sizes


def _compare(request: ExportRequest, ran: _Ran, random: bool) -> AxesCheck:
    """Run the file, too, and compare what it gives; what is wrong at the example's sizes too says nothing of axes."""
    from hieronnx.capture.noise import run_outputs

    random = random or is_random(request)
    example = request.args, dict(request.kwargs)
    problem = _find_problem(request, ran.inputs, ran.outputs, random)
    if problem is None:
        return AxesCheck(ran.sizes)
    before = _find_problem(request, example, run_outputs(request.model, *example), random)
    if before is not None:
        return AxesCheck(not_checked=f"the file is not what the model is at the example's sizes either: {before}")
    return AxesCheck(ran.sizes, f"at {_name_sizes(ran.sizes)} {problem}")


def _find_problem(request: ExportRequest, inputs: Inputs, expected: Sequence[Any], random: bool) -> str | None:
    """Say where the file does not do what the model does on some inputs."""
    try:
        found = run_file(request, inputs)
    except HieronnxError as error:
        return f"PyTorch runs, and ONNX Runtime does not ({describe_error(error.__cause__ or error)})"
    if len(found) != len(expected):
        return f"the file gives {len(found)} tensors, and PyTorch {len(expected)}"
    return find_difference(request, inputs, found, expected, random=random)
