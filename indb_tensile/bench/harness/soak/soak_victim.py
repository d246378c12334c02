"""A job of `bench.soak` that the test kills: it allocates at full speed and checks that its bytes do not change.

The test starts it as the controller starts a trainer. It finds its slot in the ledger by its own process id.
"""

import os
import time

from indb_tensile import _native, config
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.device.ledger import Ledger

DAMAGED = 3  # exit code of a victim that read bytes other than those it wrote
_TIMEOUT_S = 60.0


def main() -> int:
    """Allocate until the process is killed, or until a byte has changed."""
    die_with_parent()
    device_fd = config.inherited_descriptors(os.environ).device_fd
    with Ledger.attach(device_fd) as ledger:
        slot, epoch = _claim(ledger)
    _native.churn(device_fd, slot, epoch, os.getpid())
    return DAMAGED


def _claim(ledger: Ledger) -> tuple[int, int]:
    end_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < end_s:
        for usage in ledger.slots():
            if usage.pid == os.getpid() and usage.granted_bytes:
                return usage.slot, usage.epoch
        time.sleep(0.001)
    raise TimeoutError(f"no slot was claimed for process {os.getpid()} within {_TIMEOUT_S:g} s")
