import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from fleet_gym.video.episode_tracker import EpisodeTracker


class World:
    """An environment's true episodes, driven as the autoreset mode says; frames are (env, episode, t)."""

    def __init__(self, lengths, mode):
        self.lengths, self.mode = np.array(lengths), mode
        self.episode = np.full(len(lengths), -1)
        self.t = np.zeros(len(lengths), dtype=int)
        self.done = np.zeros(len(lengths), dtype=bool)

    def frames(self):
        return [(i, int(e), int(t)) for i, (e, t) in enumerate(zip(self.episode, self.t, strict=True))]

    def begin(self, mask):
        self.episode[mask] += 1
        self.t[mask] = 0
        self.done[mask] = False

    def step(self):
        pending = self.done & (self.mode == AutoresetMode.NEXT_STEP)
        self.begin(pending)
        self.t[~pending] += 1
        done = ~pending & (self.t >= self.lengths)
        self.done = done.copy()
        final = self.frames()
        if self.mode == AutoresetMode.SAME_STEP:
            self.begin(done)
        return done, final


def replay(tracker, world, steps, reset_at=None, final_obs=True):
    """Collects what the tracker assigns to each episode."""
    episodes, running = [], {}

    def begin(mask):
        for i in np.flatnonzero(mask):
            running[int(i)] = [world.frames()[i]]

    def end(mask, how):
        for i in np.flatnonzero(mask):
            episodes.append((how, running.pop(int(i))))

    def reset(mask):
        before = dict(running)
        plan = tracker.reset(mask)
        world.begin(np.ones(len(world.lengths), dtype=bool) if mask is None else mask)
        running.update(before)
        end(plan.interrupt, "interrupted")
        begin(plan.begin)

    reset(None)
    for number in range(steps):
        if number == reset_at:
            reset(None)
        if world.mode == AutoresetMode.DISABLED and world.done.any():
            reset(world.done.copy())
        done, final = world.step()
        plan = tracker.step(done, done if final_obs and world.mode == AutoresetMode.SAME_STEP else None)
        for i in np.flatnonzero(plan.append):
            running[int(i)].append(world.frames()[i])
        for i in np.flatnonzero(plan.append_final):
            running[int(i)].append(final[i])
        for i in np.flatnonzero(plan.missing_last):
            running[int(i)].append("missing")
        end(plan.finish, "finished")
        begin(plan.begin)
    return episodes


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("lengths", [[3, 5], [1, 2, 4], [1]])
@pytest.mark.parametrize("declared", [True, False])
def test_every_episode_is_t0_to_tT(mode, lengths, declared):
    if mode == AutoresetMode.DISABLED and not declared:
        declared = True  # cannot be told from NEXT_STEP without being declared
    tracker = EpisodeTracker(len(lengths), mode if declared else None)
    episodes = replay(tracker, World(lengths, mode), steps=23)
    assert episodes
    assert {how for how, _ in episodes} == {"finished"}
    per_env = {}
    for _, frames in episodes:
        env, episode = frames[0][:2]
        assert frames == [(env, episode, t) for t in range(lengths[env] + 1)]
        assert episode == per_env.get(env, -1) + 1
        per_env[env] = episode
    assert set(per_env) == set(range(len(lengths)))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_an_explicit_reset_cuts_the_running_episode(mode):
    episodes = replay(EpisodeTracker(2, mode), World([5, 9], mode), steps=14, reset_at=2)
    assert episodes[:2] == [
        ("interrupted", [(0, 0, 0), (0, 0, 1), (0, 0, 2)]),
        ("interrupted", [(1, 0, 0), (1, 0, 1), (1, 0, 2)]),
    ]
    assert ("finished", [(0, 1, t) for t in range(6)]) in episodes


def test_a_last_frame_nobody_hands_over_is_marked_and_not_guessed():
    mode = AutoresetMode.SAME_STEP
    episodes = replay(EpisodeTracker(1, mode), World([3], mode), steps=6, final_obs=False)
    assert episodes == [("finished", [(0, e, 0), (0, e, 1), (0, e, 2), "missing"]) for e in range(2)]


def test_a_reset_without_a_step_interrupts_nothing():
    tracker = EpisodeTracker(2, AutoresetMode.NEXT_STEP)
    tracker.reset()
    assert not tracker.reset().interrupt.any()
    assert tracker.episode.tolist() == [1, 1]


def test_a_masked_reset_touches_only_its_environments():
    tracker = EpisodeTracker(3, AutoresetMode.DISABLED)
    tracker.reset()
    tracker.step(np.zeros(3, dtype=bool))
    plan = tracker.reset(np.array([False, True, False]))
    assert plan.begin.tolist() == plan.interrupt.tolist() == [False, True, False]
    assert plan.steps.tolist() == [1, 1, 1]
    assert tracker.steps.tolist() == [1, 0, 1]


def test_frames_after_the_end_belong_to_nothing_when_disabled():
    tracker = EpisodeTracker(1, AutoresetMode.DISABLED)
    tracker.reset()
    tracker.step(np.array([True]))
    plan = tracker.step(np.array([False]))
    assert not np.any([plan.append, plan.begin, plan.finish, plan.stepped])


def test_episodes_joined_without_a_reset():
    tracker = EpisodeTracker(2, AutoresetMode.NEXT_STEP)
    plan = tracker.step(np.array([False, True]))
    assert plan.joined.all()
    assert plan.append.all()
    assert plan.finish.tolist() == [False, True]
    assert tracker.episode.tolist() == [0, 0]
    assert tracker.step(np.zeros(2, dtype=bool)).begin.tolist() == [False, True]
    assert tracker.episode.tolist() == [0, 1]


def test_a_pending_autoreset_is_cleared_by_a_reset():
    tracker = EpisodeTracker(1, AutoresetMode.NEXT_STEP)
    tracker.reset()
    tracker.step(np.array([True]))
    assert not tracker.reset().interrupt.any()
    assert tracker.step(np.array([False])).append.all()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_lost_episode_is_not_continued(mode):
    tracker = EpisodeTracker(1, mode)
    tracker.reset()
    tracker.step(np.array([False]))
    assert tracker.lose().all()
    plan = tracker.step(np.array([False]))
    assert not plan.append.any()
    plan = tracker.step(np.array([True]))
    assert not plan.finish.any()
    begins = plan.begin.any() or tracker.step(np.array([False])).begin.any()
    assert begins == (mode != AutoresetMode.DISABLED)
    tracker.reset()
    assert tracker.step(np.array([False])).append.all()


def test_an_end_reported_by_the_resetting_step_leaves_an_episode_without_steps():
    tracker = EpisodeTracker(1, AutoresetMode.NEXT_STEP)
    tracker.reset()
    tracker.step(np.array([True]))
    plan = tracker.step(np.array([True]))
    assert plan.begin.all()
    assert not plan.finish.any()
    plan = tracker.step(np.array([False]))
    assert plan.begin.all()
    assert tracker.step(np.array([False])).append.all()
