"""Verify: every call of a file beside its reference, as the file runs and alone; who makes an error, and who has it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import onnx_ir as ir

from hieronnx.errors import HieronnxError, check_known, count, list_some
from hieronnx.files.boundary import reads_files
from hieronnx.files.opening import OpenedModel, open_model, require_hierarchy
from hieronnx.graph.operators import INTEGER_PRODUCT_OPS, RANDOM_OPS, name_operator
from hieronnx.graph.view import ModelLike
from hieronnx.graph.walks import walk_nodes
from hieronnx.hierarchy.hierarchy import Hierarchy
from hieronnx.hierarchy.records import CallId
from hieronnx.runtime.profiles import find_providers
from hieronnx.runtime.runs import Inputs, check_samples
from hieronnx.runtime.saturation import clips_products
from hieronnx.runtime.sessions import Runner, open_runner
from hieronnx.tools.fold.unfolding import open_flat
from hieronnx.tools.verify.blaming import find_culprits
from hieronnx.tools.verify.boundaries import find_own
from hieronnx.tools.verify.dumping import dump_culprit
from hieronnx.tools.verify.opening import HeldTo, check_same_weights, give_hierarchy, open_reference
from hieronnx.tools.verify.probing import SampleRun
from hieronnx.tools.verify.references import Reference, Sample
from hieronnx.tools.verify.result import Cause, Culprit, SkippedCall, VerifiedCall, VerifyResult
from hieronnx.tools.verify.samples import make_file_samples, make_torch_samples
from hieronnx.tools.verify.sampling import SampleErrors

if TYPE_CHECKING:
    from torch import nn

Optimization: TypeAlias = Literal["none", "basic", "extended", "all"]
OPTIMIZATIONS = ("none", "basic", "extended", "all")
_BUFFER = 1 << 28
_NAMED = 5
_DISTURBED = (
    "looking at inner tensors changed the outputs a little: where nobody looks, the runtime computes in another "
    "precision or order, as it does with half precision on a CPU"
)
_SATURATED = (
    "on this processor ONNX Runtime clips sums of products with int8 weights, and that counts as noise of the format; "
    "with weights in uint8, or on a processor with VNNI, the errors may be much smaller"
)

_BEYOND = (
    "is made by numbers outside of the ranges that the file has, for it was calibrated for others, or a scale is "
    "wrong; {advice}"
)
_MADE_UP = "these inputs were made up: give samples of what it is used on (--inputs)"
_GIVEN = "calibrate it on samples like these"


@reads_files
def verify(
    model: ModelLike,
    reference: nn.Module | ModelLike,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    inputs: Inputs | None = None,
    samples: int = 1,
    module: str | None = None,
    optimization: Optimization = "none",
    providers: Sequence[str] = (),
    float64: bool = True,
    memory_limit: int = _BUFFER,
    dump: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> VerifyResult:
    """Find which module calls of a file give something else than they should, and which of them are to blame.

    Each call is seen twice: as the file runs, with all errors made before it, and alone, on the inputs that the
    reference gave it.

    Args:
        model: The ONNX model, with its hierarchy.
        reference: What it is held to: the model in PyTorch, or another ONNX model of the same calls.
        args: Inputs of the model in PyTorch by position. Where nothing is given, they are made from the file's inputs.
        kwargs: Its inputs by keyword.
        inputs: Inputs by the names that the file has for them, instead: arrays, or a `.npz` file. With one axis more
            than the file takes, or more rows, they are several samples. Beside args and kwargs, they take the places
            that the file's inputs have in these.
        samples: How many samples to make, like those given or at random.
        module: A module path, tag, `path@n` or a glob over these: look at what is in these calls alone.
        optimization: The level of ONNX Runtime at which the file is optimized first; what runs is then that graph.
        providers: Execution providers to run the file on, by name or by what comes before `ExecutionProvider`; none:
            the CPU's. An ONNX reference runs on the CPU.
        float64: Whether a reference in PyTorch also runs in double precision, to tell noise from errors.
        memory_limit: How many bytes of tensors may be in memory at once beside the reference's.
        dump: A folder for what is needed to reproduce each culprit: the part as a model, its inputs, what it should
            give and gives, and a script.
        progress: Called with the name of each stage as it begins.

    Raises:
        MismatchError: If the reference is another model.
        HieronnxError: If the model has no hierarchy, something cannot be run, or it draws random numbers.

    Example:
        >>> hieronnx.verify("model.onnx", model, (x,)).passed
        True
    """
    report = progress or (lambda _stage: None)
    check_known("level of optimization", optimization, OPTIMIZATIONS)
    check_samples(samples)
    given = args if isinstance(args, tuple) else (args,)
    with _optimized(model, optimization, report) as plain:
        opened = give_hierarchy(plain, reference)
        hierarchy = require_hierarchy(opened.hierarchy, opened.path, opened.model)
        _refuse_random(hierarchy, opened.name)
        chosen = _choose(hierarchy, module)
        run = open_runner(opened, threads=0, providers=find_providers(providers))
        held = open_reference(opened, reference, float64=float64, buffer=memory_limit)
        with run as runner, held as held_to:
            report("making inputs")
            if held_to.model is not None:
                drawn = make_torch_samples(
                    runner, hierarchy, held_to.model, opened.name, given, kwargs, inputs, samples
                )
            else:
                drawn = make_file_samples(runner, inputs, samples)
            errors = _run_samples(runner, hierarchy, held_to.reference, drawn, chosen, memory_limit, report)
            _check_compared(opened, held_to, errors, hierarchy, module)
            culprits = find_culprits(hierarchy, errors)
            for culprit in culprits if dump is not None else ():
                report(f"writing what reproduces '{culprit.id}'")
                sample = drawn[culprit.worst.sample]
                again = SampleRun(runner, hierarchy, held_to.reference, sample, buffer=memory_limit)
                again.observe()
                above = hierarchy.tree.ancestors(culprit.id)
                part_of = next((call for call in above if call in errors.calls), culprit.id)
                dump_culprit(opened, again, culprit, part_of, Path(dump or ""))
        return _make_result(opened, hierarchy, held_to, errors, chosen, culprits, drawn)


def measure_calls(model: ModelLike, reference: ModelLike, inputs: Inputs) -> VerifyResult:
    """Measure both errors of each call of a file; what is noise in them is not asked, and nobody is blamed.

    Raises:
        HieronnxError: As `verify`.
    """
    with open_flat(model) as plain:
        opened = give_hierarchy(plain, reference)
        hierarchy = require_hierarchy(opened.hierarchy, opened.path, opened.model)
        _refuse_random(hierarchy, opened.name)
        chosen = _choose(hierarchy, None)
        held = open_reference(opened, reference, float64=False, buffer=_BUFFER)
        with open_runner(opened, threads=0) as runner, held as held_to:
            drawn = make_file_samples(runner, inputs, 1)
            errors = _run_samples(
                runner, hierarchy, held_to.reference, drawn, chosen, _BUFFER, lambda _stage: None, judged=False
            )
            _check_compared(opened, held_to, errors, hierarchy, None)
        return _make_result(opened, hierarchy, held_to, errors, chosen, (), drawn)


def _check_compared(
    opened: OpenedModel, held_to: HeldTo, errors: SampleErrors, hierarchy: Hierarchy, module: str | None
) -> None:
    """Make sure that both are the same model, and that something of what was chosen of it was compared."""
    check_same_weights(opened, held_to, max((d.severity for d in errors.outputs.values()), default=0.0))
    if errors.calls:
        return
    whole = len(_choose(hierarchy, module)) == len(hierarchy.calls)
    matched = {call.id for call in hierarchy.calls} if module is None or whole else hierarchy.select_calls(module)
    reasons = (errors.skipped[call.id] for call in hierarchy.calls if call.id in matched and call.id in errors.skipped)
    what = f"'{opened.name}'" if whole else f"'{module}' in '{opened.name}'"
    raise HieronnxError(f"no call of {what} can be compared: {next(reasons, 'it has no calls')}")


def _make_result(
    opened: OpenedModel,
    hierarchy: Hierarchy,
    held_to: HeldTo,
    errors: SampleErrors,
    chosen: Collection[CallId],
    culprits: tuple[Culprit, ...],
    samples: Sequence[Sample],
) -> VerifyResult:
    return VerifyResult(
        file=opened.name,
        reference=held_to.name,
        calls=tuple(_describe_calls(hierarchy, errors)),
        culprits=culprits,
        skipped=tuple(_describe_skipped(hierarchy, errors, chosen)),
        outputs=tuple(errors.outputs.values()),
        samples=len(samples),
        undisturbed=errors.undisturbed,
        hierarchy=hierarchy,
        notes=tuple(_make_notes(opened.model, errors, is_given=all(sample.is_given for sample in samples))),
    )


def _make_notes(model: ir.Model, errors: SampleErrors, *, is_given: bool) -> Iterator[str]:
    if not errors.undisturbed:
        yield _DISTURBED
    products = (
        node for _, node in walk_nodes(model) if name_operator(node.domain, node.op_type) in INTEGER_PRODUCT_OPS
    )
    weights = (node.inputs[1] for node in products)
    if any(weight is not None and weight.dtype == ir.DataType.INT8 for weight in weights) and clips_products():
        yield _SATURATED
        if lost := _list_with(errors, "saturation"):
            yield f"most of the error of {count(len(lost), 'call')} is lost by that clipping: {list_some(lost, _NAMED)}"
    if beyond := _list_with(errors, "range"):
        cause = _BEYOND.format(advice=_GIVEN if is_given else _MADE_UP)
        yield f"most of the error of {count(len(beyond), 'call')} ({list_some(beyond, _NAMED)}) {cause}"


def _list_with(errors: SampleErrors, cause: Cause) -> list[str]:
    return [str(call) or "the root" for call, found in errors.calls.items() if found.introduced.cause == cause]


def _refuse_random(hierarchy: Hierarchy, name: str) -> None:
    drawing = next((node for node in hierarchy.nodes if node.op_type in RANDOM_OPS - {"Dropout"}), None)
    if drawing is not None:
        raise HieronnxError(
            f"'{name}' draws random numbers (the {drawing.op_type} '{drawing.name or drawing.output}' of "
            f"'{drawing.scope or 'the root'}'), so that no two runs agree; export the model with these numbers as an "
            "input, or in eval mode"
        )


def _choose(hierarchy: Hierarchy, module: str | None) -> set[CallId]:
    """Return the calls to look at: those that a pattern matches, and what is below them."""
    if module is None:
        return {call.id for call in hierarchy.calls}
    return {below for call in hierarchy.select_calls(module) for below in hierarchy.tree.below(call)}


@contextmanager
def _optimized(model: ModelLike, level: Optimization, report: Callable[[str], None]) -> Iterator[OpenedModel]:
    """Yield the model as it is, or what ONNX Runtime makes of it at a level."""
    if level == "none":
        with open_flat(model) as opened:
            yield opened
        return
    from hieronnx.tools.optimize import optimize

    report(f"optimizing at level {level}")
    with tempfile.TemporaryDirectory(prefix="hieronnx-") as folder:
        path = Path(folder) / "optimized.onnx"
        optimize(model, output=path, tool=f"ort-{level}")  # type: ignore[arg-type]  # it is one of three
        yield open_model(path)


def _run_samples(
    runner: Runner,
    hierarchy: Hierarchy,
    reference: Reference,
    samples: Sequence[Sample],
    chosen: Collection[CallId],
    buffer: int,
    report: Callable[[str], None],
    *,
    judged: bool = True,
) -> SampleErrors:
    """Run samples one after the other; return the worst that was seen."""
    worst = SampleErrors()
    for number, sample in enumerate(samples):
        report(f"sample {number + 1} of {len(samples)}")
        run = SampleRun(runner, hierarchy, reference, sample, buffer=buffer)
        worst.merge(run.measure(chosen, judged=judged), number)
    worst.leave_doubted()
    return worst


# -- the result -------------------------------------------------------------------------------------------


def _describe_calls(hierarchy: Hierarchy, errors: SampleErrors) -> Iterator[VerifiedCall]:
    """Yield the calls that were compared, in the order in which they ran."""
    for call in hierarchy.calls:
        if (found := errors.calls.get(call.id)) is not None:
            yield VerifiedCall(
                module=call.id.module,
                call=call.id.number,
                tag=call.tag,
                class_name=hierarchy.modules[call.id.module].class_name,
                introduced=found.introduced.deviation,
                accumulated=found.accumulated,
                noise=found.introduced.relative_noise,
                excess=found.introduced.excess,
                verdict=found.introduced.verdict,
                cause=found.introduced.cause,
            )


def _describe_skipped(hierarchy: Hierarchy, errors: SampleErrors, chosen: Collection[CallId]) -> Iterator[SkippedCall]:
    """Yield the calls that could not be compared on any sample."""
    own = find_own(hierarchy)
    for call in hierarchy.calls:
        if call.id in chosen and call.id not in errors.calls:
            reason = errors.skipped[call.id]
            yield SkippedCall(call.id.module, call.id.number, call.tag, reason, call.id in own)
