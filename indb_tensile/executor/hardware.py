"""What kind of device this is, under which the catalog remembers operators, and a first guess of its speed."""

import platform
from pathlib import Path

from indb_tensile.scheduler.latency import DeviceSpeed

# One core of a server CPU: what its vector units and its share of the memory give a float32 kernel. It only has to
# rank operators until they are measured, which a calibration does before anything is planned.
EMULATED_SPEED = DeviceSpeed(flops_per_s=100_000_000_000, bytes_per_s=10_000_000_000, launch_ns=5_000)


def emulated_kind() -> str:
    """`emulated:` and the processor's name: operators take as long as the processor makes them."""
    return f"emulated:{_processor()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
