"""Ends a process when the process that started it ends."""

import ctypes
import os
import signal

from indb_tensile.errors import UnavailableError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(signal_number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this signal to this process when its parent ends for any reason.

    Raises UnavailableError if the parent has ended already.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
    if os.getppid() != parent:
        raise UnavailableError("the process that started this one has ended")
