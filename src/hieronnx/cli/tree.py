"""`hieronnx tree`: the module calls of an ONNX file."""

from __future__ import annotations

from pathlib import Path

import click

from hieronnx.cli.console import FOUND_SOMETHING, print_json, print_note, print_notes, print_text, show, use_colour
from hieronnx.cli.options import (
    all_calls_option,
    depth_option,
    json_option,
    path_argument,
)
from hieronnx.report.names import clean_line


@click.command("tree")
@path_argument("model")
@click.argument("pattern", required=False)
@click.option("--node", "is_node", is_flag=True, help="Take PATTERN for the name of a node or tensor, not of a call.")
@depth_option("Levels below the root or each match.")
@click.option("--nodes", is_flag=True, help="List the ONNX nodes under their calls.")
@all_calls_option
@json_option
@click.pass_context
def tree_command(
    context: click.Context,
    /,
    model: Path,
    pattern: str | None,
    is_node: bool,
    depth: int | None,
    nodes: bool,
    all_calls: bool,
    as_json: bool,
) -> None:
    """Print the module calls of MODEL as a tree, or the module of a node or tensor.

    For each call: its module, the ONNX nodes of its region (nodes), those of them in no call below it that has a
    line of its own in the whole tree (own), and its parameters. PATTERN selects calls, by globs over module paths and
    tags or as 'hieronnx select' takes it: what matches is shown with all below it and the way there. Work of a call
    that was fused into a node of others, or folded into an initializer, is marked with where it is.

    Where no call matches, PATTERN is the name of a node or a tensor, as runtimes print it: the answer is the node's
    module call, tag, evidence and origins; of a tensor, those of its producer and its readers.

    Exit code 0: found; 1: MODEL has nothing of that name; 2: it could not be read.

    \b
    Examples:
      hieronnx tree model.onnx --depth 2
      hieronnx tree model.onnx 'encoder.layer.0.*' --nodes
      hieronnx tree model.onnx 'class:LayerNorm and not encoder.layer.0'
      hieronnx tree model.onnx /encoder/layer.0/attention/self/MatMul
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.errors import InputError
    from hieronnx.files.torch_scopes import note_torch_scopes
    from hieronnx.report.tree import grow_tree, render_tree, tree_to_json
    from hieronnx.tools.fold.unfolding import FOLDED_NOTE, load_flat

    if is_node and pattern is None:
        raise click.UsageError("--node needs PATTERN, the name of a node or tensor.")
    hierarchy, folded = load_flat(model)
    print_notes([*note_torch_scopes(str(model), hierarchy.strategy), *([FOLDED_NOTE] if folded else [])])
    try:
        tree = None if is_node else grow_tree(hierarchy, pattern=pattern, depth=depth, all_calls=all_calls)
    except InputError as error:
        _locate(context, model, pattern or "", error, as_json=as_json)
        return
    if any(pattern in (node.name, node.output) for node in hierarchy.nodes) and not is_node:
        print_note(f"'{pattern}' is also a node or a tensor: --node shows its module")
    if tree is None:
        _locate(context, model, pattern or "", None, as_json=as_json)
    elif as_json:
        print_json({"model": str(model), "strategy": hierarchy.strategy, "tree": tree_to_json(tree, nodes=nodes)})
    else:
        print_text(render_tree(tree, nodes=nodes, elsewhere=True, colour=use_colour()))


def _locate(context: click.Context, model: Path, name: str, no_call: Exception | None, *, as_json: bool) -> None:
    """Show where a node or tensor belongs; where there is none of that name, say what is near it."""
    from hieronnx.errors import InputError
    from hieronnx.report.location import render_location
    from hieronnx.tools.locate import locate

    try:
        result = locate(model, name)
    except InputError as error:
        reasons = [str(reason) for reason in (no_call, error) if reason is not None]
        click.echo(f"error: {clean_line('; and '.join(reasons))}", err=True)
        context.exit(FOUND_SOMETHING)
    show(result, render_location, as_json=as_json)
