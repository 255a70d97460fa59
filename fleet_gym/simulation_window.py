"""The process that holds PyBullet's window: it draws what it is told and ends when nobody tells it any more."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym._pybullet import pybullet, pybullet_data_path

#: How often it is looked whether the window is still there while nothing is to be drawn, s.
_IDLE = 0.2
#: The camera is never nearer than this, m, and looks down by this angle, degrees.
_NEAREST, _PITCH = 4.0, -50.0


class Window:
    """PyBullet's window and the bodies in it."""

    def __init__(self) -> None:
        p = pybullet()
        self._client = p.connect(p.GUI)
        if self._client < 0:
            raise RuntimeError("pybullet.connect(GUI) failed")
        p.setAdditionalSearchPath(pybullet_data_path(), physicsClientId=self._client)
        p.configureDebugVisualizer(p.COV_ENABLE_GUI, 0, physicsClientId=self._client)
        self._robots: list[int] = []
        self._offsets: list[tuple[Any, Any]] = []
        self._is_aimed = False

    @property
    def is_open(self) -> bool:
        """False once it was closed."""
        return bool(pybullet().isConnected(self._client))

    def load(self, robots: Sequence[str], bodies: Sequence[tuple[Any, ...]]) -> None:
        """Replaces what is shown.

        Args:
            robots: paths of URDFs.
            bodies: kind, size (m), colour, position (m) and yaw (rad) of each.
        """
        p, client = pybullet(), self._client
        p.resetSimulation(physicsClientId=client)
        p.configureDebugVisualizer(p.COV_ENABLE_RENDERING, 0, physicsClientId=client)
        p.loadURDF("plane.urdf", physicsClientId=client)
        self._robots = [p.loadURDF(urdf, useFixedBase=True, physicsClientId=client) for urdf in robots]
        for kind, size, color, position, yaw in bodies:
            shape: dict[str, Any] = {"shapeType": p.GEOM_CYLINDER, "radius": size[0], "length": size[2]}
            if kind == "box":
                shape = {"shapeType": p.GEOM_BOX, "halfExtents": [s / 2 for s in size]}
            p.createMultiBody(
                baseVisualShapeIndex=p.createVisualShape(rgbaColor=color, physicsClientId=client, **shape),
                basePosition=position,
                baseOrientation=p.getQuaternionFromEuler([0, 0, yaw]),
                physicsClientId=client,
            )
        self._offsets = [p.getDynamicsInfo(body, -1, physicsClientId=client)[3:5] for body in self._robots]
        p.configureDebugVisualizer(p.COV_ENABLE_RENDERING, 1, physicsClientId=client)

    def show(self, positions: NDArray[np.float64], orientations: NDArray[np.float64]) -> None:
        """Moves the robots: (R, 3) m and (R, 4) xyzw of their root links."""
        p, client = pybullet(), self._client
        if not self._is_aimed and len(positions):
            self._aim(positions)
        rows = zip(self._robots, self._offsets, positions.tolist(), orientations.tolist(), strict=True)
        for body, (local, turned), position, orientation in rows:
            # PyBullet places centres of mass, the state has root link origins.
            mass, axes = p.multiplyTransforms(position, orientation, local, turned)
            p.resetBasePositionAndOrientation(body, mass, axes, physicsClientId=client)

    def _aim(self, positions: NDArray[np.float64]) -> None:
        """Turns the camera to all robots, once: from then on it is the user's. +x is to the right, +y away."""
        self._is_aimed = True
        low, high = positions.min(axis=0), positions.max(axis=0)
        distance = _NEAREST + float((high - low).max())
        pybullet().resetDebugVisualizerCamera(
            distance, 0.0, _PITCH, ((low + high) / 2).tolist(), physicsClientId=self._client
        )

    def poses(self) -> list[list[float]]:
        """Position (m) and orientation (xyzw) of each robot's root link."""
        p, client = pybullet(), self._client
        poses = []
        for body, (local, turned) in zip(self._robots, self._offsets, strict=True):
            mass = p.getBasePositionAndOrientation(body, physicsClientId=client)
            position, orientation = p.multiplyTransforms(*mass, *p.invertTransform(local, turned))
            poses.append([*position, *orientation])
        return poses


def serve(descriptor: int) -> None:
    """Opens a window and does what comes over a connection, until it or the window is closed."""
    connection = Connection(descriptor)
    window = Window()
    connection.send("open")
    while window.is_open:
        try:
            if connection.poll(_IDLE):
                name, *arguments = connection.recv()
                if name == "close":
                    break
                connection.send(getattr(window, name)(*arguments) or True)
        except (EOFError, OSError):
            break
