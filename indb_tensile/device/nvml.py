"""Reads a GPU's load, memory and processes with NVIDIA's management library (NVML).

NVML asks the kernel's driver, so it reports all processes and needs no context. A controller asks it before it takes
a dead trainer's memory back (quarantine), and to show the device's load. In a container with its own process ids NVML
still reports the host's ids, so compare `processes` only with ids of the same namespace.

If MPS serves the device, one call lists the MPS server and another lists its clients. A trainer is a client, and a
dead trainer's work is over only when neither call lists the trainer.
"""

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

import pynvml

from indb_tensile.errors import DeviceError, DeviceLostError

_UNKNOWN: Final = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)
_NOT_AVAILABLE: Final = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,  # a driver that is older than the call for MPS clients
)


class Library(Protocol):
    """The functions of `pynvml` that this module calls. Each raises `pynvml.NVMLError`."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Any: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any, /) -> Any: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Any, /) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any, /) -> Any: ...
    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNvml:
    """NVML is not installed or does not start."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process with a context on the device."""

    pid: int
    used_bytes: int | None  # None if the driver does not report it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The state of a device at one moment, over all processes."""

    total_bytes: int
    used_bytes: int
    busy_percent: int | None  # of the last sample period in which a kernel ran; None if not reported
    memory_busy_percent: int | None  # of the last sample period in which memory was read or written
    processes: tuple[Process, ...] | None  # by id; None if this process may not see them


class Nvml:
    """The started library. `Nvml.start` makes it, and `close` ends it."""

    def __init__(self, library: Library) -> None:
        self._library = library

    @classmethod
    def start(cls, library: Library = pynvml) -> Self | NoNvml:
        """Start the library, or return the reason why it does not start."""
        try:
            library.nvmlInit()
        except pynvml.NVMLError as error:
            return NoNvml(reason=f"NVML does not start: {error}")
        return cls(library)

    def read(self, uuid: str) -> Reading:
        """Read the device with that UUID (`Gpu.uuid`). Raise DeviceLostError for a lost device, else DeviceError."""
        try:
            handle = self._handle(uuid)
            memory = self._library.nvmlDeviceGetMemoryInfo(handle)
            rates = _query(self._library.nvmlDeviceGetUtilizationRates, handle)
            processes = _query(self._library.nvmlDeviceGetComputeRunningProcesses, handle)
            mps_clients = _query(self._library.nvmlDeviceGetMPSComputeRunningProcesses, handle)
        except pynvml.NVMLError as error:
            lost = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
            raise (DeviceLostError if lost else DeviceError)(
                f"device {uuid}: NVML answers: {error}", hint="Look at nvidia-smi and the kernel's log (Xid)."
            ) from error
        return Reading(
            total_bytes=memory.total,
            used_bytes=memory.used,
            busy_percent=None if rates is None else rates.gpu,
            memory_busy_percent=None if rates is None else rates.memory,
            processes=None if processes is None else _processes([*processes, *(mps_clients or ())]),
        )

    def _handle(self, uuid: str) -> Any:
        """Return NVML's handle of a device, also for a part of a GPU (MIG).

        A part has its own UUID. The driver reports the UUID with the prefix `GPU-`, NVML with the prefix `MIG-`.
        """
        try:
            return self._library.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError as error:
            if error.value not in _UNKNOWN:
                raise
            return self._library.nvmlDeviceGetHandleByUUID(uuid.replace("GPU-", "MIG-", 1))

    def close(self) -> None:
        """End the library. Its resources are released even if an error is raised."""
        try:
            self._library.nvmlShutdown()
        except pynvml.NVMLError as error:
            raise DeviceError(f"NVML does not end: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _query(function: Any, handle: Any) -> Any:
    """Return the answer, or None if this device or this user gets none."""
    try:
        return function(handle)
    except pynvml.NVMLError as error:
        if error.value in _NOT_AVAILABLE:
            return None
        raise


def _processes(rows: Any) -> tuple[Process, ...]:
    """Merge the processes by id. NVML may list a client of MPS in both calls, with its bytes in only one."""
    used: dict[int, int | None] = {}
    for row in rows:
        known, more = used.get(row.pid), row.usedGpuMemory
        used[row.pid] = more if known is None else max(known, more or 0)
    return tuple(Process(pid=pid, used_bytes=used[pid]) for pid in sorted(used))
