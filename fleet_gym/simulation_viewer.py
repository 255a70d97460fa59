"""PyBullet's window on a simulation, in a process of its own.

Closing the window, or losing the display, ends the process that holds it without further ado (Xlib calls ``exit``):
that must not be the user's.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fleet_gym.simulation_world import Obstacle
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import FleetState

_BOOTSTRAP = (
    "import json, sys; setup = json.loads(sys.argv[1]); sys.path[:] = setup['path']; "
    "from fleet_gym.simulation_window import serve; serve(setup['descriptor'])"
)
#: A window that was asked to close gets this long, s.
_PATIENCE = 5.0


class NoDisplayError(RuntimeError):
    """A window was asked for where none can be opened."""


def require_display() -> None:
    """Checks that a window can be opened; PyBullet itself ends the process where it cannot.

    Raises:
        NoDisplayError: without a display.
    """
    name = os.environ.get("DISPLAY", "")
    advice = "leave gui at False, or start a display (xvfb-run) and set DISPLAY"
    if not name:
        raise NoDisplayError(f"gui: expected a display, got none (DISPLAY is not set): {advice}")
    library = ctypes.util.find_library("X11")
    if library is None:
        raise NoDisplayError(f"gui: expected libX11, which PyBullet's window needs, got none: {advice}")
    x11 = ctypes.CDLL(library)
    x11.XOpenDisplay.restype = ctypes.c_void_p
    x11.XOpenDisplay.argtypes = [ctypes.c_char_p]
    x11.XCloseDisplay.argtypes = [ctypes.c_void_p]
    display = x11.XOpenDisplay(name.encode())
    if not display:
        raise NoDisplayError(f"gui: expected a display, cannot connect to DISPLAY={name!r}: {advice}")
    x11.XCloseDisplay(display)


class Viewer:
    """A PyBullet window that shows what the state says. It simulates nothing.

    Raises:
        NoDisplayError: without a display.
    """

    def __init__(self) -> None:
        require_display()
        self._connection, theirs = multiprocessing.Pipe()
        setup = {"path": [os.path.abspath(entry) for entry in sys.path], "descriptor": theirs.fileno()}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, json.dumps(setup)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # a Ctrl-C is for the run, which ends the window itself
            )
        except OSError:
            self._connection.close()
            raise
        finally:
            theirs.close()
        self._is_open, self._is_waiting = True, True
        self._settle()
        if not self._is_open:
            raise NoDisplayError("gui: expected PyBullet to open its window, got a failure")

    @property
    def is_open(self) -> bool:
        """False once somebody has closed the window."""
        if self._is_open and self._process.poll() is not None:
            self._end()
        return self._is_open

    def load(self, scene: Scene, obstacles: Sequence[Obstacle]) -> None:
        """Replaces what is shown."""
        robots = [robot.urdf for robot in scene.robots]
        bodies = [
            (spec.shape.kind, spec.shape.size, spec.color, (obstacle.x, obstacle.y, obstacle.z), obstacle.yaw)
            for spec, obstacle in zip(scene.bodies, obstacles, strict=True)
        ]
        self._tell("load", robots, bodies)

    def show(self, state: FleetState) -> None:
        """Moves the robots to where the state has them; does nothing once the window is closed."""
        self._tell("show", state.position[0], state.orientation[0])

    def poses(self) -> NDArray[np.float64]:
        """Where the window has the robots: (R, 7) position (m) and orientation (xyzw) of their root links.

        Raises:
            RuntimeError: when the window is closed.
        """
        self._tell("poses")
        poses = self._settle()
        if poses is None:
            raise RuntimeError("poses: the window is closed")
        return np.asarray(poses)

    def close(self) -> None:
        """Closes the window; calling it again does nothing."""
        if self._is_open:
            self._end()

    def _tell(self, *message: object) -> None:
        """Sends a message; at most one is on its way, so that the window does not fall behind."""
        if self._is_waiting:
            self._settle()
        if not self.is_open:
            return
        try:
            self._connection.send(message)
            self._is_waiting = True
        except OSError:
            self._end()

    def _settle(self) -> object:
        """Waits for the answer to the last message; None where there is none any more."""
        if not self._is_open:
            return None
        try:
            answer: object = self._connection.recv()
        except (EOFError, OSError):
            self._end()
            return None
        self._is_waiting = False  # only now: Ctrl-C may have ended an earlier wait
        return answer

    def _end(self) -> None:
        self._is_open = self._is_waiting = False
        with contextlib.suppress(OSError):
            # The end of the connection says so, too, unless a forked process holds it as well.
            self._connection.send(("close",))
        self._connection.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
