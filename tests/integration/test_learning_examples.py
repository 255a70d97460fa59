"""The examples that learn, for a few updates each. Need PyTorch, TensorBoard and Stable-Baselines3."""

from __future__ import annotations

import csv
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fleet_gym.evaluation.policy_files import read_policy
from fleet_gym.video import read_episodes

torch.set_num_threads(1)

ROOT = Path(__file__).parents[2]
#: Four rollouts of 21 steps in 4 worlds: an episode and the step that resets it.
SHORT = ["--num-envs", "4", "--max-episode-steps", "20", "--rollout-steps", "21", "--minibatch", "64"]
SHORT += ["--evaluate-every", "2", "--evaluation-episodes", "4", "--record-every", "2"]
STEPS_PER_UPDATE = 4 * 21
EVALUATION = f"evaluation-{4 * STEPS_PER_UPDATE}"


HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{missing}":
            raise ModuleNotFoundError("No module named '{missing}'", name="{missing}")

sys.meta_path.insert(0, Hidden())
"""


def run(example: str, folder: Path, *arguments: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / example), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == expect, done.stderr[-3000:]
    return done


def frames(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def progress(run_folder: Path) -> list[int]:
    with (run_folder / "progress.csv").open(newline="") as file:
        return [int(row["steps"]) for row in csv.DictReader(file)]


def updates(run_folder: Path) -> int:
    return int(torch.load(run_folder / "checkpoint.pt", weights_only=True)["update"])


@pytest.fixture(scope="module")
def ppo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, from training to both evaluations."""
    folder = tmp_path_factory.mktemp("ppo")
    run("ppo_navigation.py", folder, *SHORT, "--total-steps", str(4 * STEPS_PER_UPDATE))
    return folder / "runs/ppo_navigation"


def test_ppo_leaves_a_checkpoint_a_policy_and_two_reports(ppo_run: Path) -> None:
    assert updates(ppo_run) == 4
    assert progress(ppo_run) == [2 * STEPS_PER_UPDATE, 4 * STEPS_PER_UPDATE]
    assert (ppo_run / "memory.jsonl").stat().st_size > 0
    seeds = []
    for name in (EVALUATION, "scripted"):
        results = json.loads((ppo_run / name / "results.json").read_text())
        seeds.append(results["seeds"])
        assert results["metrics"]["success"]["n"] == 4
        assert (ppo_run / name / "report.html").stat().st_size > 10_000
    assert seeds[0] == seeds[1] == [1_000_000, 1_000_001, 1_000_002, 1_000_003]


@pytest.mark.parametrize("folder", ["videos", EVALUATION])
def test_ppo_s_videos_are_whole(ppo_run: Path, folder: str) -> None:
    rows = read_episodes(ppo_run / folder)
    assert len(rows) == {"videos": 2, EVALUATION: 4}[folder]
    for row in rows:
        assert [frames(ppo_run / folder / file["file"]) for file in row["files"]] == [row["steps"] + 1]


def test_the_recorder_s_returns_are_those_the_training_counted(ppo_run: Path) -> None:
    events = EventAccumulator(str(ppo_run)).Reload()
    counted = [event.value for event in events.Scalars("world_0/return")]
    rows = {row["episode"]: row["return"] for row in read_episodes(ppo_run / "videos")}
    assert sorted(rows) == [0, 2]
    for episode, recorded in rows.items():
        assert counted[episode] == pytest.approx(recorded, rel=1e-6)  # TensorBoard keeps a float32


def test_the_trained_policy_is_evaluated_from_the_command_line(ppo_run: Path, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("fleet-gym")), "evaluate", "--policy", str(ppo_run / "policy.pt")]
    command += ["--episodes", "4", "--seed", "1000000", "--videos", "0", "--out", str(tmp_path / "out")]
    subprocess.run(command, check=True, capture_output=True)
    by_hand = json.loads((tmp_path / "out/results.json").read_text())
    by_example = json.loads((ppo_run / EVALUATION / "results.json").read_text())
    assert by_hand["metrics"]["return"]["value"] == pytest.approx(by_example["metrics"]["return"]["value"], rel=1e-5)
    assert by_hand["metrics"]["length"] == by_example["metrics"]["length"]


@pytest.mark.parametrize(
    ("example", "missing", "extras"),
    [
        ("ppo_navigation.py", "torch", "examples"),
        ("ppo_navigation.py", "tensorboard", "examples"),
        ("vision_navigation.py", "torch", "examples"),
        ("sb3_navigation.py", "stable_baselines3", "sb3,tensorboard"),
        ("sb3_navigation.py", "tensorboard", "sb3,tensorboard"),
    ],
)
def test_what_is_missing_is_one_line_with_the_command(example: str, missing: str, extras: str, tmp_path: Path) -> None:
    # As if it were not installed, for every import of it.
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(missing=missing))
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"No module named '{missing}': pip install 'fleet-gym[{extras}]'\n"
    assert not (tmp_path / "runs").exists()


def test_ppo_does_not_train_over_another_run(ppo_run: Path) -> None:
    folder = ppo_run.parents[1]
    done = run("ppo_navigation.py", folder, *SHORT, "--total-steps", str(STEPS_PER_UPDATE), expect=1)
    assert "add --resume" in done.stderr
    assert "Traceback" not in done.stderr
    assert updates(ppo_run) == 4


def test_a_killed_training_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/ppo_navigation.py"), *SHORT, "--total-steps", "100000000"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run_folder = tmp_path / "runs/ppo_navigation"
    deadline = time.monotonic() + 300
    memory = run_folder / "memory.jsonl"
    while not ((run_folder / "checkpoint.pt").exists() and memory.stat().st_size):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before, remembered = updates(run_folder), memory.read_bytes()
    total = (before + 2) * STEPS_PER_UPDATE
    # Settings come from the checkpoint; only how far to go is new.
    run("ppo_navigation.py", tmp_path, "--resume", "--total-steps", str(total))
    assert updates(run_folder) == before + 2
    assert progress(run_folder)[-1] == total
    assert (run_folder / f"evaluation-{total}/report.html").exists()
    assert memory.read_bytes() == remembered
    assert (run_folder / "memory-2.jsonl").stat().st_size > 0


def test_a_session_without_a_memory_record_leaves_its_file_to_the_next(tmp_path: Path) -> None:
    next_log = runpy.run_path(str(ROOT / "examples/ppo_navigation.py"))["next_log"]
    used = []
    for content in ("", "{}\n", "", "{}\n", "{}\n"):
        log = next_log(tmp_path / "memory.jsonl")
        log.write_text(content)
        used.append(log.name)
    assert used == ["memory.jsonl", "memory.jsonl", "memory-2.jsonl", "memory-2.jsonl", "memory-3.jsonl"]


def test_a_checkpoint_brings_everything_back(tmp_path: Path) -> None:
    example = runpy.run_path(str(ROOT / "examples/ppo_navigation.py"))
    args = example["parse_arguments"](SHORT, command_line=["--run", str(tmp_path), "--memory-profiling", "off"])
    args.record_every = 0

    def trainer(seed: int) -> object:
        torch.manual_seed(seed)
        env = example["make_training_env"](args)
        size = env.single_observation_space["state"].shape[-1]
        return example["Trainer"](args, env, example["Policy"](size, 2, args.hidden))

    first = trainer(0)
    first.begin()
    first.step()
    first.save()
    again = trainer(1)
    again.load(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    for run_on in (first, again):
        torch.set_rng_state(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["random"])
        run_on.begin()
        run_on.step()
    for name, value in first.policy.state_dict().items():
        assert torch.equal(value, again.policy.state_dict()[name]), name
    first.env.close()
    again.env.close()


def test_advantages_know_the_end_of_an_episode_from_its_truncation() -> None:
    example = runpy.run_path(str(ROOT / "examples/ppo_navigation.py"))
    args = example["parse_arguments"](command_line=["--rollout-steps", "3", "--num-envs", "3"])
    trainer = example["Trainer"](args, None, example["Policy"](1, 1, 4))
    trainer.rollout = rollout = example["Rollout"].empty(3, 3, 1, 1, 1)
    rollout.reward[:] = torch.tensor([1.0, 2.0, 4.0]).reshape(3, 1, 1)
    rollout.terminated[:], rollout.ended[:] = 0.0, 0.0
    rollout.terminated[1, 1] = rollout.ended[1, 1] = 1.0  # world 1 terminates in step 1
    rollout.ended[1, 2] = 1.0  # world 2 is truncated there
    value = torch.tensor([10.0, 20.0, 30.0, 40.0]).reshape(4, 1, 1).expand(4, 3, 1)
    advantage = trainer.advantages(value)[:, :, 0].numpy()
    g, gl = args.discount, args.discount * args.gae_lambda
    first = 1 + g * 20 - 10
    last = 4 + g * 40 - 30
    on, terminated, truncated = 2 + g * 30 - 20 + gl * last, 2.0 - 20, 2 + g * 30 - 20
    np.testing.assert_allclose(advantage[1], [on, terminated, truncated], rtol=1e-6)
    np.testing.assert_allclose(advantage[0], [first + gl * end for end in (on, terminated, truncated)], rtol=1e-6)


def test_the_statistics_of_observations_are_those_of_all_together() -> None:
    policy = runpy.run_path(str(ROOT / "examples/ppo_navigation.py"))["Policy"](3, 2, 4)
    batches = [torch.randn(n, 4, 3) * torch.tensor([1.0, 5.0, 0.1]) + n for n in (2, 30, 7)]
    for batch in batches:
        policy.observe(batch)
    rows = torch.cat([batch.reshape(-1, 3) for batch in batches])
    torch.testing.assert_close(policy.mean, rows.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(policy.variance, rows.var(0, unbiased=False), rtol=1e-4, atol=1e-3)


def test_the_sb3_example_trains_records_and_evaluates(tmp_path: Path) -> None:
    arguments = ["--num-envs", "4", "--total-steps", str(4 * 224), "--episodes", "4"]
    done = run("sb3_navigation.py", tmp_path, *arguments)
    lines = [line.split() for line in done.stdout.splitlines() if "success" in line and "n = 4" in line]
    assert [words[0] for words in lines] == ["trained", "scripted"]
    folder = tmp_path / "runs/sb3_navigation"
    assert (folder / "model.zip").exists()
    # The task of the PPO in one file, so that their figures can be compared.
    ppo = runpy.run_path(str(ROOT / "examples/ppo_navigation.py"))
    saved = read_policy(folder / "policy.pt")
    assert saved is not None
    assert saved["task"]["env_kwargs"] == ppo["env_settings"](ppo["parse_arguments"](command_line=[]))
    again = run("sb3_navigation.py", tmp_path, *arguments, expect=1)
    assert again.stderr == "runs/sb3_navigation: there is a run already; choose another folder with --run\n"
    rows = read_episodes(folder / "videos")
    assert [(row["env"], row["episode"]) for row in rows] == [(0, 0)]
    assert frames(folder / "videos" / rows[0]["files"][0]["file"]) == rows[0]["steps"] + 1


def test_the_policy_saved_from_sb3_acts_as_sb3_does(tmp_path: Path) -> None:
    example = runpy.run_path(str(ROOT / "examples/sb3_navigation.py"))
    env = example["make_training_env"](tmp_path, 2)
    model = example["PPO"]("MultiInputPolicy", env, n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu")
    model.learn(64)
    states = np.random.default_rng(0).normal(size=(6, 4, env.observation_space["state"].shape[0])).astype(np.float32)
    expected, _ = model.predict(env.normalize_obs({"state": states.reshape(24, -1)}), deterministic=True)
    with torch.inference_mode():
        actions = example["SharedPolicy"](model, env)(torch.from_numpy(states)).numpy()
    np.testing.assert_allclose(actions.reshape(24, -1), expected, rtol=1e-4, atol=1e-5)
    env.close()


def test_the_vision_example_trains_on_images_and_compares(tmp_path: Path) -> None:
    arguments = ["--num-envs", "4", "--rollout-steps", "16", "--total-steps", str(2 * 64), "--evaluate-every", "1"]
    done = run("vision_navigation.py", tmp_path, *arguments, "--evaluation-episodes", "4", "--minibatch", "32")
    names = [line.split()[0] for line in done.stdout.splitlines() if " success " in line and " return " in line]
    assert names[-3:] == ["random", "untrained", "trained"]
    folder = tmp_path / "runs/vision_navigation"
    assert progress(folder) == [64, 128]
    rows = read_episodes(folder / "evaluation")
    assert len(rows) == 4
    for row in rows:
        assert [frames(folder / "evaluation" / file["file"]) for file in row["files"]] == [row["steps"] + 1]


def test_the_benchmark_of_training_overhead_writes_what_it_measured(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/training_overhead.py"), "--cycles", "2", "--num-envs", "2"]
    command += ["--episode-steps", "4", "--json", str(tmp_path / "rows.json")]
    subprocess.run(command, check=True, capture_output=True)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["training"] for row in rows] == ["bare", "recording", "recording, light memory profiling"]
    assert rows[0]["cpu_s_ratio"] == 1.0
    assert all(len(row["cycles"]) == 2 and row["world_steps_per_cpu_s"] > 0 for row in rows)
