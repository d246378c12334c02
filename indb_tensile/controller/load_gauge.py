"""Reads from its driver how busy a GPU is and how much memory other programs use, for the catalog.

The ledger counts only the memory of jobs. The memory that NVML counts beyond the regions of jobs belongs to other
programs, to the driver, and to the trainers' CUDA contexts. An emulated device has no driver to ask.
"""

import logging
from dataclasses import dataclass
from typing import Protocol

from indb_tensile.device.nvml import Nvml, Reading
from indb_tensile.errors import DeviceError

log = logging.getLogger("controller")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLoad:
    """The load of a device at one moment. None means that the figure is unknown."""

    busy_percent: int | None = None  # share of the driver's last sample period in which a kernel ran
    memory_busy_percent: int | None = None  # share of that period in which device memory was read or written
    outside_bytes: int | None = None  # memory in use outside the regions of jobs


class MadeRegions(Protocol):
    """The regions that the controller has made for all trainers."""

    made_bytes: int

    @property
    def changing(self) -> bool:
        """True while regions are released or created. `made_bytes` may be wrong then."""
        ...


class Gauge(Protocol):
    """A source of a device's load. It answers at once."""

    reading: Reading | None  # the driver's last answer

    def read(self) -> DeviceLoad:
        """Return the load at this moment."""
        ...


class NoGauge:
    """The gauge of a device whose load cannot be read."""

    reading: Reading | None = None

    def read(self) -> DeviceLoad:
        """Return a load of which every figure is unknown."""
        return DeviceLoad()


class GpuGauge:
    """Reads the load from NVML. A failure is logged as a warning once, until NVML answers again."""

    def __init__(self, nvml: Nvml, uuid: str, *, regions: MadeRegions | None) -> None:
        """`regions` are the shared regions; None if each trainer allocates its own."""
        self._nvml = nvml
        self._uuid = uuid
        self._regions = regions
        self._failing = False
        self.reading: Reading | None = None  # the latest; None if NVML did not answer or regions were changing

    def read(self) -> DeviceLoad:
        """Return the load at this moment, of all processes together."""
        self.reading = None
        try:
            reading = self._nvml.read(self._uuid)
        except DeviceError as error:
            log.log(
                logging.DEBUG if self._failing else logging.WARNING, "the device's load is unknown: %s", error.message
            )
            self._failing = True
            return DeviceLoad()
        self._failing = False
        outside_bytes = None
        if self._regions is None or not self._regions.changing:
            self.reading = reading
            outside_bytes = None if self._regions is None else max(0, reading.used_bytes - self._regions.made_bytes)
        return DeviceLoad(
            busy_percent=reading.busy_percent,
            memory_busy_percent=reading.memory_busy_percent,
            outside_bytes=outside_bytes,
        )
