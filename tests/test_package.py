"""Importing the package: quick, silent, and honest about what is not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fleet_gym


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)


def test_importing_prints_nothing_and_loads_nothing_heavy():
    heavy = ["pybullet", "numba", "moviepy", "av", "pydantic", "trimesh", "rich", "typer", "jinja2", "psutil"]
    done = run(f"import sys, fleet_gym; print([m for m in {heavy} if m in sys.modules])")
    assert done.stdout == "[]\n"
    assert done.stderr == ""


def test_all_public_names_load():
    for name in fleet_gym.__all__:
        assert getattr(fleet_gym, name).__name__ == name
    assert set(fleet_gym.__all__) <= set(dir(fleet_gym))


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'FleetVectorEnvironment'"):
        fleet_gym.FleetVectorEnvironment  # noqa: B018


def test_running_a_fleet_prints_nothing():
    done = run(
        "import fleet_gym\n"
        "for dynamics in ('kinematic', 'physics'):\n"
        "    env = fleet_gym.FleetVectorEnv(2, dynamics=dynamics, renderer='tiny',\n"
        "        cameras=[fleet_gym.Camera('top', 16, 16, position=(0, 0, 5), target=(0, 0, 0))])\n"
        "    env.reset(seed=0)\n"
        "    env.step(env.action_space.sample())\n"
        "    env.close()\n"
    )
    assert done.stdout == ""
    assert done.stderr == ""


def test_what_users_test_with_loads():
    import fleet_gym.testing

    for name in fleet_gym.testing.__all__:
        assert getattr(fleet_gym.testing, name).__name__ == name
