import logging
import os
import subprocess
import sys

import numba
import numpy as np
import pytest
from numba.core.caching import FunctionCache

from fleet_gym import _numba


def double(values):
    total = 0.0
    for i in range(len(values)):
        total += 2.0 / values[i]
    return total


def double_like_numpy(values):
    total = 0.0
    for i in range(len(values)):
        total += 2.0 / values[i]
    return total


@pytest.mark.parametrize("compiled", [_numba.compiled, _numba.compiled_like_numpy])
def test_without_a_cache_folder_functions_are_compiled_per_process(monkeypatch, compiled):
    njit = numba.njit

    def refuses_to_cache(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    with monkeypatch.context() as patch:
        patch.setattr(numba, "njit", refuses_to_cache)
        function = compiled(double)
    assert function(np.array([1.0, 4.0])) == 2.5


def test_a_full_disk_costs_the_cache_and_not_the_call(monkeypatch, caplog):
    def no_space(self, *_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FunctionCache, "load_overload", lambda self, *_: None)  # an earlier run's is on the disk
    monkeypatch.setattr(FunctionCache, "save_overload", no_space)
    function = _numba.compiled(double)
    with caplog.at_level(logging.WARNING, logger="fleet_gym"):
        assert function(np.array([1.0, 4.0])) == 2.5
        assert function(np.array([2.0])) == 1.0
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text


def test_division_by_zero_follows_the_error_model():
    with pytest.raises(ZeroDivisionError):
        _numba.compiled(double)(np.zeros(1))
    assert _numba.compiled_like_numpy(double_like_numpy)(np.zeros(1)) == np.inf


def test_loops_run_where_nothing_can_be_written():
    code = (
        "from numba.core import caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "import numpy as np\n"
        "from fleet_gym.world.forward_kinematics import FleetKinematics\n"
        "from fleet_gym.world.scene import Scene\n"
        "from fleet_gym.world.state import FleetState\n"
        "FleetKinematics(()).frames(FleetState.allocate(1, Scene(())), np.arange(1))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=300)


def test_cached_code_expires_when_a_file_it_is_made_of_changes(tmp_path):
    """numba itself looks at the calling function's file only, and would go on with what the others were."""
    package = tmp_path / "walk"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "shoes.py").write_text("SIZE = 1.0\n")
    (package / "leg.py").write_text(
        "from fleet_gym._numba import compiled_inner\nfrom walk.shoes import SIZE\n"
        "@compiled_inner\ndef stride(x):\n    return x * SIZE\n"
    )
    (package / "body.py").write_text(
        "from fleet_gym._numba import compiled\nfrom walk.leg import stride\n"
        "@compiled\ndef walk(x):\n    return 10.0 * stride(x)\n"
    )
    code = "from walk.body import walk; print(walk(1.0), sum(walk.stats.cache_hits.values()))"

    def run():
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        environment["NUMBA_CACHE_DIR"] = str(tmp_path / "cache")
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert run() == ["10.0", "0"]
    assert run() == ["10.0", "1"]
    (package / "shoes.py").write_text("SIZE = 2.0\n")
    assert run() == ["20.0", "0"]
    leg = (package / "leg.py").read_text()
    (package / "leg.py").write_text(leg.replace("x * SIZE", "x + SIZE"))
    assert run() == ["30.0", "0"]
    assert run() == ["30.0", "1"]


@pytest.mark.parametrize(("suffix", "kept"), [(".nbi", 0), (".nbi", 20), (".nbc", 0), (".nbc", 500)])
def test_cut_off_cache_files_are_made_again(tmp_path, suffix, kept):
    (tmp_path / "walk.py").write_text(
        "from fleet_gym._numba import compiled\n@compiled\ndef walk(x):\n    return 10.0 * x\n"
        "print(walk(1.0), sum(walk.stats.cache_hits.values()))\n"
    )

    def run():
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        environment["NUMBA_CACHE_DIR"] = str(tmp_path / "cache")
        done = subprocess.run(
            [sys.executable, "-c", "import walk"], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.split(), done.stderr

    assert run() == (["10.0", "0"], "")
    files = [*(tmp_path / "cache").rglob(f"*{suffix}")]
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:kept])
    output, warning = run()
    assert output == ["10.0", "0"]
    assert "cached code could not be read" in warning
    assert run() == (["10.0", "1"], "")


def test_inner_code_is_linked_into_its_callers_and_nothing_else(tmp_path):
    # A process of its own: what was compiled before must not be at hand.
    code = """
import numpy as np
from numba.core import event
from fleet_gym._numba import compiled_inner, compiled_like_numpy

@compiled_inner
def square(x):
    return x * x

@compiled_inner
def cube(x):
    return square(x) * x

@compiled_like_numpy
def total(values):
    sum = 0.0
    for i in range(len(values)):
        sum += cube(values[i]) + square(values[i])
    return sum

print(total(np.arange(4.0)))
for inner in cube.overloads.values():  # none when `total` came from the cache
    print(inner.library.get_pointer_to_function(inner.fndesc.llvm_func_name))
"""
    script = tmp_path / "loops.py"
    script.write_text(code)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for printed in ("50.0\n0\n", "50.0\n"):  # compiled; from the cache
        done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
        assert done.stdout == printed, done.stderr
