"""How busy a GPU is and what others have of it, as its driver says: the catalog shows it beside what jobs use.

The ledger knows only jobs. What NVML counts beyond the regions that jobs share is other programs', the driver's, and
the trainers' own contexts. An emulated device has no driver to ask.
"""

import logging
from dataclasses import dataclass
from typing import Protocol

from indb_tensile.config import variable
from indb_tensile.errors import DeviceError
from indb_tensile.executor.nvml import Nvml

log = logging.getLogger("controller")

_TIGHT = 4  # a warning where less than this part of the headroom is left


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A device at one moment; None is what nobody tells."""

    busy_percent: int | None = None  # of the driver's last sample period, some kernel ran
    memory_busy_percent: int | None = None  # likewise, its memory was read or written
    outside_bytes: int | None = None  # in use beside the regions that jobs share


class Gauge(Protocol):
    """Whoever can be asked for a device's load; it answers at once."""

    def read(self) -> Load:
        """The load now."""
        ...


class NoGauge:
    """Of a device that nobody can be asked about."""

    def read(self) -> Load:
        """Nothing is known."""
        return Load()


class GpuGauge:
    """Asks NVML; what it does not tell is None, and why is said in the log once until it tells again.

    Once regions are made, what is left is the headroom for contexts and loaded kernels. What those really take is
    seen as trainers attach: where little is left of it the log says so, before one finds no room.
    """

    def __init__(self, nvml: Nvml, uuid: str, *, regions_bytes: int | None) -> None:
        """None: there are no regions but what each trainer makes."""
        self._nvml = nvml
        self._uuid = uuid
        self._regions_bytes = regions_bytes
        self._headroom_bytes: int | None = None  # with the regions, and before any trainer
        self._silent = False
        self._warned = False

    def read(self) -> Load:
        """The load now, of all processes together."""
        try:
            reading = self._nvml.read(self._uuid)
        except DeviceError as error:
            log.log(logging.DEBUG if self._silent else logging.WARNING, "no load is shown: %s", error.message)
            self._silent = True
            return Load()
        self._silent = False
        if self._regions_bytes is not None:
            self._look_at_headroom(reading.total_bytes - reading.used_bytes)
        return Load(
            busy_percent=reading.busy_percent,
            memory_busy_percent=reading.memory_busy_percent,
            outside_bytes=None if self._regions_bytes is None else max(0, reading.used_bytes - self._regions_bytes),
        )

    def _look_at_headroom(self, left_bytes: int) -> None:
        if self._headroom_bytes is None:
            self._headroom_bytes = left_bytes
        is_tight = left_bytes * _TIGHT < self._headroom_bytes
        if is_tight and not self._warned:
            log.warning(
                "contexts and loaded kernels have left %d of the %d bytes beside the jobs' regions: set"
                " capacity_bytes (%s) or max_jobs lower, or the next trainer may find no room",
                left_bytes,
                self._headroom_bytes,
                variable("capacity_bytes"),
            )
        self._warned = is_tight
