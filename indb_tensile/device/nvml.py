"""What NVIDIA's management library says of a device: its load, its memory, and which processes hold memory on it.

It asks the kernel's driver, so it answers for all processes and needs no context; a controller asks it before it
takes a dead trainer's memory back (quarantine), and to show how busy the device is. In a container with process ids
of its own it still names the host's, so `processes` is only to be compared with ids of the same namespace.

Where MPS serves the device, one call names its server, another its clients: a trainer is a client, and the work of
one that died is over only when neither names it.
"""

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

import pynvml

from indb_tensile.errors import DeviceError, DeviceLostError

_UNKNOWN: Final = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT)
_NOT_TOLD: Final = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,  # a driver from before MPS had a call of its own
)


class Library(Protocol):
    """The functions of `pynvml` that are used here; each raises `pynvml.NVMLError`."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Any: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any, /) -> Any: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Any, /) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any, /) -> Any: ...
    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoNvml:
    """The library is not there or does not start."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process with a context on the device."""

    pid: int
    used_bytes: int | None  # None where the driver does not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A device at one moment, over all processes."""

    total_bytes: int
    used_bytes: int
    busy_percent: int | None  # of the last sample period, some kernel ran; None where the device does not tell
    memory_busy_percent: int | None  # likewise, its memory was read or written
    processes: tuple[Process, ...] | None  # by id; None where this process may not know


class Nvml:
    """The library, started; `close` ends it. Made by `Nvml.start`."""

    def __init__(self, library: Library) -> None:
        self._library = library

    @classmethod
    def start(cls, library: Library = pynvml) -> Self | NoNvml:
        """Start it; a machine without one, or without its driver, is told so."""
        try:
            library.nvmlInit()
        except pynvml.NVMLError as error:
            return NoNvml(reason=f"NVML does not start: {error}")
        return cls(library)

    def read(self, uuid: str) -> Reading:
        """The device of that UUID (`Gpu.uuid`). Raises DeviceLostError when it has gone, DeviceError otherwise."""
        try:
            handle = self._handle(uuid)
            memory = self._library.nvmlDeviceGetMemoryInfo(handle)
            rates = _told(self._library.nvmlDeviceGetUtilizationRates, handle)
            found = _told(self._library.nvmlDeviceGetComputeRunningProcesses, handle)
            served = _told(self._library.nvmlDeviceGetMPSComputeRunningProcesses, handle)
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
            processes=None if found is None else _processes([*found, *(served or ())]),
        )

    def _handle(self, uuid: str) -> Any:
        """A part of a GPU (MIG) has a UUID of its own, which the driver gives like any other and NVML writes so."""
        try:
            return self._library.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError as error:
            if error.value not in _UNKNOWN:
                raise
            return self._library.nvmlDeviceGetHandleByUUID(uuid.replace("GPU-", "MIG-", 1))

    def close(self) -> None:
        """End it; what it held is released however that goes."""
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


def _told(ask: Any, handle: Any) -> Any:
    """The answer, or None where this device or this user gets none."""
    try:
        return ask(handle)
    except pynvml.NVMLError as error:
        if error.value in _NOT_TOLD:
            return None
        raise


def _processes(found: Any) -> tuple[Process, ...]:
    """Merge the processes by id. NVML may list a client of MPS in both calls, with its bytes in only one."""
    used: dict[int, int | None] = {}
    for row in found:
        known, more = used.get(row.pid), row.usedGpuMemory
        used[row.pid] = more if known is None else max(known, more or 0)
    return tuple(Process(pid=pid, used_bytes=used[pid]) for pid in sorted(used))
