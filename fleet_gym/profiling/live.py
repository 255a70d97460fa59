"""One line that says how the memory is doing, for terminals."""

from __future__ import annotations

from typing import Any

from rich.progress import ProgressColumn, Task
from rich.text import Text

from fleet_gym.profiling.intervals import MemoryRecord


def live_line(record: MemoryRecord | None) -> Text:
    """Returns what one interval held, a leak in red.

    Args:
        record: None gives a placeholder.
    """
    if record is None:
        return Text("memory: no interval yet", style="dim")
    text = Text(f"memory {record.current_mb:.1f} MB (peak {record.peak_max_mb:.1f}, {record.growth_mb:+.2f})")
    text.append(f" rss {record.rss_mb:.0f}")
    if record.native_mb is not None:
        text.append(f" native {record.native_mb:.0f}")
    if record.num_workers:
        text.append(f" workers {record.workers_mb:.0f}")
    if record.num_encoders:
        text.append(f" encoders {record.encoders_mb:.0f}")
    leaks = [name for name, status in record.verdicts.items() if status == "leak"]
    if leaks:
        text.append(f" LEAK: {', '.join(leaks)}", style="bold red")
    elif "stable" in record.verdicts.values():
        text.append(" stable", style="green")
    return text


class MemoryColumn(ProgressColumn):
    """A column of a `rich.progress.Progress` that shows the latest interval of a memory profiling wrapper.

    Args:
        env: has `last_memory_record`.
    """

    def __init__(self, env: Any) -> None:
        super().__init__()
        self._env = env

    def render(self, task: Task) -> Text:
        """Returns the line as it is now."""
        return live_line(self._env.last_memory_record)
