"""What an evaluation found: episodes, averages with intervals, and what it takes to play it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fleet_gym.evaluation.play import Episode, by_world
from fleet_gym.evaluation.statistics import Estimate, bootstrap_mean, checked_confidence, wilson_interval

FORMAT = "fleet_gym.evaluation/1"


@dataclass(frozen=True)
class WorldResult:
    """The episodes of one world.

    Attributes:
        env: its index.
        episodes: how many it played.
        success: share of successes, None when the environment does not say.
        mean_return: of its episodes.
    """

    env: int
    episodes: int
    success: Estimate | None
    mean_return: float


@dataclass(frozen=True)
class EvaluationResult:
    """An evaluation's outcome.

    Attributes:
        episodes: by index.
        confidence: of the intervals.
        config: what was evaluated; two runs with equal ones have equal episodes.
        versions: of Python, this package and what decides about results.
        timings: of the session that finished it: ``steps`` of the vector environment, ``wall_s``, ``cpu_s``, and
            ``resumed_episodes``, which sessions before it had played.
        memory: verdicts of the memory profiler and the highest RSS, empty without profiling.
        folder: where its files are, None when it wrote none.
    """

    episodes: tuple[Episode, ...]
    confidence: float = 0.95
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    @cached_property
    def success(self) -> Estimate | None:
        """Share of successful episodes with Wilson's interval; None when an episode does not say."""
        return _success(self.episodes, self.confidence)

    @cached_property
    def mean_return(self) -> Estimate:
        """Mean return with a bootstrap interval."""
        return bootstrap_mean([episode.episode_return for episode in self.episodes], self.confidence)

    @cached_property
    def length(self) -> Estimate:
        """Mean number of steps with a bootstrap interval."""
        return bootstrap_mean([episode.steps for episode in self.episodes], self.confidence)

    @cached_property
    def collisions(self) -> Estimate | None:
        """Mean number of collisions with a bootstrap interval; None when an episode does not say."""
        counts = [episode.collisions for episode in self.episodes if episode.collisions is not None]
        return bootstrap_mean(counts, self.confidence) if len(counts) == len(self.episodes) else None

    @property
    def metrics(self) -> dict[str, Estimate]:
        """The averages by name: ``success``, ``return``, ``length``, ``collisions``; those there are."""
        found = {
            "success": self.success,
            "return": self.mean_return,
            "length": self.length,
            "collisions": self.collisions,
        }
        return {name: estimate for name, estimate in found.items() if estimate is not None}

    @property
    def seeds(self) -> list[int]:
        """Seed of each episode."""
        return [episode.seed for episode in self.episodes]

    @property
    def worlds(self) -> list[WorldResult]:
        """The figures of each world that played."""
        return [
            WorldResult(
                world,
                len(episodes),
                _success(episodes, self.confidence),
                sum(episode.episode_return for episode in episodes) / len(episodes),
            )
            for world, episodes in by_world(self.episodes).items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Returns the content of ``results.json``."""
        return {
            "format": FORMAT,
            "metrics": {name: asdict(estimate) for name, estimate in self.metrics.items()},
            "config": dict(self.config),
            "versions": dict(self.versions),
            "timings": dict(self.timings),
            "memory": dict(self.memory),
            "seeds": self.seeds,
            "worlds": [asdict(world) for world in self.worlds],
            "episodes": [asdict(episode) for episode in self.episodes],
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any], folder: Path | None = None) -> EvaluationResult:
        """Reads what `to_json` returned.

        Raises:
            ValueError: when it is something else.
        """
        if document.get("format") != FORMAT:
            raise ValueError(f"results.json: expected one of this version, {FORMAT}, got {document.get('format')!r}")
        try:
            episodes = tuple(Episode(**row) for row in document["episodes"])
            confidence = checked_confidence(document["metrics"]["return"]["confidence"])
            parts = {name: document[name] for name in ("config", "versions", "timings", "memory")}
        except (KeyError, TypeError) as error:
            what = f"one without {error}" if isinstance(error, KeyError) else f"others ({error})"
            raise ValueError(f"results.json: expected the results of an evaluation, got {what}") from None
        if not episodes or not all(isinstance(part, Mapping) for part in parts.values()):
            raise ValueError("results.json: expected the results of an evaluation, got damaged ones")
        return cls(episodes, confidence, folder=folder, **parts)


def _success(episodes: Sequence[Episode], confidence: float) -> Estimate | None:
    said = [episode.success for episode in episodes if episode.success is not None]
    return wilson_interval(sum(said), len(said), confidence) if len(said) == len(episodes) else None
