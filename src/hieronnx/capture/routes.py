"""The route of an export: dynamo, or TorchScript where that fails; and whose fault it is where both do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import torch

from hieronnx.capture import guard
from hieronnx.capture.arguments import bind_arguments
from hieronnx.capture.captured import Captured, ExportRequest
from hieronnx.capture.dynamic import advise_on
from hieronnx.capture.eager import untouched
from hieronnx.capture.guard import TorchFailedError, newer_than_tested, older_than_tested
from hieronnx.capture.modes import take_mode
from hieronnx.capture.unsupported import OTHER, advise_operators, describe_failure
from hieronnx.errors import ExportError, HieronnxError, describe_error, innermost

_LOG = logging.getLogger("hieronnx")


def capture(
    request: ExportRequest, exporter: str, report: Callable[[str], None]
) -> tuple[str, Captured, BaseException | None]:
    """Run the exporter that was asked for; for `auto`, dynamo and then TorchScript. Also return why not dynamo."""
    names = ("dynamo", "torchscript") if exporter == "auto" else (exporter,)
    failures: dict[str, BaseException] = {}
    for name in names:
        report(f"exporting with {name}")
        try:
            return name, _observe(request, name), failures.get("dynamo")
        except TorchFailedError as error:
            if _was_interrupted(error):
                raise KeyboardInterrupt from error
            failures[name] = error.__cause__ or error
            _clear(request)
            if name != names[-1]:
                reason = describe_failure(failures[name])
                _LOG.warning("dynamo could not export the model (%s); trying TorchScript", reason)
    if any(isinstance(innermost(failure), TypeError) for failure in failures.values()):
        bind_arguments(request.model, request.args, request.kwargs)
    if (own := _find_own_failure(request, names[0])) is not None:
        reason = describe_error(innermost(own))
        raise ExportError(
            f"the model itself cannot run on these inputs ({reason}); give others, or correct it"
        ) from own
    raise explain_failure(failures, advise_on(request, failures.get("dynamo"))) from next(iter(failures.values()))


def _find_own_failure(request: ExportRequest, exporter: str) -> Exception | None:
    """Run the model in the mode that it was to be exported in; return what it raises itself, without an exporter."""
    take_mode(request, exporter)
    failure: Exception | None = None
    try:
        with untouched(request.model, request.args, request.kwargs) as (args, kwargs):
            try:
                request.model(*args, **kwargs)
            except MemoryError:
                raise
            except Exception as error:
                failure = error
    except Exception as error:  # the run says nothing: inputs that cannot be copied, no memory for it
        _LOG.debug("the model was not run by itself: %s", describe_error(error))
        return None
    return failure


def _was_interrupted(error: BaseException | None) -> bool:
    """Say whether an interrupt is behind an error: torch raises others in its place."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _observe(request: ExportRequest, exporter: str) -> Captured:
    """Export and observe torch; in a torch where that does not work yet, go by what torch itself records.

    Raises:
        TorchFailedError: torch or the model failed.
        ExportError: hieronnx failed, in a torch that it was tested with: that is a bug.
    """
    version, newest = torch.__version__, ".".join(map(str, guard.NEWEST_TESTED))
    if newer_than_tested():
        _LOG.warning("torch %s is newer than those that hieronnx was tested with (up to %s)", version, newest)
    try:
        if exporter == "dynamo":
            from hieronnx.capture.dynamo import capture_dynamo as observe
        else:
            from hieronnx.capture.torchscript.route import capture_torchscript as observe
        return observe(request)
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
    doing = f"hieronnx failed while it observed torch {torch.__version__} ({reason})"
    if older_than_tested():
        oldest, newest = (".".join(map(str, numbers)) for numbers in (guard.OLDEST_TESTED, guard.NEWEST_TESTED))
        return ExportError(f"{doing}; it supports torch {oldest} to {newest}: install one of these")
    return ExportError(
        f"{doing}; this is a bug of hieronnx, not of torch or of the model: please report it with the traceback "
        "(--debug shows it)"
    )


def _clear(request: ExportRequest) -> None:
    """Remove what an exporter left."""
    for path in request.output.parent.iterdir():
        path.unlink()


def explain_failure(failures: Mapping[str, BaseException], advice: str = "") -> ExportError:
    """Make one error of what each route said."""
    causes = "; ".join(f"{name}: {describe_failure(error)}" for name, error in failures.items())
    remedy = "try other example inputs or another opset"
    if len(failures) == 1:
        other = OTHER[next(iter(failures))]
        remedy = f"try --exporter {other} (exporter='{other}')"
    return ExportError(f"torch could not export the model ({causes}); {advice or advise_operators(failures) or remedy}")
