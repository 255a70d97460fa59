"""Cameras: where they stand and what they record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

Modality = Literal["rgb", "depth", "segmentation"]
_MODALITIES = ("rgb", "depth", "segmentation")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


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
        rotation: mounted cameras: quaternion xyzw, link frame.
        modalities: any of ``"rgb"``, ``"depth"``, ``"segmentation"``.
        render_every: draw every so many steps; between draws the last image is repeated (the first and last frames
            of an episode are always drawn).
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
