"""Starts a controller that ends with the benchmark that started it, also when that is killed."""

import subprocess
import sys
from collections.abc import Mapping
from typing import IO

# setpriv sets the signal that the kernel sends when the parent ends, and then becomes the controller, so the process
# id is the controller's. On SIGTERM a controller returns its jobs to the queue and ends its processes.
_COMMAND = ("setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "indb_tensile.worker.controller")


def start_controller(
    environment: Mapping[str, str], log: IO[str] | IO[bytes], *, own_session: bool = False
) -> "subprocess.Popen[bytes]":
    """Start a controller with this environment, whose output goes to `log`, without waiting until it is ready.

    The controller is stopped when the thread ends that calls this, so call it in the main thread. In a session of its
    own, interrupts from the terminal do not reach it.
    """
    return subprocess.Popen(
        _COMMAND,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=own_session,
    )
