"""`hieronnx profile`: which module is slow, on the graph that ONNX Runtime really runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from hieronnx.cli.console import (
    FOUND_SOMETHING,
    check_reports,
    print_json,
    print_notes,
    print_text,
    use_colour,
    working,
    write_report,
)
from hieronnx.cli.options import (
    all_calls_option,
    depth_option,
    json_option,
    markdown_option,
    path_argument,
    top_option,
)

_Command = TypeVar("_Command", bound=Callable[..., Any])
_LEVELS = click.Choice(["none", "basic", "extended", "layout", "all"])


def _file_option(name: str, help_text: str) -> Callable[[_Command], _Command]:
    return click.option(name, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=help_text)


@click.command("profile", short_help="Which module is slow, in ONNX Runtime.")
@path_argument("model")
@click.option("--inputs", type=click.Path(path_type=Path), metavar="FILE", help="Arrays to run on, as .npz or .npy.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="The size of a dynamic axis. May be repeated.")
@click.option("--runs", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Runs that count.")
@click.option(
    "--warmup", type=click.IntRange(min=0), default=2, show_default=True, metavar="N", help="Runs before that do not."
)
@click.option(
    "--optimization", type=_LEVELS, default="all", show_default=True, help="ONNX Runtime's level of optimization."
)
@click.option("--providers", default="", metavar="NAME,NAME", help="Execution providers, as in cuda,cpu.")
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads for an operator.")
@click.option("--no-roofline", is_flag=True, help="Do not measure what this machine reaches.")
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Another model, or the saved --json of an earlier profile: what is slower or faster, by module.",
)
@click.option("--against-optimization", type=_LEVELS, help="The level of the other model, or of this one as the other.")
@click.option(
    "--fail-above", metavar="PERCENT", help="Exit with 1 if a module, or the whole, is slower by more than this."
)
@click.option("--in-isolation", metavar="PATTERN", help="Also time these calls as models of their own.")
@_file_option("--trace-from", "Read this trace of ONNX Runtime's profiler in place of running the model.")
@_file_option("--optimized", "The graph that ran when that trace was written.")
@depth_option("Levels of calls below the root.")
@top_option("List only the N slowest, by the time of their own.")
@click.option("--by", type=click.Choice(["operator", "class"]), help="List operators or classes, not calls.")
@all_calls_option
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="Print the calls (operators, classes) as CSV.")
@markdown_option
@_file_option("--trace", "Write a trace for Perfetto and Chrome, modules as slices over the kernels.")
@_file_option("--speedscope", "Write a file for speedscope.")
@_file_option("--node-data", "Write the kernels' times as node data for Model Explorer, for the optimized graph.")
@click.pass_context
def profile_command(
    context: click.Context,
    /,
    model: Path,
    dims: tuple[str, ...],
    providers: str,
    no_roofline: bool,
    fail_above: str | None,
    depth: int | None,
    top: int | None,
    by: str | None,
    all_calls: bool,
    as_json: bool,
    as_csv: bool,
    markdown: Path | None,
    trace: Path | None,
    speedscope: Path | None,
    node_data: Path | None,
    **options: Any,
) -> None:
    """Run MODEL in ONNX Runtime and tell where its time goes, by module call.

    The graph that is timed is the one that ONNX Runtime makes of MODEL. Each kernel's time is the median of the runs,
    and is that of the call whose work it does; what several calls share is divided among them. The calls' own times
    add up to the total.

    Exit code 0: done; 1: slower than --fail-above allows; 2: it could not be done.

    \b
    Examples:
      hieronnx profile model.onnx --top 10
      hieronnx profile model.onnx --dim batch=8 --trace trace.json
      hieronnx profile int8.onnx --against model.onnx --fail-above 10%
      hieronnx profile model.onnx --against-optimization none
      hieronnx profile model.onnx --trace-from phone.json --optimized phone.onnx
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.cli.syntax import parse_dim, parse_names, parse_percent
    from hieronnx.errors import HieronnxError, InputError
    from hieronnx.report.profile import profile_to_csv, profile_to_markdown, render_profile
    from hieronnx.report.profile_files import profile_to_node_data, profile_to_speedscope, profile_to_trace
    from hieronnx.tools.profile.profiling import profile

    if as_json and as_csv:
        raise InputError("--json and --csv are two forms of the same output; give one of them")
    limit = None if fail_above is None else parse_percent(fail_above)
    if limit is not None and options["against"] is None and options["against_optimization"] is None:
        raise InputError("--fail-above needs something to compare with: --against FILE")
    read = (options[name] for name in ("inputs", "against", "trace_from", "optimized"))
    check_reports((markdown, trace, speedscope, node_data), (model, *read))
    with working(debug=context.obj) as report:
        result = profile(
            model,
            dims=dict(map(parse_dim, dims)),
            providers=parse_names(providers) if providers else (),
            roofline=not no_roofline,
            progress=report,
            **options,
        )
    shown: dict[str, Any] = {"depth": depth, "top": top, "by": by, "all_calls": all_calls}
    files = {trace: profile_to_trace, speedscope: profile_to_speedscope, node_data: profile_to_node_data}
    for path, render in files.items():
        if path is not None:
            write_report(path, render(result))
    if markdown is not None:
        write_report(markdown, profile_to_markdown(result, **shown))
    if as_json:
        print_json(result.to_dict())
    elif as_csv:
        print_notes(result.notes)
        print_text(profile_to_csv(result, by=by))
    else:
        written = "\n".join(f"wrote {path}" for path in (*files, markdown) if path is not None)
        print_text(render_profile(result, colour=use_colour(), **shown), written)
    if limit is None or result.comparison is None:
        return
    if not result.comparison.conclusive:
        raise HieronnxError("so few runs cannot tell what is slower than --fail-above allows; take more (--runs)")
    slower = max((change.percent or 0.0 for change in result.comparison.changed), default=0.0)
    context.exit(FOUND_SOMETHING if slower > limit else 0)
