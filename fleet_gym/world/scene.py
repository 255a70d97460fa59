"""Scene: what is in a world and never changes. Built once by a task, shared by all worlds and workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fleet_gym._validation import finite_float, finite_floats
from fleet_gym.world.cameras import Camera
from fleet_gym.world.robots import RobotModel
from fleet_gym.world.triangles import Triangles

#: PyBullet's ``segmentation = body + ((link + 1) << 24)``; -1 where nothing was hit.
BACKGROUND_SEGMENTATION = -1
GROUND_BODY = 0


@dataclass(frozen=True)
class Shape:
    """Geometry of a body. Primitives are centred on the body's origin, z up.

    Attributes:
        kind: ``"box"`` with size (length x, width y, height z), ``"cylinder"`` with size (radius, radius, height),
            ``"sphere"`` with size (radius, radius, radius) or ``"mesh"``, made by `from_arrays` or `from_heights`, with
            the size of the smallest box about the origin; m.
        size: three positive lengths, m (of a mesh, zero where it is flat).
        triangles: of a mesh.

    Raises:
        TypeError: a size or triangles of the wrong type.
        ValueError: an unknown kind, a size that is not three positive lengths, or triangles without kind ``"mesh"``.
    """

    kind: Literal["box", "cylinder", "sphere", "mesh"]
    size: tuple[float, float, float]
    triangles: Triangles | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("box", "cylinder", "sphere", "mesh"):
            raise ValueError(f"shape kind: expected 'box', 'cylinder', 'sphere' or 'mesh', got {self.kind!r}")
        if not isinstance(self.triangles, (Triangles, type(None))):
            raise TypeError(f"shape triangles: expected Triangles or None, got {self.triangles!r}")
        if (self.kind == "mesh") != (self.triangles is not None):
            raise ValueError(
                f"shape triangles: expected for kind 'mesh' only, got {self.triangles!r} for {self.kind!r}"
            )
        size = finite_floats("shape size", self.size, 3, minimum=0.0, exclusive=self.kind != "mesh")
        object.__setattr__(self, "size", size)

    @classmethod
    def from_arrays(cls, vertices: ArrayLike, indices: ArrayLike) -> Shape:
        """A mesh of triangles. Edges look round where triangles share vertices, and sharp where each has its own.

        In physics an obstacle or ground has exactly this surface, a free body its convex hull.

        Args:
            vertices: (V, 3) m, in the body's frame.
            indices: (F, 3) integers into `vertices`, counter-clockwise seen from outside.

        Raises:
            TypeError: the arrays are not numbers, or not integers.
            ValueError: they do not fit, see `Triangles`.
        """
        return cls._of(Triangles(vertices, indices))

    @classmethod
    def from_heights(cls, heights: ArrayLike, cell: tuple[float, float]) -> Shape:
        """A terrain, centred on the body's origin in x and y; z is as given.

        Args:
            heights: (rows, columns) z at the grid points, m; rows along y, columns along x.
            cell: distances between grid points along x and y, m.

        Raises:
            TypeError: the heights or distances are not real numbers.
            ValueError: they are no grid of finite numbers, or a distance is not positive.
        """
        return cls._of(Triangles.terrain(heights, cell))

    @classmethod
    def _of(cls, triangles: Triangles) -> Shape:
        x, y, z = (2.0 * float(extent) for extent in np.abs(triangles.vertices).max(axis=0))
        return cls("mesh", (x, y, z), triangles)

    @property
    def bounding_radius(self) -> float:
        """Radius of the smallest vertical cylinder around the shape, about its origin, m."""
        if self.triangles is not None:
            return float(np.sqrt((self.triangles.vertices[:, :2] ** 2).sum(axis=1)).max())
        return float(np.hypot(self.size[0], self.size[1]) / 2) if self.kind == "box" else float(self.size[0])

    @property
    def height(self) -> float:
        """Extent along z (of a mesh, twice the farther one from its origin), m."""
        return float(self.size[2]) * (2.0 if self.kind == "sphere" else 1.0)


_BODY_KINDS = ("obstacle", "free", "marker", "ground")


@dataclass(frozen=True)
class BodySpec:
    """A body that is not a robot.

    Attributes:
        name: unique in its scene.
        kind: ``"obstacle"`` (collides, never moves by itself), ``"free"`` (collides and is pushed; physics only),
            ``"marker"`` (drawn, never touched) or ``"ground"`` (never moves; robots drive on it, and touching it is no
            collision; physics only).
        shape: its geometry.
        color: RGBA in 0..1.
        mass: kg, of free bodies.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: an unknown kind, a colour outside 0..1, or a free body without mass.
    """

    name: str
    kind: Literal["obstacle", "free", "marker", "ground"]
    shape: Shape
    color: tuple[float, float, float, float] = (0.5, 0.5, 0.5, 1.0)
    mass: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in _BODY_KINDS:
            raise ValueError(f"body kind: expected one of {_BODY_KINDS}, got {self.kind!r}")
        for name, value, wanted in (("name", self.name, str), ("shape", self.shape, Shape)):
            if not isinstance(value, wanted):
                raise TypeError(f"body {name}: expected a {wanted.__name__}, got {value!r}")
        color = finite_floats(f"color of body {self.name!r}", self.color, 4, minimum=0.0, maximum=1.0)
        object.__setattr__(self, "color", color)
        # PyBullet takes a body without mass, or with one that is not a number, for one that never moves.
        finite_float(f"mass of body {self.name!r}", self.mass, minimum=0.0, exclusive=self.kind == "free")

    @property
    def collides(self) -> bool:
        """Whether robots touch it."""
        return self.kind != "marker"


@dataclass(frozen=True)
class Scene:
    """Immutable and picklable description of one world; all worlds of an engine share it.

    Whatever differs between worlds or changes later is in `FleetState`.

    Attributes:
        robots: one model per slot, the same in all worlds.
        bodies: obstacles, free bodies and markers.
        arena_size: side of the square arena, m, centred on the world's origin.
        cameras: the cameras of every world.
        textures: paths of images that `FleetState.texture` chooses from.
    """

    robots: tuple[RobotModel, ...]
    bodies: tuple[BodySpec, ...] = ()
    arena_size: float = 10.0
    cameras: tuple[Camera, ...] = ()
    textures: tuple[str, ...] = ()

    @property
    def num_robots(self) -> int:
        """R, robots per world."""
        return len(self.robots)

    @property
    def num_bodies(self) -> int:
        """B, other bodies per world."""
        return len(self.bodies)

    @property
    def max_joints(self) -> int:
        """J, the largest number of movable joints of a robot (state arrays are padded to it)."""
        return max((robot.num_joints for robot in self.robots), default=0)

    @property
    def action_size(self) -> int:
        """A, the largest number of command channels of a robot."""
        return max((len(robot.command_limits) for robot in self.robots), default=0)

    @property
    def footprint_radius(self) -> NDArray[np.float64]:
        """(R,) radii of the robots' circular footprints about the root link's origin, m."""
        return np.array([robot.footprint_radius for robot in self.robots], dtype=np.float64)

    def robot_segmentation_id(self, robot: int) -> int:
        """Body number of a robot in segmentation images: the ground is 0, robots follow from 1."""
        return GROUND_BODY + 1 + robot

    def body_segmentation_id(self, body: int) -> int:
        """Body number of another body in segmentation images: they follow the robots."""
        return GROUND_BODY + 1 + self.num_robots + body


class SceneBuilder:
    """Collects what a task puts into the world; `build` freezes it."""

    def __init__(self, robots: Sequence[RobotModel], cameras: Sequence[Camera] = ()) -> None:
        self.robots = tuple(robots)
        self.cameras = tuple(cameras)
        self.arena_size = 10.0
        self._textures: list[str] = []
        self._bodies: list[BodySpec] = []

    def add_body(self, body: BodySpec) -> int:
        """Adds a body and returns its index into the state's ``body_*`` arrays.

        Raises:
            ValueError: when the name is taken.
        """
        if any(other.name == body.name for other in self._bodies):
            raise ValueError(f"body name: expected a new name, got {body.name!r} twice")
        self._bodies.append(body)
        return len(self._bodies) - 1

    def add_texture(self, path: str) -> int:
        """Adds an image file that things can be covered with and returns its index, for ``FleetState.texture``."""
        self._textures.append(path)
        return len(self._textures) - 1

    def set_arena_size(self, side: float) -> None:
        """Sets the side of the square arena, m.

        Raises:
            ValueError: when it is not a positive finite length.
        """
        if not (np.isfinite(side) and side > 0):
            raise ValueError(f"arena_size: expected a positive length in m, got {side!r}")
        self.arena_size = float(side)

    def build(self) -> Scene:
        """Returns the finished scene."""
        return Scene(self.robots, tuple(self._bodies), self.arena_size, self.cameras, tuple(self._textures))
