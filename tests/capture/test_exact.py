"""Double precision beside a run: what each call alone would give but for rounding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hieronnx.capture.reference import run_reference
from hieronnx.hierarchy.records import CallId


class Cancelling(nn.Module):
    """Adds a large number and takes it away: what is left is mostly rounding."""

    def forward(self, x: Tensor) -> Tensor:
        return (x + 1e4) - 1e4


class Halving(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cancelling, self.halving = Cancelling(), Halving()

    def forward(self, x: Tensor) -> Tensor:
        y = self.halving(self.cancelling(x))
        y[:, 0].mul_(3)  # through a view, in place
        return y


X = torch.linspace(-1, 1, 32).reshape(4, 8)
ROOT, CANCELLING, HALVING = CallId("", 0), CallId("cancelling", 0), CallId("halving", 0)


def test_the_noise_of_a_call_is_what_rounding_does_in_it() -> None:
    noise = run_reference(Both(), (X,), watched={ROOT, CANCELLING, HALVING}).noise
    rounding = ((X + 1e4) - 1e4).double() - X.double()
    exact = float(rounding.abs().max())
    assert exact > 1e-5
    assert abs(noise[CANCELLING, ""][1] - exact) < 1e-7
    assert noise[HALVING, ""][1] == 0  # what it was given counts as it is
    rounding *= 0.5
    rounding[:, 0] *= 3
    assert abs(noise[ROOT, ""][1] - float(rounding.abs().max())) < 1e-6


def test_a_write_through_a_view_is_followed() -> None:
    noise = run_reference(Both(), (X,), watched={ROOT}).noise
    assert noise[ROOT, ""][1] < 1e-2  # a missed write would be as large as the values


def test_values_are_those_of_the_moment() -> None:
    run = run_reference(Both(), (X,))
    (returned,) = [number for _, number in run.calls[HALVING].returned or ()]
    (result,) = [number for _, number in run.calls[ROOT].returned or ()]
    assert returned != result
    assert (run.values[result][:, 0] == 3 * run.values[returned][:, 0]).all()


def test_nothing_runs_twice_if_no_noise_is_wanted() -> None:
    assert not run_reference(Both(), (X,)).noise
