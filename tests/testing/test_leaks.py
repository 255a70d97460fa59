"""assert_no_leak and its pytest plugin: leaks fail with the line, clean code passes, a missing signal is a failure."""

from __future__ import annotations

import functools
import gc
import logging
import math
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from fleet_gym._pybullet import DirectClient, pybullet
from fleet_gym.testing import leaks
from fleet_gym.testing.leaks import assert_no_leak

HERE = str(Path(__file__))


def number_of(line_text: str) -> int:
    """The line of this file that ends in the comment `# <line_text>`."""
    lines = Path(__file__).read_text().splitlines()
    return 1 + next(index for index, line in enumerate(lines) if line.endswith(f"# {line_text}"))


@pytest.fixture
def client():
    client = DirectClient()
    yield client
    client.close()


def test_a_python_leak_fails_with_its_line():
    kept: list[Any] = []

    def leak() -> None:
        kept.append(object())
        kept.append(object())  # keeps two

    with pytest.raises(AssertionError) as failure:
        assert_no_leak(leak, 50)
    message = str(failure.value)
    assert "+2.0" in message.splitlines()[0]
    assert f"{HERE}:{number_of('keeps two')}: +" in message
    assert "(Python)" in message
    assert not tracemalloc.is_tracing()
    assert sys.getprofile() is None


def test_a_native_leak_fails_with_the_call(client):
    p = pybullet()

    def leak() -> None:
        p.createCollisionShape(p.GEOM_BOX, halfExtents=[1, 1, 1], physicsClientId=client.id)  # leaks a shape

    with pytest.raises(AssertionError) as failure:
        assert_no_leak(leak, 100)
    message = str(failure.value)
    assert "native bytes (limit 512)" in message
    assert f"{HERE}:{number_of('leaks a shape')}: +" in message
    assert "(native, in pybullet.createCollisionShape)" in message
    assert "(Python)" not in message


def test_clean_pybullet_calls_pass(client):
    p = pybullet()
    body = client.load_urdf("plane.urdf")

    def clean() -> None:
        state = p.saveState(physicsClientId=client.id)
        p.stepSimulation(physicsClientId=client.id)
        p.getBasePositionAndOrientation(body, physicsClientId=client.id)
        p.restoreState(stateId=state, physicsClientId=client.id)
        p.removeState(state, physicsClientId=client.id)

    found = assert_no_leak(clean, 200)
    assert abs(found.native_bytes) <= 512
    assert abs(found.blocks) <= 1


def test_the_one_object_kept_per_cycle_is_seen():
    kept: list[Any] = []
    with pytest.raises(AssertionError, match=r"\+1.0\d Python blocks"):
        assert_no_leak(lambda: kept.append(object()), 50)


def test_garbage_in_cycles_is_no_leak():
    def litter() -> None:
        first: list[Any] = []
        first.append([first])

    assert_no_leak(litter, 50)


def test_logs_and_warnings_that_pytest_keeps_are_no_leak(caplog):
    def talk() -> None:
        logging.getLogger("talkative").warning("hello %d", 1)
        warnings.warn("old", DeprecationWarning, stacklevel=2)

    logging.getLogger("talkative").warning("before")
    with warnings.catch_warnings(record=True) as kept:
        warnings.simplefilter("always")
        assert_no_leak(talk, 30, warm_up=3)
        assert len(kept) == 3
        warnings.warn("after", UserWarning, stacklevel=2)
        assert len(kept) == 4
    assert caplog.messages == ["before"] + 3 * ["hello 1"]
    logging.getLogger("talkative").warning("after")
    assert caplog.text.count("hello 1") == 3
    assert caplog.messages[-1] == "after"
    assert caplog.text.rstrip().endswith("after")


def test_a_leak_is_seen_through_logs_and_warnings():
    kept: list[Any] = []

    def leak() -> None:
        logging.getLogger("talkative").warning("hello")
        kept.append(object())  # kept beside logs

    with pytest.raises(AssertionError) as failure:
        assert_no_leak(leak, 30)
    first, *lines = str(failure.value).splitlines()
    assert " +1." in first
    assert f"{HERE}:{number_of('kept beside logs')}: +" in lines[0]


def test_frozen_objects_stay_frozen():
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        assert_no_leak(lambda: None, 10)
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()
    assert_no_leak(lambda: None, 10)
    assert gc.get_freeze_count() == 0


def test_a_cache_that_fills_up_is_no_leak():
    cached = functools.lru_cache(maxsize=None)(lambda number: [number] * 50)
    count = [0]

    def fill() -> None:
        count[0] += 1
        cached(min(count[0], 120))

    assert_no_leak(fill, 100, warm_up=0)


def test_limits_are_the_callers():
    kept: list[Any] = []
    assert_no_leak(lambda: kept.append(bytes(2000)), 50, max_native_bytes=4000, max_blocks=4)
    with pytest.raises(AssertionError, match="limit 1000"):
        assert_no_leak(lambda: kept.append(bytes(2000)), 50, max_native_bytes=1000, max_blocks=math.inf)
    assert_no_leak(lambda: kept.append([]), 50, max_blocks=math.inf)


def test_cycles_are_counted():
    calls = [0]

    def count() -> None:
        calls[0] += 1

    assert_no_leak(count, 40)
    assert calls[0] == 4 + 40
    calls[0] = 0
    assert_no_leak(count, 10, warm_up=0)
    assert calls[0] == 10


class Env(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, keeps: bool = False, length: int = 1000) -> None:
        self.keeps, self.length = keeps, length
        self.kept: list[Any] = []
        self.resets = self.steps = self.age = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.resets += 1
        self.age = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        assert self.age < self.length, "stepped after its end"
        self.steps += 1
        self.age += 1
        if self.keeps:
            self.kept.append([])
        return np.zeros(3, np.float32), 0.0, self.age == self.length, False, {}


def test_an_environments_cycle_is_a_reset_and_random_steps():
    env = Env()
    assert_no_leak(env, 20, steps=7, warm_up=1)
    assert env.resets in (21, 41, 61)  # up to three looks
    assert env.steps == 7 * env.resets
    with pytest.raises(AssertionError, match="Python blocks"):
        assert_no_leak(Env(keeps=True), 20)


def test_episodes_end_where_the_environment_says():
    env = Env(length=3)
    assert_no_leak(env, 10, warm_up=0)
    assert env.steps > 0
    assert env.steps % 30 == 0, "10 episodes of 3 steps each time it measures, and it measures again when in doubt"
    for mode in AutoresetMode:
        vector = SyncVectorEnv([lambda: Env(length=3)] * 2, autoreset_mode=mode)
        assert_no_leak(vector, 10, steps=8)
        vector.close()


def test_a_missing_signal_fails(monkeypatch):
    monkeypatch.setattr(leaks, "native_heap_reader", lambda: None)
    with pytest.raises(AssertionError, match="native heap cannot be read here"):
        assert_no_leak(lambda: None)
    assert_no_leak(lambda: None, max_native_bytes=math.inf)
    monkeypatch.setattr(leaks, "python_blocks", lambda: 0)
    with pytest.raises(AssertionError, match="blocks are not counted here"):
        assert_no_leak(lambda: None, max_native_bytes=math.inf)


def test_what_the_callable_raises_passes():
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        assert_no_leak(fail)


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({"target": 3}, TypeError, "target"),
        ({"cycles": 9}, ValueError, "cycles"),
        ({"cycles": "100"}, ValueError, "cycles"),
        ({"warm_up": -1}, ValueError, "warm_up"),
        ({"steps": 0}, ValueError, "steps"),
        ({"max_native_bytes": -1}, ValueError, "max_native_bytes"),
        ({"max_blocks": "1"}, ValueError, "max_blocks"),
        ({"max_blocks": math.nan}, ValueError, "max_blocks"),
    ],
)
def test_bad_arguments(arguments, error, name):
    with pytest.raises(error, match=f"{name}: expected"):
        assert_no_leak(**{"target": lambda: None, **arguments})


TESTS = """
import unittest
import pytest
kept = []
cycles = []

@pytest.fixture
def bag():
    return []

@pytest.mark.limit_leak(cycles=30, max_blocks=1)
def test_clean(bag):
    cycles.append(None) if len(cycles) < 5 else None
    assert bag == []

@pytest.mark.limit_leak(cycles=30)
def test_leaking(bag):
    bag.append([])

@pytest.mark.limit_leak(cycles=30)
@pytest.mark.parametrize("count", [0, 5])
def test_parametrized(count):
    kept.extend([] for _ in range(count))

@pytest.mark.limit_leak(cycles=3)
def test_bad_argument():
    pass

@pytest.mark.limit_leak(30)
def test_positional():
    pass

@pytest.mark.limit_leak(cycles=30)
async def test_coroutine():
    pass

def test_fixture(assert_no_leak):
    assert_no_leak(lambda: None, cycles=20)
    with pytest.raises(AssertionError):
        assert_no_leak(lambda: kept.append([]), cycles=20)

@pytest.mark.limit_leak(cycles=10)
def test_failing():
    assert 1 == 2

@pytest.mark.limit_leak(cycles=30)
class TestPlain:
    def test_leaking_method(self):
        kept.append([])

@pytest.mark.limit_leak(cycles=30)
class TestCase(unittest.TestCase):
    def test_of_unittest(self):
        kept.append([])
"""


def test_the_plugin(tmp_path):
    (tmp_path / "test_plugin.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--strict-markers", "-p", "no:cacheprovider", str(tmp_path)]
    output = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
    lines = output.splitlines()
    outcome = {
        line.split("::")[-1].split(" ")[0]: line.split()[0]
        for line in lines
        if "::test_" in line and line.split()[0].isupper()
    }
    assert outcome == {
        "test_clean": "PASSED",
        "test_leaking": "FAILED",
        "test_parametrized[0]": "PASSED",
        "test_parametrized[5]": "FAILED",
        "test_bad_argument": "FAILED",
        "test_positional": "FAILED",
        "test_coroutine": "FAILED",
        "test_fixture": "PASSED",
        "test_failing": "FAILED",
        "test_leaking_method": "FAILED",
        "test_of_unittest": "ERROR",
    }, output
    assert "memory grows by" in output
    assert "expected keyword arguments only" in output
    assert "assert 1 == 2" in output
    assert "expected a function or a method of a plain class, got test_of_unittest of a unittest.TestCase" in output


def test_the_marker_is_documented():
    command = [sys.executable, "-m", "pytest", "--markers"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "@pytest.mark.limit_leak(cycles=100, max_native_bytes=512, max_blocks=1, warm_up=None)" in output
