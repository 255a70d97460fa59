"""Which episode each world is in, from which seed, with which generator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from fleet_gym._validation import non_negative_int

#: Drawn seeds stay below 2**53, so that they survive JSON, spreadsheets and float64 columns.
_SEED_LIMIT = 2**53


class EpisodeSeeds:
    """One random generator per world, reseeded at every episode, so that any episode can be replayed by its seed.

    A reset without a seed draws the next one from the world's generator. Generators nobody has seeded start from the
    operating system's entropy.

    Attributes:
        index: (E,) int64, -1 before the first reset; every reset adds 1.
        seed: (E,) int64 seed of the current episode.
        generators: one per world; the current episode draws from it.
    """

    def __init__(self, num_envs: int) -> None:
        self.index = np.full(num_envs, -1, dtype=np.int64)
        self.seed = np.full(num_envs, -1, dtype=np.int64)
        self.generators = [seeding.np_random()[0] for _ in range(num_envs)]

    def draw(
        self, worlds: NDArray[np.intp], seeds: Sequence[int | None]
    ) -> tuple[list[int], list[np.random.Generator]]:
        """Returns seed and new generator of the next episode of each given world, changing nothing yet.

        Args:
            worlds: (n,) indices.
            seeds: n seeds; None draws one.
        """
        drawn = []
        for world, seed in zip(worlds, seeds, strict=True):
            if seed is None:
                # A copy, so that a failed reset leaves the generator where it was.
                peek = np.random.Generator(type(self.generators[world].bit_generator)())
                peek.bit_generator.state = self.generators[world].bit_generator.state
                seed = int(peek.integers(_SEED_LIMIT))
            drawn.append(seed)
        return drawn, [seeding.np_random(seed)[0] for seed in drawn]

    def begin(self, worlds: NDArray[np.intp], seeds: list[int], generators: list[np.random.Generator]) -> None:
        """Starts the episodes `draw` prepared."""
        self.index[worlds] += 1
        self.seed[worlds] = seeds
        for world, generator in zip(worlds, generators, strict=True):
            self.generators[world] = generator


def expand_seed(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """Returns one seed per world: ``seed + i`` for an int, the list's own entries, or None everywhere.

    Raises:
        TypeError: for anything else.
        ValueError: for a list of another length, a negative seed, or one that an int64 cannot hold.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, np.ndarray):
        seed = seed.tolist()
    if isinstance(seed, Sequence) and not isinstance(seed, str):
        if len(seed) != num_envs:
            raise ValueError(f"seed: expected one seed per world, {num_envs}, got a list of {len(seed)}")
        return [None if entry is None else _checked_seed(entry, 0) for entry in seed]
    return [_checked_seed(seed, i) for i in range(num_envs)]


def _checked_seed(seed: object, offset: int) -> int:
    number = non_negative_int("seed", seed) + offset
    if number >= 2**63:
        raise ValueError(f"seed: expected a seed below 2**63, got {number}")
    return number
