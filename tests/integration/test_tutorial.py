"""Every command of the tutorial runs as written, with arguments that make it short. Needs what the examples need."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from fleet_gym.evaluation import read_run
from fleet_gym.evaluation.policy_files import read_policy
from fleet_gym.video import read_episodes

ROOT = Path(__file__).parents[2]
TINY = "--num-envs 4 --rollout-steps 16 --minibatch 64 --evaluate-every 2 --evaluation-episodes 2"
#: Added to commands that contain the key; the longest key counts.
SHORTER = {
    "ppo_navigation.py": f"{TINY} --total-steps 128 --max-episode-steps 20",
    "ppo_navigation.py --seed 0 --resume": "--total-steps 192",
    "vision_navigation.py": f"{TINY} --total-steps 128",
    "sb3_navigation.py": "--num-envs 2 --total-steps 128 --episodes 2",
    "fleet-gym evaluate": "--episodes 2 --num-envs 2 --max-steps 20",
}


def commands() -> list[str]:
    page = (ROOT / "docs/tutorial.md").read_text()
    return [line for block in re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL) for line in block.splitlines()]


def test_the_tutorial_s_commands_run_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "fleet_gym").mkdir()
    (tmp_path / "fleet_gym/examples").symlink_to(ROOT / "examples")
    printed = {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # networks this small only wait for more
    for line in commands():
        key = max((key for key in SHORTER if key in line), key=len, default="")
        program, *arguments = shlex.split(f"{line} {SHORTER.get(key, '')}")
        program = str(Path(sys.executable).with_name(program))
        done = subprocess.run(
            [program, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
        printed[line] = done.stdout
    assert {" ".join(line.split()[:2]) for line in printed} == {
        *(f"fleet-gym {command}" for command in ("evaluate", "compare", "gallery", "memory")),
        *(f"python fleet_gym/examples/{name}_navigation.py" for name in ("ppo", "vision", "sb3")),
    }
    runs = tmp_path / "runs"
    for folder in (
        tmp_path / "scripted",
        tmp_path / "trained",
        runs / "ppo_navigation/scripted",
        runs / "ppo_navigation/evaluation-128",
        runs / "ppo_navigation/evaluation-192",  # after the resume
        runs / "vision_navigation/evaluation",
    ):
        assert len(read_run(folder).episodes) == 2
        assert (folder / "report.html").stat().st_size > 10_000
        assert all((folder / file["file"]).exists() for row in read_episodes(folder) for file in row["files"])
    assert read_run(tmp_path / "trained").seeds == read_run(tmp_path / "scripted").seeds == [1_000_000, 1_000_001]
    assert "2 pairs" in printed["fleet-gym compare scripted trained"]
    for page in ("compare.html", "runs/ppo_navigation/videos/index.html", "runs/ppo_navigation/memory.html"):
        assert (tmp_path / page).stat().st_size > 1_000
    assert read_policy(str(runs / "sb3_navigation/policy.pt")) is not None
