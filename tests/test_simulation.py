"""The run loop: what the guide shows works, step counts are exact, and mistakes change nothing."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import tracemalloc

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

from fleet_gym import MultiRobotSimulationCore
from fleet_gym.config import ConfigError
from fleet_gym.simulation_callbacks import make_callback, steps_in
from fleet_gym.simulation_pacing import Pacer
from fleet_gym.world.robots import robot_model

LINE = re.compile(
    r"\[MEMORY\] Last (\d+) steps: current=\d+\.\d\dMB \(min=\d+\.\d\d, max=\d+\.\d\d\), "
    r"peak=\d+\.\d\dMB \(max=\d+\.\d\d\), growth=[+-]\d+\.\d\dMB$"
)


@pytest.fixture
def sim():
    with MultiRobotSimulationCore(arena_size=40.0) as simulation:
        yield simulation


def lengths(caplog, tag="[MEMORY] "):
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith(tag)]
    return [int(re.search(r"Last (\d+) steps", line)[1]) for line in lines]


# ---- What the memory guide shows ----


def test_memory_profiling_as_in_the_guide(caplog):
    caplog.set_level(logging.INFO, logger="fleet_gym")
    simulation = MultiRobotSimulationCore(enable_memory_profiling=True, profiling_interval=100)
    seen = []
    simulation.register_callback(lambda core, dt: seen.append((core.get_memory_usage(), dt)), frequency=1)
    simulation.run_simulation(duration=25.0)
    assert lengths(caplog) == [100, 100, 50]
    assert all(LINE.match(r.getMessage()) for r in caplog.records if r.getMessage().startswith("[MEMORY] "))
    usage = simulation.get_memory_usage()
    assert 0 < usage["current_mb"] <= usage["peak_mb"]
    assert len(seen) == 25
    assert all(memory["current_mb"] > 0 and dt == pytest.approx(1.0) for memory, dt in seen)
    assert tracemalloc.is_tracing()
    simulation.close()
    assert not tracemalloc.is_tracing()
    assert simulation.get_memory_usage()["peak_mb"] >= usage["peak_mb"]


def test_without_profiling_there_are_no_figures(caplog):
    with MultiRobotSimulationCore() as simulation:
        simulation.run_simulation(duration=12.0)
        assert simulation.get_memory_usage() is None
        assert simulation.last_profiling is None
    assert not caplog.records


def test_from_config_takes_a_file_and_a_dictionary(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="fleet_gym")
    path = tmp_path / "config.yaml"
    path.write_text(
        "enable_memory_profiling: true\nenable_time_profiling: true\nprofiling_interval: 20\nduration: 5.0\n"
    )
    with MultiRobotSimulationCore.from_config(path) as simulation:
        assert simulation.run_simulation() == 50
        assert simulation.last_profiling["steps"] == 10
        assert {"dynamics", "callbacks"} <= set(simulation.last_profiling["phases_ms"])
    assert lengths(caplog) == lengths(caplog, "[PROFILING]") == [20, 20, 10]
    with MultiRobotSimulationCore.from_config({"robots": [{"model": "diffbot", "count": 4}]}) as simulation:
        assert simulation.num_robots == 4


def test_lines_are_printed_without_any_logging_setup(tmp_path):
    import subprocess
    import sys

    code = (
        "from fleet_gym import MultiRobotSimulationCore as C\n"
        "s = C.from_config({'enable_memory_profiling': True, 'enable_time_profiling': True})\n"
        "s.run_simulation(duration=12.0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == ""
    assert done.stderr.count("[MEMORY] Last") == done.stderr.count("[PROFILING] Last") == 2


def test_a_leak_in_a_callback_shows_as_growth(caplog):
    caplog.set_level(logging.INFO, logger="fleet_gym")
    kept = []
    with MultiRobotSimulationCore(enable_memory_profiling=True, profiling_interval=10) as simulation:
        simulation.register_callback(lambda core, dt: kept.append(bytearray(2**20)))
        simulation.run_simulation(duration=3.0)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("[MEMORY] ")]
    growth = [float(line.rsplit("growth=", 1)[1].removesuffix("MB")) for line in lines]
    np.testing.assert_allclose(growth, 10.0, atol=0.1)


# ---- Steps, callbacks, pacing ----


@pytest.mark.parametrize(
    ("frequency", "dt", "seconds", "calls"),
    [
        (10, 0.1, 100, 1000),
        (5, 0.1, 100, 500),
        (1, 0.1, 100, 100),
        (240, 1 / 240, 100, 24_000),
        (3, 0.1, 100, 300),
        (10, 1e-7, 0.01, 0),
        (1e4, 1e-7, 0.01, 100),
        (714, 1.4e-6, 0.14, 99),
        (1e-9, 1e6, 1e10, 10),
    ],
)
def test_callbacks_are_called_exactly_as_often_as_their_frequency_says(frequency, dt, seconds, calls):
    callback = make_callback(print, frequency, dt, 0)
    steps = steps_in(seconds, dt)
    assert steps == round(seconds / dt)
    assert sum(callback.is_due(step) for step in range(1, steps + 1)) == calls


def test_ten_hertz_for_a_hundred_seconds_are_a_thousand_calls(sim):
    times, elapsed = [], []
    sim.register_callback(lambda core, dt: times.append(core.sim_time), frequency=10)
    sim.register_callback(lambda core, dt: elapsed.append(dt), frequency=4)
    sim.run_simulation(duration=100.0)
    assert len(times) == 1000
    np.testing.assert_allclose(times, np.arange(1, 1001) * 0.1)
    assert len(elapsed) == 400
    assert set(np.round(elapsed, 9)) == {0.2, 0.3}
    assert sum(elapsed) == pytest.approx(100.0)


@pytest.mark.parametrize("frequency", [0, -1, 10.5, float("nan"), float("inf")])
def test_impossible_frequencies_are_refused(sim, frequency):
    with pytest.raises(ValueError, match="frequency: expected"):
        sim.register_callback(print, frequency=frequency)


@pytest.mark.parametrize("frequency", [None, 5])
def test_a_reset_in_a_callback_takes_no_time_from_the_others(sim, frequency):
    seen = []
    sim.register_callback(lambda core, dt: core.reset() if core.step_count == 4 else None)
    sim.register_callback(lambda core, dt: seen.append(dt), frequency=frequency)
    assert sim.run_simulation(duration=1.2) == 12
    assert seen == pytest.approx([0.1] * 12 if frequency is None else [0.2] * 6)


def test_steps_made_by_a_callback_count(sim):
    sim.register_callback(lambda core, dt: core.step_once() if core.step_count == 3 else None)
    assert sim.run_simulation(duration=1.0) == 10
    assert sim.sim_time == pytest.approx(1.0)


def test_a_callback_may_close_the_simulation(caplog):
    caplog.set_level(logging.INFO, logger="fleet_gym")
    seen = []
    simulation = MultiRobotSimulationCore(enable_memory_profiling=True, enable_time_profiling=True)
    simulation.register_callback(lambda core, dt: core.close() if core.step_count == 3 else None)
    simulation.register_callback(lambda core, dt: seen.append(core.step_count))
    assert simulation.run_simulation(duration=1.0) == 3
    assert seen == [1, 2]
    assert simulation.get_memory_usage()["peak_mb"] > 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_wrong_callbacks_are_refused(sim):
    with pytest.raises(TypeError, match="frequency: expected a finite number"):
        sim.register_callback(print, frequency="10")
    with pytest.raises(TypeError, match=r"callback: expected a function of \(sim_core, dt\), got 3"):
        sim.register_callback(3)
    with pytest.raises(TypeError, match="callback: expected a function"):
        sim.register_collision_callback(None)


def test_a_second_run_continues(sim):
    assert sim.run_simulation(duration=1.0) == 10
    assert sim.run_simulation(duration=0.25) == 3
    assert sim.step_count == 13
    assert sim.sim_time == pytest.approx(1.3)
    assert sim.run_simulation(duration=0) == 0
    with pytest.raises(ValueError, match="duration: expected a finite number >= 0, got -1"):
        sim.run_simulation(duration=-1)


@pytest.fixture
def interruptible():
    """Ctrl+C as a terminal gives it: a process started in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_stop_and_ctrl_c_end_a_run_and_nothing_else():
    with MultiRobotSimulationCore(enable_memory_profiling=True, memory_mode="light") as sim:
        sim.register_callback(lambda core, dt: core.stop() if core.step_count == 7 else None)
        assert sim.run_simulation() == 7
        sim.register_callback(lambda core, dt: os.kill(os.getpid(), signal.SIGINT) if core.step_count == 12 else None)
        assert sim.run_simulation(duration=100.0) == 5
        assert sim.get_memory_usage()["current_mb"] > 0
        assert sim.run_simulation(duration=1.0) == 10


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_what_a_callback_raises_passes_and_the_world_is_closed(error):
    sim = MultiRobotSimulationCore(enable_memory_profiling=True)

    def fail(core, dt):
        raise error("callback failed")

    sim.register_callback(fail)
    with pytest.raises(error, match="callback failed"):
        sim.run_simulation(duration=1.0)
    assert not tracemalloc.is_tracing()
    with pytest.raises(ClosedEnvironmentError):
        sim.step_once()
    sim.close()


def test_a_paused_world_stands_still(sim):
    robot = sim.spawn("diffbot")
    sim.set_velocity(robot, (0.5, 0.0))
    sim.pause()
    assert not sim.step_once()
    assert sim.pose(robot) == (0.0, 0.0, 0.0)
    timer = threading.Timer(0.05, sim.resume)
    timer.start()
    assert sim.run_simulation(duration=0.5) == 5
    timer.join()
    assert sim.pose(robot)[0] > 0
    assert not sim.is_paused


def test_pacing_follows_the_wall_clock_without_drift():
    now, slept = [100.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds + 0.0007  # every sleep is late

    sim = MultiRobotSimulationCore(target_rtf=2.0)
    sim._pacer = Pacer(2.0, lambda: now[0], sleep)
    sim.register_callback(lambda core, dt: now.__setitem__(0, now[0] + 0.013))  # work
    sim.run_simulation(duration=60.0)
    sim.close()
    assert now[0] - 100.0 == pytest.approx(30.0, rel=1e-3)
    assert len(slept) == 600


def test_a_target_near_zero_waits_as_long_as_a_clock_can():
    sleeps = []
    Pacer(1e-300, clock=lambda: 0.0, sleep=sleeps.append).wait(0.1)
    assert sleeps == [threading.TIMEOUT_MAX]


def test_without_a_target_nobody_sleeps():
    pacer = Pacer(0.0, lambda: 0.0, lambda seconds: pytest.fail("slept"))
    pacer.wait(1e9)


def test_the_window_needs_a_display(monkeypatch):
    from fleet_gym.simulation_viewer import NoDisplayError

    monkeypatch.delenv("DISPLAY", raising=False)
    with pytest.raises(NoDisplayError, match=r"gui: expected a display, got none \(DISPLAY is not set\)"):
        MultiRobotSimulationCore(gui=True)
    monkeypatch.setenv("DISPLAY", ":987")
    with pytest.raises(NoDisplayError, match="gui: expected"):
        MultiRobotSimulationCore(gui=True)


def test_closing_the_window_ends_the_run(sim):
    class Window:
        is_open = True
        shown = 0
        loaded = ()

        def load(self, scene, obstacles):
            self.loaded = scene.robots

        def show(self, state):
            self.shown += 1
            self.is_open = self.shown < 5

        def close(self):
            self.is_open = False

    sim._viewer = window = Window()
    sim.spawn("diffbot")
    assert sim.run_simulation() == 5
    assert len(window.loaded) == 1


def test_reset_is_exact_and_loads_nothing(sim):
    walker, goer = sim.spawn("diffbot", (-3, 0)), sim.spawn("husky", (3, 0), np.pi)
    sim.random_walk(walker)
    sim.set_goal(goer, (-4, 0.2))
    engine = sim._built()
    ways = []
    for _ in range(2):
        way = []
        callback_count = len(sim._callbacks)
        sim.register_callback(lambda core, dt, way=way: way.append([*core.pose(walker), *core.pose(goer)]))
        sim.run_simulation(duration=20.0)
        del sim._callbacks[callback_count:]
        ways.append(way)
        sim.reset()
        assert sim.sim_time == 0.0
        assert sim.pose(walker) == (-3.0, 0.0, 0.0)
    assert ways[0] == ways[1]
    assert sim._built() is engine


# ---- The fleet ----


def test_zero_robots_run(sim):
    assert sim.run_simulation(duration=1.0) == 10
    assert sim.contacts().shape == (0, 2)
    assert sim.state.position.shape == (1, 0, 3)


def test_spawning_and_removing_leave_the_others_as_they_were(sim):
    pair = [sim.spawn("diffbot", (-1, 0)), sim.spawn("diffbot", (1, 0), np.pi)]
    far = sim.spawn("husky", (10, 10))
    sim.set_goal(far, (-10, 10))
    for robot in pair:
        sim.set_velocity(robot, (0.8, 0.0))
    started = []
    sim.register_collision_callback(lambda core, begun, ended: started.append((begun.tolist(), ended.tolist())))
    sim.run_simulation(duration=4.0)
    assert started == [([pair], [])]
    poses = {robot: sim.pose(robot) for robot in (*pair, far)}
    velocity = sim.state.linear_velocity[0, 2].copy()
    new = sim.spawn("r2d2", (0, -5))
    assert {robot: sim.pose(robot) for robot in poses} == poses
    assert np.array_equal(sim.state.linear_velocity[0, 2], velocity)
    sim.remove(pair[0])
    assert sim.robot_ids == (pair[1], far, new)
    assert sim.pose(far) == poses[far]
    sim.run_simulation(duration=1.0)
    assert started[1:] == [([], [pair])], "whoever is gone touches nobody; the new one collides with none"
    sim.run_simulation(duration=60.0)
    assert sim.has_arrived(far)
    np.testing.assert_allclose(sim.pose(far)[:2], (-10, 10), atol=1e-12)
    with pytest.raises(ValueError, match="robot: expected the id of a robot"):
        sim.pose(pair[0])


def test_a_change_among_others_does_not_change_a_route():
    ends = []
    for disturbed in (False, True):
        with MultiRobotSimulationCore() as sim:
            robot = sim.spawn("diffbot", (0, 0))
            sim.set_path(robot, [(3, 1), (3, 4, 1.0), (-2, 0)], patrol=True)
            for n in range(200):
                sim.step_once()
                if disturbed and n % 20 == 0:
                    sim.spawn("diffbot", (20 + n / 10, 20))
            ends.append(sim.pose(robot))
    assert ends[0] == ends[1]


def test_a_lasting_contact_does_not_begin_again_when_somebody_is_spawned(sim):
    box = sim.add_box((2, 0), (1, 4, 1))
    robot = sim.spawn("diffbot", (0, 0))
    sim.set_velocity(robot, (1, 0))
    events = []
    sim.register_collision_callback(lambda core, begun, ended: events.append((begun.tolist(), ended.tolist())))
    sim.run_simulation(duration=3.0)
    sim.spawn("diffbot", (-10, 0))
    sim.add_cylinder((-10, 5), 0.5)
    sim.run_simulation(duration=1.0)
    assert events == [([[robot, box]], [])]
    sim.set_velocity(robot, (-1, 0))
    sim.run_simulation(duration=1.0)
    assert events[1:] == [([], [[robot, box]])]
    assert sim.state.collision_starts[0] == 0


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (lambda sim, robot: sim.spawn("diffbot", 5), "position: expected x and y in m, got 5"),
        (lambda sim, robot: sim.spawn("diffbot", "ab"), "position: expected x and y in m, got 'ab'"),
        (lambda sim, robot: sim.spawn(3), "robot: expected a name, a URDF path or a RobotModel, got 3"),
        (lambda sim, robot: sim.spawn("diffbot", (5, 5), "north"), "yaw: expected a finite number, got 'north'"),
        (lambda sim, robot: sim.spawn_grid("diffbot", 2.5), "count: expected an int >= 1, got 2.5"),
        (lambda sim, robot: sim.set_goal(robot, 5), "goal: expected x, y or x, y, yaw, got 5"),
        (lambda sim, robot: sim.set_path(robot, 5), "path: expected a list of way points, got 5"),
        (lambda sim, robot: sim.set_path(robot, [1, 2]), r"path\[0\]: expected x, y or x, y, yaw, got 1"),
        (lambda sim, robot: sim.set_path(robot, [(1, 2)], patrol="no"), "patrol: expected True or False, got 'no'"),
        (lambda sim, robot: sim.spawn("diffbot", (5, 5), static="no"), "static: expected True or False, got 'no'"),
        (lambda sim, robot: sim.spawn_grid("diffbot", 2, collides=0), "collides: expected True or False, got 0"),
        (lambda sim, robot: sim.set_velocity(robot, 1.0), "command: expected a list of numbers, got 1.0"),
        (lambda sim, robot: sim.set_velocity(robot, ("1", 0)), "command: expected a finite number, got '1'"),
        (lambda sim, robot: sim.set_velocities("fast"), r"commands: expected numbers of shape \(1, 2\), got 'fast'"),
        (lambda sim, robot: sim.remove("0"), "ids: expected an id or several, got '0'"),
        (lambda sim, robot: sim.remove(0.5), "ids: expected an id or several, got 0.5"),
        (lambda sim, robot: sim.remove(b"0"), "ids: expected an id or several"),
        (lambda sim, robot: sim.remove([robot, [1]]), "ids: expected an id or several"),
        (lambda sim, robot: sim.remove([False]), "ids: expected an id or several"),
        (lambda sim, robot: sim.set_velocity([robot], (1, 0)), r"robot: expected the id of a robot .*, got \[0\]"),
        (lambda sim, robot: sim.set_goal(False, (1, 0)), "robot: expected the id of a robot .*, got False"),
        (lambda sim, robot: sim.pose(0.0), "robot: expected the id of a robot .*, got 0.0"),
        (lambda sim, robot: sim.add_box((5, 5), 1.0), "size: expected 3 lengths in m, got 1.0"),
        (lambda sim, robot: sim.run_simulation("10"), "duration: expected a finite number >= 0, got '10'"),
    ],
)
def test_wrong_types_name_the_argument_and_change_nothing(sim, order, message):
    robot = sim.spawn("diffbot")
    with pytest.raises(TypeError, match=message):
        order(sim, robot)
    assert sim.robot_ids == (robot,)
    assert sim.obstacle_ids == ()
    assert sim.run_simulation(duration=0.5) == 5
    assert sim.pose(robot) == (0.0, 0.0, 0.0)


def test_ids_may_be_numpys_as_contacts_are(sim):
    robots = sim.spawn_grid("diffbot", 3)
    sim.set_velocity(np.int64(robots[0]), (0.5, 0.0))
    sim.remove(np.int64(robots[1]))
    sim.remove(np.array(robots[2:]))
    assert sim.robot_ids == (robots[0],)
    with pytest.raises(ValueError, match=r"commands: expected shape \(1, 2\), got \(3, 2\)"):
        sim.set_velocities(np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"commands\[0\]: expected finite values, got \[ *0\. +nan\]"):
        sim.set_velocities([[0.0, np.nan]])


def test_boxes_stand_where_discs_would_not_and_collide_as_boxes(sim):
    # A husky is 1.01 m long and 0.69 m wide; the disc around it has a radius of 0.58 m.
    fleet = sim.spawn_grid("husky", 4, spacing=1.02, footprint="box")
    with pytest.raises(ValueError, match="where another robot stands"):
        sim.spawn("husky", (0.51, 0.51 + 0.9), footprint="circle")
    with pytest.raises(ValueError, match="where another robot stands"):
        sim.spawn("husky", (0.0, 1.22), np.pi / 2, footprint="box")
    beside = sim.spawn("husky", (-0.51, 0.51 + 0.7), footprint="box")
    sim.add_wall((1.1, -2), (1.1, 2), thickness=0.1)
    with pytest.raises(ValueError, match=f"where robot {fleet[1]} stands"):
        sim.add_box((1.0, -0.51), (0.2, 0.2, 1.0))
    sim.step_once()
    assert not sim.state.in_collision.any()
    sim.set_velocity(beside, (0.0, 1.0))
    sim.run_simulation(duration=2.0)
    assert sim.contacts().tolist() == [[fleet[2], beside]]
    assert 0.0 < sim.pose(beside)[2] < 0.1
    with pytest.raises(ValueError, match="footprint: expected one of 'circle', 'box', got 'round'"):
        sim.spawn("husky", (10, 10), footprint="round")
    many = sim.spawn_random("husky", 60, footprint="box", clearance=0.2)
    sim.step_once()
    assert not {robot for pair in sim.contacts().tolist() for robot in pair} & set(many)


def test_random_spawning_is_free_of_overlap_and_decided_by_the_seed():
    layouts = []
    for seed in (1, 1, 2):
        with MultiRobotSimulationCore(seed=seed, arena_size=12.0) as sim:
            sim.add_box((0, 0), (3, 3, 1), 0.4)
            sim.spawn_random("diffbot", 40, clearance=0.05)
            sim.step_once()
            assert not sim.state.in_collision.any()
            layouts.append(sim.state.position[0, :, :2].copy())
    radius = robot_model("diffbot").footprint_radius
    distance = np.linalg.norm(layouts[0][:, None] - layouts[0][None], axis=-1)
    assert distance[np.triu_indices(40, 1)].min() >= 2 * radius + 0.05
    assert np.abs(layouts[0]).max() <= 6 - radius
    assert np.array_equal(layouts[0], layouts[1])
    assert not np.array_equal(layouts[0], layouts[2])


def test_a_full_arena_is_an_error_and_leaves_nothing_behind():
    with MultiRobotSimulationCore(arena_size=3.0) as sim:
        with pytest.raises(ValueError, match="count: expected room for 500 robots 'diffbot'"):
            sim.spawn_random("diffbot", 500)
        with pytest.raises(ValueError, match="position: expected a place in the arena"):
            sim.spawn_grid("diffbot", 100)
        assert sim.num_robots == 0


def test_a_grid_far_beyond_the_arena_is_refused_at_its_first_robot(sim):
    with pytest.raises(ValueError, match="position: expected a place in the arena of 40 m"):
        sim.spawn_grid("diffbot", 10**12)
    assert sim.robot_ids == ()


def test_bad_places_are_refused(sim):
    robot = sim.spawn("diffbot", (0, 0))
    sim.add_box((5, 0), (2, 2, 1))
    for place, message in [
        ((0.1, 0.0), "where another robot stands"),
        ((5.0, 1.1), "in obstacle"),
        ((19.95, 0.0), "in the arena of 40 m"),
        ((float("nan"), 0.0), "position: expected a finite number, got nan"),
        ((1.0,), "position: expected x and y in m"),
    ]:
        with pytest.raises(ValueError, match=message):
            sim.spawn("diffbot", place)
    for goal in [(21, 0), (float("nan"), 0), (1, 2, float("inf")), (1, 2, 3, 4)]:
        with pytest.raises(ValueError, match="goal: expected"):
            sim.set_goal(robot, goal)
    with pytest.raises(ValueError, match="where robot 0 stands"):
        sim.add_cylinder((0.1, 0.1), 0.3)
    with pytest.raises(ValueError, match=r"ids: expected robots or obstacles of this simulation, got \[99\]"):
        sim.remove([robot, 99])
    with pytest.raises(ValueError, match=r"model: expected one of .*, got 'huskyy'"):
        sim.spawn("huskyy", (3, 3))
    with pytest.raises(ValueError, match="command: expected 2 values"):
        sim.set_velocity(robot, (1.0,))
    assert sim.robot_ids == (robot,)
    assert sim.pose(robot) == (0.0, 0.0, 0.0)


def test_cars_and_arms_have_no_goals(sim):
    car, arm = sim.spawn("racecar", (5, 5)), sim.spawn("kuka_iiwa", (-5, 5))
    with pytest.raises(ValueError, match="turns on the spot"):
        sim.set_goal(car, (0, 0))
    with pytest.raises(ValueError, match="expected one that can drive"):
        sim.random_walk(arm)
    sim.set_velocity(car, (1.0, 0.2))
    sim.run_simulation(duration=2.0)
    assert sim.pose(car)[0] > 5.5


def test_static_robots_are_in_the_way_and_others_may_be_told_to_ignore_everything(sim):
    static = sim.spawn("diffbot", (2, 0), static=True)
    ghost, robot = sim.spawn("diffbot", (0, 0.01), collides=False), sim.spawn("diffbot", (0, 0))
    for one in (ghost, robot):
        sim.set_velocity(one, (1, 0))
    sim.run_simulation(duration=6.0)
    assert sim.pose(ghost)[0] > 5
    assert sim.pose(robot)[0] < 2
    assert sim.pose(static)[0] == 2
    assert sim.contacts().tolist() == [[static, robot]]


def test_who_fits_passes_below_a_wall():
    wall = {"kind": "wall", "start": [2, -3], "end": [2, 3], "elevation": robot_model("diffbot").height + 0.01}
    with MultiRobotSimulationCore(obstacles=[wall]) as sim:
        low, high = sim.spawn("diffbot", (0, 2)), sim.spawn("husky", (0, 0))
        for robot in (low, high):
            sim.set_velocity(robot, (1, 0))
        sim.run_simulation(duration=6.0)
        assert sim.pose(low)[0] > 5
        assert sim.pose(high)[0] < 2


def test_who_fits_passes_below(sim):
    height = robot_model("diffbot").height
    low, high = sim.spawn("diffbot", (0, 0)), sim.spawn("diffbot", (0, 3))
    sim.add_box((2, 0), (1, 1, 1), elevation=height + 0.01)
    sim.add_box((2, 3), (1, 1, 1), elevation=height - 0.01)
    for robot in (low, high):
        sim.set_velocity(robot, (1, 0))
    sim.run_simulation(duration=6.0)
    assert sim.pose(low)[0] > 5
    assert sim.pose(high)[0] < 2


def test_robots_of_a_configuration_do_what_it_says(tmp_path):
    from PIL import Image

    picture = np.full((20, 40), 255, dtype=np.uint8)
    picture[0, :] = 0  # the far end
    picture[5:8, 10:14] = 0
    Image.fromarray(picture).save(tmp_path / "map.png")
    path = tmp_path / "world.yaml"
    path.write_text(
        """
arena_size: 20.0
walls: true
map: {image: map.png, resolution: 0.5}
obstacles:
  - {kind: cylinder, position: [4, -4], size: [0.5, 1.0]}
  - {kind: wall, start: [-4, -4], end: [-2, -4]}
robots:
  - {model: diffbot, count: 4, position: [0, -2], spacing: 1.0, velocity: [0.2, 0.1]}
  - {model: diffbot, count: 3, layout: random, random_walk: true}
  - {model: husky, position: [-8, 0], goal: [-8, 2, 0.0]}
  - {model: husky, position: [8, 0], path: [[8, 2], [8, -2]], patrol: true}
  - {model: diffbot, position: [-8, -8], static: true}
"""
    )
    with MultiRobotSimulationCore.from_config(path) as sim:
        assert sim.num_robots == 10
        assert len(sim.obstacle_ids) == 2 + 4 + 2
        sim.run_simulation(duration=15.0)
        assert sim.has_arrived(sim.robot_ids[7])
        assert not sim.has_arrived(sim.robot_ids[8])
        top = sim.state.body_position[0, :, :2]
        assert [0.0, 4.75] in top.tolist(), "the image's first row lies at +y"


def test_errors_of_a_configuration_name_their_key(tmp_path):
    path = tmp_path / "world.yaml"
    for content, message in [
        ("robots:\n- {model: huskyy}\n", r"world\.yaml: robots\[0\]\.model: expected one of"),
        ("robots:\n- {model: husky}\n- {model: husky, position: [0.2, 0]}\n", r"robots\[1\]\.position: .*free place"),
        ("robots:\n- {model: husky, goal: [99, 0]}\n", r"robots\[0\]\.goal: expected a point in the arena"),
        ("robots:\n- {model: husky, path: [[1, 0], [99, 0]]}\n", r"robots\[0\]\.path\[1\]: expected a point in the ar"),
        ("robots:\n- {model: husky, velocity: [1]}\n", r"robots\[0\]\.velocity: expected 2 values \(differential\)"),
        ("robots:\n- {model: racecar, goal: [1, 0]}\n", r"robots\[0\]\.model: expected one that turns on the spot"),
        ("robots:\n- {model: panda, random_walk: true}\n", r"robots\[0\]\.model: expected one that can drive"),
        ("map: {image: no.png, resolution: 0.1}\n", r"map\.image: expected a readable image"),
        ("obstacles:\n- {kind: box, position: [0, 0], size: [1, 1]}\n", r"obstacles\[0\]: a box needs"),
    ]:
        path.write_text(content)
        with pytest.raises(ConfigError, match=message):
            MultiRobotSimulationCore.from_config(path)
    with pytest.raises(ConfigError, match="enable_memory_profilling: unknown key"):
        MultiRobotSimulationCore(enable_memory_profilling=True)


def test_physics_drives_to_goals_and_survives_changes():
    with MultiRobotSimulationCore(physics=True) as sim:
        robot = sim.spawn("husky", (0, 0))
        sim.set_goal(robot, (1.5, 0.5))
        sim.run_simulation(duration=2.0)
        pose, velocity = sim.pose(robot), sim.state.linear_velocity.copy()
        other = sim.spawn("r2d2", (5, 5))
        assert sim.pose(robot) == pytest.approx(pose, abs=1e-6)
        np.testing.assert_allclose(sim.state.linear_velocity[:, :1], velocity, atol=1e-6)
        sim.remove(other)
        sim.run_simulation(duration=5.0)
        assert sim.has_arrived(robot)
        np.testing.assert_allclose(sim.pose(robot)[:2], (1.5, 0.5), atol=0.15)


def test_a_thousand_robots_walk():
    with MultiRobotSimulationCore(arena_size=100.0) as sim:
        robots = sim.spawn_grid("diffbot", 1000, spacing=2.5)
        for robot in robots:
            sim.random_walk(robot)
        sim.run_simulation(duration=5.0)
        assert np.isfinite(sim.state.position).all()
        assert (np.linalg.norm(sim.state.linear_velocity[0], axis=-1) > 0).mean() > 0.3
