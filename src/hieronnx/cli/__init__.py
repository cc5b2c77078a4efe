"""The command line, a file for each command (what carries shares one): `hieronnx export | tree | annotate | …`.

Each command imports what it needs when it runs.
"""

from __future__ import annotations

import gc

import click

from hieronnx._version import __version__
from hieronnx.cli.analyze import analyze_command
from hieronnx.cli.annotate import annotate_command
from hieronnx.cli.carry import carry_command
from hieronnx.cli.compare import compare_command
from hieronnx.cli.console import Commands, quiet_readers
from hieronnx.cli.demo import demo_command
from hieronnx.cli.export import export_command
from hieronnx.cli.extract import extract_command
from hieronnx.cli.fold import fold_command
from hieronnx.cli.optimize import optimize_command
from hieronnx.cli.place import place_command
from hieronnx.cli.profile import profile_command
from hieronnx.cli.quantize import quantize_command
from hieronnx.cli.replace import replace_command
from hieronnx.cli.select import select_command
from hieronnx.cli.sensitivity import sensitivity_command
from hieronnx.cli.split import split_command
from hieronnx.cli.tree import tree_command
from hieronnx.cli.unfold import unfold_command
from hieronnx.cli.validate import validate_command
from hieronnx.cli.verify import verify_command
from hieronnx.cli.view import view_command


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="hieronnx", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show tracebacks, and what torch has to say.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """The PyTorch module hierarchy as a coordinate system for ONNX.

    Exit codes: 0, done and nothing wrong; 1, a check found something; 2, it could not be done.
    """
    context.obj = debug
    context.with_resource(quiet_readers(debug=debug))
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _command in (
    analyze_command,
    annotate_command,
    carry_command,
    compare_command,
    demo_command,
    export_command,
    extract_command,
    fold_command,
    optimize_command,
    place_command,
    profile_command,
    quantize_command,
    replace_command,
    select_command,
    sensitivity_command,
    split_command,
    tree_command,
    unfold_command,
    validate_command,
    verify_command,
    view_command,
):
    cli.add_command(_command)


def main() -> None:
    """Run the command line."""
    # Large graphs are millions of small objects that live until the end: looking for garbage among them takes longer
    # than some of the commands themselves.
    gc.set_threshold(200_000, 50, 50)
    cli.main(prog_name="hieronnx")
