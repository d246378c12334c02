"""A process that measures a GPU's copies and prints them as a line of JSON.

The controller starts it, because the controller itself has no CUDA context. Exit codes are those of the controller.
"""

import json
import logging
import os
import sys
from dataclasses import asdict

from indb_tensile import settings_loader
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.device.bandwidth import measure_copies
from indb_tensile.device.cuda import CudaDevice, ordinal
from indb_tensile.device.ledger import Ledger
from indb_tensile.errors import TensileError
from indb_tensile.log import start_log

_REGIONS = 4

log = logging.getLogger("link")


def main() -> int:
    """Measure the copies and print them. Returns the exit code."""
    settings = settings_loader.load(os.environ)
    start_log("link", settings.log_level.upper())
    die_with_parent()
    copy_bytes = settings.region_bytes
    try:
        with Ledger.create(_REGIONS * copy_bytes, copy_bytes, 1, 1) as ledger:
            slot, epoch = ledger.claim_slot(os.getpid())
            ledger.grant(slot, _REGIONS * copy_bytes)
            number = ordinal(settings.device)
            with CudaDevice(ledger.fd, slot, epoch, 4 * copy_bytes, device=number) as device:
                device.host_prepare(2 * copy_bytes)
                copies = measure_copies(device, copy_bytes)
                print(json.dumps([asdict(row) for row in copies]))  # noqa: T201 - the controller reads this output
    except TensileError as error:
        log.error("the link was not measured: %s", error)  # noqa: TRY400 - no traceback needed
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
