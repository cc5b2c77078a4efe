"""Settings for the whole test run."""

from __future__ import annotations

from hypothesis import settings

# No deadline: a slow machine is no failure. Derandomized: the same tests give the same result in every run.
settings.register_profile("hieronnx", deadline=None, derandomize=True)
settings.load_profile("hieronnx")
