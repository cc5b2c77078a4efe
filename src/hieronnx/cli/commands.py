"""The end of every command: a user's mistake is one line and exit code 2, a bug keeps its traceback."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from hieronnx.errors import HieronnxError
from hieronnx.report.names import clean_line

_FAILED = 2
_INTERRUPTED = 130  # what shells use for SIGINT


class Commands(click.Group):
    """A group of commands that reports errors in one line each."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and exit."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.Abort:
            click.echo("interrupted", err=True)
            sys.exit(_INTERRUPTED)
        except click.ClickException as error:
            click.echo(f"error: {clean_line(_describe(error))}", err=True)
            sys.exit(_FAILED)
        except Exception:
            # Not the interpreter's 1, which says here that a check has found something.
            traceback.print_exc()
            sys.exit(_FAILED)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, context: click.Context) -> Any:
        """Run the chosen command, turning what the user can fix into a line for them."""
        try:
            return super().invoke(context)
        except HieronnxError as error:
            if context.params["debug"]:
                traceback.print_exception(error)
            raise click.ClickException(str(error)) from error


def _describe(error: click.ClickException) -> str:
    message = error.format_message()
    if not isinstance(error, click.UsageError):
        return message
    command = error.ctx.command_path if error.ctx else "hieronnx"
    return f"{message[:1].lower()}{message[1:].rstrip('.')}; see '{command} --help'"
