"""What is a change and what is noise: by made-up noise of many kinds, and by real runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hieronnx
from hieronnx.hierarchy.records import CallId
from hieronnx.tools.profile.comparing import SavedCall, Summary, compare_profiles
from support.cli import run
from support.nets import export_stack

SESSIONS, RUNS = 4, 20


def make_noise(kind: str, random: np.random.Generator, scale: float, shared: np.ndarray) -> np.ndarray:
    """Return factors of a call's time: never below 1, as what else runs only adds time."""
    runs = SESSIONS * RUNS
    if kind == "bursts":  # one run of three takes several times as long
        return 1 + (random.random(runs) < 0.35) * random.exponential(4, runs)
    if kind == "drift":  # the machine gets slower while all is measured
        return shared * (1 + random.exponential(0.1, runs))
    return 1 + random.exponential(scale, runs)


def summarize(times: dict[str, tuple[float, np.ndarray]], *, kernels: int = 4) -> Summary:
    calls = {}
    for module, (us, noise) in times.items():
        samples = us * noise
        floors = [float(part.min()) for part in np.array_split(samples, SESSIONS)]
        calls[CallId(module, 0)] = SavedCall(module, 0, float(np.median(samples)), 1.0, kernels, [*samples], floors)
    return Summary("other", 0.0, calls)


@pytest.mark.parametrize("kind", ["bursts", "drift", "quiet", "loud"])
def test_noise_is_no_change_and_doubled_work_is_one(kind: str) -> None:
    random = np.random.default_rng(15)
    scale = {"quiet": 0.02, "loud": 0.8}.get(kind, 0.0)
    wrong = missed = 0
    for _ in range(60):
        shared = np.linspace(1, 3, SESSIONS * RUNS)
        times = {f"m{n}": float(random.uniform(20, 2000)) for n in range(30)}
        before, after = (
            {name: (us, make_noise(kind, random, scale, shared)) for name, us in times.items()} for _ in range(2)
        )
        after["m7"] = (2 * after["m7"][0], after["m7"][1])
        comparison = compare_profiles(summarize(before), summarize(after), interleaved=True)
        changed = {change.module for change in comparison.changed}
        missed += "m7" not in changed
        wrong += bool(changed - {"m7"})
    assert (wrong, missed) == (0, 0)


def test_a_call_that_one_of_them_has_not_is_a_change() -> None:
    one = np.ones(SESSIONS * RUNS)
    both, less = summarize({"a": (100, one), "b": (50, one)}), summarize({"a": (100, one)})
    (change,) = compare_profiles(less, both, interleaved=True).changed
    assert (change.module, change.before_us, change.after_us) == ("b", None, 50)


def test_too_few_runs_say_nothing() -> None:
    few = {CallId("a", 0): SavedCall("a", 0, 100, 1, 1, [100.0, 101.0], [100.0])}
    slow = {CallId("a", 0): SavedCall("a", 0, 200, 1, 1, [200.0, 201.0], [200.0])}
    for interleaved in (True, False):
        compared = compare_profiles(Summary("x", 100, few), Summary("y", 200, slow), interleaved=interleaved)
        assert not compared.changed
        assert not compared.conclusive
    none = {CallId("a", 0): SavedCall("a", 0, 200, 1, 1, [], [])}
    assert not compare_profiles(Summary("x", 100, none), Summary("y", 200, slow), interleaved=False).conclusive


def test_a_change_is_what_its_neighbours_show() -> None:
    random = np.random.default_rng(9)
    shared = np.ones(SESSIONS * RUNS)
    before, after = ({"m": (us, make_noise("bursts", random, 0.0, shared))} for us in (100.0, 300.0))
    comparison = compare_profiles(summarize(before), summarize(after), interleaved=True)
    (change,) = comparison.changed
    assert change.percent == pytest.approx(100 * (change.after_us / change.before_us - 1))
    assert comparison.conclusive


# -- real runs --------------------------------------------------------------------------------------------

OPTIONS = {"roofline": False, "threads": 1}


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("stacks")
    doubled = export_stack(folder / "doubled.onnx", [256, 256, 512, 256])
    return export_stack(folder / "plain.onnx", [256, 256, 256, 256]), doubled


def check_itself_and_doubled(plain: Path, doubled: Path) -> None:
    assert not hieronnx.profile(plain, against=plain, **OPTIONS).comparison.changed
    comparison = hieronnx.profile(doubled, against=plain, **OPTIONS).comparison
    slower = {change.module: change.percent for change in comparison.changed}
    assert slower["blocks.2"] > 20
    assert not {name for name in slower if name.startswith(("blocks.0", "blocks.1", "blocks.3", "head"))}


def test_against_itself_nothing_changed_and_a_doubled_module_did(stacks: tuple[Path, Path]) -> None:
    check_itself_and_doubled(*stacks)


@pytest.mark.long
@pytest.mark.parametrize("_repeat", range(20))
def test_the_same_twenty_times(stacks: tuple[Path, Path], _repeat: int) -> None:
    check_itself_and_doubled(*stacks)


def test_a_saved_profile_and_a_limit_for_ci(stacks: tuple[Path, Path], tmp_path: Path) -> None:
    plain, doubled = stacks
    saved = tmp_path / "saved.json"
    printed = run("profile", plain, "--json", "--no-roofline", "--threads", 1, "--runs", 40)
    saved.write_text(printed.stdout)
    assert json.loads(printed.stdout)["calls"][0]["samples_us"]
    found = run("profile", doubled, "--against", saved, "--fail-above", "10%", "--no-roofline", "--threads", 1)
    assert found.exit_code == 1, found.output
    assert "blocks.2" in found.stdout
    assert "runs of another time" in found.stdout
    (tmp_path / "bad.json").write_text("{}")
    bad = run("profile", plain, "--against", tmp_path / "bad.json")
    assert bad.exit_code == 2
    few = run("profile", doubled, "--against", plain, "--runs", 2, "--fail-above", "10%", "--no-roofline")
    assert few.exit_code == 2
    assert "too few runs to tell" in few.stdout
    missing = run("profile", plain, "--fail-above", "10%")
    assert missing.exit_code == 2
    assert "--against" in missing.stderr


def test_a_level_of_optimization_against_another(stacks: tuple[Path, Path]) -> None:
    result = hieronnx.profile(stacks[0], runs=4, optimization="all", against_optimization="none", **OPTIONS)
    assert result.comparison is not None
    assert result.comparison.other.endswith("at level 'none'")
    assert result.comparison.interleaved
