"""Choosing cuts: never worse than the best that trying all of them finds."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hieronnx
from hieronnx import InputError
from hieronnx.tools.split.balance import Costs, choose_cuts, count_stages, join_weights, sum_costs
from support.annotated import annotated


def best_by_trying(table: np.ndarray, crossing: np.ndarray, stages: int) -> tuple[float, float]:
    count = len(table) - 1
    return min(
        (max(table[i, j] for i, j in zip((0, *cuts), (*cuts, count), strict=True)), sum(crossing[c] for c in cuts))
        for cuts in combinations(range(1, count), stages - 1)
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=5, max_size=12), st.integers(1, 5))
def test_the_slowest_stage_is_the_best_and_then_the_fewest_bytes_cross(
    places: list[tuple[int, int]], stages: int
) -> None:
    table = sum_costs([cost for cost, _ in places])
    crossing = np.array([0.0, *(size for _, size in places[1:]), 0.0])
    cuts = choose_cuts(Costs(table, crossing), stages)
    assert len(cuts) == stages - 1
    ends = list(zip((0, *cuts), (*cuts, len(places)), strict=True))
    found = (max(table[i, j] for i, j in ends), sum(crossing[c] for c in cuts))
    assert found == best_by_trying(table, crossing, stages)


@given(st.lists(st.tuples(st.integers(1, 9), st.sets(st.integers(0, 6), min_size=1)), max_size=6))
def test_a_weight_counts_once_in_a_stage(weights: list[tuple[int, set[int]]]) -> None:
    table = join_weights(7, [(size, sorted(readers)) for size, readers in weights])
    for i in range(8):
        for j in range(i, 8):
            assert table[i, j] == sum(size for size, readers in weights if readers & set(range(i, j)))


def test_a_limit_gives_as_few_stages_as_it_can() -> None:
    table = join_weights(4, [(3, [0]), (3, [1]), (3, [2]), (3, [3])])
    assert [count_stages(table, limit) for limit in (12, 9, 6, 3)] == [1, 2, 2, 4]
    with pytest.raises(InputError, match="one call alone has 3 bytes"):
        count_stages(table, 2)


def chain_of_products(path: Path, widths: list[int]) -> Path:
    """Write a chain of products of matrices, each in a call of its own."""
    shapes = list(zip([1, *widths], [*widths, 1], strict=True))
    weights = ", ".join(f"float[{a},{b}] w{n} = {{{', '.join(['1.0'] * (a * b))}}}" for n, (a, b) in enumerate(shapes))
    nodes = "  ".join(f"t{n + 1} = MatMul(t{n}, w{n})" for n in range(len(shapes)))
    text = f"net (float[1,1] t0) => (float[1,1] t{len(shapes)}) <{weights}> {{ {nodes} }}"
    onnx.save(annotated(text, [f"m{n}" for n in range(len(shapes))]), path)
    return path


def test_models_are_balanced_by_what_is_asked_for(tmp_path: Path) -> None:
    path = chain_of_products(tmp_path / "m.onnx", [2, 4, 4, 3, 1, 5])
    sizes = [2, 8, 16, 12, 3, 5, 5]  # multiply-adds, and a quarter of the bytes
    for stages in (2, 3, 4):
        for balance, factor in (("multiply-adds", 1), ("bytes", 4)):
            result = hieronnx.split(path, stages=stages, balance=balance, into=tmp_path / "s")
            slowest = max(stage.cost or 0 for stage in result.stages)
            assert slowest == factor * best_by_trying(sum_costs(sizes), np.zeros(8), stages)[0]
            assert result.balance == balance
    times = [9, 1, 1, 1, 1, 1, 1]
    profile = {"calls": [{"module": f"m{n}", "call": 0, "own_us": us, "total_us": us} for n, us in enumerate(times)]}
    timed = hieronnx.split(path, stages=2, profile=profile, into=tmp_path / "s")
    assert (timed.balance, [stage.cost for stage in timed.stages]) == ("time", [9.0, 6.0])
    limited = hieronnx.split(path, memory_limit=4 * 24, into=tmp_path / "s")
    assert max(stage.weight_bytes for stage in limited.stages) <= 96
    assert len(limited.stages) == 4
    with pytest.raises(InputError, match="no 2 stages are within the limit"):
        hieronnx.split(path, stages=2, memory_limit=80, into=tmp_path / "s")
