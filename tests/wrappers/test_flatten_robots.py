"""Robots as environments: the same numbers as in the worlds, row by row, in every autoreset mode."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.wrappers.vector import ClipReward, NormalizeReward, RecordEpisodeStatistics

from fleet_gym.testing import vector_env_check
from fleet_gym.vector_env import FleetVectorEnv
from fleet_gym.video import read_episodes
from fleet_gym.world.cameras import Camera
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder
from fleet_gym.wrappers.flatten_robots import FlattenRobots

WORLDS, ROBOTS, LENGTH = 3, 2, 4
TOP = Camera("top", 16, 12, position=(0.0, -2.0, 6.0), target=(0.0, 0.0, 0.0))
FRONT = [Camera(f"front_{i}", 16, 12, mount=i, offset=(0.3, 0.0, 0.3)) for i in range(ROBOTS)]
OWN = {"front": ["front_0", "front_1"]}


def fleet(mode=AutoresetMode.NEXT_STEP, num_envs=WORLDS, cameras=(), **arguments):
    return FleetVectorEnv(
        num_envs,
        num_robots=ROBOTS,
        robot="diffbot",
        cameras=cameras,
        max_episode_steps=LENGTH,
        autoreset_mode=mode,
        **arguments,
    )


def assert_robots_see_their_world(flat, worlds):
    """Compares one-robot observations with those of the worlds they are in."""
    assert flat.keys() == worlds.keys()
    assert flat["camera_obs"].keys() == {"top", "front"}
    images = worlds["camera_obs"]
    for world in range(len(worlds["state"])):
        for robot in range(ROBOTS):
            row = world * ROBOTS + robot
            np.testing.assert_array_equal(flat["state"][row], worlds["state"][world, robot])
            np.testing.assert_array_equal(flat["camera_obs"]["top"][row], images["top"][world])
            np.testing.assert_array_equal(flat["camera_obs"]["front"][row], images[f"front_{robot}"][world])


def one_world(observation):
    """An observation of one world, batched."""
    images = {key: image[None] for key, image in observation["camera_obs"].items()}
    return {"state": observation["state"][None], "camera_obs": images}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_each_robot_gets_its_row_of_everything(mode):
    worlds = fleet(mode, cameras=[TOP, *FRONT])
    robots = FlattenRobots(fleet(mode, cameras=[TOP, *FRONT]), robot_cameras=OWN)
    assert robots.num_envs == WORLDS * ROBOTS
    assert robots.autoreset_mode is mode
    observation, _ = worlds.reset(seed=3)
    flat, infos = robots.reset(seed=3)
    assert_robots_see_their_world(flat, observation)
    assert flat in robots.observation_space
    rng = np.random.default_rng(0)
    for step in range(2 * LENGTH + 2):
        if mode is AutoresetMode.DISABLED and step and step % LENGTH == 0:
            some = np.array([True, False, True])
            worlds.reset(options={"reset_mask": ~some})
            robots.reset(options={"reset_mask": np.repeat(~some, ROBOTS)})
            observation, _ = worlds.reset(options={"reset_mask": some})
            flat, _ = robots.reset(options={"reset_mask": np.repeat(some, ROBOTS)})
            assert_robots_see_their_world(flat, observation)
        actions = rng.uniform(-1, 1, (WORLDS, ROBOTS, 2)).astype(np.float32)
        observation, rewards, terminated, truncated, expected = worlds.step(actions)
        flat, robot_rewards, robot_terminated, robot_truncated, infos = robots.step(actions.reshape(-1, 2))
        assert_robots_see_their_world(flat, observation)
        np.testing.assert_allclose(robot_rewards.reshape(WORLDS, ROBOTS).mean(axis=1), rewards)
        np.testing.assert_array_equal(robot_terminated, np.repeat(terminated, ROBOTS))
        np.testing.assert_array_equal(robot_truncated, np.repeat(truncated, ROBOTS))
        np.testing.assert_array_equal(infos["goal_distance"], expected["goal_distance"].ravel())
        np.testing.assert_array_equal(infos["episode_seed"], np.repeat(expected["episode_seed"], ROBOTS))
        assert infos.keys() == expected.keys()
        if "final_obs" in expected:
            np.testing.assert_array_equal(infos["_final_obs"], np.repeat(expected["_final_obs"], ROBOTS))
            final_distance = expected["final_info"]["goal_distance"].ravel()
            np.testing.assert_array_equal(infos["final_info"]["goal_distance"], final_distance)
            for world in np.flatnonzero(expected["_final_obs"]):
                rows = [one_world(row) for row in infos["final_obs"][world * ROBOTS : (world + 1) * ROBOTS]]
                merged = {
                    "state": np.concatenate([row["state"] for row in rows]),
                    "camera_obs": {
                        key: np.concatenate([row["camera_obs"][key] for row in rows]) for key in ("top", "front")
                    },
                }
                assert_robots_see_their_world(merged, one_world(expected["final_obs"][world]))
    worlds.close()
    robots.close()


def test_the_reward_of_the_last_step_is_not_lost_in_same_step_mode():
    total = {}
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        env = FlattenRobots(fleet(mode))
        env.reset(seed=1)
        total[mode] = sum(env.step(np.full((WORLDS * ROBOTS, 2), 0.7))[1] for _ in range(LENGTH))
        env.close()
    np.testing.assert_array_equal(*total.values())


# Robots of a world share its seed and its reset, so what these say of neighbours holds of worlds only.
ABOUT_NEIGHBOURS = {"_worlds_do_not_depend_on_each_other", "_seed_lists", "_masked_resets_leave_other_worlds_alone"}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_it_is_a_vector_env_like_any_other(mode):
    def make(num_envs, mode, **arguments):
        return FlattenRobots(fleet(mode, num_envs // ROBOTS, cameras=[TOP, *FRONT], **arguments), robot_cameras=OWN)

    subject = vector_env_check._Subject(make, mode, WORLDS * ROBOTS, 2 * LENGTH, 3)
    checks = [check for check in vector_env_check._CHECKS if check.__name__ not in ABOUT_NEIGHBOURS]
    assert len(checks) == len(vector_env_check._CHECKS) - len(ABOUT_NEIGHBOURS)
    for check in checks:
        check(subject)


def test_seeds_are_those_of_worlds():
    env = FlattenRobots(fleet())
    by_int = env.reset(seed=5)[1]["episode_seed"]
    assert by_int.tolist() == [5, 5, 6, 6, 7, 7]
    by_list = env.reset(seed=[10, 11, 20, 21, 30, 31])[1]["episode_seed"]
    assert by_list.tolist() == [10, 10, 20, 20, 30, 30]
    with pytest.raises(ValueError, match=r"seed: expected an int or 6 seeds, got 3"):
        env.reset(seed=[1, 2, 3])
    assert env.reset(seed=np.array(8))[1]["episode_seed"].tolist() == [8, 8, 9, 9, 10, 10]
    with pytest.raises(TypeError, match=r"options: expected a mapping or None, got 5"):
        env.reset(options=5)
    env.close()


def test_a_recorder_inside_records_worlds(tmp_path):
    recorder = CameraObsVideoRecorder(fleet(AutoresetMode.SAME_STEP, cameras=[TOP, *FRONT]), tmp_path, cameras=["top"])
    env = FlattenRobots(recorder, robot_cameras=OWN)
    env.reset(seed=1)
    assert [env.get_episode_index(robot) for robot in range(6)] == [0] * 6
    for _ in range(LENGTH):
        env.step(np.zeros((WORLDS * ROBOTS, 2)))
    assert [env.get_episode_index(robot) for robot in range(6)] == [1] * 6
    env.close()
    assert len(list(tmp_path.glob("robot-cam-env*-top-episode-0.mp4"))) == WORLDS


def test_a_recorder_around_it_records_robots(tmp_path):
    robots = FlattenRobots(fleet(AutoresetMode.SAME_STEP, cameras=[TOP, *FRONT]), robot_cameras=OWN)
    env = CameraObsVideoRecorder(robots, tmp_path, cameras=["front"])
    env.reset(seed=1)
    for _ in range(LENGTH):
        _, rewards, *_ = env.step(np.zeros((WORLDS * ROBOTS, 2)))
    env.close()
    rows = [row for row in read_episodes(tmp_path) if row["steps"] == LENGTH]
    assert sorted(row["env"] for row in rows) == list(range(WORLDS * ROBOTS))
    assert {row["episode"] for row in rows} == {0}
    assert len(rewards) == len(list(tmp_path.glob("robot-cam-env*-front-episode-0.mp4")))


def test_a_recorder_around_it_cannot_draw(tmp_path):
    robots = FlattenRobots(fleet(cameras=[TOP], camera_obs=False))
    env = CameraObsVideoRecorder(robots, tmp_path, frame_source="env")
    with pytest.raises(
        ValueError, match=r"expected render_cameras of the 6 environments .* got that of 3; put the rec"
    ):
        env.reset(seed=1)
    robots.close()


def test_generators_and_cameras_are_those_of_the_robots_worlds():
    env = FlattenRobots(fleet(cameras=[TOP, *FRONT], camera_obs=False))
    env.reset(seed=5)
    assert env.np_random_seed == (5, 5, 6, 6, 7, 7)
    assert [env.np_random[robot] is env.unwrapped.np_random[robot // ROBOTS] for robot in range(6)] == [True] * 6
    worlds = env.unwrapped.render_cameras()
    for drawn, order in ((env.render_cameras(), range(6)), (env.render_cameras([5, 0, 1], ["top"]), (5, 0, 1))):
        for key, images in drawn.items():
            np.testing.assert_array_equal(images, worlds[key][np.array(order) // ROBOTS])
    for call in (env.get_episode_index, lambda robot: env.render_cameras([robot])):
        with pytest.raises(ValueError, match=r"in 0\.\.5, got 6"):
            call(6)
    env.close()


@pytest.mark.parametrize("wrap", [lambda env: ClipReward(env, -0.1, 0.1), NormalizeReward])
def test_rewards_are_changed_outside(wrap):
    inside = RecordEpisodeStatistics(wrap(fleet()))
    with pytest.raises(ValueError, match=r"env: expected \w+Reward around FlattenRobots, got it inside"):
        FlattenRobots(inside)
    inside.close()
    outside = wrap(FlattenRobots(fleet()))
    outside.reset(seed=1)
    assert outside.step(np.ones((WORLDS * ROBOTS, 2)))[1].shape == (WORLDS * ROBOTS,)
    outside.close()


def play_an_episode(robots):
    return [robots.step(np.full((WORLDS * ROBOTS, 2), 0.7)) for _ in range(LENGTH)]


class ChangedInfos(VectorWrapper):
    def __init__(self, env, change):
        super().__init__(env)
        self.change = change

    def step(self, actions):
        *rest, infos = self.env.step(actions)
        return *rest, self.change(infos)


def test_infos_without_rows_stay_as_they_are():
    plain = {
        "lap_time": 3.5,
        "map": "hall",
        "sizes": [1, 2],
        "level": np.float64(2),
        "nothing": None,
        "table": {"a": 1},
    }
    env = FlattenRobots(ChangedInfos(fleet(), lambda infos: {**infos, **plain, "course": ["a", "b", "c"]}))
    env.reset(seed=1)
    infos = env.step(np.zeros((WORLDS * ROBOTS, 2)))[4]
    assert {key: infos[key] for key in plain} == plain
    assert infos["course"].tolist() == ["a", "a", "b", "b", "c", "c"]
    env.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda infos: {**infos, "robot_reward": np.zeros(3)},
            r"infos: expected robot_reward of shape \(3, 2\), got \(3,",
        ),
        (lambda infos: {}, r"infos: expected robot_reward of shape \(3, 2\), got the keys \[\]"),
        (lambda infos: [{}] * 3, r"infos: expected robot_reward of shape \(3, 2\), got list"),
        (
            lambda infos: {key: value for key, value in infos.items() if "final" not in key},
            r"final_info: expected robot_reward of shape \(3, 2\), got the keys \[\]",
        ),
    ],
)
def test_infos_without_the_robots_rewards_are_refused(change, message):
    env = FlattenRobots(ChangedInfos(fleet(AutoresetMode.SAME_STEP), change))
    env.reset(seed=1)
    with pytest.raises(ValueError, match=message):
        play_an_episode(env)
    env.close()


def test_a_mode_by_its_name_is_the_mode():
    env = fleet(AutoresetMode.SAME_STEP)
    named = VectorWrapper(env)
    named.metadata = {**env.metadata, "autoreset_mode": "SAME_STEP"}
    named.autoreset_mode = "SAME_STEP"
    robots = FlattenRobots(named)
    robots.reset(seed=1)
    assert (play_an_episode(robots)[-1][1] != 0).all()
    robots.close()


def test_robots_of_a_world_are_reset_together():
    env = FlattenRobots(fleet())
    env.reset(seed=0)
    mask = np.array([True, True, True, False, False, False])
    with pytest.raises(ValueError, match=r"reset_mask: expected the same for all robots of a world, got worlds \[1\]"):
        env.reset(options={"reset_mask": mask})
    env.close()


@pytest.mark.parametrize(
    ("robot_cameras", "error", "message"),
    [
        ({"front": ["front_0"]}, ValueError, r"robot_cameras\['front'\]: expected 2 names, one per robot"),
        ({"front": ["front_0", "rear"]}, ValueError, r"expected names among .*got \['rear'\]"),
        ({"front": ["front_0", "wide"]}, ValueError, r"expected images of one shape"),
        ({"top": ["front_0", "front_1"]}, ValueError, r"expected keys that are no other camera's, got \['top'\]"),
        (
            {"front": "front_0"},
            TypeError,
            r"robot_cameras\['front'\]: expected a sequence of camera names, got 'front_0'",
        ),
        ({"front": 2}, TypeError, r"robot_cameras\['front'\]: expected a sequence of camera names, got 2"),
        ({"front": [["front_0"], 1]}, TypeError, r"robot_cameras\['front'\]: expected a sequence of camera names"),
        (["front_0", "front_1"], TypeError, r"robot_cameras: expected a mapping"),
    ],
)
def test_bad_robot_cameras_are_refused(robot_cameras, error, message):
    wide = Camera("wide", 32, 12, mount=1, offset=(0.3, 0.0, 0.3))
    env = fleet(cameras=[TOP, *FRONT, wide])
    with pytest.raises(error, match=message):
        FlattenRobots(env, robot_cameras=robot_cameras)
    env.close()


def test_wrong_indices_are_robots():
    env = FlattenRobots(fleet(cameras=[TOP]))
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"env_idx: expected robots in 0..5, got 6"):
        env.get_episode_index(6)
    with pytest.raises(ValueError, match=r"env_indices: expected robots in 0..5, got 9"):
        env.render_cameras([0, 9])
    env.close()


def test_other_environments_and_actions_are_refused():
    with pytest.raises(TypeError, match=r"env: expected a gymnasium.vector.VectorEnv, got int"):
        FlattenRobots(3)
    cart_pole = SyncVectorEnv([lambda: gym.make("CartPole-v1")])
    with pytest.raises(ValueError, match=r"env: expected actions of one world in a Box \(robots, channels\)"):
        FlattenRobots(cart_pole)
    cart_pole.close()
    env = FlattenRobots(fleet())
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions: expected shape \(6, 2\).*got \(3, 2, 2\)"):
        env.step(np.zeros((3, 2, 2)))
    with pytest.raises(ValueError, match=r"actions: expected shape \(6, 2\).*got list"):
        env.step([[0, 0], [0]])
    env.close()
