"""Operators of PyTorch that an exporter cannot write: what torch says of them in many ways, and what to do then."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hieronnx.errors import describe_error, innermost

# How the two exporters name the operator, and the opset that has it.
_OPERATORS = (
    re.compile(r"No ONNX function found for <OpOverload\(op='(?P<name>[\w.]+)'"),
    re.compile(r"Exporting the operator '(?P<name>[\w:]+)' to ONNX opset version \d+ is not supported"),
    re.compile(r"an operator with unrecognized namespace (?P<name>[\w:]+)"),
    re.compile(r"(?P<reason>Unsupported: ONNX export of (?:operator )?(?P<name>[\w:]+).*?) ?(?:\[Caused by|$)"),
)
_OPSET = re.compile(r"(?:added in version|try opset version) (\d+)")
OTHER = {"dynamo": "torchscript", "torchscript": "dynamo"}


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An operator that an exporter cannot write, and the first opset at which it can; None where it never can."""

    name: str
    opset: int | None
    reason: str = ""
    """What torch says of an operator that it can write, but not here."""

    def __str__(self) -> str:
        when = "no ONNX for" if self.opset is None else f"before opset {self.opset} no ONNX for"
        return self.reason or f"it has {when} the operator {self.name}"


def find_unsupported(failure: BaseException) -> Unsupported | None:
    """Return the operator that an exporter failed on; None where it failed on something else."""
    text = " ".join(str(innermost(failure)).split())
    found = next(filter(None, (pattern.search(text) for pattern in _OPERATORS)), None)
    opset = _OPSET.search(text)
    if found is None:
        return None
    return Unsupported(found["name"], int(opset[1]) if opset else None, found.groupdict().get("reason", ""))


def describe_failure(failure: BaseException) -> str:
    """Say in one line what an exporter failed on."""
    unsupported = find_unsupported(failure)
    return describe_error(innermost(failure)) if unsupported is None else str(unsupported)


def advise_operators(failures: Mapping[str, BaseException]) -> str:
    """Say what to do where exporters failed, by their names, on operators that they lack; nothing where none did."""
    lacking = {name: found for name, failure in failures.items() if (found := find_unsupported(failure)) is not None}
    if not lacking:
        return ""
    for exporter, operator in lacking.items():
        if operator.opset is not None:
            return f"try --exporter {exporter} --opset {operator.opset} (opset_version={operator.opset})"
    operators = " and ".join(dict.fromkeys(operator.name for operator in lacking.values()))
    write = f"write the model without {operators}"
    if "dynamo" in lacking:
        write += (
            ", or translate it for dynamo: custom_translation_table= of hieronnx.export, as torch.onnx documents it"
        )
    if len(failures) > 1:
        return write
    other = OTHER[next(iter(failures))]
    return f"try --exporter {other} (exporter='{other}'); if that has none either, {write}"
