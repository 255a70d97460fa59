"""Native growth by phase: exact where all calls are sampled, right on average elsewhere, within its share of time."""

from __future__ import annotations

import itertools

import pytest

from fleet_gym.profiling import native_phases
from fleet_gym.profiling.native_phases import NativePhases, NativeSampler


def test_growth_goes_to_the_call_it_happened_in():
    books = NativePhases(1000)
    books.count_reset()
    books.add_reset(1000, 1500)
    books.add_step(1500, 1510)
    books.add_step(1510, 1530)
    phases = books.end_interval(2, 1530)
    assert (phases["reset"].calls, phases["reset"].native_bytes_per_call) == (1, 500)
    assert (phases["step"].calls, phases["step"].native_bytes_per_call) == (2, 15)
    _, outside = books.so_far(0, 1530)
    assert outside == 0


def test_growth_between_calls_is_outside():
    books = NativePhases(0)
    for start in range(0, 1000, 100):
        books.add_step(start + 90, start + 100)
    phases, outside = books.so_far(10, 1000)
    assert phases["step"].native_bytes_per_call == 10
    assert outside == 900


def test_what_a_call_returns_and_the_caller_frees_is_no_growth():
    books = NativePhases(0)
    for start in range(0, 70, 7):
        books.add_step(start, start + 100_007)  # an image of 100 kB, and 7 bytes that stay
    phases, outside = books.so_far(10, 70)
    assert phases["step"].native_bytes_per_call == pytest.approx(7)
    assert outside == 0


def test_what_is_freed_outside_and_no_call_made_is_not_taken_off_the_calls():
    books = NativePhases(1_000_000)
    books.count_reset()
    books.add_reset(1_000_000, 1_000_500)
    books.add_step(500, 500)  # 1 MB made before profiling began was freed in between
    books.add_step(500, 400)
    phases = books.end_interval(2, 400)
    assert phases["step"].native_bytes_per_call == -50
    assert phases["reset"].native_bytes_per_call == 0


def test_samples_are_scaled_up_but_first_steps_after_a_reset_are_not():
    books = NativePhases(0)
    books.count_reset()
    books.add_reset(0, 0)
    books.add_step(0, 10_000)  # the first step after a reset builds its contacts
    books.add_step(10_000, 10_020)
    phases = books.end_interval(101, 10_000 + 100 * 20)
    assert phases["step"].native_bytes == 12_000
    phases, _ = books.so_far(0, 12_000)
    assert phases["step"].native_bytes_per_call == pytest.approx(12_000 / 101)


def test_every_stride_is_used_and_its_mean_is_right():
    sampler = NativeSampler(lambda: 5, stride=6, longest=25)
    taken = [index for index in range(60_000) if sampler.before_step() >= 0]
    gaps = {after - before for before, after in itertools.pairwise(taken)}
    assert gaps == set(range(1, 12))
    assert 60_000 / len(taken) == pytest.approx(6, rel=0.03)


def test_the_stride_follows_the_cost_of_a_sample():
    sampler = NativeSampler(lambda: 5, stride=6, longest=25)
    for _ in range(10):
        sampler.adapt(sample_s=10e-6, step_s=400e-6)
    assert sampler._stride == 5
    sampler.adapt(sample_s=10e-6, step_s=20e-3)
    assert sampler._stride == 1
    for _ in range(10):
        sampler.adapt(sample_s=10e-6, step_s=5e-6)
    assert sampler._stride == 25


def test_dear_readings_wait_for_their_share_of_the_time(monkeypatch):
    now = [0.0]
    cost = [0.0]

    def read() -> int:
        now[0] += cost[0]
        return 7

    monkeypatch.setattr(native_phases.time, "perf_counter", lambda: now[0])
    sampler = NativeSampler(read, stride=1, longest=1)
    cost[0] = 5e-3
    sampler.before_step()
    assert sampler.before_step() == 7, "one slow reading may be somebody else's fault"
    for _ in range(50):
        sampler.before_step()
        now[0] += 1e-3
    spent_before, start = now[0], now[0]
    readings = 0
    while now[0] < start + 40:
        readings += sampler.before_step() >= 0
        now[0] += 1e-3
    assert readings * 5e-3 <= 0.0055 * (now[0] - spent_before)
    assert readings > 20


def test_a_reset_is_read_unless_that_takes_milliseconds(monkeypatch):
    sampler = NativeSampler(lambda: 7, stride=1000, longest=1000)
    sampler.before_step()
    assert sampler.before_reset() == 7
    assert sampler.before_step() == 7, "the first step after a reset is sampled"
