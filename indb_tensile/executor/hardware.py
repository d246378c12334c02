"""What kind of device this is, under which the catalog remembers operators, a first guess of its speed, and its
memory.

An emulated device's memory is the machine's own, set aside when a region is first used: settings that name more than
there is would be believed until a job needs it.
"""

import logging
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from indb_tensile.config import Settings, variable
from indb_tensile.errors import RequestError
from indb_tensile.scheduler.latency import DeviceSpeed

log = logging.getLogger("controller")

# One core of a server CPU: what its vector units and its share of the memory give a float32 kernel. It only has to
# rank operators until they are measured, which a calibration does before anything is planned.
EMULATED_SPEED = DeviceSpeed(flops_per_s=100_000_000_000, bytes_per_s=10_000_000_000, launch_ns=5_000)


def emulated_kind() -> str:
    """`emulated:` and the processor's name: operators take as long as the processor makes them."""
    return f"emulated:{_processor()}"


def machine_bytes() -> int:
    """All memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def room_bytes(settings: Settings) -> int:
    """What an emulated device's memory can come from now: the directory's file system, else the whole machine."""
    if not settings.memory_directory:
        return machine_bytes()
    try:
        found = os.statvfs(settings.memory_directory)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def within_machine(settings: Settings, machine: Callable[[], int] = machine_bytes) -> Settings:
    """The settings with as much host memory as there can be. Raises RequestError for a budget beyond the machine."""
    most_bytes = machine()
    if settings.budget_bytes > most_bytes:
        raise RequestError(
            f"budget_bytes ({variable('budget_bytes')}) is {settings.budget_bytes}: at most {most_bytes} is needed, "
            "the memory of this machine, of which an emulated device takes its own",
            hint="Set a budget that leaves memory for the database and the trainers.",
        )
    left_bytes = room_bytes(settings)
    if settings.memory_directory and 0 < left_bytes < settings.budget_bytes:  # 0: there can be no device at all
        log.warning(
            "memory_directory %s has %d bytes free, less than the budget of %d: jobs go back to the queue when it is "
            "full. Free some, enlarge it (mount -o remount,size=…), or lower budget_bytes.",
            settings.memory_directory,
            left_bytes,
            settings.budget_bytes,
        )
    if settings.host_pool_bytes > most_bytes:
        log.warning(
            "host_pool_bytes (%s) is %d, more than the %d bytes of this machine: so much is used and no more",
            variable("host_pool_bytes"),
            settings.host_pool_bytes,
            most_bytes,
        )
    return replace(settings, host_pool_bytes=min(settings.host_pool_bytes, most_bytes))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
