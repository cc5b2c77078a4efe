"""Commands run in this process, as a user types them."""

from __future__ import annotations

from click.testing import CliRunner, Result

from hieronnx.cli import cli


def run(*args: object) -> Result:
    """Run a command; the result has its exit code and what it printed."""
    return CliRunner().invoke(cli, [str(arg) for arg in args], prog_name="hieronnx")
