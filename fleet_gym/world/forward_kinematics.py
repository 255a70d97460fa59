"""Forward kinematics: link frames of every robot of many worlds from root poses and joint positions."""

from __future__ import annotations

import math
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fleet_gym.world.robots import RobotModel
    from fleet_gym.world.state import FleetState

FIXED, REVOLUTE, PRISMATIC = 0, 1, 2
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# Spherical joints are movable in PyBullet, but state has one number per joint: they are drawn at rest.
_JOINT_KINDS = {
    "fixed": FIXED,
    "revolute": REVOLUTE,
    "continuous": REVOLUTE,
    "prismatic": PRISMATIC,
    "spherical": FIXED,
}


@dataclass(frozen=True)
class RobotTree:
    """Links of a URDF in PyBullet's order (depth first, joints as they stand in the file), root link first.

    Link i here is PyBullet's link i - 1.

    Attributes:
        urdf: absolute path.
        link_names: L names.
        joint_names: L names of the joint above each link, ``""`` for the root.
        parents: (L,) int64, index of the parent link, -1 for the root; parents come before children.
        origins: (L, 3, 4) float64, joint frame in the parent link's frame, m.
        axes: (L, 3) float64, unit joint axis in the joint's frame.
        kinds: (L,) int64, `FIXED`, `REVOLUTE` or `PRISMATIC`.
        coordinates: (L,) int64, index into ``FleetState.joint_position``, -1 where the joint does not move.
    """

    urdf: str
    link_names: tuple[str, ...]
    joint_names: tuple[str, ...]
    parents: NDArray[np.int64]
    origins: NDArray[np.float64]
    axes: NDArray[np.float64]
    kinds: NDArray[np.int64]
    coordinates: NDArray[np.int64]

    @property
    def num_links(self) -> int:
        """L, root included."""
        return len(self.link_names)

    @property
    def num_joints(self) -> int:
        """Number of movable joints: entries of ``joint_position`` that are read."""
        return int((self.coordinates >= 0).sum())


def parse_urdf(path: str) -> ElementTree.Element:
    """Returns the root element of a URDF file.

    Raises:
        ValueError: the file is missing, is not XML or is not a URDF.
    """
    try:
        with open(path, "rb") as file:
            text = file.read()
        # PyBullet accepts blank lines before the XML declaration and a NUL at the end; stock files have both.
        root = ElementTree.fromstring(text.strip(b" \t\r\n\0"))
    except (OSError, ElementTree.ParseError) as error:
        raise ValueError(f"urdf: expected a readable URDF file, got {path!r} ({error})") from None
    if root.tag != "robot":
        raise ValueError(f"urdf: expected a <robot> element at the top of {path!r}, got <{root.tag}>")
    return root


def numbers(text: str | None, default: Sequence[float]) -> tuple[float, ...]:
    """Parses white-space separated numbers of an XML attribute; `default` where it is absent or too short.

    As C's ``atof``, which PyBullet uses: ``"0.07,"`` is 0.07 and text that starts with no number is 0.
    """
    found = (_NUMBER.match(part) for part in (text or "").split())
    values = tuple(float(match.group()) if match else 0.0 for match in found)
    return values if len(values) >= len(default) else tuple(default)


def origin_matrix(element: ElementTree.Element | None) -> NDArray[np.float64]:
    """(3, 4) transform of the ``<origin xyz rpy>`` child of a URDF element (identity where there is none)."""
    origin = None if element is None else element.find("origin")
    xyz = numbers(None if origin is None else origin.get("xyz"), (0.0, 0.0, 0.0))
    roll, pitch, yaw = numbers(None if origin is None else origin.get("rpy"), (0.0, 0.0, 0.0))[:3]
    cr, sr, cp, sp, cy, sy = (f(a) for a in (roll, pitch, yaw) for f in (math.cos, math.sin))
    return np.array(
        [
            [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr, xyz[0]],
            [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr, xyz[1]],
            [-sp, cp * sr, cp * cr, xyz[2]],
        ]
    )


def load_tree(urdf: str) -> RobotTree:
    """Returns the link tree of a URDF, parsed once per file and modification time.

    Raises:
        ValueError: the file cannot be read, has no single root or a joint of a kind that cannot be placed.
    """
    try:
        modified = os.stat(urdf).st_mtime_ns
    except OSError as error:
        raise ValueError(f"urdf: expected a readable URDF file, got {urdf!r} ({error})") from None
    return _load_tree(os.path.abspath(urdf), modified)


@lru_cache(maxsize=256)
def _load_tree(urdf: str, _modified: int) -> RobotTree:
    root = parse_urdf(urdf)
    links = [link.get("name", "") for link in root.findall("link")]
    children: dict[str, list[ElementTree.Element]] = {name: [] for name in links}
    child_names: set[str] = set()
    for joint in root.findall("joint"):
        parent, child = _end(urdf, joint, "parent", children), _end(urdf, joint, "child", children)
        children[parent].append(joint)
        child_names.add(child)
    roots = [name for name in links if name not in child_names]
    if len(roots) != 1:
        raise ValueError(f"urdf: expected one root link in {urdf!r}, got {roots}")
    order: list[tuple[str, int, ElementTree.Element | None]] = []
    stack: list[tuple[str, int, ElementTree.Element | None]] = [(roots[0], -1, None)]
    while stack:
        name, parent_index, above = stack.pop()
        order.append((name, parent_index, above))
        for joint in reversed(children[name]):
            stack.append((_end(urdf, joint, "child", children), len(order) - 1, joint))
        if len(order) > len(links):
            raise ValueError(f"urdf: expected a tree of links in {urdf!r}, got a loop through {name!r}")
    if len(order) < len(links):
        lost = sorted(set(links) - {name for name, _, _ in order})
        raise ValueError(f"urdf: expected every link of {urdf!r} below the root, got {lost} in a loop")
    return _pack(urdf, order)


def _end(urdf: str, joint: ElementTree.Element, which: str, known: dict[str, list[ElementTree.Element]]) -> str:
    element = joint.find(which)
    name = None if element is None else element.get("link")
    if name not in known:
        raise ValueError(
            f"urdf: expected a known {which} link of joint {joint.get('name')!r} in {urdf!r}, got {name!r}"
        )
    return name


def _pack(urdf: str, order: list[tuple[str, int, ElementTree.Element | None]]) -> RobotTree:
    count = len(order)
    axes = np.tile(np.array([1.0, 0.0, 0.0]), (count, 1))
    kinds = np.zeros(count, dtype=np.int64)
    coordinates = np.full(count, -1, dtype=np.int64)
    moving = 0
    for i, (_, _, joint) in enumerate(order):
        if joint is None:
            continue
        kind = joint.get("type", "")
        if kind not in _JOINT_KINDS:
            raise ValueError(
                f"urdf: expected joint {joint.get('name')!r} in {urdf!r} to be one of {sorted(_JOINT_KINDS)}, "
                f"got {kind!r}"
            )
        kinds[i] = _JOINT_KINDS[kind]
        if kinds[i] != FIXED:
            coordinates[i] = moving
            moving += 1
        element = joint.find("axis")
        axis = np.array(numbers(None if element is None else element.get("xyz"), (1.0, 0.0, 0.0)))
        length = float(np.sqrt((axis**2).sum()))
        axes[i] = axis / length if length > 0 else axes[i]
    return RobotTree(
        urdf=urdf,
        link_names=tuple(name for name, _, _ in order),
        joint_names=tuple("" if joint is None else joint.get("name", "") for _, _, joint in order),
        parents=np.array([parent for _, parent, _ in order], dtype=np.int64),
        origins=np.stack([origin_matrix(joint) for _, _, joint in order]),
        axes=axes,
        kinds=kinds,
        coordinates=coordinates,
    )


@dataclass(frozen=True)
class Frames:
    """Link frames of n worlds.

    Attributes:
        transforms: (n, F, 3, 4) float64, link to world; the links of robot 0, then robot 1, and so on.
        kinematics: says which frame is whose.
    """

    transforms: NDArray[np.float64]
    kinematics: FleetKinematics

    def index(self, robot: int, link: str | None = None) -> int:
        """Frame index of a link of a robot (root link without a name); see `FleetKinematics.frame_index`."""
        return self.kinematics.frame_index(robot, link)


class FleetKinematics:
    """Forward kinematics of all robots of a scene.

    Args:
        robots: one model per slot.

    Attributes:
        trees: one per robot slot.
        offsets: (R + 1,) int64, first frame of each robot; the last entry is F, the number of frames.
    """

    def __init__(self, robots: Sequence[RobotModel]) -> None:
        self.trees = tuple(load_tree(robot.urdf) for robot in robots)
        self.offsets = np.concatenate([[0], np.cumsum([tree.num_links for tree in self.trees])]).astype(np.int64)
        self._parents = _joined([t.parents for t in self.trees], (0,), np.int64)
        self._origins = _joined([t.origins.ravel() for t in self.trees], (0,), np.float64)
        self._axes = _joined([t.axes.ravel() for t in self.trees], (0,), np.float64)
        self._kinds = _joined([t.kinds for t in self.trees], (0,), np.int64)
        self._coordinates = _joined([t.coordinates for t in self.trees], (0,), np.int64)

    @property
    def num_frames(self) -> int:
        """F, links of all robots of a world."""
        return int(self.offsets[-1])

    def frame_index(self, robot: int, link: str | None = None) -> int:
        """Index of a link's frame; the root link without a name.

        Raises:
            ValueError: the robot has no such link.
        """
        if link is None:
            return int(self.offsets[robot])
        names = self.trees[robot].link_names
        if link not in names:
            raise ValueError(f"link: expected one of {list(names)} of robot {robot}, got {link!r}")
        return int(self.offsets[robot]) + names.index(link)

    def frames(self, state: FleetState, worlds: NDArray[np.intp]) -> Frames:
        """Computes the link frames of the given worlds.

        Args:
            state: `position`, `orientation` and `joint_position` are read.
            worlds: (n,) indices.
        """
        from fleet_gym.world._kinematics_kernel import link_transforms

        out = np.empty((len(worlds), self.num_frames, 3, 4))
        kernel: Any = link_transforms
        kernel(
            np.asarray(worlds, dtype=np.int64),
            state.position.reshape(-1),
            state.orientation.reshape(-1),
            state.joint_position.reshape(-1),
            self.offsets,
            self._parents,
            self._origins,
            self._axes,
            self._kinds,
            self._coordinates,
            state.joint_position.shape[2],
            out.reshape(-1),
        )
        return Frames(out, self)


def _joined(arrays: Sequence[NDArray[Any]], empty: tuple[int, ...], dtype: type) -> NDArray[Any]:
    return np.ascontiguousarray(np.concatenate(arrays).astype(dtype)) if arrays else np.zeros(empty, dtype=dtype)
