"""A controller whose device is a GPU with a double of its driver and of NVML (test_gpu_double.py).

NVML's double counts the double's physical memory of all the controller's processes, and the bytes of other programs,
which the test writes to the file named by OTHER_PROGRAMS.
"""

import os
import sys
from pathlib import Path
from typing import Self

from indb_tensile.device.nvml import Nvml, Reading
from tests.native.cuda_double import physical_bytes
from worker import controller, controller_device

TOTAL_BYTES = 32 << 20


class NvmlOfDouble(Nvml):
    """Reads the memory in use from /proc. It names no processes, as NVML in a container."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @classmethod
    def start(cls, library: object = None) -> Self:
        del library
        return cls()

    def read(self, uuid: str) -> Reading:
        del uuid
        return Reading(
            total_bytes=TOTAL_BYTES,
            used_bytes=physical_bytes(self._pid) + int(Path(os.environ["OTHER_PROGRAMS"]).read_text()),
            busy_percent=None,
            memory_busy_percent=None,
            processes=None,
        )

    def close(self) -> None:
        pass


if __name__ == "__main__":
    vars(controller).update(TRAINER="tests.e2e.gpu_double_trainer")
    vars(controller_device).update(torch_cuda=lambda: "12.8", Nvml=NvmlOfDouble)
    sys.exit(controller.main())
