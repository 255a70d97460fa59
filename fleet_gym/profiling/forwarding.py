"""What a wrapper passes on from the wrappers inside it, which Gymnasium's vector wrappers do not do by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from fleet_gym.profiling.phases import NO_PHASE

if TYPE_CHECKING:
    from fleet_gym.profiling.report import MemoryReport


def find_inner(env: Any, name: str) -> Any:
    """Returns `name` of the outermost environment in the chain `env`, ``env.env``, ... that has it, or None."""
    while env is not None:
        if (found := getattr(env, name, None)) is not None:
            return found
        env = vars(env).get("env")
    return None


class ForwardsToInner:
    """Passes on `autoreset_mode` of the environment inside, and what the profilers inside say."""

    env: Any

    @property
    def autoreset_mode(self) -> Any:
        """The autoreset mode of the environment inside, None when it does not say."""
        found = find_inner(self.env, "autoreset_mode")
        return found if found is not None else self.env.metadata.get("autoreset_mode")

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Charges the time of a ``with`` block to `name` in the `TimeProfilingWrapper` inside; without one, a no-op."""
        inner = find_inner(self.env, "phase")
        return NO_PHASE if inner is None else inner(name)

    @property
    def last_profiling(self) -> Mapping[str, Any] | None:
        """The latest record of the `TimeProfilingWrapper` inside, None without one."""
        return find_inner(self.env, "last_profiling")  # type: ignore[no-any-return]

    def get_memory_usage(self) -> dict[str, float] | None:
        """What the `MemoryProfilingWrapper` inside holds, None without one."""
        inner = find_inner(self.env, "get_memory_usage")
        return None if inner is None else inner()

    def memory_report(self) -> MemoryReport | None:
        """The report of the `MemoryProfilingWrapper` inside, None without one."""
        inner = find_inner(self.env, "memory_report")
        return None if inner is None else inner()
