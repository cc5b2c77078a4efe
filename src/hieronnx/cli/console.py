"""Output and end of the commands.

Results go to stdout, notes and progress to stderr, and torch's chatter nowhere. A user's mistake is one line and exit
code 2, a bug keeps its traceback.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from hieronnx.errors import HieronnxError, count
from hieronnx.report.names import clean_line

if TYPE_CHECKING:
    from hieronnx.tools.results import Result
    from hieronnx.tools.verify.result import VerifyResult
    from hieronnx.tools.written import WritingResult

FOUND_SOMETHING = 1
"""The exit code of a check that found something."""
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
        except (click.Abort, KeyboardInterrupt):  # click turns most of the one into the other
            click.echo("interrupted", err=True)
            sys.exit(_INTERRUPTED)
        except click.ClickException as error:
            message = error.format_message()
            if isinstance(error, click.UsageError):
                command = error.ctx.command_path if error.ctx else "hieronnx"
                message = f"{message[:1].lower()}{message[1:].rstrip('.')}; see '{command} --help'"
            click.echo(f"error: {clean_line(message)}", err=True)
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


def use_colour() -> bool:
    """Say whether results are read on a terminal that wants colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_text(*blocks: str) -> None:
    """Print blocks of text with an empty line between them; those that are empty are left out."""
    text = "\n\n".join(filter(None, blocks))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    # A pipe on Windows may not know the lines of a tree.
    click.echo(text.encode(encoding, "replace").decode(encoding))


def print_json(value: Any) -> None:
    """Print one JSON value."""
    click.echo(json.dumps(value, indent=2))


def print_note(text: str) -> None:
    """Print a note to stderr, as one line."""
    click.echo(f"note: {clean_line(text)}", err=True)


def print_notes(texts: Iterable[str]) -> None:
    """Print notes to stderr, a line each."""
    for text in texts:
        print_note(text)


def show(
    result: Result,
    render: Callable[..., str],
    *,
    as_json: bool,
    quiet: bool = False,
    after: str = "",
    verified: VerifyResult | None = None,
) -> None:
    """Print a result: as JSON, else rendered, with how it was verified and a last line; or, quiet, not at all."""
    if as_json:
        print_json(result.to_dict() if verified is None else {**result.to_dict(), "verified": verified.to_dict()})
        return
    if quiet:
        return
    text = ""
    if verified is not None:
        from hieronnx.report.verification import render_verification

        text = render_verification(verified, quiet=verified.passed, colour=use_colour())
    print_text(render(result, colour=use_colour()), text, after)


def show_written(
    result: WritingResult,
    render: Callable[..., str],
    command: str | None,
    *others: Path,
    as_json: bool,
    quiet: bool = False,
    verified: VerifyResult | None = None,
) -> None:
    """Print a result and the command to try next on the file that was written, after other files."""
    words = [shlex.quote(str(path)) for path in (*others, result.path)]
    following = clean_line(f"next: hieronnx {command} {' '.join(words)}") if command else ""
    show(result, render, as_json=as_json, quiet=quiet, after=following, verified=verified)


def check_reports(reports: Iterable[Path | None], read: Iterable[Path | None]) -> None:
    """Make sure that no report is written over a file that is read, its sidecar or its data.

    Raises:
        HieronnxError: If one would be.
    """
    from hieronnx.files.opening import sidecar_path
    from hieronnx.files.staging import data_name
    from hieronnx.files.writing import check_kept

    kept = {own for path in filter(None, read) for own in (path, sidecar_path(path), path.with_name(data_name(path)))}
    for path in filter(None, reports):
        check_kept(path, (path,), kept, "which is read for it")


def write_report(path: Path, text: str) -> None:
    """Write a report to a file, which appears whole or not at all.

    Raises:
        HieronnxError: If it cannot be written.
    """
    from hieronnx.files.staging import write_whole

    write_whole(path, text)


@contextmanager
def quiet_readers(*, debug: bool) -> Iterator[None]:
    """Keep off the terminal what onnx-ir logs of a file, raw names and all; with `--debug` it is shown, cleaned."""
    logger = logging.getLogger("onnx_ir")
    handler = _Notes(sys.stderr) if debug else logging.NullHandler()
    propagate, logger.propagate = logger.propagate, False
    with _relay(logger, handler):
        try:
            yield
        finally:
            logger.propagate = propagate


@contextmanager
def working(*, debug: bool) -> Iterator[Callable[[str], None]]:
    """Run long work with a clean screen; yields the function to call as each stage begins.

    What the model prints goes to stderr, for stdout belongs to the result. What torch and its neighbours
    write to stderr is shown with `--debug` only; what hieronnx itself has to note, always.
    """
    with _show_stages() as report:
        stderr = sys.stderr
        quiet = nullcontext() if debug else _hold_back(stderr)
        with redirect_stdout(stderr), _relay(logging.getLogger("hieronnx"), _Notes(stderr)), quiet:
            yield report


@contextmanager
def _show_stages() -> Iterator[Callable[[str], None]]:
    """Show the running stage beside a spinner, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _stage: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(file=sys.stderr, highlight=False).status(Text("starting")) as status:
        yield lambda stage: status.update(Text(clean_line(stage)))


@contextmanager
def _hold_back(stderr: TextIO) -> Iterator[None]:
    """Keep stderr to ourselves: torch logs, warns and prints graphs there. A bug shows what was held back."""
    held = StringIO()
    try:
        with redirect_stderr(held):
            yield
    except HieronnxError:
        raise
    except Exception:
        click.echo(held.getvalue(), file=stderr, nl=False)
        raise
    # The one warning that says the result may be wrong: a Python value that the trace took for a constant.
    places = held.getvalue().count("TracerWarning: ")
    if places:
        text = f"torch warns in {count(places, 'place')} that the trace may not hold for other inputs"
        click.echo(f"note: {text}; --debug shows where", file=stderr)


class _Notes(logging.Handler):
    """Prints what the library logs, a line each."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(logging.WARNING)
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"note: {clean_line(record.getMessage())}", file=self._stream)


@contextmanager
def _relay(logger: logging.Logger, handler: logging.Handler) -> Iterator[None]:
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
