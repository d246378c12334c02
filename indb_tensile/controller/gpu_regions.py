"""The memory regions of a GPU: the controller makes them once, without a CUDA context, for all trainers.

In some containers and virtual machines the driver cannot share memory between processes. There each trainer makes the
regions that the ledger grants to it, and frees them before the ledger grants them to another trainer
(CudaDevice.trim). Plans and budgets are the same, but every change of plans calls the driver.

Memory stays allocated as long as any process has it mapped. So the memory of a dead trainer is free only when the
driver has released the process; until then NVML lists the process. If NVML is missing, or lists processes of another
namespace, only the fixed pause between a trainer's end and the next use of its memory protects that use.
"""

import logging
import socket
import struct
import subprocess
import threading
from collections.abc import Sequence

from indb_tensile.controller.mps import Mps
from indb_tensile.controller.shared_regions import SharedRegions
from indb_tensile.device.cuda import CudaBroker, Gpu
from indb_tensile.device.nvml import NoNvml, Nvml
from indb_tensile.errors import DeviceError, DeviceLostError, DeviceMemoryError
from indb_tensile.scheduler.admission.pool import TrainerId

log = logging.getLogger("controller")


_TRIED_REGIONS = 2
_TIMEOUT_S = 60  # time limit for a process that creates a CUDA context
_SMALLER_BY_PART = 16  # if the device does not give the capacity, it is tried with 1/16 less each time


def broker(
    gpu: Gpu,
    *,
    region_bytes: int,
    capacity_bytes: int,
    shares: bool,
    least_bytes: int | None = None,
    mapper: Sequence[str] = (),
) -> tuple[CudaBroker | None, int]:
    """Make all regions. Returns their broker and their size in bytes; the broker is None if they cannot be shared.

    Without a broker the log says why: the setting `share_memory` is off, or the driver cannot share memory. `mapper`
    is the command of a process that maps regions (worker/probe_sharing.py); a few regions are mapped by it once as a
    test. If another program has taken memory meanwhile, fewer regions are made, but not less than `least_bytes`.
    Raises DeviceMemoryError if the device does not have that much, and DeviceLostError if the device is gone.
    """
    if not shares:
        reason = "share_memory is off"
    elif not gpu.shareable:
        reason = f"{gpu.name} cannot share memory with other processes"
    else:
        try:
            if mapper:
                _try_sharing(gpu, region_bytes, mapper)
            return _make_broker(
                gpu, region_bytes, capacity_bytes, capacity_bytes if least_bytes is None else least_bytes
            )
        except (DeviceMemoryError, DeviceLostError):
            raise
        except DeviceError as error:
            reason = error.message
    log.warning("each trainer allocates its own regions, as much as it is granted: %s", reason)
    return None, capacity_bytes


def _try_sharing(gpu: Gpu, region_bytes: int, mapper: Sequence[str]) -> None:
    """Let a separate process map a few regions and write to them. Raises DeviceError if it cannot."""
    test_broker = CudaBroker(gpu.ordinal, region_bytes, _TRIED_REGIONS)
    own_end, mapper_end = socket.socketpair()
    with own_end, mapper_end:
        command = (*mapper, str(gpu.ordinal), str(mapper_end.fileno()))
        process = subprocess.Popen(command, pass_fds=(mapper_end.fileno(),), stdout=subprocess.PIPE, text=True)
        mapper_end.close()
        timeout = struct.pack("ll", _TIMEOUT_S, 0)
        # settimeout() would make the socket non-blocking.
        own_end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        send_error: DeviceError | None = None
        try:
            test_broker.send(own_end.fileno())
        except DeviceError as error:
            send_error = error
        try:
            output, _ = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
    if process.returncode or send_error is not None:
        reason = output.strip() or (
            send_error.message if send_error is not None else f"it ended with code {process.returncode}"
        )
        raise DeviceError(f"another process cannot use {gpu.name}'s memory: {reason}")


def _make_broker(gpu: Gpu, region_bytes: int, capacity_bytes: int, least_bytes: int) -> tuple[CudaBroker, int]:
    """Make a broker of as much memory as the device gives."""
    tried_bytes = capacity_bytes
    while True:
        try:
            return CudaBroker(gpu.ordinal, region_bytes, tried_bytes // region_bytes), tried_bytes
        except DeviceMemoryError:
            if tried_bytes <= least_bytes:
                raise
            fewer_bytes = max(least_bytes, tried_bytes - max(region_bytes, tried_bytes // _SMALLER_BY_PART))
            fewer_bytes -= fewer_bytes % region_bytes
            log.warning("%s cannot allocate %d bytes: trying %d", gpu.name, tried_bytes, fewer_bytes)
            tried_bytes = fewer_bytes


class GpuRegions:
    """A GPU's regions. Either one broker shares all of them, or each trainer makes its own."""

    def __init__(self, gpu: Gpu, nvml: Nvml | NoNvml, shared: SharedRegions | None, mps: Mps | None = None) -> None:
        self._gpu = gpu
        self._mps = mps
        self._shared = shared
        self.handed_over = shared is not None
        self._nvml = nvml
        if isinstance(nvml, NoNvml):
            log.warning(
                "%s: a dead trainer's memory is reused after a fixed pause, without asking the driver", nvml.reason
            )

    def hand_to(self, trainer: TrainerId, taker: socket.socket) -> None:
        """Send all regions to a trainer, from a thread. The trainer follows their changes until `forget`.

        A trainer receives them only after it has started, and the caller must not wait for that.
        """
        threading.Thread(target=self._send, args=(trainer, taker), name=f"regions {trainer}", daemon=True).start()

    def forget(self, trainer: TrainerId) -> None:
        """End the connection to a trainer that has ended."""
        if self._shared is not None:
            self._shared.forget(trainer)

    def in_use_by(self, pid: int) -> bool:
        """Return whether the driver still lists this process on the device."""
        if isinstance(self._nvml, NoNvml):
            return False
        try:
            processes = self._nvml.read(self._gpu.uuid).processes
        except DeviceError as error:
            log.error("%s", error.message)  # noqa: TRY400 - no traceback needed
            return False  # a device that is gone has no processes
        return processes is not None and any(process.pid == pid for process in processes)

    def let_go(self, pid: int) -> None:
        """End the GPU work of this process if killing it could otherwise end the work of others."""
        if self._mps is not None:
            self._mps.let_go(pid)

    def _send(self, trainer: TrainerId, taker: socket.socket) -> None:
        assert self._shared is not None
        try:
            self._shared.send(trainer, taker)
        except DeviceError as error:
            # A spare trainer may end before it has received the regions. The end of any trainer is reported by its
            # pidfd (trainers.py).
            log.info("trainer %s did not receive its regions: %s", trainer, error.message)
