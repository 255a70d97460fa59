"""Tasks: what the robots are to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleet_gym.tasks.base import Task

#: Names accepted by `make_task`.
TASKS = ("navigation",)
_METHODS = ("build", "bind", "sample", "observe", "evaluate", "save", "restore")


def make_task(task: str | Task, task_kwargs: Mapping[str, Any] | None = None) -> Task:
    """Returns the task called `task`, made with `task_kwargs`, or a task object as it is.

    Raises:
        TypeError: for an argument the task does not have, or arguments beside a task object.
        ValueError: for an unknown name, or a value the task refuses.
    """
    if task_kwargs is not None and not isinstance(task_kwargs, Mapping):
        raise TypeError(f"task_kwargs: expected a mapping of arguments or None, got {task_kwargs!r}")
    if not isinstance(task, str):
        missing = [name for name in _METHODS if not callable(getattr(task, name, None))]
        if missing:
            raise TypeError(
                f"task: expected a name or an object with the methods of Task, got {task!r} without {missing}"
            )
        if task.needs:
            raise ValueError(f"task.needs: expected none of the optional state arrays, got {sorted(task.needs)}")
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
