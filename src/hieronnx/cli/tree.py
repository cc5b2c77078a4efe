"""`hieronnx tree`: the module calls of an ONNX file."""

from __future__ import annotations

from pathlib import Path

import click

from hieronnx.cli.console import print_json, print_notes, print_text, use_colour
from hieronnx.cli.options import (
    all_calls_option,
    depth_option,
    json_option,
    path_argument,
)


@click.command("tree")
@path_argument("model")
@click.argument("pattern", required=False)
@depth_option("Levels below the root or each match.")
@click.option("--nodes", is_flag=True, help="List the ONNX nodes under their calls.")
@all_calls_option
@json_option
def tree_command(
    model: Path, pattern: str | None, depth: int | None, nodes: bool, all_calls: bool, as_json: bool
) -> None:
    """Print the module calls of MODEL as a tree.

    For each call: its module, the ONNX nodes of its region (nodes), those of them in no call below it that has a
    line of its own in the whole tree (own), and its parameters. PATTERN is a glob over module paths and tags: what
    matches is shown with all below it and the way there.

    \b
    Examples:
      hieronnx tree model.onnx --depth 2
      hieronnx tree model.onnx 'encoder.layer.0.*' --nodes
      hieronnx tree model.onnx '*/LayerNorm*'
    """  # noqa: D301  click wants the backspace itself
    from hieronnx.files.opening import load
    from hieronnx.files.torch_scopes import note_torch_scopes
    from hieronnx.report.tree import grow_tree, render_tree, tree_to_json

    hierarchy = load(model)
    print_notes(note_torch_scopes(str(model), hierarchy.strategy))
    tree = grow_tree(hierarchy, pattern=pattern, depth=depth, all_calls=all_calls)
    if as_json:
        print_json({"model": str(model), "strategy": hierarchy.strategy, "tree": tree_to_json(tree, nodes=nodes)})
    else:
        print_text(render_tree(tree, nodes=nodes, colour=use_colour()))
