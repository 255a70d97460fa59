"""The protocol of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet_gym.world.scene import Scene, SceneBuilder
from fleet_gym.world.state import FleetState, WorldSample


@dataclass(frozen=True)
class Evaluation:
    """What a task says about a step of E worlds.

    Attributes:
        observation: (E, R, D) float32.
        robot_reward: (E, R) float64.
        reward: (E,) float64, the team's.
        terminated: (E,) bool.
        infos: arrays whose first axis is E; ``success`` (E,) bool among them, and the same keys as from `Task.observe`.

    All arrays are new ones, which the task neither keeps nor writes again.
    """

    observation: NDArray[np.float32]
    robot_reward: NDArray[np.float64]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    infos: dict[str, NDArray[Any]]


class Task(Protocol):
    """Draws episodes and judges them. Knows no renderer and moves nothing.

    All arrays are batched over worlds. A task may keep per-episode arrays of its own (a previous action, a last
    distance): `sample` clears them for the worlds it draws. Nothing may be reduced over the worlds axis, so that world
    i of seed s is world 0 of seed s + i to the last bit.

    Attributes:
        needs: names of optional state arrays it reads; nothing else optional is filled. This version has none.
    """

    needs: frozenset[str]

    @property
    def state_layout(self) -> Mapping[str, slice]:
        """Name -> columns of the observation's last axis, once bound."""
        ...

    @property
    def observation_low(self) -> NDArray[np.float32]:
        """(D,) lower bounds of the columns, once bound."""
        ...

    @property
    def observation_high(self) -> NDArray[np.float32]:
        """(D,) upper bounds of the columns, once bound."""
        ...

    def build(self, builder: SceneBuilder) -> None:
        """Puts arena, obstacles and markers into the scene. Called once, first.

        Raises:
            ValueError: when the robots cannot do the task or do not fit.
        """
        ...

    def bind(self, scene: Scene, num_envs: int, control_dt: float) -> None:
        """Allocates the task's own arrays for the finished scene. Called once, after `build`."""
        ...

    def sample(self, rngs: Sequence[np.random.Generator], worlds: NDArray[np.intp]) -> WorldSample:
        """Draws the initial conditions of n worlds, each from its own generator, and clears their episode arrays.

        Args:
            rngs: n generators, in the order of `worlds`.
            worlds: (n,) indices.
        """
        ...

    def observe(
        self, state: FleetState, worlds: NDArray[np.intp]
    ) -> tuple[NDArray[np.float32], dict[str, NDArray[Any]]]:
        """Returns observation (n, R, D) float32 and infos (first axis n) of worlds that were just reset."""
        ...

    def evaluate(self, state: FleetState, actions: NDArray[np.float64]) -> Evaluation:
        """Judges the step that led to `state`.

        Args:
            state: E worlds. Rows of worlds that were reset in this step are as `observe` would see them.
            actions: (E, R, A) float64 in [-1, 1]; zero in the rows of worlds that were reset in this step.
        """
        ...

    def save(self, worlds: NDArray[np.intp]) -> Any:
        """Returns an opaque copy of the task's own arrays of the given worlds, for `restore`."""
        ...

    def restore(self, worlds: NDArray[np.intp], saved: Any) -> None:
        """Brings the given worlds' arrays back to what `save` returned."""
        ...
