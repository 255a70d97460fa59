"""What a URDF says about a robot's joints and extent, measured from the collision shapes PyBullet makes of it."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet_gym._pybullet import DirectClient, pybullet, quiet_descriptors
from fleet_gym.world.forward_kinematics import load_tree

#: PyBullet surrounds convex hulls (its cylinders and meshes) with this margin, m; boxes and spheres keep their size.
HULL_MARGIN = 0.001
# Shapes this close to the robot's lowest point touch the ground it stands on, m.
_GROUND_TOLERANCE = 0.005


@dataclass(frozen=True)
class UrdfJoint:
    """A joint and the link below it, as PyBullet numbers them.

    Attributes:
        name: the joint's name.
        link_name: name of the link the joint carries.
        parent: index of the parent link, -1 for the root link.
        movable: whether it has one coordinate (neither fixed nor spherical).
        lower: lower limit, rad or m, ``-inf`` without limits.
        upper: upper limit, rad or m, ``inf`` without limits.
        effort: largest force the URDF allows, N or N m; 0 where it names none.
        origin: joint frame's origin in the root link's frame at zero joint positions, m.
        margin: collision margin around the link's shapes, m.
        rolls: a joint without limits that carries something on the ground: a driven or free wheel, a caster.
    """

    name: str
    link_name: str
    parent: int
    movable: bool
    lower: float
    upper: float
    effort: float
    origin: tuple[float, float, float]
    margin: float
    rolls: bool

    @property
    def rest_position(self) -> float:
        """The position nearest to zero that the limits allow, rad or m."""
        return min(max(0.0, self.lower), self.upper)


@dataclass(frozen=True)
class UrdfGeometry:
    """Joints and extent of a URDF at zero joint positions, in the root link's frame.

    Attributes:
        root_link: name of the root link.
        joints: in PyBullet's order: joint i carries link i.
        footprint_radius: radius of the circle about the root link's origin, seen from above, around all collision
            shapes, m; 0 without shapes.
        footprint_bounds: (low x, low y, high x, high y) of all collision shapes, m; zeros without shapes.
        reach: radius of a sphere about the root link's origin that no joint motion takes a collision shape out of, m;
            ``inf`` with a sliding joint without limits.
        lowest: z of the lowest point of all collision shapes, m.
        highest: z of the highest one, m.
    """

    root_link: str
    joints: tuple[UrdfJoint, ...]
    footprint_radius: float
    footprint_bounds: tuple[float, float, float, float]
    reach: float
    lowest: float
    highest: float

    @cached_property
    def movable(self) -> tuple[int, ...]:
        """Indices of the movable joints."""
        return tuple(i for i, joint in enumerate(self.joints) if joint.movable)

    def hangs_from(self, joint: int, ancestors: Collection[int]) -> bool:
        """Whether `joint` is one of `ancestors` or sits on a link that one of them carries."""
        while joint >= 0:
            if joint in ancestors:
                return True
            joint = self.joints[joint].parent
        return False


def inspect_urdf(path: str | os.PathLike[str]) -> UrdfGeometry:
    """Measures a URDF once per file and modification time, in a short-lived physics client.

    Raises:
        ValueError: when the file is missing, is no tree of links, has joints this package cannot place (floating,
            planar), or PyBullet cannot load it.
    """
    absolute = os.path.abspath(path)
    try:
        modified = os.stat(absolute).st_mtime_ns
    except OSError as error:
        raise ValueError(f"urdf path: expected an existing file, got {os.fspath(path)!r} ({error.strerror})") from None
    load_tree(absolute)  # PyBullet ends the process on files that are no tree of links
    return _inspect(absolute, modified)


@dataclass(frozen=True)
class _Link:
    """Collision points of a link in the root link's frame: (n, 3) m, and the radius each is swollen by, (n,) m."""

    points: NDArray[np.float64]
    radii: NDArray[np.float64]
    margin: float = 0.0

    @property
    def lowest(self) -> float:
        return float((self.points[:, 2] - self.radii).min(initial=math.inf))


@lru_cache(maxsize=256)
def _inspect(path: str, _modified: int) -> UrdfGeometry:
    p = pybullet()
    client = DirectClient()
    try:
        body = client.load_urdf(path, flags=p.URDF_IGNORE_VISUAL_SHAPES, useFixedBase=True)
        infos = [p.getJointInfo(body, i, physicsClientId=client.id) for i in range(p.getNumJoints(body, client.id))]
        links = [_collision_points(client.id, body, -1, p.getBasePositionAndOrientation(body, client.id))]
        origins = []
        for index in range(len(infos)):
            state = p.getLinkState(body, index, computeForwardKinematics=True, physicsClientId=client.id)
            links.append(_collision_points(client.id, body, index, state[:2]))
            origins.append(state[4])
        return _summarise(p.getBodyInfo(body, physicsClientId=client.id)[0].decode(), infos, origins, links)
    finally:
        client.close()


def _is_movable(info: tuple[Any, ...]) -> bool:
    return info[2] not in (pybullet().JOINT_FIXED, pybullet().JOINT_SPHERICAL)


def _collision_points(client_id: int, body: int, link: int, pose: tuple[Any, Any]) -> _Link:
    """Measures a link; `pose` is its centre of mass in the world, which PyBullet's shapes are relative to."""
    p = pybullet()
    points: list[NDArray[np.float64]] = []
    radii: list[float] = []
    margin = 0.0
    shapes = p.getCollisionShapeData(body, link, physicsClientId=client_id)
    for index, shape in enumerate(shapes):
        if shape[2] == p.GEOM_MESH:
            corners, radius = _mesh_points(client_id, body, link, index if len(shapes) > 1 else -1, shape), HULL_MARGIN
            margin = HULL_MARGIN
        else:
            corners, radius = _primitive(shape[2], shape[3])
            corners = _transform(shape[5], shape[6], corners)
        points.append(corners)
        radii += [radius] * len(corners)
    merged = np.concatenate(points) if points else np.zeros((0, 3))
    return _Link(_transform(*pose, merged), np.array(radii, dtype=np.float64), margin)


def _mesh_points(client_id: int, body: int, link: int, index: int, shape: tuple[Any, ...]) -> NDArray[np.float64]:
    """Vertices of a mesh or cylinder about the link's centre of mass; `index` is -1 if it is the link's only shape."""
    with quiet_descriptors():  # PyBullet writes "?" for a shape it has no vertices of
        _, vertices = pybullet().getMeshData(body, link, collisionShapeIndex=index, physicsClientId=client_id)
    if vertices:
        return np.array(vertices, dtype=np.float64)
    # Only convex hulls hand out their vertices; a concave mesh is read from its file.
    import trimesh

    mesh: Any = trimesh.load(shape[4].decode(), force="mesh")
    return _transform(shape[5], shape[6], np.asarray(mesh.vertices) * np.array(shape[3]))


def _transform(position: Any, orientation: Any, points: NDArray[np.float64]) -> NDArray[np.float64]:
    rotation = np.array(pybullet().getMatrixFromQuaternion(orientation)).reshape(3, 3)
    return np.asarray(points @ rotation.T + np.array(position))


def _primitive(kind: int, dimensions: tuple[float, ...]) -> tuple[NDArray[np.float64], float]:
    """Points (n, 3) in the shape's frame and a radius: the hull of spheres of that radius about them is the shape."""
    p = pybullet()
    if kind == p.GEOM_BOX:
        return np.array(list(product((-0.5, 0.5), repeat=3))) * np.array(dimensions), 0.0
    if kind == p.GEOM_SPHERE:
        return np.zeros((1, 3)), dimensions[0]
    if kind == p.GEOM_CAPSULE:
        return np.array([[0.0, 0.0, -0.5], [0.0, 0.0, 0.5]]) * dimensions[0], dimensions[1]
    raise ValueError(
        "urdf: expected collision shapes that are boxes, spheres, capsules, cylinders or meshes, "
        f"got PyBullet geometry type {kind}"
    )


def _summarise(root_link: str, infos: list[Any], origins: list[Any], links: list[_Link]) -> UrdfGeometry:
    points = np.concatenate([link.points for link in links])
    radii = np.concatenate([link.radii for link in links])
    lowest = float((points[:, 2] - radii).min()) if len(points) else 0.0
    highest = float((points[:, 2] + radii).max()) if len(points) else 0.0
    grounded = [link.lowest <= lowest + _GROUND_TOLERANCE for link in links[1:]]
    for index in reversed(range(len(infos))):  # parents come before their children
        parent = infos[index][16]
        if parent >= 0:
            grounded[parent] |= grounded[index]
    return UrdfGeometry(
        root_link=root_link,
        joints=tuple(map(_joint, infos, origins, links[1:], grounded)),
        footprint_radius=float((np.hypot(points[:, 0], points[:, 1]) + radii).max(initial=0.0)),
        footprint_bounds=_bounds(points, radii),
        reach=_reach(infos, origins, links),
        lowest=lowest,
        highest=highest,
    )


def _bounds(points: NDArray[np.float64], radii: NDArray[np.float64]) -> tuple[float, float, float, float]:
    if not len(points):
        return 0.0, 0.0, 0.0, 0.0
    low, high = (points[:, :2] - radii[:, None]).min(axis=0), (points[:, :2] + radii[:, None]).max(axis=0)
    return float(low[0]), float(low[1]), float(high[0]), float(high[1])


def _joint(info: tuple[Any, ...], origin: tuple[float, float, float], link: _Link, grounded: bool) -> UrdfJoint:
    limited = info[8] <= info[9]  # PyBullet reports 0 and -1 for joints without limits
    movable = _is_movable(info)
    return UrdfJoint(
        name=info[1].decode(),
        link_name=info[12].decode(),
        parent=info[16],
        movable=movable,
        lower=info[8] if limited else -math.inf,
        upper=info[9] if limited else math.inf,
        effort=info[10],
        origin=origin,
        margin=link.margin,
        rolls=grounded and not limited and info[2] == pybullet().JOINT_REVOLUTE,
    )


def _reach(infos: list[Any], origins: list[Any], links: list[_Link]) -> float:
    """Adds up the lengths between joints on the way to each link, and how far its own shapes extend."""
    frames = [np.zeros(3), *(np.array(origin) for origin in origins)]
    distances = [0.0]
    for index, info in enumerate(infos):
        parent = info[16] + 1
        distance = distances[parent] + float(np.linalg.norm(frames[index + 1] - frames[parent]))
        if info[2] in (pybullet().JOINT_PRISMATIC, pybullet().JOINT_PLANAR):
            distance += max(abs(info[8]), abs(info[9])) if info[8] <= info[9] else math.inf
        distances.append(distance)
    extents = [
        distance + float((np.linalg.norm(link.points - frame, axis=1) + link.radii).max(initial=0.0))
        for distance, frame, link in zip(distances, frames, links, strict=True)
        if len(link.points)
    ]
    return max(extents, default=0.0)
