"""Engine: dynamics and renderer over a block of worlds. The only place where the two meet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym._validation import one_of
from fleet_gym.dynamics.base import Dynamics, Moves
from fleet_gym.profiling.phases import phase
from fleet_gym.rendering.base import Renderer
from fleet_gym.rendering.select import RENDERERS, make_renderer, parse_renderer_options
from fleet_gym.world.cameras import Camera
from fleet_gym.world.scene import Scene
from fleet_gym.world.state import FleetState, WorldSample

DYNAMICS = ("kinematic", "physics")


@dataclass(frozen=True)
class Placement:
    """Worlds to be placed anew, and how.

    Attributes:
        worlds: (n,) indices.
        sample: n rows in the order of `worlds`.
    """

    worlds: NDArray[np.intp]
    sample: WorldSample


@dataclass(frozen=True)
class FrameRequest:
    """Images to be drawn.

    Attributes:
        worlds: (n,) indices.
        cameras: which to draw.
        out: arrays to draw into, under each camera's keys; row k is ``worlds[k]``.
    """

    worlds: NDArray[np.intp]
    cameras: Sequence[Camera]
    out: Mapping[str, NDArray[Any]]


class Engine:
    """Steps, places and draws E worlds of one scene in this process.

    The renderer is made at the first drawing, in the process that draws. Called by environments only; a worker engine
    with the same methods can take its place.

    Args:
        scene: what is in each world.
        num_envs: E.
        control_dt: s per control step.
        dynamics: ``"kinematic"`` or ``"physics"``.
        collision_response: ``"stop"`` or ``"report"``, see the dynamics.
        renderer: see `fleet_gym.rendering.select`.
        renderer_options: of the rasterizer, see `fleet_gym.rendering.select.RendererOptions`.
        contact_margin: m, see `KinematicDynamics`.
        ignored_robots: slots that touch nobody, see `KinematicDynamics`.

    Raises:
        ValueError: for an unknown name, or what the dynamics refuses.
    """

    def __init__(
        self,
        scene: Scene,
        num_envs: int,
        *,
        control_dt: float,
        dynamics: str = "kinematic",
        collision_response: str = "stop",
        renderer: str = "auto",
        renderer_options: Mapping[str, Any] | None = None,
        contact_margin: float = 0.0,
        ignored_robots: Collection[int] = (),
    ) -> None:
        one_of("dynamics", dynamics, DYNAMICS)
        self._renderer_name = one_of("renderer", renderer, RENDERERS)
        self._renderer_options = parse_renderer_options(renderer, renderer_options)
        self._scene = scene
        self._renderer: Renderer | None = None
        self._final_row = np.full(num_envs, -1, dtype=np.intp)
        self._final_state: FleetState | None = None
        self._dynamics = _make_dynamics(
            dynamics, scene, num_envs, control_dt, collision_response, contact_margin, ignored_robots
        )
        self.state = self._dynamics.state
        self.command_limits = self._dynamics.command_limits

    def advance(
        self,
        commands: NDArray[np.float64],
        active: NDArray[np.bool_],
        placement: Placement | None = None,
        frames: Sequence[FrameRequest] = (),
        moves: Moves | None = None,
    ) -> None:
        """One step: places worlds, steps the active ones, draws what is asked for.

        Args:
            commands: (E, R, A) float64, SI units.
            active: (E,) bool; must be False for the worlds placed.
            placement: worlds to place first.
            frames: images to draw last.
            moves: of robots that follow routes, see `Dynamics.step`.
        """
        self._forget_final()
        with phase("dynamics"):
            if placement is not None:
                self._dynamics.reset(placement.worlds, placement.sample)
            self._dynamics.step(commands, active, moves)
        for request in frames:
            self.render(request)

    def reset(self, placement: Placement, frames: Sequence[FrameRequest] = (), *, keep_final: bool = False) -> None:
        """Places worlds and draws what is asked for.

        Args:
            placement: worlds to place.
            frames: images to draw afterwards.
            keep_final: remember how these worlds ended, for ``render(..., final=True)`` until the next call.
        """
        self._forget_final()
        if keep_final:
            self._final_state = self.state.take(placement.worlds)
            self._final_row[placement.worlds] = np.arange(len(placement.worlds))
        with phase("dynamics"):
            self._dynamics.reset(placement.worlds, placement.sample)
        for request in frames:
            self.render(request)

    def render(self, request: FrameRequest, *, final: bool = False) -> None:
        """Draws images of the worlds as they are or, with `final`, as they were before the last `reset`.

        Worlds that `reset` did not remember are drawn as they are in either case.
        """
        if len(request.worlds) == 0 or not request.cameras:
            return
        with phase("render"):
            if self._renderer is None:
                self._renderer = make_renderer(self._renderer_name, self._scene, self._renderer_options)
            if not final or self._final_state is None:
                self._renderer.render(self.state, request.worlds, request.cameras, request.out)
                return
            rows = self.state.take(request.worlds)
            ended = np.flatnonzero(self._final_row[request.worlds] >= 0)
            remembered = self._final_state.take(self._final_row[request.worlds[ended]])
            rows.put(ended, remembered)
            self._renderer.render(rows, np.arange(len(request.worlds)), request.cameras, request.out)

    def save(self, worlds: NDArray[np.intp]) -> Any:
        """See `Dynamics.save`."""
        return self._dynamics.save(worlds)

    def restore(self, worlds: NDArray[np.intp], saved: Any) -> None:
        """See `Dynamics.restore`."""
        self._forget_final()
        self._dynamics.restore(worlds, saved)

    def contacts(self, world: int) -> NDArray[np.int64]:
        """See `Dynamics.contacts`."""
        return self._dynamics.contacts(world)

    def adopt(self, old: Engine, robots: NDArray[np.intp], bodies: NDArray[np.intp]) -> None:
        """See `Dynamics.adopt`."""
        self._dynamics.adopt(old._dynamics, robots, bodies)

    def close(self) -> None:
        """Closes dynamics and renderer; calling it again does nothing."""
        try:
            if self._renderer is not None:
                self._renderer.close()
                self._renderer = None
        finally:
            self._dynamics.close()

    def _forget_final(self) -> None:
        if self._final_state is not None:
            self._final_state = None
            self._final_row[:] = -1


def _make_dynamics(
    name: str,
    scene: Scene,
    num_envs: int,
    control_dt: float,
    collision_response: str,
    contact_margin: float,
    ignored_robots: Collection[int],
) -> Dynamics:
    # Imported here: numba's kernels and PyBullet load only where they are used.
    if name == "physics":
        from fleet_gym.dynamics.physics import PhysicsDynamics

        if contact_margin != 0.0 or ignored_robots:
            raise ValueError(
                "contact_margin, ignored_robots: expected 0 and none in physics dynamics, "
                f"got {contact_margin!r} and {ignored_robots!r}"
            )
        return PhysicsDynamics(scene, num_envs, control_dt=control_dt, collision_response=collision_response)
    from fleet_gym.dynamics.kinematic import KinematicDynamics

    return KinematicDynamics(
        scene,
        num_envs,
        control_dt=control_dt,
        collision_response=collision_response,
        contact_margin=contact_margin,
        ignored_robots=ignored_robots,
    )
