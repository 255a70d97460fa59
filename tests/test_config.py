"""Configuration: every mistake is named with its key, every default is in the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fleet_gym import MultiRobotSimulationCore
from fleet_gym.config import ConfigError, RobotConfig, SimulationConfig, checked, load_config, reference


def test_keyword_arguments_and_yaml_are_the_same_keys(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("enable_memory_profiling: true\nprofiling_interval: 50\nrobots:\n- model: husky\n  goal: [1, 2]\n")
    from_file, folder = load_config(path)
    values = {
        "enable_memory_profiling": True,
        "profiling_interval": np.int64(50),
        "robots": [{"model": "husky", "goal": (1, 2.0)}],
    }
    assert from_file == load_config(values)[0] == checked(SimulationConfig, values)
    assert folder == tmp_path


def test_an_empty_file_is_all_defaults(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("")
    config, _ = load_config(str(path))
    assert config == SimulationConfig()
    assert config.control_dt == 0.1
    assert config.effective_rtf == 0.0
    assert SimulationConfig(gui=True).effective_rtf == 1.0
    assert SimulationConfig(gui=True, target_rtf=3.0).effective_rtf == 3.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"profiling_intervall": 3}, r"profiling_intervall: unknown key \(did you mean 'profiling_interval'\?\)"),
        ({"robots": [{"model": "husky", "goall": [0, 0]}]}, r"robots\[0\]\.goall: unknown key \(did you mean 'goal'"),
        ({"map": {"resolution": 0.1}}, r"map\.image: expected a value, got none"),
        ({"map": {"image": "a.png", "resolution": 0.1, "orign": [0, 0]}}, r"map\.orign: .*'origin'"),
        ({"control_dt": "0.1"}, r"control_dt: input should be a valid number, got '0.1'"),
        ({"control_dt": 0}, r"control_dt: input should be greater than 0, got 0"),
        ({"control_dt": float("nan")}, "control_dt: .*got nan"),
        ({"physics": 1}, "physics: input should be a valid boolean, got 1"),
        ({"duration": True}, "duration: .*got True"),
        ({"duration": -1}, "duration: .*got -1"),
        ({"profiling_interval": -5}, "profiling_interval: .*got -5"),
        ({"profiling_interval": 2.5}, "profiling_interval: .*got 2.5"),
        ({"profiling_interval": "100"}, "profiling_interval: .*got '100'"),
        ({"robots": [{"model": "husky", "goal": [1]}]}, r"robots\[0\]\.goal: .*at least 2"),
        (
            {"robots": [{"model": "husky", "goal": [1, float("nan")]}]},
            r"robots\[0\]\.goal\[1\]: .*finite number, got nan",
        ),
        (
            {"robots": [{"model": "a"}, {"model": "b", "goal": [0, 0], "random_walk": True}]},
            r"robots\[1\]: .*at most one",
        ),
        ({"robots": [{"model": "a", "patrol": True}]}, r"robots\[0\]: patrol: expected a path"),
        ({"robots": [{"model": "a", "static": True, "goal": [0, 0]}]}, r"robots\[0\]: static: .*without goal"),
        ({"obstacles": [{"kind": "wall", "start": [0, 0]}]}, r"obstacles\[0\]: a wall needs start and end"),
        (
            {"obstacles": [{"kind": "box", "position": [0, 0], "size": [1, 1]}]},
            r"obstacles\[0\]: a box needs .*3 lengths",
        ),
        (
            {"obstacles": [{"kind": "box", "position": [0, 0], "size": [1, 1, 1], "height": 3}]},
            r"obstacles\[0\]: height: expected none of a box, which has position, size, yaw, elevation, got 3",
        ),
        (
            {"obstacles": [{"kind": "cylinder", "position": [0, 0], "size": [1, 1], "yaw": 1}]},
            r"obstacles\[0\]: yaw: expected none of a cylinder",
        ),
        (
            {"obstacles": [{"kind": "wall", "start": [0, 0], "end": [1, 1], "position": [0, 0]}]},
            r"obstacles\[0\]: position: expected none of a wall",
        ),
        (
            {"robots": [{"model": "a", "layout": "random", "position": [3, 3]}]},
            r"robots\[0\]: position: expected none of a random layout",
        ),
        ({"physics": True, "collision_response": "report"}, "collision_response: expected 'stop' with physics"),
        ({"physics": True, "control_dt": 0.1234}, "control_dt: expected a whole number of 1/240 s"),
    ],
)
def test_mistakes_are_named(values, message):
    with pytest.raises(ConfigError, match=message):
        load_config(values)


def test_errors_of_a_file_name_the_file(tmp_path):
    path = tmp_path / "wrong.yaml"
    for content, message in (
        ("control_dtt: 3\n", r"wrong\.yaml: control_dtt: unknown key"),
        ("a: [1\n", r"wrong\.yaml: expected YAML"),
        ("seed: 1\nseed: 2\n", r"wrong\.yaml: expected YAML, but key 'seed' stands twice"),
        ("robots:\n- {model: a, goal: [1, 2], goal: [2, 1]}\n", r"wrong\.yaml: .*key 'goal' stands twice"),
        ("robots: &all [*all]\n", r"wrong\.yaml: robots: expected a value with an end, got one that contains itself"),
        ("a: " + 10_000 * "[" + "\n", r"wrong\.yaml: expected YAML, but it is nested too deeply"),
        ("- 1\n", r"wrong\.yaml: expected keys and values at the top, got list"),
    ):
        path.write_text(content)
        with pytest.raises(ConfigError, match=message):
            load_config(path)
    with pytest.raises(ConfigError, match=r"expected a readable YAML file, got .*nowhere\.yaml"):
        load_config(tmp_path / "nowhere.yaml")
    with pytest.raises(TypeError, match="config: expected a path or a mapping, got 3"):
        load_config(3)


def test_numbers_of_a_file_may_have_an_exponent_and_entries_may_refer_to_others(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "control_dt: 5e-2\nobstacles:\n- &first {kind: box, size: [1, 1, 1], position: [0, 2E0]}\n"
        "- {<<: *first, position: [3, -4e+0]}\n"
    )
    config, _ = load_config(path)
    assert config.control_dt == 0.05
    assert [obstacle.position for obstacle in config.obstacles] == [[0.0, 2.0], [3.0, -4.0]]


def test_the_reference_page_is_generated_from_the_models():
    page = Path(__file__).parents[1] / "docs" / "configuration.md"
    assert reference() in page.read_text(), (
        "paste the output of fleet_gym.config.reference() into docs/configuration.md"
    )
    for name in (*SimulationConfig.model_fields, *RobotConfig.model_fields):
        assert f"| `{name}` |" in reference()


def test_footprints_of_a_configuration_reach_the_robots():
    entries = [
        {"model": "husky", "position": [5.0 * n, 0.0], "footprint": kind} for n, kind in enumerate(("box", None))
    ]
    with MultiRobotSimulationCore.from_config({"robots": entries}) as sim:
        assert [robot.model.footprint for robot in sim._robots] == ["box", "circle"]
    with pytest.raises(ConfigError, match=r"robots\[0\]\.footprint: .*'circle' or 'box'.*got 'round'"):
        MultiRobotSimulationCore.from_config({"robots": [{"model": "husky", "footprint": "round"}]})
    physics = {"physics": True, "robots": [{"model": "husky", "footprint": "box"}]}
    with pytest.raises(ConfigError, match=r"robots\[0\]\.footprint: expected None on contact physics"):
        MultiRobotSimulationCore.from_config(physics)
