"""PyBullet's window on a virtual display: it opens, shows what moves, and closing it ends a run and nothing else."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import subprocess
import time

import numpy as np
import pytest

from fleet_gym import MultiRobotSimulationCore
from fleet_gym.simulation_pacing import Pacer
from fleet_gym.simulation_viewer import NoDisplayError, Viewer

WIDTH, HEIGHT = 1280, 800


class Display:
    """An X server that keeps its screen in a file."""

    def __init__(self, folder):
        self.process = subprocess.Popen(
            ["Xvfb", "-displayfd", "1", "-screen", "0", f"{WIDTH}x{HEIGHT}x24", "-fbdir", folder, "-nolisten", "tcp"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.name = f":{self.process.stdout.readline().strip()}"
        self._screen = folder / "Xvfb_screen0"

    def picture(self):
        """What is on the screen: (H, W, 4) uint8."""
        content = self._screen.read_bytes()
        return np.frombuffer(content[len(content) - WIDTH * HEIGHT * 4 :], np.uint8).reshape(HEIGHT, WIDTH, 4)

    def close_windows(self):
        """As a window manager does with a window that does not know how to close itself."""
        x11 = ctypes.CDLL(ctypes.util.find_library("X11"))
        x11.XOpenDisplay.restype = ctypes.c_void_p
        display = ctypes.c_void_p(x11.XOpenDisplay(self.name.encode()))
        x11.XDefaultRootWindow.restype = ctypes.c_ulong
        root, parent, count = ctypes.c_ulong(), ctypes.c_ulong(), ctypes.c_uint()
        windows = ctypes.POINTER(ctypes.c_ulong)()
        top = ctypes.c_ulong(x11.XDefaultRootWindow(display))
        out = map(ctypes.byref, (root, parent, windows, count))
        assert x11.XQueryTree(display, top, *out)
        assert count.value > 0
        for n in range(count.value):
            x11.XKillClient(display, ctypes.c_ulong(windows[n]))
        x11.XCloseDisplay(display)

    def close(self):
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def display(tmp_path, monkeypatch):
    server = Display(tmp_path)
    monkeypatch.setenv("DISPLAY", server.name)
    yield server
    server.close()


@pytest.fixture
def sim(display):
    with MultiRobotSimulationCore(gui=True, target_rtf=0) as simulation:
        simulation.add_box((2.0, -1.0), (0.5, 0.5, 0.5))
        simulation.add_cylinder((2.0, 1.0), 0.3)
        yield simulation


def picture_when(display, condition):
    """The first picture for which something holds: the window draws in its own time."""
    deadline = time.monotonic() + 60.0
    while not condition(picture := display.picture()):
        assert time.monotonic() < deadline, "the screen does not show it"
        time.sleep(0.1)
    return picture


def test_bodies_move_as_the_state_says_and_on_the_screen(sim, display):
    robots = [sim.spawn("diffbot", (0.0, 0.0)), sim.spawn("husky", (-1.0, 2.0), 0.5)]
    sim.step_once()
    first = picture_when(display, lambda picture: len(np.unique(picture.reshape(-1, 4), axis=0)) > 50)
    places = []
    sim.set_velocity(robots[0], (0.8, 0.5))
    sim.set_velocity(robots[1], (0.5, -0.5))

    def compare(core, dt):
        poses = core._viewer.poses()
        places.append(poses[:, :2])
        # The callback comes before the picture of its step.
        np.testing.assert_allclose(poses[:, :3], before[-1][0], atol=1e-6)
        assert (np.abs((poses[:, 3:] * before[-1][1]).sum(axis=1)) > 1 - 1e-6).all()
        before.append((core.state.position[0].copy(), core.state.orientation[0].copy()))

    before = [(sim.state.position[0].copy(), sim.state.orientation[0].copy())]
    sim.register_callback(compare)
    assert sim.run_simulation(duration=2.0) == 20
    np.testing.assert_allclose(sim._viewer.poses()[:, :3], sim.state.position[0], atol=1e-6)
    assert np.linalg.norm(places[-1] - places[0], axis=-1).min() > 0.5
    picture_when(display, lambda picture: (picture != first).any(axis=-1).sum() > 100)


def test_the_camera_finds_the_robots_wherever_they_are(sim, display):
    sim.spawn("diffbot", (30.0, -20.0))
    sim.spawn("diffbot", (36.0, -24.0))
    sim.step_once()

    def columns_and_rows(picture):
        blue, green, red = np.moveaxis(picture[..., :3].astype(int), -1, 0)
        return np.argwhere((red > 150) & (green < 0.75 * red) & (blue < 0.4 * red))[:, ::-1]

    seen = columns_and_rows(picture_when(display, lambda picture: len(columns_and_rows(picture)) > 100))
    left, right = seen[seen[:, 0] < seen[:, 0].mean()], seen[seen[:, 0] > seen[:, 0].mean()]
    assert len(left) > 20
    assert len(right) > 20
    assert left[:, 1].mean() < right[:, 1].mean() - 20, "+y is up, +x to the right"


def test_spawning_and_removing_show(sim):
    robot = sim.spawn("diffbot", (0.0, 0.0))
    sim.step_once()
    assert sim._viewer.poses().shape == (1, 7)
    sim.spawn("diffbot", (3.0, 0.0))
    sim.step_once()
    np.testing.assert_allclose(sim._viewer.poses()[:, 0], (0.0, 3.0), atol=1e-6)
    sim.remove(robot)
    sim.step_once()
    np.testing.assert_allclose(sim._viewer.poses()[:, 0], (3.0,), atol=1e-6)


@pytest.mark.parametrize("how", ["window", "server"])
def test_closing_ends_the_run_normally(sim, display, how):
    sim.spawn("diffbot", (0.0, 0.0))
    sim.register_callback(
        lambda core, dt: (
            (display.close_windows if how == "window" else display.close)() if core.step_count == 5 else None
        )
    )
    steps = sim.run_simulation()
    assert steps >= 5
    assert not sim._viewer.is_open
    assert sim.step_once(), "the simulation itself goes on"
    assert sim.run_simulation(duration=1.0) == 0, "without a window a run has nothing to show"
    sim.close()


def test_real_time_is_the_default_with_a_window(display):
    with MultiRobotSimulationCore(gui=True) as simulation:
        slept = []
        simulation._pacer = Pacer(simulation.config.effective_rtf, lambda: 0.0, slept.append)
        simulation.run_simulation(duration=0.5)
        np.testing.assert_allclose(slept, [0.1, 0.2, 0.3, 0.4, 0.5])


def test_closing_the_simulation_closes_the_window(display):
    viewer = Viewer()
    process = viewer._process
    assert viewer.is_open
    viewer.close()
    viewer.close()
    assert not viewer.is_open
    assert process.poll() is not None
    with pytest.raises(RuntimeError, match="the window is closed"):
        viewer.poses()
    display.close()
    with pytest.raises(NoDisplayError, match="cannot connect to DISPLAY"):
        Viewer()


def test_a_forked_process_does_not_keep_the_window_open(display):
    viewer = Viewer()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # holds the viewer's connection until the parent is done
        os._exit(0)
    viewer.close()
    assert viewer._process.returncode == 0, "it ended by itself, nobody had to kill it"
    os.close(writer)
    os.close(reader)
    os.waitpid(child, 0)


def test_a_wait_that_ctrl_c_ended_does_not_mix_up_the_answers(sim, monkeypatch):
    sim.spawn("diffbot", (1.0, 2.0))
    sim.step_once()
    viewer = sim._viewer

    class Interrupted:
        def recv(self):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(viewer, "_connection", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            viewer.show(sim.state)
    np.testing.assert_allclose(viewer.poses()[:, :2], [[1.0, 2.0]], atol=1e-6)
