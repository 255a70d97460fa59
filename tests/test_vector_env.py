"""FleetVectorEnv: Gymnasium's contract, autoreset, seeds, copies, cameras, bad input."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from fleet_gym import Camera, FleetEnv, FleetVectorEnv
from fleet_gym.testing import check_vector_env
from fleet_gym.testing.rollouts import rollout, row, sampled_actions

MODES = list(AutoresetMode)
CAMERAS = (
    Camera("top", 24, 18, position=(0, 0, 6), target=(0, 0, 0)),
    Camera("front", 20, 16, mount=0, offset=(0.3, 0, 0.2), modalities=("rgb", "depth", "segmentation")),
)


#: Few substeps per step: what is tested here is the contract, not the motion.
SHORT_STEP = 1 / 30


def make(num_envs=3, mode=AutoresetMode.NEXT_STEP, **kwargs):
    kwargs = {"robot": "diffbot", "num_robots": 2, "max_episode_steps": 9, "autoreset_mode": mode, **kwargs}
    return FleetVectorEnv(num_envs, **kwargs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dynamics", ["kinematic", "physics"])
@pytest.mark.parametrize("cameras", [(), CAMERAS], ids=["plain", "cameras"])
def test_conformance(mode, dynamics, cameras):
    check_vector_env(
        lambda n, mode, **kwargs: make(
            n, mode, dynamics=dynamics, cameras=cameras, max_episode_steps=5, control_dt=SHORT_STEP, **kwargs
        ),
        modes=[mode],
        steps=14,
        lifetimes=2,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dynamics", ["kinematic", "physics"])
def test_equals_a_sync_vector_env_of_single_envs(mode, dynamics):
    kwargs = {
        "robot": "diffbot",
        "num_robots": 2,
        "max_episode_steps": 7,
        "cameras": CAMERAS[:1],
        "control_dt": SHORT_STEP,
    }
    fleet = FleetVectorEnv(3, dynamics=dynamics, autoreset_mode=mode, **kwargs)
    sync = SyncVectorEnv([lambda: FleetEnv(dynamics=dynamics, **kwargs)] * 3, autoreset_mode=mode)
    try:
        assert fleet.single_observation_space == sync.single_observation_space
        assert fleet.single_action_space == sync.single_action_space
        actions = sampled_actions(fleet, 20)
        assert data_equivalence(fleet.reset(seed=4), sync.reset(seed=4), exact=True)
        for number, action in enumerate(actions):
            if number == 3:  # from here on the worlds end at different times
                ours, theirs = (env.reset(options={"reset_mask": np.array([0, 1, 1], bool)}) for env in (fleet, sync))
                assert data_equivalence(ours[0], theirs[0], exact=True)
            ours, theirs = fleet.step(action), sync.step(action)
            assert data_equivalence(ours, theirs, exact=True), f"step {number}"
            done = ours[2] | ours[3]
            if mode is AutoresetMode.DISABLED and done.any():
                ours, theirs = (env.reset(options={"reset_mask": done.copy()}) for env in (fleet, sync))
                # Its infos have rows of the masked worlds only.
                assert data_equivalence(ours[0], theirs[0], exact=True)
    finally:
        fleet.close()
        sync.close()


def test_any_episode_is_replayed_by_its_seed():
    with_autoreset, again = make(2, AutoresetMode.SAME_STEP), make(1, AutoresetMode.SAME_STEP)
    actions = sampled_actions(with_autoreset, 30)
    with_autoreset.reset(seed=8)
    for action in actions[:9]:
        observation, _, _, _, infos = with_autoreset.step(action)
    seed = int(infos["episode_seed"][1])
    assert seed not in (8, 9)
    assert infos["final_info"]["episode_seed"][1] == 9
    replayed, replayed_infos = again.reset(seed=[seed])
    assert np.array_equal(replayed["state"][0], observation["state"][1])
    assert replayed_infos["episode_seed"][0] == seed
    for action in actions[9:17]:
        ours = with_autoreset.step(action)
        theirs = again.step(action[1:])
        assert np.array_equal(ours[0]["state"][1], theirs[0]["state"][0])
        assert ours[1][1] == theirs[1][0]
    with_autoreset.close()
    again.close()


def test_episode_index_counts_every_reset_of_a_world():
    env = make(3, AutoresetMode.NEXT_STEP)
    assert [env.get_episode_index(i) for i in range(3)] == [-1, -1, -1]
    env.reset(seed=0)
    env.reset(options={"reset_mask": np.array([True, False, False])})
    assert [env.get_episode_index(i) for i in range(3)] == [1, 0, 0]
    for action in sampled_actions(env, 10):
        env.step(action)
    assert [env.get_episode_index(i) for i in range(3)] == [2, 1, 1]
    env.close()


def test_a_reset_clears_the_pending_autoreset_of_the_worlds_it_resets():
    env = make(2, AutoresetMode.NEXT_STEP)
    actions = sampled_actions(env, 12)
    env.reset(seed=0)
    for action in actions[:9]:
        truncated = env.step(action)[3]
    assert truncated.all()
    env.reset(options={"reset_mask": np.array([True, False])})
    env.step(actions[9])
    assert env.get_episode_index(0) == 1
    assert env.get_episode_index(1) == 1
    moved = [bool((env.state.linear_velocity[world] != 0).any()) for world in range(2)]
    assert moved == [True, False], "world 0 was stepped, world 1 was reset"
    env.close()


def test_infos_have_the_documented_types():
    env = make(2)
    expected = {
        "success": (np.bool_, (2,)),
        "robot_reward": (np.float64, (2, 2)),
        "goal_distance": (np.float64, (2, 2)),
        "num_collisions": (np.int64, (2,)),
        "fallen": (np.bool_, (2, 2)),
        "episode_seed": (np.int64, (2,)),
    }
    for infos in (env.reset(seed=1)[1], env.step(env.action_space.sample())[4]):
        assert {key for key in infos if not key.startswith("_")} == set(expected)
        for key, (dtype, shape) in expected.items():
            assert infos[key].dtype == dtype, key
            assert infos[key].shape == shape, key
            assert infos[f"_{key}"].all(), key
    env.close()


def test_the_team_reward_is_the_mean_of_the_robots():
    env = make(2)
    env.reset(seed=1)
    _, reward, _, _, infos = env.step(env.action_space.sample())
    np.testing.assert_allclose(reward, infos["robot_reward"].mean(axis=1))
    env.close()


@pytest.mark.parametrize("mode", ["NextStep", "same_step", "Disabled"])
def test_autoreset_modes_may_be_strings(mode):
    env = make(1, mode)
    assert isinstance(env.autoreset_mode, AutoresetMode)
    assert env.metadata["autoreset_mode"] is env.autoreset_mode
    assert "autoreset_mode" not in FleetVectorEnv.metadata
    env.close()


def test_gymnasium_makes_both_forms():
    vector = gym.make_vec(
        "FleetGym/Navigation-v0",
        num_envs=2,
        vectorization_mode="vector_entry_point",
        robot="diffbot",
        num_robots=1,
        autoreset_mode="SameStep",
        cameras=[Camera("top", 8, 8, position=(0, 0, 3), target=(0, 0, 0)).to_dict()],
    )
    assert vector.unwrapped.max_episode_steps == 200
    assert vector.spec.to_json()
    vector.close()
    again = gym.make_vec(vector.spec)
    assert again.num_envs == 2
    again.close()


# ---- Cameras ----


def test_images_are_in_the_observation_unless_switched_off():
    env = make(2, cameras=CAMERAS, renderer="tiny")
    images = env.reset(seed=0)[0]["camera_obs"]
    assert {key: (image.shape, image.dtype) for key, image in images.items()} == {
        "top": ((2, 18, 24, 3), np.uint8),
        "front": ((2, 16, 20, 3), np.uint8),
        "front_depth": ((2, 16, 20), np.float32),
        "front_segmentation": ((2, 16, 20), np.int32),
    }
    env.close()
    env = make(2, cameras=CAMERAS, camera_obs=False, renderer="tiny")
    assert set(env.reset(seed=0)[0]) == {"state"}
    assert np.array_equal(env.render_cameras([1])["top"][0], images["top"][1])
    env.close()


def test_render_cameras_draws_the_worlds_asked_for_in_their_order():
    env = make(3, cameras=CAMERAS, renderer="tiny")
    images = env.reset(seed=0)[0]["camera_obs"]
    drawn = env.render_cameras([2, 0], ["front"])
    assert set(drawn) == {"front", "front_depth", "front_segmentation"}
    assert np.array_equal(drawn["front_depth"], images["front_depth"][[2, 0]])
    with pytest.raises(ValueError, match=r"expected worlds in 0..2, got 3"):
        env.render_cameras([3])
    with pytest.raises(ValueError, match=r"cameras: expected one of 'top', 'front', got 'left'"):
        env.render_cameras(cameras=["left"])
    env.close()


@pytest.mark.parametrize("mode", MODES)
def test_final_frames_are_kept_until_the_next_call(mode):
    reference = make(2, AutoresetMode.DISABLED, cameras=CAMERAS[:1], renderer="tiny")
    env = make(2, mode, cameras=CAMERAS[:1], camera_obs=False, renderer="tiny")
    actions = sampled_actions(reference, 10)
    expected = rollout(reference, 9, 5, actions=actions)[-1][0]["camera_obs"]["top"]
    rollout(env, 8, 5, actions=actions)
    with pytest.raises(ValueError, match="expected worlds that ended in the last call"):
        env.render_cameras(final=True)
    env.step(actions[8])
    assert np.array_equal(env.render_cameras([1, 0], final=True)["top"], expected[[1, 0]])
    env.close()
    reference.close()


def test_sparse_cameras_repeat_their_last_image_but_miss_no_end():
    sparse = Camera("sparse", 16, 12, position=(0, -3, 3), target=(0, 0, 0), render_every=4)
    dense = Camera("dense", 16, 12, position=(0, -3, 3), target=(0, 0, 0))
    env = make(2, AutoresetMode.SAME_STEP, cameras=(sparse, dense), max_episode_steps=6, renderer="tiny")
    first = env.reset(seed=2)[0]["camera_obs"]
    assert np.array_equal(first["sparse"], first["dense"])
    shown = {0: first["dense"]}
    for step, action in enumerate(sampled_actions(env, 12), start=1):
        observation, _, _, truncated, infos = env.step(action)
        images, since = observation["camera_obs"], step % 6
        shown[since] = images["dense"]
        assert np.array_equal(images["sparse"], shown[4 * (since // 4)]), f"step {step}"
        if truncated.any():
            for world in range(2):
                final = infos["final_obs"][world]["camera_obs"]
                assert np.array_equal(final["sparse"], final["dense"])
    env.close()


def test_a_masked_reset_leaves_sparse_images_alone():
    sparse = Camera("sparse", 16, 12, position=(0, -3, 3), target=(0, 0, 0), render_every=4)
    env = make(2, AutoresetMode.DISABLED, cameras=(sparse,), renderer="tiny")
    env.reset(seed=2)
    for action in sampled_actions(env, 2):
        before = env.step(action)[0]
    after, _ = env.reset(options={"reset_mask": np.array([False, True])})
    assert data_equivalence(row(after, 0), row(before, 0), exact=True)
    assert not np.array_equal(after["camera_obs"]["sparse"][1], before["camera_obs"]["sparse"][1])
    env.close()


# ---- Bad input ----


def navigation_needing_lidar():
    from fleet_gym.tasks.navigation import Navigation

    task = Navigation()
    task.needs = frozenset({"lidar"})
    return task


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"num_envs": 0}, ValueError, "num_envs: expected an int >= 1, got 0"),
        ({"num_envs": 2.0}, TypeError, "num_envs: expected an int >= 1, got 2.0"),
        ({"num_robots": 0}, ValueError, "num_robots: expected an int >= 1, got 0"),
        ({"num_robots": True}, TypeError, "num_robots"),
        ({"robot": "hursky"}, ValueError, "husky"),
        ({"robot": "kuka_iiwa"}, ValueError, "models that have one: .*husky"),
        ({"robot": ["husky"], "num_robots": 2}, ValueError, "robot"),
        ({"task": "parking"}, ValueError, "task: expected one of 'navigation' or a Task, got 'parking'"),
        ({"task_kwargs": {"goal": 1}}, TypeError, "task_kwargs: expected some of .* got"),
        (
            {"task_kwargs": {"goal_radius": -1}},
            ValueError,
            "goal_radius: expected a finite number > 0 .*got -1",
        ),
        ({"task_kwargs": {"arena_size": 1.5}, "num_robots": 9}, ValueError, r"9 robots .* where \d robots fit"),
        ({"dynamics": "magic"}, ValueError, "dynamics: expected one of 'kinematic', 'physics', got 'magic'"),
        ({"renderer": "crayon"}, ValueError, "renderer: expected one of .*got 'crayon'"),
        ({"render_mode": "human"}, ValueError, "render_mode: expected one of 'rgb_array', got 'human'"),
        ({"autoreset_mode": "sometimes"}, ValueError, "autoreset_mode: expected .* got 'sometimes'"),
        ({"max_episode_steps": 0}, ValueError, "max_episode_steps: expected an int >= 1, got 0"),
        ({"control_dt": 0.0}, ValueError, "control_dt: expected a finite number >= 1e-06"),
        ({"control_dt": 0.1001, "dynamics": "physics"}, ValueError, "control_dt"),
        ({"num_workers": 2}, ValueError, "num_workers: expected 0"),
        ({"num_workers": False}, TypeError, "num_workers: expected an int >= 0, got False"),
        ({"task": 42}, TypeError, "task: expected a name or an object with the methods of Task, got 42"),
        ({"task": None}, TypeError, "task: expected a name or an object"),
        ({"task_kwargs": "abc"}, TypeError, "task_kwargs: expected a mapping of arguments or None, got 'abc'"),
        ({"task": navigation_needing_lidar()}, ValueError, r"task.needs: expected none .* got \['lidar'\]"),
        ({"task_kwargs": {"arena_size": 1e300}}, ValueError, "arena_size: expected a finite number > 0 and <= 100000"),
        ({"task_kwargs": {"goal_radius": 900.0}}, ValueError, "goal_radius: expected less than the arena's"),
        ({"control_dt": 10**400}, ValueError, "control_dt: expected a finite number >= 1e-06 and <= 60"),
        ({"cameras": None}, TypeError, "cameras: expected a sequence"),
        ({"camera_obs": 1}, TypeError, "camera_obs: expected a bool, got 1"),
        ({"cameras": [CAMERAS[0], CAMERAS[0]]}, ValueError, "top"),
        ({"cameras": [Camera("c", 8, 8, mount=5)]}, ValueError, "mount"),
        ({"cameras": ["top"]}, TypeError, "camera"),
    ],
)
def test_bad_arguments_are_named(kwargs, error, message):
    with pytest.raises(error, match=message):
        make(**{"num_envs": 2, **kwargs})


def _with(actions, value):
    actions[1, 0, 1] = value
    return actions


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda a: a[:1], ValueError, r"actions: expected shape \(2, 2, 2\) .* got \(1, 2, 2\)"),
        (lambda a: _with(a, np.nan), ValueError, "got nan for world 1, robot 0, channel 1"),
        (lambda a: _with(a, np.inf), ValueError, "got inf for world 1, robot 0, channel 1"),
        (lambda a: a.astype(bool), TypeError, "dtype bool"),
        (lambda a: a.astype(complex), TypeError, "dtype complex"),
        (lambda a: a.astype(object), TypeError, "dtype object"),
    ],
)
def test_bad_actions_move_nothing(change, error, message):
    env = make(2)
    env.reset(seed=0)
    good = np.zeros((2, 2, 2))
    env.step(good)
    before = env.state.take(np.arange(2))
    with pytest.raises(error, match=message):
        env.step(change(good.copy()))
    after = env.state.take(np.arange(2))
    assert all(np.array_equal(value, getattr(after, name)) for name, value in vars(before).items())
    env.close()


def test_actions_of_worlds_that_reset_are_not_looked_at():
    env = make(2)
    env.reset(seed=0)
    for action in sampled_actions(env, 9):
        env.step(action)
    env.step(np.full((2, 2, 2), np.nan))
    assert env.get_episode_index(0) == 1
    env.close()


def test_actions_outside_the_box_are_clipped_and_ints_pass():
    one, other = make(1), make(1)
    for env, action in ((one, np.full((1, 2, 2), 50)), (other, np.ones((1, 2, 2), dtype=np.float32))):
        env.reset(seed=3)
        env.step(action)
    assert np.array_equal(one.state.position, other.state.position)
    one.close()
    other.close()


def test_a_step_before_reset_and_past_the_end_says_what_is_needed():
    env = make(2, AutoresetMode.DISABLED)
    with pytest.raises(ResetNeeded, match=r"reset\(\) before the first step"):
        env.step(env.action_space.sample())
    with pytest.raises(ResetNeeded, match="first reset of all worlds"):
        env.reset(options={"reset_mask": np.array([True, False])})
    env.reset(seed=0)
    for action in sampled_actions(env, 9):
        env.step(action)
    before = env.state.position.copy()
    with pytest.raises(ResetNeeded, match=r"worlds \[0, 1\]"):
        env.step(action)
    assert np.array_equal(env.state.position, before)
    env.close()


@pytest.mark.parametrize("seed", [-1, 1.5, "a", [1, -2], 2**63, np.array(1.5), True])
def test_bad_seeds_are_refused_before_anything_moves(seed):
    env = make(2)
    env.reset(seed=0)
    before = env.state.position.copy()
    with pytest.raises((TypeError, ValueError), match="seed: expected"):
        env.reset(seed=seed)
    assert np.array_equal(env.state.position, before)
    assert env.get_episode_index(0) == 0
    env.close()


def test_thirty_lifetimes_with_physics_and_cameras_leave_nothing_behind():
    check_vector_env(
        lambda n, mode, **kwargs: make(
            n, mode, dynamics="physics", cameras=CAMERAS[:1], max_episode_steps=4, control_dt=SHORT_STEP, **kwargs
        ),
        modes=[AutoresetMode.NEXT_STEP],
        num_envs=2,
        steps=10,
        lifetimes=30,
    )


# ---- Tasks of one's own ----


def navigation_with(**changes):
    from fleet_gym.tasks.navigation import Navigation

    return type("Changed", (Navigation,), changes)(num_obstacles=0)


def nan_sample(self, rngs, worlds):
    from fleet_gym.tasks.navigation import Navigation

    sample = Navigation.sample(self, rngs, worlds)
    sample.position[0, 0, 0] = np.nan
    return sample


def short_sample(self, rngs, worlds):
    from fleet_gym.tasks.navigation import Navigation

    return Navigation.sample(self, rngs[:1], worlds[:1])


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (nan_sample, "task.sample: expected finite values of position, got nan"),
        (short_sample, r"task.sample: expected position of shape \(2, 2, 3\), got \(1, 2, 3\)"),
    ],
)
def test_a_task_that_samples_nonsense_is_told_before_anything_moves(sample, message):
    env = make(2, task=navigation_with(sample=sample))
    with pytest.raises(ValueError, match=message):
        env.reset(seed=0)
    assert env.get_episode_index(0) == -1
    env.close()


def test_a_task_with_other_infos_in_steps_than_in_resets_is_told():
    def observe(self, state, worlds):
        from fleet_gym.tasks.navigation import Navigation

        observation, infos = Navigation.observe(self, state, worlds)
        return observation, {**infos, "extra": np.zeros(len(worlds))}

    env = make(2, task=navigation_with(observe=observe))
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"task.evaluate: expected infos .*'extra'"):
        env.step(env.action_space.sample())
    env.close()


# ---- Regressions ----


def test_a_reset_of_other_worlds_ends_the_time_of_final_frames():
    env = make(3, AutoresetMode.SAME_STEP, cameras=CAMERAS[:1], renderer="tiny", max_episode_steps=2)
    env.reset(seed=1)
    rollout(env, 2, 1)
    assert env.render_cameras([0], final=True)["top"].shape == (1, 18, 24, 3)
    env.reset(options={"reset_mask": np.array([False, True, False])})
    with pytest.raises(ValueError, match=r"worlds that ended in the last call, got \[0\]"):
        env.render_cameras([0], final=True)
    env.close()


def test_a_masked_reset_in_disabled_mode_draws_only_what_it_resets(mocker):
    env = make(4, AutoresetMode.DISABLED, cameras=CAMERAS[:1], renderer="tiny")
    env.reset(seed=1)
    drawn = mocker.spy(env._engine._renderer, "render")
    env.reset(options={"reset_mask": np.array([False, True, False, False])})
    assert [call.args[1].tolist() for call in drawn.call_args_list] == [[1]]
    env.close()


def test_a_borderline_density_that_was_accepted_never_fails_later():
    env = make(
        1,
        AutoresetMode.SAME_STEP,
        num_robots=3,
        max_episode_steps=1,
        task_kwargs={"arena_size": 1.6, "num_obstacles": 2},
    )
    env.reset(seed=0)
    for _ in range(300):
        env.step(np.zeros((1, 3, 2)))
    env.close()


def test_channels_a_robot_does_not_have_count_for_nothing():
    from dataclasses import replace

    from fleet_gym.world.robots import robot_model

    slider = replace(robot_model("diffbot"), name="slider", drive="omnidirectional", wheels=None)
    env = make(
        1, robot=["diffbot", slider], task_kwargs={"progress_weight": 0.0, "effort_cost": 1.0, "num_obstacles": 0}
    )
    env.reset(seed=0)
    observation, _, _, _, infos = env.step([[[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]])
    np.testing.assert_allclose(infos["robot_reward"], [[0.0, -1.0 / 3.0]])
    previous = observation["state"][0][:, env.state_layout["previous_action"]]
    np.testing.assert_allclose(previous, [[0, 0, 0], [0, 0, 1]])
    env.close()


def test_a_physics_env_cannot_be_copied_into_a_second_owner_of_its_clients():
    import copy
    import pickle

    env = make(1, dynamics="physics")
    for duplicate in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="make a new environment"):
            duplicate(env)
    env.close()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda env: env.reset(options=5), TypeError, "options: expected a mapping or None, got 5"),
        (lambda env: env.reset(options=[]), TypeError, r"options: expected a mapping or None, got \[\]"),
        (lambda env: env.reset(options={"reset_mask": None}), TypeError, "reset_mask: expected a NumPy bool array"),
        (lambda env: env.step([[1], [2, 3]]), ValueError, r"actions: expected shape \(2, 2, 2\)"),
        (lambda env: env.render_cameras(5), TypeError, "env_indices: expected a sequence of ints or None, got 5"),
        (lambda env: env.render_cameras(cameras="top"), TypeError, "cameras: expected a sequence of names or None"),
        (lambda env: env.get_episode_index(-1), ValueError, "env_idx: expected an int >= 0, got -1"),
        (lambda env: env.get_episode_index(2), ValueError, r"env_idx: expected worlds in 0\.\.1, got 2"),
    ],
)
def test_bad_calls_are_named(call, error, message):
    env = make(2, cameras=CAMERAS[:1])
    env.reset(seed=0)
    with pytest.raises(error, match=message):
        call(env)
    env.close()
