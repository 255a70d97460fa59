"""Random placement of discs without overlap, one world at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet_gym._numba import compiled

#: Candidate positions tried for one disc before the whole placement starts over.
MAX_TRIES = 1000
#: What fits a few times within `TRIAL_RESTARTS` will, for all one can expect, always fit within `MAX_RESTARTS`.
TRIAL_RESTARTS = 20
MAX_RESTARTS = 5000


class PlacementError(ValueError):
    """The discs do not fit.

    Attributes:
        placed: how many fitted in the best attempt.
    """

    def __init__(self, placed: int, total: int) -> None:
        super().__init__(f"{placed} of {total} discs placed without overlap")
        self.placed = placed


def place_discs(
    rng: np.random.Generator,
    radius: NDArray[np.float64],
    half_side: float,
    clearance: float,
    partner: NDArray[np.int64],
    partner_distance: float,
    restarts: int = MAX_RESTARTS,
) -> NDArray[np.float64]:
    """Draws disc centres uniformly in a square, one after the other, none overlapping an earlier one.

    Args:
        rng: draws come from here; how many depends on its own values only.
        radius: (N,) m.
        half_side: half the square's side, m; discs lie inside it entirely.
        clearance: smallest gap between discs, m.
        partner: (N,) index of an earlier disc to keep further away from, or -1.
        partner_distance: smallest centre distance to the partner, m.
        restarts: how often to start over before giving up.

    Returns:
        (N, 2) float64, m.

    Raises:
        PlacementError: when no placement was found.
    """
    center = np.zeros((len(radius), 2))
    best = 0
    for _ in range(restarts):
        placed, tries = 0, 0
        while placed < len(radius) and tries < MAX_TRIES:
            uniform = rng.random((4 * len(radius), 2))
            placed, tries = _place(
                uniform, radius, half_side, clearance, partner, partner_distance, placed, tries, center
            )
        if placed == len(radius):
            return center
        best = max(best, placed)
    raise PlacementError(best, len(radius))


@compiled
def _place(
    uniform: NDArray[np.float64],
    radius: NDArray[np.float64],
    half_side: float,
    clearance: float,
    partner: NDArray[np.int64],
    partner_distance: float,
    placed: int,
    tries: int,
    center: NDArray[np.float64],
) -> tuple[int, int]:
    """Uses up a block of uniform draws; returns the number of discs placed and of tries for the next one."""
    for row in range(uniform.shape[0]):
        if placed == radius.shape[0] or tries >= MAX_TRIES:
            break
        room = half_side - radius[placed]
        x = (2 * uniform[row, 0] - 1) * room
        y = (2 * uniform[row, 1] - 1) * room
        free = room >= 0
        for other in range(placed):
            dx = x - center[other, 0]
            dy = y - center[other, 1]
            apart = radius[placed] + radius[other] + clearance
            if other == partner[placed]:
                apart = max(apart, partner_distance)
            if dx * dx + dy * dy < apart * apart:
                free = False
                break
        if free:
            center[placed, 0] = x
            center[placed, 1] = y
            placed += 1
            tries = 0
        else:
            tries += 1
    return placed, tries
