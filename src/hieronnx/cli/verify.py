"""`hieronnx verify`: which module of a file is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hieronnx.cli.console import FOUND_SOMETHING, check_reports, show, working, write_report
from hieronnx.cli.loading import Loaded, read_loading
from hieronnx.cli.options import (
    all_calls_option,
    arrays_option,
    depth_option,
    input_options,
    json_option,
    markdown_option,
    path_argument,
    quiet_option,
    top_option,
    trust_option,
)


@click.command("verify", short_help="Find the module that makes a file give something else than it should.")
@path_argument("file")
@click.option("--model", "target", metavar="TARGET", help="The PyTorch model that FILE is held to, as for export.")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Another ONNX file that it is held to: the one that it was optimized or quantized from.",
)
@arrays_option
@input_options
@trust_option
@click.option("--samples", type=click.IntRange(min=1), default=1, show_default=True, help="How many samples to make.")
@click.option("--module", metavar="PATTERN", help="Look into calls that match alone: a path, path@n, a tag, or a glob.")
@click.option(
    "--optimization",
    type=click.Choice(["none", "basic", "extended", "all"]),
    default="none",
    show_default=True,
    help="Let ONNX Runtime optimize FILE first, as it does when it loads it, and look at that.",
)
@click.option("--providers", default="", metavar="NAME,NAME", help="Execution providers for FILE, as in cuda,cpu.")
@click.option("--no-float64", is_flag=True, help="Do not run the PyTorch model in double precision beside its own.")
@click.option(
    "--memory-limit",
    metavar="SIZE",
    help="How much memory tensors may take at once, as in 500MB; 256MB if not given.",
)
@click.option(
    "--dump",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write what is needed to reproduce each culprit: the part, its inputs and outputs, and a script.",
)
@all_calls_option
@depth_option("Levels of modules below the root.")
@top_option("Tell of the N worst culprits only.")
@quiet_option("Leave out the tree.")
@json_option
@markdown_option
@click.pass_context
def verify_command(
    context: click.Context,
    /,
    file: Path,
    target: str | None,
    against: Path | None,
    arrays: Path | None,
    providers: str,
    no_float64: bool,
    memory_limit: str | None,
    as_json: bool,
    markdown: Path | None,
    all_calls: bool,
    depth: int | None,
    top: int | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Run FILE and its PyTorch model, or the file that it was made of, and compare every module call.

    Each call is seen as the file runs (accumulated) and alone, on the inputs that the reference gave it (introduced):
    the first shows where an error is visible, the second who makes it. Exit code 1 if a call is to blame.

    \b
    Examples:
      hieronnx verify model.onnx --model ./bert
      hieronnx verify decoder.onnx --model ./gpt2 --with-past
      hieronnx verify int8.onnx --against model.onnx --inputs samples.npz
      hieronnx verify model.onnx --model net.py:load_net --optimization all --dump bug/
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.cli.syntax import parse_bytes, parse_names
    from hieronnx.errors import HieronnxError, InputError
    from hieronnx.report.verification import render_verification, verification_to_markdown

    if (target is None) == (against is None):
        raise InputError("give what FILE is held to: --model TARGET, or --against FILE")
    loading = read_loading(target, options) if target is not None else None
    if loading is None and any(options[name] for name in ("inputs", "input_specs", "inputs_from", "with_past")):
        raise InputError("--input and its like are for a PyTorch model; give arrays with --inputs")
    if loading is None:
        options = {name: options[name] for name in ("samples", "module", "optimization", "dump")}
    for path in filter(None, (file, against)):
        if not path.is_file():  # before a model is loaded, which may take long
            raise HieronnxError(f"no ONNX file at '{path}'")
    check_reports((markdown,), (file, against, arrays))
    if memory_limit is not None:
        options["memory_limit"] = parse_bytes(memory_limit)
    with working(debug=context.obj) as report:
        from hieronnx.tools.verify.verifying import verify

        loaded = Loaded(against)
        if loading is not None:
            given = loading.specs or loading.gives_all
            loaded = loading.load_for_file(file, report) if given else Loaded(loading.load(report))
        result = verify(
            file,
            loaded.model,
            loaded.args,
            loaded.kwargs,
            inputs=arrays,
            providers=parse_names(providers) if providers else (),
            float64=not no_float64,
            progress=report,
            **options,
        )
    shown: dict[str, Any] = {"all_calls": all_calls, "depth": depth}
    if markdown is not None:
        write_report(markdown, verification_to_markdown(result, **shown))
    show(
        result,
        lambda found, colour: render_verification(found, top=top, quiet=quiet, colour=colour, **shown),
        as_json=as_json,
    )
    if not result.passed:
        context.exit(FOUND_SOMETHING)
