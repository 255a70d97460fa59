"""The scripts behind `make`: which Python they take, and what they say where none fits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def script(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def interpreter(tmp_path: Path, name: str, preamble: str) -> Path:
    """A Python on PATH that runs `preamble` before what it is asked to run with -c."""
    return script(tmp_path, name, f"exec '{sys.executable}' -c '{preamble}; exec(sys.argv[1])' \"$2\"")


def run(command: list[str], path: Path | None = None) -> subprocess.CompletedProcess[str]:
    # The tests may run under make themselves; its variables must not reach the one under test.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    if path is not None:
        # Only these interpreters; the tools the scripts use come from /usr/bin under their own names.
        for tool in ("sh", "cut", "mktemp", "rm", "grep", "cat"):
            if not (path / tool).exists():
                (path / tool).symlink_to(next(p for p in (f"/bin/{tool}", f"/usr/bin/{tool}") if os.path.exists(p)))
        environment["PATH"] = str(path)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


def find_python(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(["/bin/sh", "scripts/find_python.sh", *arguments], path)


def as_version(*version: int) -> str:
    dotted = ".".join(map(str, version))
    return f'import platform, sys; sys.version_info = {version!r}; platform.python_version = lambda: "{dotted}"'


def test_the_newest_python_that_fits_is_taken(tmp_path: Path) -> None:
    interpreter(tmp_path, "python3", as_version(3, 13, 0))
    interpreter(tmp_path, "python3.10", as_version(3, 10, 13))
    wanted = interpreter(tmp_path, "python3.11", as_version(3, 11, 7))
    assert find_python(tmp_path).stdout.strip() == str(wanted)


def test_a_name_that_runs_nothing_is_passed_over(tmp_path: Path) -> None:
    script(tmp_path, "python3.11", "echo 'python3.11: command not found' >&2; exit 127")
    wanted = interpreter(tmp_path, "python3.10", as_version(3, 10, 13))
    assert find_python(tmp_path).stdout.strip() == str(wanted)


@pytest.mark.parametrize("version", [(3, 9, 18), (3, 12, 1), (3, 13, 0)])
def test_a_python_without_a_pybullet_wheel_is_one_line_with_the_remedy(
    tmp_path: Path, version: tuple[int, int, int]
) -> None:
    interpreter(tmp_path, "python3", as_version(*version))
    result = find_python(tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert "CPython 3.10 or 3.11" in line
    assert f"python3={'.'.join(map(str, version))}" in line
    assert "install python3.11" in line


def test_no_python_at_all_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    result = find_python(tmp_path)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "found none" in line
    assert "install python3.11" in line


def test_a_python_without_venv_is_one_line_with_the_debian_package(tmp_path: Path) -> None:
    interpreter(tmp_path, "python3", as_version(3, 11, 2) + '; sys.modules["ensurepip"] = None')
    result = find_python(tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert "apt-get install python3.11-venv" in line


def test_a_named_python_is_the_only_candidate(tmp_path: Path) -> None:
    interpreter(tmp_path, "python3.11", as_version(3, 11, 7))
    named = interpreter(tmp_path, "mypython", as_version(3, 12, 0))
    result = find_python(tmp_path, str(named))
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{named}=3.12.0" in result.stderr


def install(tmp_path: Path, pip_output: str) -> subprocess.CompletedProcess[str]:
    """Runs the install script with a Python whose pip prints `pip_output` and fails."""
    code = f"[ \"$1\" = -m ] && {{ printf '{pip_output}'; exit 1; }}; exec '{sys.executable}' \"$@\""
    return run(["/bin/sh", "scripts/pip_install.sh", str(script(tmp_path, "python", code)), "-e", "."])


def test_a_missing_wheel_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    result = install(tmp_path, "ERROR: No matching distribution found for pybullet>=3.2.7\\n")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert "no PyBullet wheel for CPython" in line
    assert "CPython 3.10 or 3.11 on Linux x86_64" in line


def test_a_missing_network_is_not_mistaken_for_a_missing_wheel(tmp_path: Path) -> None:
    output = "WARNING: Retrying after connection broken\\nERROR: No matching distribution found for pybullet\\n"
    result = install(tmp_path, output)
    assert result.returncode == 1
    assert "Retrying after connection broken" in result.stderr
    assert "no PyBullet wheel" not in result.stderr


def test_other_pip_errors_are_shown_in_full(tmp_path: Path) -> None:
    result = install(tmp_path, "ERROR: something else\\n")
    assert result.returncode == 1
    assert result.stderr.splitlines() == ["ERROR: something else", "error: pip could not install -e ."]


def test_help_lists_every_target() -> None:
    listed = {line.split()[1] for line in run(["make", "--no-print-directory", "help"]).stdout.splitlines()}
    assert listed == {"help", "demo", "test", "test-integrations", "test-rllib", "lint", "docs", "bench", "clean"}


def test_only_a_changed_pyproject_installs_again(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    (tmp_path / ".venv").mkdir()
    for seconds, name in enumerate(("pyproject.toml", ".venv/.stamp-venv", ".venv/.stamp-test"), start=1_000_000):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    # Named outright: a VENV given to the make that runs this test is in the environment.
    question = ["make", "-C", str(tmp_path), "VENV=.venv", "--question", ".venv/.stamp-test"]
    assert run(question).returncode == 0
    (tmp_path / "pyproject.toml").touch()
    assert run(question).returncode == 1


@pytest.mark.parametrize("broken", ["lint", "docs", "test", "test-integrations"])
def test_ci_runs_every_part_and_fails_if_one_did(tmp_path: Path, broken: str) -> None:
    script(tmp_path, "make", f'echo "make $1 ran"; [ "$1" != {broken} ]')
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", ".ci/run"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    for part in ("lint", "docs", "test", "test-integrations"):
        assert f"make {part} ran" in result.stdout
    assert "FAILED" in result.stdout.split("summary")[1]


def test_ci_passes_if_every_part_does(tmp_path: Path) -> None:
    script(tmp_path, "make", "exit 0")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", ".ci/run"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert "FAILED" not in result.stdout
