"""How busy a GPU is and what others have of it, as its driver says: the catalog shows it beside what jobs use.

The ledger knows only jobs. What NVML counts beyond the regions that jobs share is other programs', the driver's, and
the trainers' own contexts. An emulated device has no driver to ask.
"""

import logging
from dataclasses import dataclass
from typing import Protocol

from indb_tensile.errors import DeviceError
from indb_tensile.executor.nvml import Nvml, Reading

log = logging.getLogger("controller")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A device at one moment; None is what nobody tells."""

    busy_percent: int | None = None  # of the driver's last sample period, some kernel ran
    memory_busy_percent: int | None = None  # likewise, its memory was read or written
    outside_bytes: int | None = None  # in use beside the regions that jobs share


class Gauge(Protocol):
    """Whoever can be asked for a device's load; it answers at once."""

    reading: Reading | None  # what the driver said when it was last asked

    def read(self) -> Load:
        """The load now."""
        ...


class NoGauge:
    """Of a device that nobody can be asked about."""

    reading: Reading | None = None

    def read(self) -> Load:
        """Nothing is known."""
        return Load()


class GpuGauge:
    """Asks NVML; what it does not tell is None, and why is said in the log once until it tells again."""

    def __init__(self, nvml: Nvml, uuid: str, *, regions_bytes: int | None) -> None:
        """None: there are no regions but what each trainer makes."""
        self._nvml = nvml
        self._uuid = uuid
        self._regions_bytes = regions_bytes
        self._silent = False
        self.reading: Reading | None = None  # the latest; None where NVML did not answer

    def read(self) -> Load:
        """The load now, of all processes together."""
        self.reading = None
        try:
            reading = self._nvml.read(self._uuid)
        except DeviceError as error:
            log.log(logging.DEBUG if self._silent else logging.WARNING, "no load is shown: %s", error.message)
            self._silent = True
            return Load()
        self._silent = False
        self.reading = reading
        return Load(
            busy_percent=reading.busy_percent,
            memory_busy_percent=reading.memory_busy_percent,
            outside_bytes=None if self._regions_bytes is None else max(0, reading.used_bytes - self._regions_bytes),
        )
