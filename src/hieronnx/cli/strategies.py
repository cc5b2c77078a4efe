"""`hieronnx strategies`: how well each strategy does on a model."""

from __future__ import annotations

from pathlib import Path

import click

from hieronnx.cli._console import print_json, print_text, use_colour, working
from hieronnx.cli._model import exporter_option, input_options, load_with_inputs, read_specs, trust_option

__all__ = ["strategies_command"]


@click.command("strategies", short_help="Measure how well each strategy attributes a model without names.")
@click.argument("target")
@input_options
@exporter_option
@trust_option
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
@click.pass_context
def strategies_command(
    context: click.Context,
    /,
    target: str,
    inputs: tuple[str, ...],
    input_specs: Path | None,
    exporter: str,
    trust_remote_code: bool,
    as_json: bool,
) -> None:
    """Measure how well each strategy does on TARGET, a model as for export.

    The model is exported, with what the exporter records as the truth. All names and metadata are taken from a copy,
    and each strategy of `hieronnx annotate` attributes its nodes: high confidence should be right, and what is not
    known should be said to be so. Nothing is written.

    \b
    Examples:
      hieronnx strategies demo
      hieronnx strategies net.py:Net --input 'x=float32[1,3,64,64]' --exporter torchscript
    """  # noqa: D301  click wants the backspace itself
    from hieronnx._strategies import measure_strategies
    from hieronnx.report.strategies import render_scores, scores_to_json

    specs = read_specs(inputs, input_specs)
    with working(debug=context.obj) as report:
        model, kwargs = load_with_inputs(target, specs, trust_remote_code, report)
        scores = measure_strategies(model, (), kwargs, progress=report, exporter=exporter)
    if as_json:
        print_json({"target": target, **scores_to_json(scores)})
    else:
        print_text(render_scores(scores, colour=use_colour()))
