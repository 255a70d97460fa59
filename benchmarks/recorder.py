"""What the video recorder must hold, next to two other recorders in the same run.

    python benchmarks/recorder.py --out recorder.json            # about five minutes
    python benchmarks/recorder.py --full --out recorder.json     # the long streaming experiment too, about 25 minutes
    python benchmarks/recorder.py --only paced                   # some of the rows

"Arena" is a recorder written the way Isaac Lab-Arena's CameraObsVideoRecorder works: one MoviePy writer per environment
and camera with ``threads=1`` and its other defaults, fed and closed inside `step`. "gymnasium" is
``gymnasium.wrappers.vector.RecordVideo``. Rows that need root (a full disk, another user) say so without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from subjects.recorder_subjects import PatternEnv, TinyEnv, make_recorder

from fleet_gym.testing.coded_color_env import CodedColorVectorEnv, coded_color_envs, decode_color
from fleet_gym.video import VideoEncodeError, parse_episode_video_filename
from fleet_gym.video.pool import default_workers
from fleet_gym.video.recovery import recover_leftovers
from fleet_gym.wrappers.camera_obs_video_recorder import CameraObsVideoRecorder

Row = dict[str, Any]


def tree() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def pss_mb(processes: list[psutil.Process]) -> float:
    return sum(process.memory_full_info().pss for process in processes) / 1e6


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def run_child(name: str, prefix: tuple[str, ...] = (), **arguments: Any) -> dict[str, Any]:
    """Runs a function ``child_<name>`` in a fresh process and returns what it returned."""
    command = [*prefix, sys.executable, __file__, "--child", name, json.dumps(arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def table_row(what: str, must: str, ok: bool | None, **figures: Any) -> Row:
    return {"what": what, "must": must, "ok": ok, **figures}


# -- frames ----------------------------------------------------------------------------------------------------------


def coded_env(kind: str, lengths: list[int], mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
    if kind == "native":
        return CodedColorVectorEnv(lengths, autoreset_mode=mode)
    makers = coded_color_envs(lengths, render_mode="rgb_array")
    return (SyncVectorEnv if kind == "sync" else AsyncVectorEnv)(makers, autoreset_mode=mode)


def judge_frames(recorder: str, kind: str, mode: AutoresetMode) -> tuple[int, int, int, int]:
    """Returns (whole files, files, frames of another episode or out of order, frames missing)."""
    lengths, seen = [3, 5], [0, 0, 0, 0]
    with scratch() as folder:
        env = make_recorder(recorder, coded_env(kind, lengths, mode), folder)
        env.reset()
        done = np.zeros(2, dtype=bool)
        for _ in range(12):
            if mode == AutoresetMode.DISABLED and done.any():
                env.reset(options={"reset_mask": done.copy()})
            _, _, terminated, truncated, _ = env.step(np.zeros((2, 1), dtype=np.float32))
            done = terminated | truncated
        env.close()
        for path in folder.glob("*.mp4"):
            name = parse_episode_video_filename(path)
            frames = [decode_color(f) for f in decoded(path)]
            if name is None:  # gymnasium's: one film of all environments side by side; the first tile is judged
                frames = [decode_color(f[:, : f.shape[1] // 2]) for f in decoded(path)]
                number, index = 0, frames[0][1]
            else:
                number, index = name.env, name.episode
            whole = [(number, index, t) for t in range(lengths[number] + 1)]
            good = [frame for frame in whole if frame in frames]
            seen[0] += frames == whole
            seen[1] += 1
            seen[2] += len(frames) - len(good)
            seen[3] += len(whole) - len(good)
    return tuple(seen)  # type: ignore[return-value]


def decoded(path: Path) -> list[Any]:
    frames = []
    with av.open(str(path)) as container, contextlib.suppress(av.FFmpegError):
        frames.extend(frame.to_ndarray(format="rgb24") for frame in container.decode(video=0))
    return frames


def row_frames() -> list[Row]:
    def total(recorder: str, kinds: tuple[str, ...]) -> tuple[int, ...]:
        parts = [judge_frames(recorder, kind, mode) for kind in kinds for mode in AutoresetMode]
        return tuple(int(n) for n in np.sum(parts, axis=0))

    all_kinds = ("sync", "async", "native")
    ours = {backend: total(backend, all_kinds) for backend in ("moviepy", "pool")}
    others = {"arena": total("arena", all_kinds), "gymnasium": total("gymnasium", ("sync",))}
    text = {name: f"{w}/{n} whole, {f} foreign, {m} missing" for name, (w, n, f, m) in {**ours, **others}.items()}
    ok = all(w == n > 0 and not f and not m for w, n, f, m in ours.values())
    return [table_row("frames decoded = t0..tT, 3 modes x Sync, Async, native", "all", ok, **text)]


# -- memory ----------------------------------------------------------------------------------------------------------


def child_flat(recorder: str, length: int) -> dict[str, Any]:
    with scratch() as folder:
        env = make_recorder(recorder, PatternEnv(8, 1, (240, 320), length), folder)
        env.reset()
        for _ in range(length - 1):
            env.step(None)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        env.close()
    return {"mb": peak}


def row_flat() -> list[Row]:
    growth = {}
    for recorder in ("moviepy", "pool", "arena"):
        peaks = [run_child("flat", recorder=recorder, length=length)["mb"] for length in (250, 2000)]
        growth[recorder] = peaks[1] - peaks[0]
    peaks = [run_child("flat", recorder="gymnasium", length=length)["mb"] for length in (250, 500)]
    growth["gymnasium"] = (peaks[1] - peaks[0]) * 7  # to 1,750 steps more; it keeps the frames
    ok = max(growth["moviepy"], growth["pool"]) < 5
    figures = {name: f"{mb:+.1f} MB" for name, mb in growth.items()}
    return [table_row("parent's peak RSS, 8 envs 320x240: T=2000 over T=250", "< 5 MB", ok, **figures)]


def child_stream(recorder: str, num_envs: int, length: int, rate: float) -> dict[str, Any]:
    with scratch() as folder:
        env = PatternEnv(num_envs, 3, (720, 1280), length)
        if recorder == "auto":
            env = CameraObsVideoRecorder(env, folder)
        elif recorder == "buffered":
            return _buffered(env, length)
        base = pss_mb(tree())
        env.reset()
        start, peak = time.monotonic(), 0.0
        for step in range(length - 1):
            env.step(None)
            if step % 20 == 0:
                peak = max(peak, pss_mb(tree()) - base)
            time.sleep(max(0.0, start + (step + 1) / rate - time.monotonic()))
        wall = time.monotonic() - start
        closing = time.monotonic()
        env.close()
        return {"peak_mb": peak, "wall": wall, "close": time.monotonic() - closing}


def _buffered(env: PatternEnv, length: int) -> dict[str, Any]:
    frames = [env.reset()[0]]
    frames += [env.step(None)[0] for _ in range(length - 1)]
    return {"peak_mb": pss_mb(tree()), "frames": len(frames)}


def row_stream(full: bool) -> list[Row]:
    length = 1000 if full else 120
    rows = []
    for num_envs, rate in ((1, 20.0), (6, 4.0)):
        ours = run_child("stream", recorder="auto", num_envs=num_envs, length=length, rate=rate)
        plain = run_child("stream", recorder="none", num_envs=num_envs, length=length, rate=rate)
        per_env, ratio = ours["peak_mb"] / num_envs / 1e3, ours["wall"] / plain["wall"]
        what = f"3 cameras 1280x720, T={length}, {num_envs} env(s) at {rate:g} Hz"
        figures = {"auto": f"{per_env:.2f} GB per env, {ratio:.3f}x (close {ours['close']:.1f} s)"}
        if num_envs == 1 and full:
            figures["buffered"] = (
                f"{run_child('stream', recorder='buffered', num_envs=1, length=length, rate=0)['peak_mb'] / 1e3:.1f} GB"
            )
        rows.append(table_row(what, "<= 0.72 GB per env; <= 1.05x", per_env <= 0.72 and ratio <= 1.05, **figures))
    return rows


# -- 192 streams -----------------------------------------------------------------------------------------------------


def child_many(recorder: str, pace: float, length: int, episodes: int) -> dict[str, Any]:
    with scratch() as folder:
        inner = PatternEnv(64, 3, (128, 128), length)
        base = psutil.Process().num_fds()
        env = make_recorder(recorder, inner, folder)
        costs, cpu, storms, final, usage = [], [], [], [], {}
        inner_step = inner.step
        spent = [0.0, 0.0]

        def timed(actions: Any) -> Any:
            begin, busy = time.perf_counter(), time.thread_time()
            result = inner_step(actions)
            spent[:] = time.perf_counter() - begin, time.thread_time() - busy
            return result

        inner.step = timed  # type: ignore[method-assign]
        env.reset()
        for step in range(1, length * episodes + 3):
            begin, busy = time.perf_counter(), time.thread_time()
            result = env.step(None)
            cost = time.perf_counter() - begin - spent[0]
            cpu.append((time.thread_time() - busy - spent[1]) * 1e3)
            ending = step % length == 0
            (storms if ending else costs).append(cost * 1e3)
            if ending:
                final.append(_until_final(folder, 192 * step // length, begin))
            if step == length // 2:
                processes = tree()
                usage = {
                    "children": len(processes) - 1,
                    "descriptors": processes[0].num_fds() - base,
                    "pss_mb": pss_mb(processes),
                }
            del result  # giving the images back to the system is not the recorder's cost
            time.sleep(max(0.0, begin + pace - time.perf_counter()))
        env.close()
        files = len(list(folder.glob("*.mp4")))
    steady = np.delete(costs, range(3))  # the streams are opened in the first steps
    p50, p99 = np.percentile(steady, [50, 99])
    return {
        **usage,
        "cpu": np.median(cpu),
        "p50": p50,
        "p99": p99,
        "storm": max(storms),
        "final": max(final),
        "files": files,
    }


def _until_final(folder: Path, count: int, begin: float) -> float:
    while len(list(folder.glob("*.mp4"))) < count and time.perf_counter() - begin < 20:
        time.sleep(0.01)
    return time.perf_counter() - begin


def child_copy(pace: float, steps: int) -> dict[str, Any]:
    """The same images copied into memory as large as the pool's, by nothing but NumPy: what the machine allows."""
    env, costs = PatternEnv(64, 3, (128, 128), steps), []
    ring = np.zeros((24, 64, 128, 128, 3), dtype=np.uint8)
    for step in range(steps):
        views = list(env.step(None)[0]["camera_obs"].values())
        begin = time.perf_counter()
        for camera, images in enumerate(views):
            ring[(3 * step + camera) % len(ring)] = images
        costs.append((time.perf_counter() - begin) * 1e3)
        del views, images
        time.sleep(max(0.0, begin + pace - time.perf_counter()))
    return {"p50": float(np.median(costs))}


def row_paced() -> list[Row]:
    k = default_workers()
    copy = run_child("copy", pace=0.15, steps=60)["p50"]
    runs = [run_child("many", recorder="pool", pace=0.15, length=60, episodes=2) for _ in range(3)]
    pool = min(runs, key=lambda run: float(run["p99"]))  # other processes can only make it slower
    arena = run_child("many", recorder="arena", pace=0.15, length=30, episodes=1)
    many = "* 64 envs x 3 cameras 128x128: "
    size = "{children} children, {descriptors} descriptors, {pss_mb:.0f} MB".format
    small = pool["children"] <= k and pool["descriptors"] <= 4 * k + 8 and pool["pss_mb"] < 500
    cost = "p50 {p50:.2f}, p99 {p99:.2f} ms; {cpu:.2f} ms of its CPU".format
    storm = "{storm:.1f} ms, final within {final:.2f} s".format
    return [
        table_row(many + "size", f"<= {k}, <= {4 * k + 8}, < 500 MB", small, pool=size(**pool), arena=size(**arena)),
        table_row(
            many + "caller's cost, paced 150 ms",
            "<= 1.0 / 5 ms",
            pool["p50"] <= 1.0 and pool["p99"] <= 5,
            pool=cost(**pool),
            arena=cost(**arena),
            copying=f"the bytes alone: p50 {copy:.2f} ms",
        ),
        table_row(
            many + "all end on one step",
            "<= 20 ms; final within 2 s",
            pool["storm"] <= 20 and pool["final"] <= 2,
            pool=storm(**pool),
            arena=storm(**arena),
        ),
    ]


def child_limited(recorder: str) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
    try:
        return {"outcome": f"{child_many(recorder, 0.0, 12, 2)['files']} files", "uid": os.getuid()}
    except (OSError, VideoEncodeError) as error:
        return {"outcome": type(error).__name__ + ": " + str(error)[:60]}


def row_limited() -> list[Row]:
    what, must = "* same under ulimit -n 64 and RLIMIT_NPROC 100", "384 files"
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return [table_row(what, must, None, pool="needs root and setpriv")]
    caps = "-all,+dac_read_search"  # an interpreter below /root stays readable
    user = ("setpriv", "--reuid=65534", "--clear-groups", f"--inh-caps={caps}", f"--ambient-caps={caps}")
    figures = {name: run_child("limited", user, recorder=name)["outcome"] for name in ("pool", "arena")}
    return [table_row(what, must, figures["pool"] == "384 files", **figures)]


# -- beside a simulator ----------------------------------------------------------------------------------------------


def row_tiny(steps: int = 120) -> list[Row]:
    env = TinyEnv()
    best = dict.fromkeys(("none", "pool", "moviepy", "arena"), float("inf"))
    for _ in range(5):
        for recorder in best:
            with scratch() as folder:
                wrapped = make_recorder(recorder, env, folder)
                env.close = lambda **_: None  # type: ignore[method-assign]
                wrapped.reset()
                for _ in range(10):
                    wrapped.step(None)
                begin = time.perf_counter()
                for _ in range(steps):
                    wrapped.step(None)
                best[recorder] = min(best[recorder], (time.perf_counter() - begin) / steps * 1e3)
                wrapped.close()
    over = {name: ms - best["none"] for name, ms in best.items() if name != "none"}
    figures = {name: f"+{ms:.2f} ms ({ms / over['arena']:.2f}x)" for name, ms in over.items()}
    what = f"* 6 streams 320x240 in a TinyRenderer loop of {best['none']:.1f} ms a step"
    return [table_row(what, "<= 0.3x of Arena's", over["pool"] <= 0.3 * over["arena"], **figures)]


# -- faults ----------------------------------------------------------------------------------------------------------


def child_victim(recorder: str, folder: str) -> dict[str, Any]:
    env = make_recorder(recorder, PatternEnv(2, 1, (240, 320), 10**6), folder)
    env.reset()
    for _ in range(400):
        env.step(None)
        time.sleep(0.005)
    print("ready", flush=True)
    time.sleep(60)
    return {}


def killed(recorder: str, everything: bool) -> tuple[list[int], int]:
    """Returns (frames that decode per file, files under a final name) of a recorder killed after 400 steps."""
    with scratch() as folder:
        arguments = json.dumps({"recorder": recorder, "folder": str(folder)})
        command = [sys.executable, __file__, "--child", "victim", arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout is not None
        process.stdout.readline()
        encoders = psutil.Process(process.pid).children(recursive=True)
        if everything:
            os.killpg(process.pid, signal.SIGKILL)
            for encoder in encoders:
                with contextlib.suppress(psutil.NoSuchProcess):
                    encoder.kill()
        process.kill()
        process.communicate()
        psutil.wait_procs(encoders, timeout=20)
        final = list(folder.glob("*.mp4"))
        if recorder == "arena":
            return [_readable(path) for path in final], len(final)
        return [video.frames for video in recover_leftovers(folder)], len(final)


def _readable(path: Path) -> int:
    try:
        return len(decoded(path))
    except av.FFmpegError:
        return 0


def row_killed() -> list[Row]:
    rows = []
    for everything, what, least in ((True, "the whole process group", 340), (False, "Python alone", 400)):
        found = {name: killed(name, everything) for name in ("moviepy", "pool", "arena")}
        ok = all(min(found[name][0]) >= least and not found[name][1] for name in ("moviepy", "pool"))
        figures = {name: f"{frames} frames, {final} under a final name" for name, (frames, final) in found.items()}
        rows.append(table_row(f"SIGKILL of {what} after 400 frames", f">= {least} per file, 0 final", ok, **figures))
    return rows


def told(action: Callable[[], None]) -> tuple[str, float]:
    """Returns what an action raised, and after how many seconds."""
    begin = time.monotonic()
    try:
        action()
    except (VideoEncodeError, OSError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:70]}", time.monotonic() - begin
    return "nothing", time.monotonic() - begin


def faulty(recorder: str, fault: str) -> tuple[str, float]:
    with scratch() as folder:
        target = folder / "videos"
        target.mkdir()
        if fault == "full disk":
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", target], check=True)
        try:
            env = PatternEnv(2, 1, (240, 320), 40)
            if recorder in ("moviepy", "pool"):
                env = CameraObsVideoRecorder(env, target, backend=recorder, encoder_timeout=2.0)
            else:
                env = make_recorder(recorder, env, target)

            def go() -> None:
                env.reset()
                for step in range(41):
                    env.step(None)
                    if step == 10 and fault != "full disk":
                        psutil.Process().children()[0].send_signal(
                            signal.SIGKILL if fault == "killed encoder" else signal.SIGSTOP
                        )
                env.close()

            return told(go)
        finally:
            for child in psutil.Process().children():
                child.kill()
            with contextlib.suppress(VideoEncodeError, OSError):
                env.close()
            if fault == "full disk":
                subprocess.run(["umount", "--lazy", target], check=True)


def row_faults() -> list[Row]:
    rows = []
    for fault in ("full disk", "killed encoder", "stopped encoder"):
        if fault == "full disk" and os.getuid() != 0:
            rows.append(table_row(fault, "VideoEncodeError", None, pool="needs root"))
            continue
        recorders = ("moviepy", "pool") if fault == "stopped encoder" else ("moviepy", "pool", "arena")
        outcomes = {name: faulty(name, fault) for name in recorders}
        ok = all(outcomes[name][0].startswith("VideoEncodeError") for name in ("moviepy", "pool"))
        figures = {name: f"{text} ({seconds:.1f} s)" for name, (text, seconds) in outcomes.items()}
        if fault == "stopped encoder":
            figures["arena"] = "waits for ever (not run)"
        rows.append(table_row(fault, "VideoEncodeError, no hang", ok, **figures))
    return rows


def fork_close(recorder: str) -> float:
    with scratch() as folder:
        env = make_recorder(recorder, PatternEnv(2, 1, (240, 320), 1000), folder)
        env.reset()
        for _ in range(50):
            env.step(None)
            time.sleep(0.03)
        child = os.fork()
        if child == 0:
            time.sleep(4)
            os._exit(0)
        begin = time.monotonic()
        env.close()
        seconds = time.monotonic() - begin
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return seconds


def row_fork() -> list[Row]:
    seconds = {name: fork_close(name) for name in ("moviepy", "pool", "arena")}
    ok = max(seconds["moviepy"], seconds["pool"]) < 1
    return [
        table_row("fork after recording began: close", "< 1 s", ok, **{k: f"{s:.2f} s" for k, s in seconds.items()})
    ]


def child_names(folder: str, backend: str) -> dict[str, Any]:
    env = CodedColorVectorEnv([3, 4], {"a/b": (16, 16), "a_b": (16, 16)}, AutoresetMode.SAME_STEP)
    recorder = CameraObsVideoRecorder(env, folder, backend=backend)
    recorder.reset()
    for _ in range(12):
        recorder.step(None)
        time.sleep(0.02)
    recorder.close()
    return {}


def row_names() -> list[Row]:
    with scratch() as folder:
        for backend in ("moviepy", "pool"):  # two at once, twice
            arguments = json.dumps({"folder": str(folder), "backend": backend})
            command = [sys.executable, __file__, "--child", "names", arguments]
            both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
            for process in both:
                process.wait()
        names = [path.name for path in folder.glob("*.mp4")]
        parsed = sum(parse_episode_video_filename(name) is not None for name in names)
        whole = sum(
            [decode_color(frame) for frame in decoded(folder / name)]
            == [(p.env, p.episode, t) for t in range((3, 4)[p.env] + 1)]
            for name in names
            if (p := parse_episode_video_filename(name)) is not None
        )
        left = len(list(folder.glob("*.part")))
    text = f"{len(names)} files, {whole} whole, {parsed} names parse, {left} .part"
    ok = len(names) == whole == parsed == 4 * 2 * (4 + 3) and not left
    return [table_row("two processes in one folder, then two more", "no overwrite, all parse", ok, ours=text)]


ROWS: dict[str, Callable[..., list[Row]]] = {
    "frames": row_frames,
    "flat": row_flat,
    "stream": row_stream,
    "paced": row_paced,
    "limited": row_limited,
    "tiny": row_tiny,
    "killed": row_killed,
    "faults": row_faults,
    "fork": row_fork,
    "names": row_names,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--full", action="store_true", help="T=1000 in the streaming experiment, and its buffered form")
    parser.add_argument("--only", nargs="*", choices=list(ROWS), default=list(ROWS), help="some of the rows")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.getLogger("fleet_gym").setLevel(logging.ERROR)  # what recovery finds is a row of the table
    if arguments.child:
        name, values = arguments.child
        result = globals()[f"child_{name}"](**json.loads(values))
        print(json.dumps(result))
        return
    rows = []
    for name in arguments.only:
        new = ROWS[name](arguments.full) if name == "stream" else ROWS[name]()
        rows += new
        for row in new:
            verdict = {True: "holds", False: "DOES NOT HOLD", None: "not run"}[row["ok"]]
            print(f"{row['what']}\n    must {row['must']}: {verdict}")
            for key, value in row.items():
                if key not in ("what", "must", "ok"):
                    print(f"    {key:10s} {value}", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
