"""`hieronnx validate`: checks that a hierarchy is whole, and true to its file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from hieronnx.cli.console import FOUND_SOMETHING, show, working
from hieronnx.cli.options import (
    arrays_option,
    confidence_option,
    input_options,
    json_option,
    path_argument,
    quiet_option,
    threshold_option,
    trust_option,
)

_OF_MODELS = ("arrays", "inputs", "input_specs", "inputs_from", "with_past", "trust_remote_code")


@click.command("validate", short_help="Is a hierarchy whole, and true to its file?")
@path_argument("model")
@click.option("--strict", is_flag=True, help="Let warnings fail, too.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="OTHER",
    help="Make sure that the graph is that of another ONNX file.",
)
@threshold_option("How much of a category of operators must be attributed, as in type_conversion=90. May be repeated.")
@click.option(
    "--fix", is_flag=True, help="Write the sidecar from the metadata inside, or the reverse; never the graph."
)
@click.option(
    "--fix-from",
    type=click.Choice(["sidecar", "embedded"]),
    help="The same, and the one to trust where both are there and disagree.",
)
@confidence_option
@click.option(
    "--model",
    "target",
    metavar="TARGET",
    help="Compare with the PyTorch model, as for export: modules that never ran, calls that the file lacks, classes.",
)
@arrays_option
@input_options
@trust_option
@quiet_option("Print the verdict alone, one line.")
@json_option
@click.pass_context
def validate_command(
    context: click.Context,
    /,
    model: Path,
    thresholds: tuple[str, ...],
    target: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Check MODEL, its hierarchy, and whether the two belong together.

    The hierarchy is read from the sidecar and from the metadata inside, and both are checked: that they are whole,
    agree, and tell of this file; that scopes fit the dataflow; that enough nodes are attributed. The ONNX checker runs
    on any file. Every category of operators is listed, with how much of it is attributed. No weights are read. --model
    runs TARGET on --input, or on inputs of the file's own sizes, to compare its calls with those of the file. Exit
    code 1: something was found.

    \b
    Examples:
      hieronnx validate model.onnx --strict
      hieronnx validate model.onnx --baseline plain.onnx
      hieronnx validate model.onnx --fix
      hieronnx validate model.onnx --model net.py:load_net
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.cli.loading import read_loading
    from hieronnx.cli.syntax import parse_threshold
    from hieronnx.files.opening import require_file
    from hieronnx.report.findings import render_findings
    from hieronnx.tools.validate.validating import validate

    given = {name: options.pop(name) for name in _OF_MODELS}
    options["thresholds"] = dict(map(parse_threshold, thresholds))
    if target is None:
        if any(given.values()):
            raise click.UsageError(
                "--inputs, --input, --with-past, --trust-remote-code and their like are for --model."
            )
        result = validate(model, **options)
    else:
        arrays, loading = given.pop("arrays"), read_loading(target, given)
        require_file(model)  # before the model is loaded, which may take long
        with working(debug=context.obj) as report:
            loaded = loading.load_beside(arrays, report, model)
            report("comparing")
            options |= {"reference": loaded.model, "args": loaded.args, "kwargs": loaded.kwargs, "inputs": arrays}
            result = validate(model, **options)
    show(result, partial(render_findings, quiet=quiet), as_json=as_json)
    context.exit(0 if result.passed else FOUND_SOMETHING)
