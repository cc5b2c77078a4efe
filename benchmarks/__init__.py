"""Measurements of hieronnx beside its peers, on the same work in one run. `python -m benchmarks` runs them all."""
