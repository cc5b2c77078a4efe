"""A short run of the fuzzer, always the same: `make fuzz` is a long one."""

from __future__ import annotations

import pytest

from security import fuzz


def test_damaged_files_are_read_or_refused() -> None:
    report = fuzz.fuzz(0, mutants=20)
    assert report.mutants == 20
    assert not report.causes, str(report)


def test_the_fuzzer_finds_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = {"broken": lambda: {}["nothing"], "hungry": lambda: bytearray(1 << 40)}
    monkeypatch.setattr(fuzz, "readers", lambda *_: readers)
    report = fuzz.fuzz(0, mutants=1)
    assert [cause.partition(" ")[0] for cause in report.causes] == ["KeyError", "MemoryError"]
