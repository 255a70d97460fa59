"""pytest plugin, loaded wherever fleet_gym is installed: the marker ``limit_leak``, the fixture ``assert_no_leak``."""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fleet_gym.testing.leaks import LeakMeasurement


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line(
        "markers",
        "limit_leak(cycles=100, max_native_bytes=512, max_blocks=1, warm_up=None): repeats the test and fails it if"
        " memory grows with each repetition, as fleet_gym.testing.assert_no_leak.",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fails a marked test that `pytest_pyfunc_call` never sees: it would pass without a measurement."""
    if item.get_closest_marker("limit_leak") is None:
        return
    owner = getattr(item, "cls", None)
    if not isinstance(item, pytest.Function) or (owner is not None and issubclass(owner, unittest.TestCase)):
        kind = "unittest.TestCase" if owner is not None else type(item).__name__
        raise TypeError(f"limit_leak: expected a function or a method of a plain class, got {item.name} of a {kind}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a marked test under `assert_no_leak`; its fixtures are set up once."""
    marker = pyfuncitem.get_closest_marker("limit_leak")
    if marker is None:
        return None
    from fleet_gym.testing.leaks import assert_no_leak

    if marker.args:
        raise TypeError(f"limit_leak: expected keyword arguments only, got {marker.args!r}")
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        raise TypeError(f"limit_leak: expected a plain function, got the coroutine function {pyfuncitem.name}")
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names if name in pyfuncitem.funcargs}
    assert_no_leak(lambda: pyfuncitem.obj(**arguments), **marker.kwargs)
    return True


@pytest.fixture(name="assert_no_leak")
def _assert_no_leak() -> Callable[..., LeakMeasurement]:
    """`fleet_gym.testing.assert_no_leak`, without an import."""
    from fleet_gym.testing import leaks

    checked: Any = leaks.assert_no_leak
    return checked  # type: ignore[no-any-return]
