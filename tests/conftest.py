"""What tests of several folders share."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from collections.abc import Callable, Sequence

import pytest


@pytest.fixture
def output_on_a_terminal() -> Callable[[Sequence[str]], str]:
    """Gives a function that runs a command on a terminal, to success, and returns what it showed."""

    def run(command: Sequence[str]) -> str:
        master, slave = pty.openpty()
        with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, close_fds=True) as process:
            os.close(slave)
            output = b""
            # Reading a terminal whose other side has closed is an error on Linux.
            with contextlib.suppress(OSError):
                while chunk := os.read(master, 4096):
                    output += chunk
        os.close(master)
        assert process.returncode == 0
        return output.decode()

    return run
