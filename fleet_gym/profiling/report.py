"""What is known about an environment's memory: verdicts, phases, growing lines, and what they usually mean."""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fleet_gym.profiling.verdict import LeakVerdict

# Not asked of sysconfig, which loads 200 kB for it: while tracing, these would be named among the lines that grow.
_STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
_LIBRARIES = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class TopLine:
    """A source line whose memory grows.

    Attributes:
        kind: ``"python"``: objects allocated there and still alive; ``"native"``: growth of the C heap during a call
            made there.
        filename: source file.
        lineno: line number.
        bytes: growth over the observed steps.
        blocks: Python blocks gained, or calls made.
        bytes_per_step: growth per observed step.
        call: the C function called (native lines), empty otherwise.
        frames: ``file:line`` of the callers, outermost first, when more than one frame was traced.
    """

    kind: Literal["python", "native"]
    filename: str
    lineno: int
    bytes: int
    blocks: int
    bytes_per_step: float
    call: str = ""
    frames: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The line's text, empty when the file cannot be read."""
        return linecache.getline(self.filename, self.lineno).strip()

    def __str__(self) -> str:
        if self.kind == "native":
            per_call = f"{self.bytes / max(self.blocks, 1):+.0f} bytes per call of {self.call} (x{self.blocks})"
            return f"{self.filename}:{self.lineno}: native {per_call}  {self.source}"
        growth = f"{self.bytes_per_step:+.0f} bytes per step ({self.blocks:+d} blocks)"
        return f"{self.filename}:{self.lineno}: {growth}  {self.source}"


@dataclass(frozen=True)
class PhaseMemory:
    """Native growth during the calls of one method.

    Attributes:
        calls: how often it was called.
        native_bytes_per_call: mean over all calls, bytes. What a call returned and the caller let go of does not count.
    """

    calls: int
    native_bytes_per_call: float

    @property
    def native_bytes(self) -> int:
        """Growth over all calls, bytes."""
        return round(self.calls * self.native_bytes_per_call)


@dataclass(frozen=True)
class MemoryReport:
    """What is known about an environment's memory so far.

    Attributes:
        steps: steps taken.
        seconds: time since profiling started.
        current_mb: as `get_memory_usage`; None when that is None.
        peak_mb: likewise.
        limit_mb: memory this process may use.
        verdicts: by signal: ``"python"`` (traced heap; without tracing, blocks counted at 64 bytes each), ``"native"``
            (C heap, in which NumPy arrays and Python objects over 512 bytes live too), ``"rss"``, ``"workers"``.
        phases: native growth during ``"step"`` and ``"reset"``.
        top_lines: the lines that grow, fastest first; those that cannot explain a leak are left out. Empty without
            tracing (mode ``"auto"`` traces on suspicion).
        hints: what the growth usually means.
    """

    steps: int
    seconds: float
    current_mb: float | None
    peak_mb: float | None
    limit_mb: float
    verdicts: Mapping[str, LeakVerdict]
    phases: Mapping[str, PhaseMemory]
    top_lines: tuple[TopLine, ...] = ()
    hints: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        lines = [f"memory after {self.steps} steps, {self.seconds:.1f} s"]
        if self.current_mb is not None and self.peak_mb is not None:
            lines[0] += f": current {self.current_mb:.2f} MB, peak {self.peak_mb:.2f} MB"
        lines += [f"  {name + ':':9}{verdict}" for name, verdict in self.verdicts.items()]
        lines += [
            f"  {name + ':':9}native {phase.native_bytes_per_call:+.0f} bytes per call (x{phase.calls})"
            for name, phase in self.phases.items()
        ]
        lines += [f"  {line}" for line in self.top_lines]
        lines += [f"  hint: {hint}" for hint in self.hints]
        return "\n".join(lines)


def hints(
    verdicts: Mapping[str, LeakVerdict], phases: Mapping[str, PhaseMemory], outside_bytes: int, lines: Sequence[TopLine]
) -> tuple[str, ...]:
    """Says what leaks like these usually are.

    Args:
        verdicts: by signal.
        phases: native growth of ``"step"`` and ``"reset"``.
        outside_bytes: native growth between the calls.
        lines: the lines already named.
    """
    leaks = {name for name, verdict in verdicts.items() if verdict.status == "leak"}
    found = []
    python, native = verdicts["python"].bytes_per_step, verdicts["native"].bytes_per_step
    of_python = [line.bytes_per_step for line in lines if line.kind == "python"]
    if "python" in leaks and not of_python:
        found.append("Python objects grow: mode='auto' or 'trace' names the line that keeps them")
    # Without tracing Python's slope counts blocks, whatever their size: then the lines know better.
    if "native" in leaks and of_python and native < 1.5 * max(python, sum(of_python)):
        found.append("the native growth is the Python heap's own: objects over 512 bytes and arrays live there")
    elif "native" in leaks:
        found.append(_native_hint(phases, outside_bytes))
    if "rss" in leaks and not leaks & {"python", "native"}:
        found.append(
            "RSS grows while no allocator does: memory mapped elsewhere, threads' stacks, or freed memory that"
            " malloc keeps (psutil.heap_trim() gives it back)"
        )
    if leaks and (of_library := next(iter(lines), None)) is not None and _hides_its_caller(of_library):
        found.append(f"{Path(of_library.filename).name} is a library's: nframe=5 names the lines that call it, too")
    if "workers" in leaks:
        found.append("the workers grow: put a MemoryProfilingEnvWrapper around the environment inside them")
    return tuple(found)


def _hides_its_caller(line: TopLine) -> bool:
    is_library = line.filename.startswith(_STANDARD_LIBRARY) or not _LIBRARIES.isdisjoint(Path(line.filename).parts)
    return line.kind == "python" and not line.frames and is_library


def _native_hint(phases: Mapping[str, PhaseMemory], outside_bytes: int) -> str:
    step, reset = phases["step"], phases["reset"]
    most = max(step.native_bytes, reset.native_bytes, outside_bytes)
    if most == reset.native_bytes:
        return (
            f"native growth in reset, ~{_readable(reset.native_bytes_per_call)} per reset: a URDF reloaded each"
            " episode? PyBullet keeps its meshes: build once and restoreState, or resetSimulation"
        )
    if most == step.native_bytes:
        return (
            f"native growth in step, ~{_readable(step.native_bytes_per_call)} per step: a body, texture or saved state"
            " made each step and never freed? (vector environments reset finished worlds inside step)"
        )
    return "native growth outside step and reset: in the loop around the environment, or in other threads"


def _readable(size: float) -> str:
    for unit, scale in (("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"
