"""A GPU's regions as the controller holds them: made once, without a context, and handed to every trainer.

Where the driver hands no memory from one process to another, as in some containers and virtual machines, each trainer
makes its own, in the regions that the ledger says are its, and gives it up before they are granted to another
(CudaDevice.trim): the same plans within the same budget, with calls of the driver whenever plans change.

The memory lives as long as any process has it, so what a dead trainer had comes back only when the driver has let go
of the process: NVML lists it until then (DEVICE.md, crash safety). Where NVML is not there, or names processes of
another namespace, the grace between a trainer's end and its memory's next owner is all there is.
"""

import logging
import socket
import struct
import subprocess
import threading
from collections.abc import Sequence

from indb_tensile.controller.mps import Mps
from indb_tensile.errors import DeviceError, DeviceLostError, DeviceMemoryError
from indb_tensile.executor.cuda import CudaBroker, Gpu
from indb_tensile.executor.nvml import NoNvml, Nvml
from indb_tensile.scheduler.admission.pool import TrainerId

log = logging.getLogger("controller")


_TRIED_REGIONS = 2
_PATIENCE_S = 60  # for a process that makes a context
_FEWER = 16  # of the capacity this part less is tried where the device does not give it


def broker(
    gpu: Gpu,
    *,
    region_bytes: int,
    capacity_bytes: int,
    shares: bool,
    least_bytes: int | None = None,
    mapper: Sequence[str] = (),
) -> tuple[CudaBroker | None, int]:
    """All the regions, and their bytes; None where they are not to be shared or the driver hands none over.

    The log says why none. `mapper` is the command of a process that takes regions (worker/mapping.py): whether
    another process can map and use them is tried once, with few. Where the device does not give so much, because
    another program has taken it meanwhile, fewer regions are made, down to `least_bytes`. Raises DeviceMemoryError
    where the device has not as much, DeviceLostError where it is gone.
    """
    if not shares:
        why = "share_memory is off"
    elif not gpu.shareable:
        why = f"{gpu.name} hands none to other processes"
    else:
        try:
            if mapper:
                _try_sharing(gpu, region_bytes, mapper)
            return _made(gpu, region_bytes, capacity_bytes, capacity_bytes if least_bytes is None else least_bytes)
        except (DeviceMemoryError, DeviceLostError):
            raise
        except DeviceError as error:
            why = error.message
    log.warning("each trainer makes memory of its own, as much as it is granted: %s", why)
    return None, capacity_bytes


def _try_sharing(gpu: Gpu, region_bytes: int, mapper: Sequence[str]) -> None:
    """Have a process of its own map a few regions and write to them. Raises DeviceError where it cannot."""
    few = CudaBroker(gpu.ordinal, region_bytes, _TRIED_REGIONS)
    here, there = socket.socketpair()
    with here, there:
        command = (*mapper, str(gpu.ordinal), str(there.fileno()))
        taker = subprocess.Popen(command, pass_fds=(there.fileno(),), stdout=subprocess.PIPE, text=True)
        there.close()
        patience = struct.pack("ll", _PATIENCE_S, 0)
        here.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience
        )  # a time-out of Python's makes it non-blocking
        told: DeviceError | None = None
        try:
            few.send(here.fileno())
        except DeviceError as error:
            told = error
        try:
            said, _ = taker.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            taker.kill()
            said, _ = taker.communicate()
    if taker.returncode or told is not None:
        why = said.strip() or (told.message if told is not None else f"it ended with code {taker.returncode}")
        raise DeviceError(f"another process cannot use {gpu.name}'s memory: {why}")


def _made(gpu: Gpu, region_bytes: int, capacity_bytes: int, least_bytes: int) -> tuple[CudaBroker, int]:
    """A broker of as much as the device gives."""
    tried_bytes = capacity_bytes
    while True:
        try:
            return CudaBroker(gpu.ordinal, region_bytes, tried_bytes // region_bytes), tried_bytes
        except DeviceMemoryError:
            if tried_bytes <= least_bytes:
                raise
            fewer_bytes = max(least_bytes, tried_bytes - max(region_bytes, tried_bytes // _FEWER))
            fewer_bytes -= fewer_bytes % region_bytes
            log.warning("%s does not give %d bytes: trying %d", gpu.name, tried_bytes, fewer_bytes)
            tried_bytes = fewer_bytes


class GpuRegions:
    """A GPU's regions: the broker's, which go with this process and all trainers, or each trainer's own."""

    def __init__(self, gpu: Gpu, nvml: Nvml | NoNvml, broker: CudaBroker | None, mps: Mps | None = None) -> None:
        self._gpu = gpu
        self._mps = mps
        self._broker = broker
        self.handed_over = broker is not None
        self._nvml = nvml
        if isinstance(nvml, NoNvml):
            log.warning("%s: only time tells when a dead trainer's memory is free", nvml.reason)

    def hand_to(self, trainer: TrainerId, taker: socket.socket) -> None:
        """Send them all from a thread of its own: a trainer takes them when it has started."""
        threading.Thread(target=self._send, args=(trainer, taker), name=f"regions {trainer}", daemon=True).start()

    def in_use_by(self, pid: int) -> bool:
        """Whether the driver still lists that process on the device."""
        if isinstance(self._nvml, NoNvml):
            return False
        try:
            processes = self._nvml.read(self._gpu.uuid).processes
        except DeviceError as error:
            log.error("%s", error.message)  # noqa: TRY400 - one line says it all
            return False  # a device that is gone holds nothing
        return processes is not None and any(process.pid == pid for process in processes)

    def let_go(self, pid: int) -> None:
        """End what that process computes, where killing it could otherwise end others' work."""
        if self._mps is not None:
            self._mps.let_go(pid)

    def _send(self, trainer: TrainerId, taker: socket.socket) -> None:
        with taker:
            try:
                assert self._broker is not None
                self._broker.send(taker.fileno())
            except DeviceError as error:
                # Its own end is told by its process; spare trainers are ended before they have taken anything.
                log.info("trainer %s did not take its regions: %s", trainer, error.message)
