"""Cameras: where they stand, what they record, and their view and projection matrices for many worlds at once."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fleet_gym._validation import finite_float, positive_int
from fleet_gym.world.forward_kinematics import Frames, load_tree

if TYPE_CHECKING:
    from fleet_gym.world.robots import RobotModel

Modality = Literal["rgb", "depth", "segmentation"]
_MODALITIES: tuple[Modality, ...] = ("rgb", "depth", "segmentation")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_RESERVED_SUFFIXES = ("_depth", "_segmentation")
#: Largest image side accepted, pixels: a typing error should not ask for terabytes.
MAX_SIDE = 16384
#: Beyond these a depth buffer has no digits left: images would be NaN, or take minutes. Degrees, m, m.
MIN_FOV, MIN_NEAR, MAX_FAR = 0.1, 1e-3, 1e5
# Within 1 degree of vertical the default up vector +z says nothing about the roll of the picture.
_COS_VERTICAL = math.cos(math.radians(1.0))


@dataclass(frozen=True)
class Camera:
    """A pinhole camera, fixed in each world or mounted on a robot. Images have their first row on top.

    A fixed camera looks from `position` to `target`, up is +z, and +y when the view is within 1 degree of vertical.
    A mounted camera looks along its link's +x with the link's +z up, displaced by `offset` and turned by `rotation`,
    both in the link's frame.

    Attributes:
        name: observation key and part of video file names: letters, digits, ``_``, ``-`` and ``.``.
        width: pixels.
        height: pixels.
        fov: vertical field of view, degrees.
        near: near plane, m.
        far: far plane, m.
        position: fixed cameras: m, world frame.
        target: fixed cameras: m, world frame.
        mount: robot index, or ``(robot index, link name)``.
        offset: mounted cameras: m, link frame.
        rotation: mounted cameras: quaternion xyzw, link frame; stored with unit length.
        modalities: any of ``"rgb"``, ``"depth"``, ``"segmentation"``.
        render_every: draw every so many steps; between draws the last image is repeated (the first and last frames
            of an episode are always drawn, unless a wrapper ends it).

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has a value that no camera can have.
    """

    name: str
    width: int
    height: int
    fov: float = 60.0
    near: float = 0.05
    far: float = 50.0
    position: tuple[float, float, float] | None = None
    target: tuple[float, float, float] | None = None
    mount: int | tuple[int, str] | None = None
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    rotation: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 1.0)
    modalities: tuple[Modality, ...] = ("rgb",)
    render_every: int = 1

    def __post_init__(self) -> None:
        _check_name(self.name)
        for argument, most in (("width", MAX_SIDE), ("height", MAX_SIDE), ("render_every", None)):
            self._set(argument, positive_int(_of(self, argument), getattr(self, argument), most))
        for argument in ("fov", "near", "far"):
            self._set(argument, finite_float(_of(self, argument), getattr(self, argument)))
        if not MIN_FOV <= self.fov <= 180.0 - MIN_FOV:
            raise ValueError(
                f"{_of(self, 'fov')}: expected degrees in (0, 180), at least {MIN_FOV} from both, got {self.fov!r}"
            )
        if not self.near >= MIN_NEAR:
            raise ValueError(f"{_of(self, 'near')}: expected a distance >= {MIN_NEAR} m, got {self.near!r}")
        if not self.near < self.far <= MAX_FAR:
            raise ValueError(
                f"{_of(self, 'far')}: expected more than near={self.near!r}, <= {MAX_FAR}, got {self.far!r}"
            )
        self._set("modalities", _modalities(self))
        self._check_placement()

    def _set(self, argument: str, value: object) -> None:
        object.__setattr__(self, argument, value)

    def _check_placement(self) -> None:
        if self.mount is None:
            if self.position is None or self.target is None:
                raise ValueError(
                    f"camera {self.name!r}: expected position and target (fixed) or mount (on a robot), "
                    f"got position={self.position!r}, target={self.target!r}, mount=None"
                )
            self._set("position", _vector(self, "position", 3))
            self._set("target", _vector(self, "target", 3))
            if np.allclose(self.position, self.target, rtol=0.0, atol=1e-9):
                raise ValueError(f"{_of(self, 'target')}: expected a point other than position, got {self.target!r}")
        elif self.position is not None or self.target is not None:
            raise ValueError(
                f"camera {self.name!r}: expected either position and target or mount, "
                f"got mount={self.mount!r} with position={self.position!r}, target={self.target!r}"
            )
        else:
            self._set("mount", _mount(self))
        self._set("offset", _vector(self, "offset", 3))
        self._set("rotation", _vector(self, "rotation", 4))
        rotation = np.array(self.rotation)
        norm = float(np.sqrt((rotation * rotation).sum()))
        if not norm > 1e-9:
            raise ValueError(f"{_of(self, 'rotation')}: expected a quaternion xyzw of non-zero length, got {norm!r}")
        if abs(norm - 1.0) > 1e-12:  # a unit quaternion stays what the user wrote, to the last bit
            self._set("rotation", tuple(float(v) for v in rotation / norm))
        if self.mount is None and (self.offset != (0.0, 0.0, 0.0) or self.rotation != (0.0, 0.0, 0.0, 1.0)):
            raise ValueError(
                f"camera {self.name!r}: offset and rotation are for mounted cameras, expected mount, got mount=None"
            )

    @property
    def keys(self) -> tuple[tuple[str, Modality], ...]:
        """(observation key, modality) of every image it makes: ``name``, ``name_depth``, ``name_segmentation``."""
        return tuple((self.name if m == "rgb" else f"{self.name}_{m}", m) for m in self.modalities)

    @property
    def mount_robot(self) -> int | None:
        """Index of the robot that carries it, None for a fixed camera."""
        return self.mount[0] if isinstance(self.mount, tuple) else self.mount

    @property
    def mount_link(self) -> str | None:
        """Name of the link that carries it, None for a fixed camera or the root link."""
        return self.mount[1] if isinstance(self.mount, tuple) else None

    @classmethod
    def from_spec(cls, spec: Camera | Mapping[str, Any]) -> Camera:
        """Returns a camera from itself or from a mapping of its attributes, as YAML or JSON give one.

        Raises:
            TypeError: `spec` is neither.
            ValueError: the mapping has unknown or missing keys, or values no camera can have.
        """
        if isinstance(spec, Camera):
            return spec
        if not isinstance(spec, Mapping):
            raise TypeError(f"camera: expected a Camera or a mapping of its attributes, got {type(spec).__name__}")
        known = [field.name for field in fields(cls)]
        unknown = [key for key in spec if key not in known]
        if unknown:
            raise ValueError(f"camera {spec.get('name')!r}: expected keys among {known}, got {unknown}")
        missing = [key for key in ("name", "width", "height") if key not in spec]
        if missing:
            raise ValueError(f"camera {spec.get('name')!r}: expected name, width and height, got no {missing}")
        return cls(**spec)

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes as JSON types; ``Camera.from_spec`` makes an equal camera of them."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def cameras_from_specs(specs: Iterable[Camera | Mapping[str, Any]]) -> tuple[Camera, ...]:
    """Returns the cameras described by `specs`, in order.

    Raises:
        TypeError: `specs` is not a sequence of cameras or mappings.
        ValueError: a spec is bad or two cameras share a name.
    """
    if isinstance(specs, (Camera, Mapping, str)) or not isinstance(specs, Iterable):
        raise TypeError(f"cameras: expected a sequence of Camera or mappings, got {type(specs).__name__}")
    cameras = tuple(Camera.from_spec(spec) for spec in specs)
    names = [camera.name for camera in cameras]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"cameras: expected a different name for each camera, got {twice} more than once")
    return cameras


def validate_cameras(cameras: Sequence[Camera], robots: Sequence[RobotModel]) -> None:
    """Checks that every mount names a robot and a link of the scene.

    Args:
        cameras: the scene's cameras.
        robots: one model per robot slot.

    Raises:
        ValueError: a mount names a robot or link that does not exist; the message lists those that do.
    """
    for camera in cameras:
        robot = camera.mount_robot
        if robot is None:
            continue
        if robot >= len(robots):
            raise ValueError(f"{_of(camera, 'mount')}: expected a robot index in 0..{len(robots) - 1}, got {robot}")
        links = load_tree(robots[robot].urdf).link_names
        if camera.mount_link is not None and camera.mount_link not in links:
            raise ValueError(
                f"{_of(camera, 'mount')}: expected a link of robot {robot} ({robots[robot].name}), "
                f"one of {list(links)}, got {camera.mount_link!r}"
            )


def camera_poses(camera: Camera, frames: Frames, num_worlds: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns where a camera is and how it is turned in each of n worlds.

    Args:
        camera: fixed or mounted.
        frames: link frames of the n worlds, ``transforms`` (n, F, 3, 4); only read for mounted cameras.
        num_worlds: n.

    Returns:
        eye: (n, 3) float64, m, world frame.
        axes: (n, 3, 3) float64, rows are the image's right, up and the direction opposite to the view.
    """
    if camera.mount is None:
        assert camera.position is not None
        assert camera.target is not None
        eye, axes = _look_at(camera.position, camera.target)
        return np.repeat(eye[None], num_worlds, axis=0), np.repeat(axes[None], num_worlds, axis=0)
    robot = camera.mount_robot
    assert robot is not None
    link = frames.transforms[:, frames.index(robot, camera.mount_link)]
    rotation = link[:, :, :3]
    turned = _compose(rotation, quaternion_matrix(np.array(camera.rotation)))
    eye = link[:, :, 3] + (rotation * np.array(camera.offset)).sum(axis=-1)
    forward, left, up = turned[:, :, 0], turned[:, :, 1], turned[:, :, 2]
    return eye, np.stack([-left, up, -forward], axis=1)


def view_matrices(eye: NDArray[np.float64], axes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns world-to-camera matrices, (n, 4, 4) float64, for column vectors (PyBullet's are the transpose, flat).

    Args:
        eye: (n, 3), m.
        axes: (n, 3, 3), rows right, up, backward, as `camera_poses` returns them.
    """
    views = np.zeros((len(eye), 4, 4))
    views[:, :3, :3] = axes
    views[:, :3, 3] = -(axes * eye[:, None, :]).sum(axis=-1)
    views[:, 3, 3] = 1.0
    return views


def projection_matrix(camera: Camera) -> NDArray[np.float64]:
    """Returns the OpenGL projection matrix, (4, 4) float64, for column vectors; the field of view is vertical."""
    near, far = camera.near, camera.far
    scale = 1.0 / math.tan(math.radians(camera.fov) / 2.0)
    matrix = np.zeros((4, 4))
    matrix[0, 0] = scale * camera.height / camera.width
    matrix[1, 1] = scale
    matrix[2, 2] = (near + far) / (near - far)
    matrix[2, 3] = 2.0 * near * far / (near - far)
    matrix[3, 2] = -1.0
    return matrix


def quaternion_matrix(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation matrices (..., 3, 3) of unit quaternions xyzw (..., 4)."""
    x, y, z, w = (quaternion[..., i] for i in range(4))
    matrix = np.empty((*quaternion.shape[:-1], 3, 3))
    xx, yy, zz = 2.0 * x * x, 2.0 * y * y, 2.0 * z * z
    xy, xz, yz = 2.0 * x * y, 2.0 * x * z, 2.0 * y * z
    wx, wy, wz = 2.0 * w * x, 2.0 * w * y, 2.0 * w * z
    matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 0, 2] = 1.0 - (yy + zz), xy - wz, xz + wy
    matrix[..., 1, 0], matrix[..., 1, 1], matrix[..., 1, 2] = xy + wz, 1.0 - (xx + zz), yz - wx
    matrix[..., 2, 0], matrix[..., 2, 1], matrix[..., 2, 2] = xz - wy, yz + wx, 1.0 - (xx + yy)
    return matrix


def _compose(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    # Not a matmul: BLAS may sum one world differently from many, and pictures must not depend on their number.
    return np.asarray((left[..., :, :, None] * right[..., None, :, :]).sum(axis=-2))


@lru_cache(maxsize=1024)
def _look_at(
    position: tuple[float, float, float], target: tuple[float, float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    eye = np.array(position)
    forward = np.array(target) - eye
    forward /= np.sqrt((forward**2).sum())
    up = np.array([0.0, 1.0, 0.0] if abs(forward[2]) >= _COS_VERTICAL else [0.0, 0.0, 1.0])
    right = np.cross(forward, up)
    right /= np.sqrt((right**2).sum())
    return eye, np.stack([right, np.cross(right, forward), -forward])


def _of(camera: Camera, argument: str) -> str:
    return f"camera {camera.name!r}: {argument}"


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"camera name: expected a string, got {name!r}")
    if not _NAME.fullmatch(name) or len(name) > 100:
        raise ValueError(
            "camera name: expected a file name of at most 100 letters, digits, '_', '-' and '.' "
            f"that starts with a letter or digit, got {name!r}"
        )
    if name.endswith(_RESERVED_SUFFIXES):
        raise ValueError(f"camera name: expected one that ends in neither of {_RESERVED_SUFFIXES}, got {name!r}")


def _vector(camera: Camera, argument: str, length: int) -> tuple[float, ...]:
    value = getattr(camera, argument)
    what = _of(camera, argument)
    if isinstance(value, (str, Mapping)) or not hasattr(value, "__len__"):
        raise TypeError(f"{what}: expected {length} numbers, got {value!r}")
    if len(value) != length:
        raise ValueError(f"{what}: expected {length} numbers, got {value!r}")
    return tuple(finite_float(what, entry) for entry in value)


def _mount(camera: Camera) -> int | tuple[int, str]:
    value: Any = camera.mount
    message = f"{_of(camera, 'mount')}: expected a robot index or (robot index, link name), got {value!r}"
    robot, link = (value, None) if not isinstance(value, (tuple, list)) else (*value, None, None)[:2]
    if isinstance(value, (tuple, list)) and (len(value) != 2 or not isinstance(link, str)):
        raise TypeError(message)
    if isinstance(robot, (bool, np.bool_)) or not isinstance(robot, (int, np.integer)):
        raise TypeError(message)
    if robot < 0:
        raise ValueError(message)
    return int(robot) if link is None else (int(robot), link)


def _modalities(camera: Camera) -> tuple[Modality, ...]:
    value: Any = camera.modalities
    message = f"{_of(camera, 'modalities')}: expected one or more of {_MODALITIES}, each once, got {value!r}"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(message)
    modalities = tuple(value)
    if not modalities or any(m not in _MODALITIES for m in modalities) or len(set(modalities)) != len(modalities):
        raise ValueError(message)
    return modalities
