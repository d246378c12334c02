"""Processes that do not outlive the one that started them."""

import ctypes
import os
import signal

from indb_tensile.errors import UnavailableError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(signal_number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this signal when the process that started us ends, however it ends.

    Raises UnavailableError where it has ended already.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
    if os.getppid() != parent:
        raise UnavailableError("the process that started this one has ended")
