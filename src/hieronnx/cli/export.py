"""`hieronnx export`: a PyTorch model to ONNX with its hierarchy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from hieronnx.cli.console import FOUND_SOMETHING, show_written, working
from hieronnx.cli.loading import read_loading
from hieronnx.cli.options import confidence_option, exporter_option, model_options, verify_option, writing_options


@click.command("export", short_help="Export a PyTorch model, every node with the call that made it.")
@click.argument("target")
@writing_options
@confidence_option
@model_options
@click.option(
    "--dynamic",
    multiple=True,
    metavar="NAME:AXIS=LABEL,…",
    help="Dynamic axes of an input, as in input_ids:0=batch,1=sequence; '*:0=batch' is of all. Of a tensor inside an "
    "argument by the name that the file has for it, past_0_0:0=batch. May be repeated.",
)
@click.option(
    "--check/--no-check",
    default=None,
    help="Run the file on the example, and with dynamic axes once at other sizes; exit code 1 if it does not do what "
    "the model does. [default: with dynamic axes, models of up to 1 GB]",
)
@click.option("--input-names", metavar="NAMES", help="Names for the file's inputs, in order, as in tokens,mask.")
@click.option("--output-names", metavar="NAMES", help="Names for its outputs, in order.")
@click.option(
    "--torch-names", is_flag=True, help="Let torch name inputs and outputs, not forward's arguments and results."
)
@click.option("--train", is_flag=True, help="Export in training mode, dropout and all; eval mode if not given.")
@exporter_option
@click.option("--opset", type=click.IntRange(min=1), metavar="N", help="The opset; torch's default if not given.")
@click.option("--strip-torch-metadata", is_flag=True, help="Leave out torch's own metadata on the nodes.")
@click.option(
    "--strategy",
    type=click.Choice(["captured", "htp", "usage_based"]),
    default="captured",
    show_default=True,
    help="How nodes are attributed: captured, what the exporter itself recorded; htp, by what they compute; "
    "usage_based, by parameters and dataflow.",
)
@click.option(
    "--verify-topology",
    is_flag=True,
    help="Export with torch alone, too, and prove that the graph is the same; exit code 1 if it is not.",
)
@verify_option
@click.pass_context
def export_command(
    context: click.Context,
    /,
    target: str,
    dynamic: tuple[str, ...],
    opset: int | None,
    input_names: str | None,
    output_names: str | None,
    as_json: bool,
    quiet: bool,
    verified: bool,
    **options: Any,
) -> None:
    """Export TARGET to ONNX, every node with the module call that made it.

    \b
    TARGET is one of
      demo                    the built-in model
      package.module:object   an nn.Module, a class or a function that makes one
      file.py:object          the same, from a file
      FOLDER or HUB_ID        a Hugging Face model; hf://HUB_ID where a folder has nearly that name

    \b
    Examples:
      hieronnx export demo -o demo.onnx
      hieronnx export net.py:Net -o net.onnx --input 'x=float32[1,3,64,64]' --dynamic x:0=batch
      hieronnx export ./gpt2 -o gpt2.onnx --with-past
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.errors import InputError, check_folder

    loading = read_loading(target, options)
    check_folder(options["output"])
    if loading.with_past and dynamic:
        raise InputError("--with-past makes batch and lengths dynamic; it does not go with --dynamic")
    from hieronnx.cli.syntax import parse_dynamic, parse_names
    from hieronnx.report.summary import render_export
    from hieronnx.tools.export import check_choices

    check_choices(options["exporter"], options["strategy"], options["torch_nn"], opset)
    axes: dict[str, dict[int, str]] = {}
    for name, labels in map(parse_dynamic, dynamic):
        axes.setdefault(name, {}).update(labels)
    names = {"input_names": input_names, "output_names": output_names}
    options |= {name: parse_names(text) for name, text in names.items() if text is not None}
    with working(debug=context.obj) as report:
        loaded = loading.load_with_inputs(report)  # which imports torch, and says so
        from hieronnx.capture.dynamic import to_dynamic_shapes
        from hieronnx.tools.export import export

        model = loaded.model.train(options["train"])
        given = {"opset_version": opset, "dynamic_shapes": to_dynamic_shapes(model, loaded.args, loaded.kwargs, axes)}
        given = {name: value for name, value in given.items() if value is not None}
        options = {**loaded.options, **options, **given}
        result = export(model, loaded.args, kwargs=loaded.kwargs, progress=report, **options)
        result = replace(result, made_up=loaded.made_up)
        verification = None
        if verified:
            from hieronnx.tools.verify.verifying import verify

            verification = verify(options["output"], model, loaded.args, loaded.kwargs, progress=report)
    failed = verification is not None and not verification.passed
    differs = result.topology is not None and not result.topology.same
    fixed = result.axes is not None and result.axes.problem is not None
    is_wrong = failed or differs or fixed or bool(result.findings) or result.problem is not None
    following = "tree" if result.hierarchy.calls else None
    show_written(result, render_export, following, as_json=as_json, quiet=quiet and not is_wrong, verified=verification)
    if is_wrong:
        context.exit(FOUND_SOMETHING)
