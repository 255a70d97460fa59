"""The kinematic step written with plain NumPy: arrays of complex numbers for motion, sampled times for contact.

Slow and short. Gaps come from the corners and edges of polygons, times of contact from bisection between samples.
"""

from __future__ import annotations

import numpy as np

SKIN = 1e-6
ROUNDS = 16
#: How often a step is looked at where shapes are apart, and where they touch.
SAMPLES, PROBES = 256, 128


class Mover:
    """A convex outline, swollen by a radius, that moves along a chord and turns evenly meanwhile; complex plane."""

    def __init__(self, corners, radius, origin, yaw, displacement=0j, turn=0.0):
        self.corners, self.radius = np.asarray(corners, complex), radius
        self.origin, self.yaw, self.displacement, self.turn = origin, yaw, displacement, turn

    def outline(self, t):
        """Corners at the times t: (T, k)."""
        t = np.atleast_1d(t)[:, None]
        return self.origin + t * self.displacement + self.corners * np.exp(1j * (self.yaw + t * self.turn))


def gap(a, at_a, b, at_b):
    """Gaps at many times, negative by the depth of the least overlap of two boxes."""
    p, q = np.broadcast_arrays(a.outline(at_a)[..., None], b.outline(at_b)[:, None, :])
    p, q = p[:, :, 0], q[:, 0, :]
    depth = np.full(len(p), -np.inf)
    for polygon in (p, q):
        normals = 1j * (np.roll(polygon, -1, axis=1) - polygon)
        for normal in (normals / np.maximum(np.abs(normals), 1e-300)).T:
            # Distance of the projections onto one axis.
            along_p, along_q = (p * normal.conj()[:, None]).real, (q * normal.conj()[:, None]).real
            apart = np.maximum(along_q.min(1) - along_p.max(1), along_p.min(1) - along_q.max(1))
            depth = np.where(np.abs(normal) > 0.5, np.maximum(depth, apart), depth)
    near = np.minimum(_corner_to_edges(p, q), _corner_to_edges(q, p))
    return np.where(depth > 0, near, np.where(np.isfinite(depth), depth, near)) - a.radius - b.radius


def _corner_to_edges(p, q):
    near = np.full(len(p), np.inf)
    ends = np.roll(q, -1, axis=1)
    for corner in p.T:
        edge, to = ends - q, corner[:, None] - q
        share = np.clip((to * edge.conj()).real / np.maximum(np.abs(edge) ** 2, 1e-300), 0, 1)
        near = np.minimum(near, np.abs(to - share * edge).min(1))
    return near


def entry(a, stop_a, b, stop_b, limit):
    """First time at which two movers come within `limit` while they approach, or None."""

    def apart(t):
        return gap(a, np.minimum(t, stop_a), b, np.minimum(t, stop_b))

    t, last = 0.0, max(stop_a, stop_b)
    while t < last:
        end = min(stop for stop in (stop_a, stop_b) if stop > t)
        times = np.append(np.arange(t, end, 1 / PROBES), end)
        gaps = apart(times)
        if gaps[0] > limit:
            break
        shrinks, leaves = gaps[1:] < gaps[:-1] - 1e-12, gaps[1:] > limit
        first = np.flatnonzero(shrinks | leaves)
        if len(first) and shrinks[first[0]]:
            return times[first[0]]
        t = times[first[0] + 1] if len(first) else end
    if t >= last:
        return None
    times = np.linspace(t, last, SAMPLES)
    while True:
        within = np.flatnonzero(apart(times) <= limit)
        if len(within) == 0:
            return None
        before, after = times[within[0] - 1], times[within[0]]
        if after - before < 1e-13:
            return before
        times = np.linspace(before, after, 33)


def closes(a, at_a, b, at_b):
    """Whether a alone comes nearer to b."""
    if len(a.corners) == len(b.corners) == 1:
        between = b.outline(at_b)[0, 0] - a.outline(at_a)[0, 0]
        return (a.displacement * np.conj(between)).real > 0
    return gap(a, at_a + 1 / PROBES, b, at_b)[0] < gap(a, at_a, b, at_b)[0] - 1e-12


def sweep(movers, margins, candidates, respond):
    """Stops of robots, and which candidates (i, j) touch; the movers behind the robots are obstacles."""
    num_robots = len(margins)
    stop = np.zeros(len(movers))
    stop[:num_robots] = 1.0
    margins = np.append(margins, np.zeros(len(movers) - num_robots))
    touching = set()
    changed, refinement = True, 0
    while changed:
        changed = False
        for i, j in candidates:
            t = entry(movers[i], stop[i], movers[j], stop[j], margins[i] + margins[j] + SKIN)
            if t is None:
                continue
            touching.add((i, j))
            if respond:
                moving = [n for n in (i, j) if t < stop[n]]
                at = np.minimum(t, stop)
                who = [n for n in moving if closes(movers[n], at[n], movers[i + j - n], at[i + j - n])]
                if j >= num_robots or not who:
                    who = moving
                stop[who] = 0.0 if refinement >= ROUNDS else t
                changed |= bool(who)
        refinement += 1
    for i, j in candidates:
        ends = gap(movers[i], stop[i], movers[j], stop[j])[0]
        if ends <= 2 * SKIN or gap(movers[i], 0.0, movers[j], 0.0)[0] <= 0:
            touching.add((i, j))
    return stop, touching
