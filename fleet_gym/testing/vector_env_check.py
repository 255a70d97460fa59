"""A conformance suite for vector environments, to be run by anyone on their own."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from fleet_gym.testing.rollouts import (
    Make,
    Transition,
    arrays_in,
    first_done,
    open_env,
    rollout,
    row,
    sampled_actions,
)

_Check = Callable[["_Subject"], None]
_CHECKS: list[_Check] = []
_SEED = 1234


class _Subject:
    """The environment under test and how long to step it."""

    def __init__(self, make: Make, mode: AutoresetMode, num_envs: int, steps: int, lifetimes: int) -> None:
        self.make, self.mode, self.num_envs, self.steps, self.lifetimes = make, mode, num_envs, steps, lifetimes

    def open(
        self, num_envs: int | None = None, mode: AutoresetMode | None = None, **kwargs: Any
    ) -> contextlib.AbstractContextManager[Any]:  # gymnasium's annotations know no seed lists
        return open_env(self.make, num_envs or self.num_envs, mode or self.mode, **kwargs)


def check_vector_env(
    make: Make,
    *,
    modes: Sequence[AutoresetMode] = tuple(AutoresetMode),
    num_envs: int = 3,
    steps: int = 40,
    lifetimes: int = 5,
) -> None:
    """Checks that an environment keeps the contract of `gymnasium.vector.VectorEnv`, and some promises more.

    Gymnasium has no checker of its own for vector environments. Beyond its contract this suite asks for bit-identical
    replays, worlds that do not depend on their neighbours, independent copies in everything returned, explicit resets
    that do not disturb other worlds, and errors after ``close``.

    Args:
        make: called as ``make(num_envs, autoreset_mode)``, and for pictures with ``render_mode="rgb_array"`` too if the
            environment's metadata list that mode.
        modes: autoreset modes to check.
        num_envs: worlds, at least 2.
        steps: per check; an episode has to end within them, and another to begin.
        lifetimes: environments opened and closed in turn; 0 leaves that check out.

    Raises:
        AssertionError: lists every check that failed and why.
    """
    if num_envs < 2:
        raise ValueError(f"num_envs: expected at least 2, got {num_envs}")
    failures = []
    for mode in modes:
        subject = _Subject(make, mode, num_envs, steps, lifetimes)
        for check in _CHECKS:
            try:
                check(subject)
            except Exception as error:  # every check is run; all failures are raised together below
                failures.append(f"[{mode.value}] {check.__name__.strip('_')}: {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} checks failed:\n" + "\n".join(failures)


def _check(function: _Check) -> _Check:
    _CHECKS.append(function)
    return function


@contextlib.contextmanager
def _raises(what: str, *kinds: type[BaseException]) -> Iterator[None]:
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield
    except kinds:
        return
    except Exception as error:
        raise AssertionError(f"{what}: expected {names}, got {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what}: expected {names}, got no error")


def _same(first: Any, second: Any, what: str) -> None:
    assert data_equivalence(first, second, exact=True), f"{what}: expected equal data to the last bit"


@_check
def _is_a_vector_env(subject: _Subject) -> None:
    with subject.open() as env:
        assert isinstance(env, VectorEnv), f"expected a gymnasium VectorEnv, got {type(env)}"
        assert not isinstance(env, gym.Env), "expected no gymnasium.Env"
        assert type(env.num_envs) is int, f"num_envs: expected an int, got {type(env.num_envs)}"
        assert env.closed is False, "closed: expected False"


@_check
def _batched_spaces_match_single_spaces(subject: _Subject) -> None:
    with subject.open() as env:
        assert env.observation_space == batch_space(env.single_observation_space, env.num_envs), "observation_space"
        assert env.action_space == batch_space(env.single_action_space, env.num_envs), "action_space"


@_check
def _metadata_belong_to_the_instance(subject: _Subject) -> None:
    with subject.open() as env, subject.open() as other:
        assert env.metadata is not other.metadata, "metadata: expected one dict per instance"
        assert env.metadata is not type(env.unwrapped).metadata, "metadata: expected a dict of the instance"
        assert env.metadata.get("autoreset_mode") is subject.mode, f"metadata: {env.metadata.get('autoreset_mode')!r}"
        assert getattr(env, "autoreset_mode", None) is subject.mode, "autoreset_mode: expected it as an attribute"


@_check
def _reset_returns_an_observation_and_a_dict(subject: _Subject) -> None:
    with subject.open() as env:
        for name in ("seed", "options"):
            kind = inspect.signature(env.reset).parameters[name].kind
            assert kind is inspect.Parameter.KEYWORD_ONLY, f"reset: expected keyword-only {name}"
        observation, infos = env.reset(seed=_SEED)
        assert observation in env.observation_space, "reset: observation outside observation_space"
        assert isinstance(infos, dict), f"reset: expected a dict of infos, got {type(infos)}"


@_check
def _steps_stay_in_their_spaces(subject: _Subject) -> None:
    shape = (subject.num_envs,)
    with subject.open() as env:
        transitions = rollout(env, subject.steps, _SEED)
        for number, (observation, reward, terminated, truncated, _) in enumerate(transitions):
            assert observation in env.observation_space, f"step {number}: observation outside observation_space"
            assert reward.shape == shape, f"reward: expected shape {shape}, got {reward.shape}"
            assert reward.dtype == np.float64, f"reward: expected float64, got {reward.dtype}"
            for name, flag in (("terminated", terminated), ("truncated", truncated)):
                assert flag.shape == shape, f"{name}: expected shape {shape}, got {flag.shape}"
                assert flag.dtype == np.bool_, f"{name}: expected bool, got {flag.dtype}"
        assert first_done(transitions) is not None, f"expected an episode to end within {subject.steps} steps"


@_check
def _rollouts_repeat(subject: _Subject) -> None:
    with subject.open() as env, subject.open() as fresh:
        first = rollout(env, subject.steps, _SEED)
        _same(rollout(env, subject.steps, _SEED), first, "the same instance again")
        _same(rollout(fresh, subject.steps, _SEED), first, "another instance")


@_check
def _worlds_do_not_depend_on_each_other(subject: _Subject) -> None:
    last = subject.num_envs - 1
    with subject.open() as env, subject.open(num_envs=1) as alone:
        together = rollout(env, subject.steps, _SEED)
        actions = [action[last : last + 1] for action in sampled_actions(env, subject.steps)]
        single = rollout(alone, subject.steps, _SEED + last, actions=actions)
    for number, (many, one) in enumerate(zip(together, single, strict=True)):
        for part in range(4):
            _same(
                row(many[part], last), row(one[part], 0), f"step {number}: world {last} of seed s, 0 of seed s + {last}"
            )


@_check
def _seed_lists(subject: _Subject) -> None:
    with subject.open() as env:
        by_int = env.reset(seed=_SEED)[0]
        by_list = env.reset(seed=[_SEED + i for i in range(subject.num_envs)])[0]
        _same(by_list, by_int, "reset with a list of seeds")
        with _raises("a list of seeds that is too long", ValueError):
            env.reset(seed=[_SEED] * (subject.num_envs + 1))


@_check
def _unseeded_resets_go_on_reproducibly(subject: _Subject) -> None:
    with subject.open() as env:
        sequences = []
        for _ in range(2):
            seeded = env.reset(seed=_SEED)[0]
            sequences.append([deepcopy(seeded), deepcopy(env.reset()[0])])
        _same(sequences[0], sequences[1], "an unseeded reset after the same seed")
        first, second = sequences[0]
        assert not data_equivalence(first, second, exact=True), "an unseeded reset: expected another episode"


@_check
def _ended_worlds_begin_anew(subject: _Subject) -> None:
    """All modes show the same terminal observation and, one way or another, the same first one of the next episode."""
    with subject.open(mode=AutoresetMode.DISABLED) as reference, subject.open() as env:
        actions = sampled_actions(env, subject.steps)
        expected = rollout(reference, subject.steps, _SEED, actions=actions, until_done=True)
        done = expected[-1][2] | expected[-1][3]
        anew = deepcopy(reference.reset(options={"reset_mask": done})[0])
        got = rollout(env, subject.steps, _SEED, actions=actions, until_done=True)
        assert len(got) == len(expected), "expected the same number of steps in all modes"
        for part, name in ((1, "reward"), (2, "terminated"), (3, "truncated")):
            _same(got[-1][part], expected[-1][part], f"{name} of the last step")
        worlds = [int(world) for world in np.flatnonzero(done)]
        if subject.mode is AutoresetMode.SAME_STEP:
            _check_final_infos(env, got[-1], expected[-1], done)
            first = got[-1][0]
        else:
            for world in worlds:
                _same(row(got[-1][0], world), row(expected[-1][0], world), "last observation")
            if subject.mode is AutoresetMode.NEXT_STEP:
                first, reward, terminated, truncated, _ = env.step(actions[len(got)])
                assert (reward[done] == 0).all(), "NEXT_STEP: expected reward 0 in the step that resets"
                assert not (terminated | truncated)[done].any(), "NEXT_STEP: expected no flags in the step that resets"
            else:
                with _raises("DISABLED: stepping a world that has ended", ResetNeeded):
                    env.step(actions[len(got)])
                first = env.reset(options={"reset_mask": done})[0]
        for world in worlds:
            _same(row(first, world), row(anew, world), "first observation of the next episode")


def _check_final_infos(
    env: VectorEnv[Any, Any, Any], got: Transition, expected: Transition, done: np.ndarray[Any, Any]
) -> None:
    infos = got[4]
    for key in ("final_obs", "_final_obs", "final_info", "_final_info"):
        assert key in infos, f"SAME_STEP: expected infos[{key!r}]"
    assert infos["final_obs"].dtype == object, "final_obs: expected an object array"
    _same(infos["_final_obs"], done, "_final_obs")
    assert isinstance(infos["final_info"], dict), f"final_info: expected a dict, got {type(infos['final_info'])}"
    for world in range(env.num_envs):
        final = infos["final_obs"][world]
        if not done[world]:
            assert final is None, "final_obs: expected None where no episode ended"
            continue
        assert final in env.single_observation_space, "final_obs outside single_observation_space"
        _same(final, row(expected[0], world), "final_obs")


@_check
def _masked_resets_leave_other_worlds_alone(subject: _Subject) -> None:
    mask = np.zeros(subject.num_envs, dtype=np.bool_)
    mask[0] = True
    with subject.open() as env, subject.open() as undisturbed:
        actions = sampled_actions(env, 6)
        before = rollout(env, 3, _SEED, actions=actions)[-1][0]
        rollout(undisturbed, 3, _SEED, actions=actions)
        options = {"reset_mask": mask}
        after, _ = env.reset(seed=77, options=options)
        assert set(options) == {"reset_mask"}, "options: expected them unchanged"
        assert options["reset_mask"] is mask, "options: expected them unchanged"
        assert mask.tolist() == [True] + [False] * (subject.num_envs - 1), "reset_mask: expected it unchanged"
        fresh = undisturbed.reset(seed=77, options={"reset_mask": np.ones_like(mask)})[0]
        _same(row(after, 0), row(fresh, 0), "the seeded world")
        for world in range(1, subject.num_envs):
            _same(row(after, world), row(before, world), "a world that is not reset")
    with subject.open() as env, subject.open() as undisturbed:
        rollout(env, 2, _SEED, actions=actions)
        rollout(undisturbed, 2, _SEED, actions=actions)
        env.reset(options={"reset_mask": mask})
        one, other = env.step(actions[2]), undisturbed.step(actions[2])
        for world in range(1, subject.num_envs):
            _same(row(one[0], world), row(other[0], world), "the next step of a world that is not reset")


@_check
def _bad_masks_are_refused(subject: _Subject) -> None:
    n = subject.num_envs
    with subject.open() as env:
        env.reset(seed=_SEED)
        for mask, error in (
            ([True] * n, TypeError),
            (np.ones(n, dtype=np.int64), TypeError),
            (np.ones(n + 1, dtype=np.bool_), ValueError),
            (np.zeros(n, dtype=np.bool_), ValueError),
        ):
            with _raises(f"reset_mask={mask!r}", error):
                env.reset(options={"reset_mask": mask})


@_check
def _infos_are_masked_arrays(subject: _Subject) -> None:
    from gymnasium.wrappers.vector import DictInfoToList

    with subject.open() as env:
        keys = None
        reset_infos = env.reset(seed=_SEED)[1]
        for infos in [reset_infos, *(transition[4] for transition in rollout(env, subject.steps, _SEED))]:
            plain = {key for key in infos if not key.startswith("_") and not key.startswith("final_")}
            for key in plain:
                mask = infos.get(f"_{key}")
                assert isinstance(mask, np.ndarray), f"infos: expected a mask _{key}"
                assert mask.dtype == np.bool_, f"infos: expected a bool mask _{key}"
                assert mask.shape == (subject.num_envs,), f"infos: mask _{key} has shape {mask.shape}"
                assert mask.all(), f"infos: expected every world to have {key}"
            assert keys in (None, plain), f"infos: expected the same keys in reset and step, got {keys} and {plain}"
            keys = plain
    with subject.open() as env:
        listed = DictInfoToList(env)
        infos_list = [transition[4] for transition in rollout(listed, subject.steps, _SEED)]
        assert all(len(infos) == subject.num_envs for infos in infos_list), "DictInfoToList: expected a list per world"


@_check
def _nothing_returned_is_used_again(subject: _Subject) -> None:
    with subject.open() as env:
        returned: list[Any] = [env.reset(seed=_SEED)]
        copies = [deepcopy(returned[0])]
        done = np.zeros(subject.num_envs, dtype=np.bool_)
        for action in sampled_actions(env, subject.steps):
            if subject.mode is AutoresetMode.DISABLED and done.any():
                returned.append(env.reset(options={"reset_mask": done}))
                copies.append(deepcopy(returned[-1]))
            returned.append(env.step(action))
            copies.append(deepcopy(returned[-1]))
            done = returned[-1][2] | returned[-1][3]
        _same(returned, copies, "what earlier calls returned")
        for distance in (1, 2, 3):  # a ring of buffers is longer than one
            for earlier, later in zip(returned, returned[distance:], strict=False):
                for array in arrays_in(earlier):
                    shared = any(np.shares_memory(array, other) for other in arrays_in(later))
                    assert not shared, "expected arrays that share no memory with an earlier return"


@_check
def _bad_actions_are_refused(subject: _Subject) -> None:
    with subject.open() as env:
        with _raises("a step before the first reset", ResetNeeded):
            env.step(env.action_space.sample())
        env.reset(seed=_SEED)
        action = sampled_actions(env, 1)[0]
        kept = deepcopy(action)
        with _raises("actions for too few worlds", ValueError):
            env.step(action[:-1])
        env.step(action)
        _same(action, kept, "actions")


@_check
def _episode_statistics_agree(subject: _Subject) -> None:
    from gymnasium.wrappers.vector import RecordEpisodeStatistics

    with subject.open() as env:
        transitions = rollout(env, subject.steps, _SEED, until_done=True)
    done = transitions[-1][2] | transitions[-1][3]
    expected = np.sum([transition[1] for transition in transitions], axis=0)
    with subject.open() as env:
        counted = RecordEpisodeStatistics(env)
        infos = rollout(counted, subject.steps, _SEED, until_done=True)[-1][4]
        np.testing.assert_allclose(infos["episode"]["r"][done], expected[done], rtol=1e-6)
        assert (infos["episode"]["l"][done] == len(transitions)).all(), (
            "RecordEpisodeStatistics: episode lengths differ"
        )


@_check
def _rendering_changes_nothing(subject: _Subject) -> None:
    from gymnasium.wrappers.vector import RecordVideo

    with subject.open() as env:
        if "rgb_array" not in env.metadata.get("render_modes", ()):
            return
        expected = rollout(env, 3, _SEED)
    with subject.open(render_mode="rgb_array") as env:
        env.reset(seed=_SEED)
        got = []
        for action in sampled_actions(env, 3):
            frames = env.render()
            assert frames is not None, "render: expected frames"
            assert len(frames) == subject.num_envs, f"render: expected {subject.num_envs} frames, got {len(frames)}"
            for frame in frames:
                assert frame.dtype == np.uint8, f"render: expected uint8, got {frame.dtype}"
                assert frame.ndim == 3, f"render: expected height x width x 3, got {frame.shape}"
                assert frame.shape[2] == 3, f"render: expected height x width x 3, got {frame.shape}"
            got.append(deepcopy(env.step(action)))
        _same(got, expected, "steps between renderings")
    with tempfile.TemporaryDirectory() as folder, subject.open(render_mode="rgb_array") as env:
        videos = Path(folder) / "videos"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that SAME_STEP loses its last frames
            recorded = RecordVideo(env, str(videos), episode_trigger=lambda _: True, video_length=2)
        rollout(recorded, 3, _SEED)
        recorded.close()
        assert list(videos.glob("*.mp4")), "gymnasium's RecordVideo: expected an mp4"


@_check
def _closed_environments_say_so(subject: _Subject) -> None:
    with subject.open() as env:
        env.reset(seed=_SEED)
        action = sampled_actions(env, 1)[0]
        env.close()
        env.close()
        assert env.closed is True, "closed: expected True"
        with _raises("step after close", ClosedEnvironmentError):
            env.step(action)
        with _raises("reset after close", ClosedEnvironmentError):
            env.reset()


@_check
def _lifetimes_leave_nothing_behind(subject: _Subject) -> None:
    import psutil

    if subject.lifetimes == 0:
        return
    process = psutil.Process()

    def live() -> tuple[int, int]:
        with subject.open() as env:
            rollout(env, 2, _SEED)
        return process.num_fds(), len(process.children(recursive=True))

    before = live()  # the first one loads what stays
    resident = process.memory_info().rss
    for _ in range(subject.lifetimes):
        after = live()
    for what, first, last in zip(("file descriptors", "children"), before, after, strict=True):
        assert last <= first, f"{what}: {first} after the first environment, {last} after {subject.lifetimes} more"
    growth = (process.memory_info().rss - resident) / 2**20
    assert growth < 24, f"resident memory grew by {growth:.0f} MB over {subject.lifetimes} environments"
