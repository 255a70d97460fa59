"""Tasks: what the robots are to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet_gym.tasks.base import Task

#: Names accepted by `make_task`.
TASKS = ("navigation",)


def make_task(task: str | Task, task_kwargs: Mapping[str, Any] | None = None) -> Task:
    """Returns the task called `task`, made with `task_kwargs`, or a task object as it is.

    Raises:
        TypeError: for an argument the task does not have, or arguments beside a task object.
        ValueError: for an unknown name, or a value the task refuses.
    """
    if not isinstance(task, str):
        if task_kwargs:
            raise TypeError(f"task_kwargs: expected None beside a task object, got {dict(task_kwargs)!r}")
        return task
    if task not in TASKS:
        raise ValueError(f"task: expected one of {', '.join(map(repr, TASKS))} or a Task, got {task!r}")
    import inspect

    from fleet_gym.tasks.navigation import Navigation

    arguments = dict(task_kwargs or {})
    known = list(inspect.signature(Navigation).parameters)
    unknown = [name for name in arguments if name not in known]
    if unknown:
        raise TypeError(f"task_kwargs: expected some of {known}, got {unknown}")
    return Navigation(**arguments)
