"""Settings for the whole test run."""

from __future__ import annotations

import pytest
from hypothesis import settings

# No deadline: a slow machine is no failure. Derandomized: the same tests give the same result in every run.
settings.register_profile("hieronnx", deadline=None, derandomize=True)
settings.load_profile("hieronnx")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let `--dist loadgroup` run all tests of one zoo model in one process, which then exports it once."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if isinstance(name := parameters.get("name"), str):
            item.add_marker(pytest.mark.xdist_group(f"{name}-{parameters.get('exporter', '')}"))
