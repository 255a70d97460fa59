"""Readings of the process: each sees what it should, and says so when it cannot."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import subprocess
import sys
import time
import weakref

import numpy as np
import psutil
import pytest

from fleet_gym.profiling import signals
from fleet_gym.profiling.sources import SlowSignals, native_reader

MIB = 1 << 20


@pytest.fixture
def _fresh_reader():
    signals.native_heap_reader.cache_clear()
    yield
    signals.native_heap_reader.cache_clear()


def test_native_heap_sees_malloc_and_free_exactly():
    native = signals.native_heap_reader()
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    before = native()
    block = libc.malloc(3 * MIB)
    assert native() - before == pytest.approx(3 * MIB, abs=8192)
    libc.free(block)
    assert native() - before == pytest.approx(0, abs=8192)


def test_native_heap_sees_numpy_and_falls_when_it_is_freed():
    native = signals.native_heap_reader()
    before = native()
    array = np.ones(MIB)
    assert native() - before == pytest.approx(8 * MIB, rel=0.01)
    del array
    assert native() - before < MIB


def test_free_lists_are_emptied_and_garbage_is_left():
    class Node:
        pass

    node = Node()
    node.itself = node
    alive = weakref.ref(node)
    gc.disable()
    try:
        del node
        for size in range(1, 20):
            spare = [tuple(range(size)) for _ in range(2000)]
            del spare
        before = signals.python_blocks()
        signals.empty_free_lists()
        assert signals.python_blocks() < before - 1000
        assert alive() is not None
        assert gc.get_freeze_count() == 0
    finally:
        gc.enable()
    gc.collect()
    assert alive() is None


def test_free_lists_are_left_where_somebody_froze_objects():
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        signals.empty_free_lists()
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()


@pytest.mark.usefixtures("_fresh_reader")
def test_an_allocator_that_glibc_does_not_count_is_noticed(monkeypatch, caplog):
    monkeypatch.setattr(signals, "_mallinfo", lambda: 0)
    assert signals.native_heap_reader() is None
    read, is_native = native_reader()
    assert not is_native
    assert read is signals.rss_bytes
    assert "RSS instead" in caplog.text


@pytest.mark.usefixtures("_fresh_reader")
def test_a_libc_without_mallinfo2_is_noticed(monkeypatch):
    monkeypatch.delattr(psutil, "heap_info")
    assert signals.native_heap_reader() is None


@pytest.mark.usefixtures("_fresh_reader")
def test_another_platform_has_no_native_heap(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert signals.native_heap_reader() is None


def test_rss_is_the_kernels():
    assert signals.rss_bytes() == pytest.approx(psutil.Process().memory_info().rss, abs=4 * MIB)
    assert signals.peak_rss_bytes() >= signals.rss_bytes() - 4 * MIB
    before = signals.rss_bytes()
    touched = np.ones(10 * MIB)
    assert signals.rss_bytes() - before == pytest.approx(80 * MIB, rel=0.2)
    del touched


def _report_rss(pipe: int) -> None:
    os.write(pipe, str(signals.rss_bytes()).encode())


def test_a_forked_child_reads_its_own_rss():
    signals.rss_bytes()
    ballast = np.ones(20 * MIB)
    mine = signals.rss_bytes()
    script = f"from fleet_gym.profiling import signals; print(signals.rss_bytes() < {mine})"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "True\n"
    del ballast
    read, write = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=_report_rss, args=(write,))
    parent = signals.rss_bytes()
    child.start()
    child.join()
    of_child = int(os.read(read, 100))
    os.close(read)
    os.close(write)
    assert of_child != 0
    assert of_child < parent * 1.5


def test_python_blocks_count_objects():
    gc.collect()  # so many new objects start a collection, which would take others' garbage along
    before = signals.python_blocks()
    kept = [[] for _ in range(10_000)]
    assert 9_800 <= signals.python_blocks() - before < 10_200
    del kept


def test_uss_adds_up_over_processes_and_skips_the_dead():
    assert signals.uss_bytes([]) == (0, 0)
    child = subprocess.Popen([sys.executable, "-c", "import time; b = bytearray(30 << 20); time.sleep(60)"])
    try:
        deadline = time.monotonic() + 20
        while signals.uss_bytes([child.pid])[1] < 30 * MIB and time.monotonic() < deadline:
            time.sleep(0.05)
        count, together = signals.uss_bytes([os.getpid(), child.pid])
        assert count == 2
        assert together > 30 * MIB + signals.uss_bytes([os.getpid()])[1] * 0.9
        assert child.pid in signals.child_pids()
        assert not signals.is_encoder(child.pid)
    finally:
        child.kill()
        child.wait()
    assert signals.uss_bytes([child.pid]) == (0, 0)
    assert not signals.is_encoder(child.pid)


def test_an_ffmpeg_is_an_encoder():
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "quiet", "-f", "rawvideo", "-s", "16x16", "-i", "-"]
    encoder = subprocess.Popen([*command, "-f", "null", "-"], stdin=subprocess.PIPE)
    try:
        assert signals.is_encoder(encoder.pid)
        slow = SlowSignals(limit_mb=None)
        slow.read([])
        assert slow.num_encoders == 1
        assert slow.encoders_mb > 1
    finally:
        encoder.stdin.close()
        encoder.wait()


def test_the_limit_is_at_most_the_machines_memory():
    assert 0 < signals.memory_limit_bytes() <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("cgroup", "files", "limits"),
    [
        ("0::/jobs/a\n", {"jobs/a/memory.max": "max\n", "jobs/memory.max": "1000\n"}, [1000]),
        ("0::/jobs/a\n", {"jobs/a/memory.max": "500\n", "memory.max": "900\n"}, [500, 900]),
        ("4:memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "700\n"}, [700]),
        ("0::/\n", {}, []),
        ("3:cpu:/x\n", {"memory.max": "5\n"}, []),
    ],
)
def test_cgroup_limits_of_both_versions(monkeypatch, tmp_path, cgroup, files, limits):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    own = tmp_path / "self-cgroup"
    own.write_text(cgroup)
    monkeypatch.setattr(signals, "CGROUP_FILE", own)
    monkeypatch.setattr(signals, "CGROUP_ROOT", tmp_path)
    assert signals._cgroup_limits() == limits


def test_own_figures_are_read_for_their_share_of_the_time(monkeypatch):
    slow = SlowSignals(limit_mb=100.0)
    now = iter([10.0, 10.004, 10.5, 13.0, 13.02])  # a reading of 4 ms: the next after 2 s
    monkeypatch.setattr("fleet_gym.profiling.sources.time.perf_counter", lambda: next(now))
    slow.read([])
    first = slow.uss_mb
    ballast = np.ones(5 * MIB)
    slow.read([])
    assert slow.uss_mb == first
    slow.read([])
    assert slow.uss_mb > first + 20
    del ballast
