"""An interrupt at any moment of an export ends it: exit code 130, one word, nothing left."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

import hieronnx
from hieronnx.cli import cli
from support.forking import fork


def start_export(folder: Path, exporter: str) -> int:
    """Export the demo in a child that has everything imported; return its id once it has begun."""
    receiving, sending = os.pipe()
    child = fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored, for what is in the back
        torch.set_num_threads(1)  # the threads that torch had did not come along
        os.close(receiving)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        code = 99
        try:
            os.write(sending, b"!")
            cli.main(["export", "demo", "-o", str(folder / "demo.onnx"), "--exporter", exporter])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 98
        except BaseException:
            code = 97
        finally:
            os._exit(code)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        assert pipe.read(1) == b"!"
    return child


def interrupt_exports(folder: Path, exporter: str, times: int) -> None:
    """Interrupt an export so often, each time a little later, over all the time that it takes."""
    for name in hieronnx.__all__:
        getattr(hieronnx, name)
    whole = folder / "whole"
    whole.mkdir()
    assert os.waitstatus_to_exitcode(os.waitpid(start_export(whole, exporter), 0)[1]) == 0  # imports the rest
    names = sorted(path.name for path in whole.iterdir())
    started = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(start_export(whole, exporter), 0)[1]) == 0
    takes = time.monotonic() - started
    codes, tried = [], 0
    while len(codes) < times and tried < 3 * times:
        target = folder / str(tried)
        target.mkdir()
        tried += 1
        child, started = start_export(target, exporter), time.monotonic()
        time.sleep(takes * (len(codes) + 1) / (times + 1))  # not at once: the command must have begun
        os.kill(child, signal.SIGINT)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        left = sorted(path.name for path in target.iterdir())
        if code == 0:  # it was done before the interrupt came: the machine has become faster
            assert left == names
            takes = min(takes, time.monotonic() - started) * 0.8
        else:
            codes.append(code)
            if left != names:  # written, and interrupted while it was reported
                assert left == [], (tried, code)
    assert codes == [130] * times, Counter(codes)


@pytest.mark.parametrize("exporter", ["torchscript"])
def test_interrupts_end_an_export_and_leave_nothing(exporter: str, tmp_path: Path) -> None:
    interrupt_exports(tmp_path, exporter, 8)


@pytest.mark.long
@pytest.mark.parametrize("exporter", ["auto"])
def test_a_hundred_interrupts_end_an_export_and_leave_nothing(exporter: str, tmp_path: Path) -> None:
    interrupt_exports(tmp_path, exporter, 100)
