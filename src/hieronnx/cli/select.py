"""`hieronnx select`: nodes by module, in the form in which other tools take them."""

from __future__ import annotations

from pathlib import Path

import click

from hieronnx.cli.console import print_json, print_notes, print_text
from hieronnx.cli.options import json_option, path_argument

_FORMS = ("ort", "modelopt", "nncf", "aimet", "qnn", "polygraphy", "olive", "names", "json")


@click.command("select", short_help="List nodes by module, in the form that another tool takes.")
@path_argument("model")
@click.argument("patterns", nargs=-1)
@click.option("--op", multiple=True, metavar="TYPE", help="Only nodes of this operator. May be repeated.")
@click.option("--not", "without", multiple=True, metavar="PATTERN", help="Leave these out. May be repeated.")
@click.option(
    "--for",
    "tool",
    type=click.Choice(_FORMS),
    default="names",
    show_default=True,
    help="The form: what the tool takes to leave these nodes in float, their names, or all that is known.",
)
@json_option
def select_command(
    model: Path, patterns: tuple[str, ...], op: tuple[str, ...], without: tuple[str, ...], tool: str, as_json: bool
) -> None:
    """Select the nodes of MODEL that PATTERNS name, and print them for another tool; all nodes without a pattern.

    \b
    A pattern is
      encoder.layer.0             a module path, a tag, or path@n: its nodes and all below
      'encoder.layer.*.attention' a glob over these
      class:Block op:MatMul       a class, an operator, a category (category:normalization)
      'class:Block and not (encoder.layer.0 or op:Add)'

    \b
    Examples:
      hieronnx select model.onnx head --for ort > exclude.json
      hieronnx select model.onnx 'class:LayerNorm' --for nncf
      hieronnx select model.onnx 'encoder.layer.*.attention' --op MatMul --not encoder.layer.0
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.errors import count
    from hieronnx.tools.select import select

    selection = select(model, *patterns, op=op, without=without)
    if as_json or tool == "json":
        print_json(selection.to_dict())
        return
    text = selection.render_for(tool)
    if selection.shared:
        print_notes([f"{count(len(selection.shared), 'node')} of these work for calls that were not selected, too"])
    inner = sum(bool(node.graph) for node in selection.nodes)
    if inner:
        print_notes([f"{count(inner, 'node')} of these are in bodies or functions, where few tools look"])
    print_text(text)
