"""The search for a target: candidates by estimates, corrected by what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

import hieronnx
from hieronnx.tools.precision.measuring import Target
from hieronnx.tools.precision.searching import Search, default_budget
from hieronnx.tools.precision.units import Unit, Units
from hieronnx.tools.select import choose_nodes
from support.exports import export_ours

DEPTH = 4


class Additive:
    """A model whose modules each add some noise to its output, in squares; 1 is 30 dB."""

    def __init__(self, noise: Sequence[float], costs: Sequence[int], estimates: Sequence[float]) -> None:
        self.noise = {f"m{number}": value for number, value in enumerate(noise)}
        self.costs = dict(zip(self.noise, costs, strict=True))
        units = (Unit(name, value, self.costs[name], 1) for name, value in zip(self.noise, estimates, strict=True))
        self.units = Units(tuple(units), sum(costs), len(self.noise), {"": tuple(self.noise)})

    def measure(self, kept: Sequence[str]) -> float:
        left = math.fsum(value for name, value in self.noise.items() if name not in kept)
        return 30 - 10 * math.log10(left) if left else math.inf

    def search(self, target: float, patience: int = 1) -> Search:
        budget = default_budget(len(self.noise), DEPTH)
        search = Search(Target("snr", target), self.units, budget, self.measure, patience=patience)
        search.run(self.measure(()))
        return search

    def search_greedily(self, target: float) -> float:
        """Return the share in 8 bits that is left by keeping what helps most until the target is met."""
        kept: list[str] = []
        while self.measure(kept) < target:
            left = [name for name in self.noise if name not in kept]
            met = [name for name in left if self.measure([*kept, name]) >= target]
            kept.append(min(met, key=self.costs.__getitem__) if met else max(left, key=self.noise.__getitem__))
        return 1 - sum(self.costs[name] for name in kept) / sum(self.costs.values())


class Crossing(Additive):
    """A model in which each border between what is in float and what is not adds noise, too."""

    def measure(self, kept: Sequence[str]) -> float:
        inside = [name not in kept for name in self.noise]
        borders = sum(before != after for before, after in pairwise(inside))
        left = math.fsum(value for name, value in self.noise.items() if name not in kept) + 0.03 * borders
        return 30 - 10 * math.log10(left) if left else math.inf


def draw(seed: int, units: int = 25, wrong: float = 0.0) -> Additive:
    random = np.random.default_rng(seed)
    noise = random.lognormal(0, 1, units)
    noise[random.integers(units)] *= 20
    noise /= noise.sum()
    return Additive(noise, random.integers(1, 30, units), noise * random.lognormal(0, wrong, units))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("target", [31.0, 34.0])
def test_where_few_are_to_blame_no_less_is_in_8_bits_than_a_greedy_search_leaves(seed: int, target: float) -> None:
    model = draw(seed, wrong=0.3)
    search = model.search(target)
    best = max(trial.multiply_adds for trial in search.trials.values() if trial.met)
    assert best >= model.search_greedily(target) - 1e-9
    assert len(search.trials) <= 2 * math.sqrt(25) + DEPTH


@pytest.mark.parametrize("seed", range(6))
def test_where_little_is_in_8_bits_it_goes_on(seed: int) -> None:
    noise = np.random.default_rng(seed).lognormal(0, 1, 25)
    model = Crossing(noise / noise.sum(), [10] * 25, noise)
    shares = []
    for patience in (1, 4):
        search = model.search(38.0, patience)
        assert len(search.trials) <= search.allowed == patience * search.budget
        shares.append(max(trial.multiply_adds for trial in search.trials.values() if trial.met))
    assert shares[0] < shares[1] < 0.5


@pytest.mark.parametrize("culprit", [0, 7, 24])
def test_a_module_that_was_thought_harmless_is_found(culprit: int) -> None:
    noise = np.full(25, 0.002)
    noise[culprit] = 0.952
    estimates = np.full(25, 0.041)
    estimates[culprit] = 0.016
    search = Additive(noise, [10] * 25, estimates).search(40.0)
    assert len(search.trials) <= 2 * math.sqrt(25) + DEPTH
    best = max((trial for trial in search.trials.values() if trial.met), key=lambda trial: trial.multiply_adds)
    assert f"m{culprit}" in best.kept


def test_what_costs_nothing_is_kept_before_what_costs() -> None:
    search = Additive([0.5, 0.45, 0.05], [10, 0, 10], [0.5, 0.45, 0.05]).search(32.0)
    best = max((trial for trial in search.trials.values() if trial.met), key=lambda trial: trial.multiply_adds)
    assert best.kept == ("m1",)


def test_a_model_without_anything_in_8_bits_is_no_candidate() -> None:
    search = draw(0).search(400.0)
    assert all(len(trial.kept) < 25 for trial in search.trials.values())
    assert not any(trial.met for trial in search.trials.values())


def test_a_metric_that_nothing_adds_up_for() -> None:
    model = draw(1)
    limit = sorted(model.noise.values())[-3]

    def drop(kept: Sequence[str]) -> float:
        """Lose all where one of three modules is in 8 bits."""
        return 0.0 if all(name in kept for name, value in model.noise.items() if value >= limit) else 1.0

    search = Search(Target("drop", 0.1), model.units, default_budget(25, DEPTH), drop)
    chosen = search.run(drop(()))
    assert chosen is not None
    assert chosen.met
    assert len(search.trials) <= 2 * math.sqrt(25) + DEPTH


@pytest.mark.parametrize("module", ["encoder.layer.0.attention.self", "encoder.layer.1.output", "pooler", "embeddings"])
def test_own_nodes_have_a_selection_of_their_own(module: str) -> None:
    hierarchy = hieronnx.load(export_ours("bert", "torchscript"))
    paths = {node.scope.module for node in hierarchy.nodes}
    every = Units(tuple(Unit(path, 1.0, 1, 1) for path in paths), 1, 1, Units.find_children(hierarchy))
    chosen, _ = choose_nodes(hierarchy, every.name({module}))
    assert {node.key for node in chosen} == {node.key for node in hierarchy.nodes if node.scope.module == module}
    below = {path for path in paths if path == module or path.startswith(f"{module}.")}
    assert every.name(below) == (module,)
