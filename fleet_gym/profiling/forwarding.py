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


class ProfilesCalls(ForwardsToInner):
    """A wrapper around ``step`` and ``reset`` that is on or off.

    A copy (`copy.deepcopy`, `pickle`) steps an environment of its own, and profiles it from its own start.

    Attributes:
        _is_on: whether it profiles, or did before `close`.
        _is_open: whether it does now.
    """

    _HOME = "fleet_gym.wrappers."
    _MADE: tuple[str, ...] = ("step", "reset")
    _is_on: bool
    _is_open = False

    def _open(self) -> None:
        """Makes the profiler, if it is on, and binds."""
        raise NotImplementedError

    def _bind(self) -> None:
        """Binds the calls to `env` as it is now."""
        raise NotImplementedError

    def _shorten(self, **functions: Any) -> None:
        """Puts functions on the instance, where they are found before the class's methods: a call less.

        Not in place of a method in which a subclass does work of its own.
        """
        for name, function in functions.items():
            definer = next(parent for parent in type(self).__mro__ if name in vars(parent))
            if definer.__module__.startswith(self._HOME):
                vars(self)[name] = function

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute; another `env` is stepped from then on."""
        super().__setattr__(name, value)
        if name == "env" and "_is_on" in vars(self):
            self._bind()

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a copy is made of: all but the profiler."""
        return {name: value for name, value in vars(self).items() if name not in self._MADE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a copy of what `__getstate__` returned."""
        vars(self).update(state)
        self._is_on = self._is_open
        self._open()
