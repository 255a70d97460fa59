"""Error rates of the leak verdict on simulated memory series, healthy and leaking.

    python benchmarks/leak_detector.py --series 1000 --out leak_detector.json

Each series is a signal sampled at every step and reduced to interval minima, as `MemoryProfilingWrapper` does. Noise is
white plus AR(1) with a standard deviation of 0.02 to 0.3 MB, the range measured for the traced heap and the native
heap of real environments. A figure is the percentage of series called a leak. ``F5`` is the five-window rule the
verdict started from, ``guide`` the rule of thumb "any interval growing by 10 MB".
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fleet_gym.profiling.verdict import LEAK_THRESHOLD, judge

Array = NDArray[np.float64]
KB, MB = 1e3, 1e6
INTERVAL = 100
Maker = Callable[[np.random.Generator, Array], Array]


def warm_up(rng: np.random.Generator, t: Array, low: float = 0.02, high: float = 0.08) -> Array:
    return rng.uniform(2, 30) * MB * (1 - np.exp(-t / rng.uniform(low, high)))


def sawtooth(rng: np.random.Generator, t: Array, low: float, high: float, shortest: float, longest: float) -> Array:
    """Rises linearly and falls back to zero; each tooth has its own length (steps) and one height."""
    steps = len(t)
    period = rng.uniform(shortest, longest)
    lengths = period * rng.uniform(0.8, 1.2, size=int(2 * steps / shortest) + 2)
    ends = np.cumsum(lengths) - rng.uniform(0, period)
    tooth = np.searchsorted(ends, np.arange(steps), side="right")
    start = np.concatenate([[ends[0] - lengths[0]], ends])[tooth]
    return rng.uniform(low, high) * MB * (np.arange(steps) - start) / lengths[tooth]


def jumps(rng: np.random.Generator, t: Array, count: int) -> Array:
    level = np.zeros_like(t)
    for at in rng.uniform(0, 1, count):
        level += rng.uniform(1, 20) * MB * (t >= at)
    return level


def ratchet(rng: np.random.Generator, t: Array) -> Array:
    """RSS: pages once touched stay, so it is the running maximum of a noisy demand."""
    return np.maximum.accumulate(
        noise(rng, len(t)) * rng.uniform(1, 5) + rng.uniform(0.1, 0.5) * MB * rng.normal(size=len(t))
    )


def buffer_filling(rng: np.random.Generator, t: Array, full_at: float) -> Array:
    return rng.uniform(5, 50) * MB * np.minimum(t / full_at, 1)


def log_cache(rng: np.random.Generator, t: Array) -> Array:
    return rng.uniform(1, 5) * MB * np.log1p(t * rng.uniform(20, 200))


def random_walk(rng: np.random.Generator, t: Array) -> Array:
    return np.cumsum(rng.normal(size=len(t))) * 2 * MB / np.sqrt(len(t))


def leak(bytes_per_step: float, start: float = 0.0) -> Maker:
    return lambda rng, t: bytes_per_step * len(t) * np.maximum(t - start, 0)


def per_reset(size: float, every: int) -> Maker:
    return lambda rng, t: size * (np.arange(len(t)) // every)


def both(*makers: Maker) -> Maker:
    return lambda rng, t: np.sum([maker(rng, t) for maker in makers], axis=0)


def gc_saw(rng: np.random.Generator, t: Array) -> Array:
    return sawtooth(rng, t, 1, 8, 150, 900)


def video_saw(rng: np.random.Generator, t: Array) -> Array:
    return sawtooth(rng, t, 20, 60, 400, 2500)


HEALTHY: dict[str, Maker] = {
    "flat": lambda rng, t: np.zeros_like(t),
    "warm-up to a plateau": warm_up,
    "slow warm-up (tau 0.15 T)": lambda rng, t: warm_up(rng, t, 0.15, 0.15),
    "GC sawtooth 1-8 MB": gc_saw,
    "video sawtooth 20-60 MB": video_saw,
    "one step of 1-20 MB": lambda rng, t: jumps(rng, t, 1),
    "two steps": lambda rng, t: jumps(rng, t, 2),
    "RSS ratchet": ratchet,
    "buffer full at 0.4 T": lambda rng, t: buffer_filling(rng, t, 0.4),
    "buffer full at 0.7 T": lambda rng, t: buffer_filling(rng, t, 0.7),
    "log-growing cache": log_cache,
    "random walk, 2 MB net": random_walk,
}
LEAKING: dict[str, Maker] = {
    "0.3 kB/step": leak(0.3 * KB),
    "1 kB/step": leak(1 * KB),
    "10 kB/step": leak(10 * KB),
    "50 kB/step": leak(50 * KB),
    "585 kB per 500-step reset": per_reset(585 * KB, 500),
    "1 kB/step + warm-up": both(leak(1 * KB), warm_up),
    "1 kB/step + GC sawtooth": both(leak(1 * KB), gc_saw),
    "5 kB/step + video sawtooth": both(leak(5 * KB), video_saw),
    "5 kB/step from half-way": leak(5 * KB, start=0.5),
}


def noise(rng: np.random.Generator, steps: int) -> Array:
    """White plus AR(1) with a correlation time of 300 steps."""
    deviation = rng.uniform(0.02, 0.3) * MB
    white = rng.normal(size=steps)
    drive = rng.normal(size=steps // 20 + 2)
    slow = np.zeros_like(drive)
    keep = np.exp(-20 / 300)
    for i in range(1, len(drive)):
        slow[i] = keep * slow[i - 1] + np.sqrt(1 - keep * keep) * drive[i]
    slow = np.interp(np.arange(steps), 20 * np.arange(len(drive)), slow)
    return deviation * (white + slow) / np.sqrt(2)


def minima(maker: Maker, rng: np.random.Generator, steps: int) -> tuple[Array, Array]:
    """Returns interval minima and interval-end values of one series, bytes."""
    t = np.arange(steps) / steps
    series = 100 * MB + maker(rng, t) + noise(rng, steps)
    blocks = series[: steps // INTERVAL * INTERVAL].reshape(-1, INTERVAL)
    return blocks.min(axis=1), blocks[:, -1]


def f5(steps: Array, low: Array) -> bool:
    """The five-window rule: every floor rises, the last rise keeps up, none is over half of all, slope > threshold."""
    kept = slice(int(len(low) * 0.4), None)
    floors = np.array([window.min() for window in np.array_split(low[kept], 5)])
    rises = np.diff(floors)
    slope = np.polyfit(steps[kept], low[kept], 1)[0]
    total = floors[-1] - floors[0]
    return bool(
        (rises > 0).all() and rises[-1] >= rises.mean() / 2 and rises.max() <= total / 2 and slope > LEAK_THRESHOLD
    )


def flagged(name: str, maker: Maker, count: int, num_steps: int) -> dict[str, float]:
    """Returns the percentage of `count` series that each rule calls a leak."""
    rng = np.random.default_rng([2026, num_steps, zlib.crc32(name.encode())])
    hits = {"guide": 0, "F5": 0, "verdict": 0}
    steps = INTERVAL * np.arange(1, num_steps // INTERVAL + 1, dtype=np.float64)
    for _ in range(count):
        low, end = minima(maker, rng, num_steps)
        hits["guide"] += bool((np.diff(end) >= 10 * MB).any())
        hits["F5"] += f5(steps, low)
        hits["verdict"] += judge(steps, low).status == "leak"
    return {rule: 100 * hit / count for rule, hit in hits.items()}


def table(count: int, num_steps: int) -> dict[str, dict[str, float]]:
    """Measures and prints every class, then the means over healthy (false alarms) and leaking ones (detection)."""
    rows: dict[str, dict[str, float]] = {}
    print(f"\n{num_steps} steps, {count} series per class: % called a leak\n{'':28}{'guide':>8}{'F5':>8}{'verdict':>9}")
    for title, classes in (("false alarms", HEALTHY), ("detection", LEAKING)):
        for name, maker in classes.items():
            rows[name] = flagged(name, maker, count, num_steps)
            print("{:28}{guide:8.1f}{F5:8.1f}{verdict:9.1f}".format(name, **rows[name]))
        mean = {rule: float(np.mean([rows[name][rule] for name in classes])) for rule in ("guide", "F5", "verdict")}
        rows[f"mean {title}"] = mean
        print("{:28}{guide:8.1f}{F5:8.1f}{verdict:9.1f}".format(f"mean {title}", **mean))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=1000, help="series per class at 10,000 steps")
    parser.add_argument(
        "--lengths", type=int, nargs="*", default=[6_000, 20_000], help="other lengths, 300 series each"
    )
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    arguments = parser.parse_args()
    figures = {10_000: table(arguments.series, 10_000)}
    for length in arguments.lengths:
        figures[length] = table(min(300, arguments.series), length)
    if arguments.out:
        arguments.out.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
