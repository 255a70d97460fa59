"""What the adaptors share, and that each says what it lacks."""

import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import fleet_gym.adapters
from fleet_gym.adapters._views import VectorView, check_mode, flat_observation, flat_space, info_rows
from fleet_gym.testing.coded_color_env import CodedColorVectorEnv
from fleet_gym.wrappers.memory_profiling import MemoryProfilingWrapper

BOX = spaces.Box(0, 1, (2,))
# Hides a distribution, installed or not.
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {distribution!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.split(".")[0])
sys.meta_path.insert(0, Absent())
"""


def test_nested_dicts_become_one_level():
    nested = spaces.Dict({"state": BOX, "camera_obs": spaces.Dict({"top": BOX, "front": BOX})})
    assert dict(flat_space(nested).spaces) == {"state": BOX, "top": BOX, "front": BOX}
    assert flat_space(BOX) is BOX
    images = {"top": np.zeros(2), "front": np.ones(2)}
    flat = flat_observation({"state": np.full(2, 3.0), "camera_obs": images})
    assert list(flat) == ["state", "top", "front"]
    assert flat["front"] is images["front"]


def test_a_key_in_two_levels_is_refused():
    with pytest.raises(ValueError, match=r"expected different keys in all levels of the observation, got \['state'\]"):
        flat_space(spaces.Dict({"state": BOX, "camera_obs": spaces.Dict({"state": BOX})}))


def test_infos_are_split_by_environment():
    infos = {
        "success": np.array([True, False]),
        "_success": np.array([True, True]),
        "lap": np.array([4, 0]),
        "_lap": np.array([True, False]),
        "distance": np.array([[1.0, 2.0], [3.0, 4.0]]),
        "episode": {"r": np.array([0.0, 7.5]), "_r": np.array([False, True])},
        "_episode": np.array([False, True]),
        "final_obs": np.array([None, None]),
        "_final_obs": np.array([False, False]),
    }
    first, second = info_rows(infos, 2)
    assert first["success"] is True
    assert second["success"] is False
    assert (first["lap"], "lap" in second) == (4, False)
    assert second["distance"].tolist() == [3.0, 4.0]
    assert "episode" not in first
    assert second["episode"] == {"r": 7.5}
    assert set(second) == {"success", "distance", "episode"}


def test_infos_without_rows_are_everybodys():
    for value in (3.5, np.float64(3.5), np.array(3.5), "ab", "hall", None, [1, 2, 3], np.zeros(3)):
        first, second = info_rows({"value": value, "rows": [1, 2]}, 2)
        assert first["value"] is second["value"] is value
        assert (first["rows"], second["rows"]) == (1, 2)
    assert info_rows({"table": {"a": 1.5}}, 2) == [{"table": {"a": 1.5}}] * 2


def test_infos_that_were_split_already_are_refused():
    with pytest.raises(TypeError, match=r"infos: expected a mapping with arrays of all environments, got list"):
        info_rows([{}, {}], 2)


def test_a_mode_can_be_told_by_name_and_no_other_word_is_one():
    env = CodedColorVectorEnv([3])
    env.metadata["autoreset_mode"] = "NEXT_STEP"
    check_mode(env, AutoresetMode.NEXT_STEP, "Somebody")
    assert VectorView(env).autoreset_mode is AutoresetMode.NEXT_STEP
    env.metadata["autoreset_mode"] = "sometimes"
    with pytest.raises(ValueError, match=r"autoreset_mode: expected an AutoresetMode or one of .* got 'sometimes'"):
        check_mode(env, AutoresetMode.NEXT_STEP, "Somebody")


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_wrong_mode_names_the_right_one(mode):
    env = MemoryProfilingWrapper(CodedColorVectorEnv([3], autoreset_mode=mode), enabled=False)
    check_mode(env, mode, "Somebody")
    for other in set(AutoresetMode) - {mode}:
        message = f"Somebody needs autoreset_mode='{other.value}', got '{mode.value}'; make the environment with"
        with pytest.raises(ValueError, match=message):
            check_mode(env, other, "Somebody")
    env.metadata = {}
    check_mode(env, mode, "Somebody")  # told by the environment's attribute


def test_no_mode_and_no_vector_env_are_told():
    env = CodedColorVectorEnv([3])
    del env.metadata["autoreset_mode"], env.autoreset_mode
    with pytest.raises(ValueError, match="got no mode in its metadata"):
        check_mode(env, AutoresetMode.DISABLED, "Somebody")
    with pytest.raises(TypeError, match=r"env: expected a gymnasium.vector.VectorEnv, got str"):
        check_mode("CartPole-v1", AutoresetMode.DISABLED, "Somebody")


def test_a_view_is_its_own_unwrapped_and_closes_what_it_holds():
    inner = CodedColorVectorEnv([3, 4], autoreset_mode=AutoresetMode.DISABLED)
    view = VectorView(MemoryProfilingWrapper(inner, enabled=False))
    assert view.unwrapped is view
    assert view.autoreset_mode is AutoresetMode.DISABLED
    observation, _ = view.reset(seed=1)
    assert observation in view.observation_space
    assert view.step(view.action_space.sample())[1].tolist() == [1.0, 1.0]
    assert len(view.render()) == 2
    view.close()
    assert inner.closed
    view.close()


@pytest.mark.parametrize(
    ("name", "distribution", "extra"),
    [
        ("SB3VecEnv", "stable_baselines3", "sb3"),
        ("parallel_env", "pettingzoo", "pettingzoo"),
        ("torchrl_env", "torchrl", "torchrl"),
    ],
)
def test_a_missing_trainer_is_one_line_with_the_command(name, distribution, extra):
    code = WITHOUT.format(distribution=distribution) + f"from fleet_gym.adapters import {name}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: {name} needs ")
    assert last.endswith(f"pip install 'fleet-gym[{extra}]'")


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'CleanRLEnv'"):
        fleet_gym.adapters.CleanRLEnv  # noqa: B018 # the access is the test
