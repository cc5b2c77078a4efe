"""Options that several commands have, each declared once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _combine(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Make one decorator of several options, in the order in which `--help` lists them."""

    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _negate(_context: click.Context, _option: click.Parameter, given: bool) -> bool:
    return not given


def path_argument(name: str) -> Callable[[_Command], _Command]:
    """Declare an argument that is a path; what is wrong with it, hieronnx says itself."""
    return click.argument(name, type=click.Path(path_type=Path))


def threshold_option(help_text: str) -> Callable[[_Command], _Command]:
    """Declare `--threshold`, which may be repeated."""
    return click.option("--threshold", "thresholds", multiple=True, metavar="CATEGORY=PERCENT", help=help_text)


confidence_option = click.option(
    "--min-confidence",
    type=click.Choice(["high", "medium", "low"]),
    default="low",
    show_default=True,
    help="What counts as attributed: nodes whose call is known with this confidence at least; others are told apart.",
)


def depth_option(help_text: str) -> Callable[[_Command], _Command]:
    """Declare `--depth`."""
    return click.option("--depth", type=click.IntRange(min=0), metavar="N", help=help_text)


def top_option(help_text: str) -> Callable[[_Command], _Command]:
    """Declare `--top`."""
    return click.option("--top", type=click.IntRange(min=1), metavar="N", help=help_text)


def quiet_option(help_text: str) -> Callable[[_Command], _Command]:
    """Declare `--quiet`."""
    return click.option("-q", "--quiet", is_flag=True, help=help_text)


verify_option = click.option(
    "--verify", "verified", is_flag=True, help="Verify what was written, module by module; exit code 1 if one is wrong."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
report_options = _combine(quiet_option("Print the report only if something is wrong; notes go to stderr."), json_option)
"""For commands that write a model."""
output_option = click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The ONNX file to write.",
)
writing_options = _combine(
    output_option,
    click.option("--no-embed", "embed", is_flag=True, callback=_negate, help="Write no hierarchy into the ONNX file."),
    click.option("--no-sidecar", "sidecar", is_flag=True, callback=_negate, help="Write no _hierarchy.json beside it."),
    report_options,
)
quantizer_options = _combine(
    click.option(
        "--calibration",
        metavar="FILE|FOLDER|FILE.PY:NAME",
        help="For static: inputs by name in a .npz file, a folder of such (or of .npy, for one input), or a Python "
        "function that yields them, a dict for each run.",
    ),
    click.option(
        "--random-calibration",
        type=click.IntRange(min=1),
        metavar="N",
        help="For static, if there are no inputs: run on N random ones.",
    ),
    click.option("--per-channel", is_flag=True, help="For dynamic and static: a scale for each channel of a weight."),
    click.option(
        "--op",
        "operators",
        multiple=True,
        metavar="TYPE",
        help="Quantize this operator, as MatMul. May be repeated.",
    ),
    click.option("--weight-type", metavar="TYPE", help="int8 or uint8; for static int16, uint16, int4, uint4, too."),
    click.option("--activation-type", metavar="TYPE", help="For static: int8, uint8, int16 or uint16."),
    click.option(
        "--calibration-method",
        type=click.Choice(["minmax", "entropy", "percentile"]),
        help="For static: how ranges are found; minmax if not given.",
    ),
    click.option("--symmetric", is_flag=True, help="For static and int4: ranges symmetric about zero."),
    click.option(
        "--block-size",
        type=click.IntRange(min=16),
        metavar="N",
        help="For int4: how many weights share a scale; 32 if not given.",
    ),
)
markdown_option = click.option(
    "--markdown", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a report, too."
)
all_calls_option = click.option(
    "--all", "all_calls", is_flag=True, help="List the calls without a tag of their own, too."
)
exporter_option = click.option(
    "--exporter",
    type=click.Choice(["auto", "dynamo", "torchscript"]),
    default="auto",
    show_default=True,
    help="torch's exporter; auto is dynamo, and TorchScript where that fails.",
)
arrays_option = click.option(
    "--inputs",
    "arrays",
    type=click.Path(path_type=Path),
    metavar="FILE|FOLDER",
    help="Inputs by the names that the ONNX file has for them in a .npz file, or a folder of such; with one axis more "
    "than it takes, several samples. Beside --inputs-from or --with-past, they take the places of those.",
)
trust_option = click.option("--trust-remote-code", is_flag=True, help="Let a Hugging Face model run code of its own.")
input_options = _combine(
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME=DTYPE[SHAPE]",
        help="An example input, as in input_ids=int64[1,128]. May be repeated.",
    ),
    click.option(
        "--input-specs",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help='Example inputs from JSON: {"name": {"shape": [1, 8], "dtype": "int64", "range": [0, 99]}}.',
    ),
    click.option(
        "--inputs-from",
        metavar="FILE.PY:FUNCTION",
        help="A function that returns the example inputs, for what is nested: a tuple of args, a dict of kwargs, or "
        "(args, kwargs). It is called with the model if it takes a parameter.",
    ),
    click.option(
        "--with-past",
        is_flag=True,
        help="The inputs of a Hugging Face decoder with its cache: past_key_values.N.key beside the others, and "
        "outputs present.N.key; lengths and batch are dynamic.",
    ),
)
model_options = _combine(
    input_options,
    click.option(
        "--torch-nn",
        default="default",
        show_default=True,
        metavar="default|all|none|NAMES",
        help="Which modules of torch.nn get a tag of their own; NAMES as in Linear,Conv2d.",
    ),
    trust_option,
)
