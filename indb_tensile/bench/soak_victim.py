"""A job of `bench.soak` that is there to be killed: it allocates at full speed and looks after its bytes.

Started as a trainer is. The slot that its controller claimed for it is the one that names its process.
"""

import ctypes
import os
import signal
import time

from indb_tensile import _native, config
from indb_tensile.executor.device import Ledger

DAMAGED = 3  # exit code of one that found other bytes than its own
_PR_SET_PDEATHSIG = 1
_PATIENCE_S = 60.0


def main() -> int:
    """Allocate until killed, or until a byte is not as it was left."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    device_fd = config.inheritance(os.environ).device_fd
    with Ledger.attach(device_fd) as ledger:
        slot, epoch = _claim(ledger)
    _native.churn(device_fd, slot, epoch, os.getpid())
    return DAMAGED


def _claim(ledger: Ledger) -> tuple[int, int]:
    end_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s:
        for usage in ledger.slots():
            if usage.pid == os.getpid() and usage.granted_bytes:
                return usage.slot, usage.epoch
        time.sleep(0.001)
    raise TimeoutError(f"nobody claimed a slot for process {os.getpid()} within {_PATIENCE_S:g} s")
