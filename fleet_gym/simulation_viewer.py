"""PyBullet's window on a simulation."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from collections.abc import Sequence

from fleet_gym._pybullet import pybullet, pybullet_data_path, quiet_descriptors
from fleet_gym.simulation_world import Obstacle
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import FleetState


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
        p = pybullet()
        with quiet_descriptors():
            self._client = p.connect(p.GUI)
        if self._client < 0:
            raise NoDisplayError("gui: expected PyBullet to open its window, got a failure")
        p.setAdditionalSearchPath(pybullet_data_path(), physicsClientId=self._client)
        p.configureDebugVisualizer(p.COV_ENABLE_GUI, 0, physicsClientId=self._client)
        self._robots: list[int] = []

    @property
    def is_open(self) -> bool:
        """False once somebody has closed the window."""
        return bool(pybullet().isConnected(self._client))

    def load(self, scene: Scene, obstacles: Sequence[Obstacle]) -> None:
        """Replaces what is shown."""
        p, client = pybullet(), self._client
        p.resetSimulation(physicsClientId=client)
        with quiet_descriptors():
            p.loadURDF("plane.urdf", physicsClientId=client)
            self._robots = [p.loadURDF(robot.urdf, useFixedBase=True, physicsClientId=client) for robot in scene.robots]
        for spec, obstacle in zip(scene.bodies, obstacles, strict=True):
            size = spec.shape.size
            visual = (
                p.createVisualShape(
                    p.GEOM_BOX, halfExtents=[s / 2 for s in size], rgbaColor=spec.color, physicsClientId=client
                )
                if spec.shape.kind == "box"
                else p.createVisualShape(
                    p.GEOM_CYLINDER, radius=size[0], length=size[2], rgbaColor=spec.color, physicsClientId=client
                )
            )
            p.createMultiBody(
                baseVisualShapeIndex=visual,
                basePosition=[obstacle.x, obstacle.y, obstacle.z],
                baseOrientation=p.getQuaternionFromEuler([0, 0, obstacle.yaw]),
                physicsClientId=client,
            )
        self._offsets = [p.getDynamicsInfo(body, -1, physicsClientId=client)[3:5] for body in self._robots]

    def show(self, state: FleetState) -> None:
        """Moves the robots to where the state has them; does nothing once the window is closed."""
        p, client = pybullet(), self._client
        if not self.is_open:
            return
        rows = zip(self._robots, self._offsets, state.position[0].tolist(), state.orientation[0].tolist(), strict=True)
        for body, (local, turned), position, orientation in rows:
            # PyBullet places centres of mass, the state has root link origins.
            mass, axes = p.multiplyTransforms(position, orientation, local, turned)
            p.resetBasePositionAndOrientation(body, mass, axes, physicsClientId=client)

    def close(self) -> None:
        """Closes the window; calling it again does nothing."""
        if self.is_open:
            pybullet().disconnect(self._client)
