"""A GPU's regions as the controller holds them: made once, without a context, and handed to every trainer.

The memory lives as long as any process has it, so what a dead trainer had comes back only when the driver has let go
of the process: NVML lists it until then (DEVICE.md, crash safety). Where NVML is not there, or names processes of
another namespace, the grace between a trainer's end and its memory's next owner is all there is.
"""

import logging
import socket
import threading

from indb_tensile.controller.mps import Mps
from indb_tensile.errors import DeviceError
from indb_tensile.executor.cuda import CudaBroker, Gpu
from indb_tensile.executor.nvml import NoNvml, Nvml
from indb_tensile.scheduler.admission.pool import TrainerId

log = logging.getLogger("controller")


class BrokeredRegions:
    """All regions of one GPU, which go with this process and the trainers.

    Raises DeviceMemoryError where it has not so much, DeviceError for another size.
    """

    def __init__(
        self, gpu: Gpu, nvml: Nvml | NoNvml, *, region_bytes: int, capacity_bytes: int, mps: Mps | None = None
    ) -> None:
        self._gpu = gpu
        self._mps = mps
        self._broker = CudaBroker(gpu.ordinal, region_bytes, capacity_bytes // region_bytes)
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
                self._broker.send(taker.fileno())
            except DeviceError as error:
                # Its own end is told by its process; spare trainers are ended before they have taken anything.
                log.info("trainer %s did not take its regions: %s", trainer, error.message)
