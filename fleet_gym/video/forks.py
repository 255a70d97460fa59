"""Keeps forked children from holding the pipes of this process's encoders.

A child forked after recording began inherits the writing ends of the pipes; as long as it lives, the encoders would
not see that this process has closed them. So a forked child replaces them by ``/dev/null``: the numbers stay valid,
and closing them there, whenever the child's garbage collector gets to it, closes nothing else.
"""

from __future__ import annotations

import os

_descriptors: set[int] = set()


def close_in_forks(descriptor: int) -> None:
    """Has children forked from now on let go of the descriptor."""
    _descriptors.add(descriptor)


def forget(descriptor: int) -> None:
    """Undoes `close_in_forks`; call it before closing the descriptor."""
    _descriptors.discard(descriptor)


def _let_go() -> None:
    if not _descriptors:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in _descriptors:
        os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _descriptors.clear()


os.register_at_fork(after_in_child=_let_go)
