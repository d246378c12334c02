"""Known GPUs with their published peak rates and links. Simulated figures refer to them, and emulated devices are
slowed down to them.

Operator time is the roofline of `scheduler/timing/latency.py`: arithmetic or memory traffic, whichever is longer,
plus 5 us of launch time. Views cost nothing, because they are no operators. The reference machine, for which the
project's target figures hold, is the RTX A6000 without TF32. On faster machines a link of the same width hides less:
an iteration of VGG-16 at batch 16 takes 54 ms on the A6000, 18 ms on an A100 with TF32 and 6 ms on an H200. Rates are
from the makers' data sheets (dense, not sparse).

An emulated device stands for one of these GPUs as if that GPU's clock were slowed down. Its link rate is scaled by
the ratio of the times that a whole step takes on both. The ratio of the rates of matrix products alone would make
memory-bound operators relatively too cheap.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from indb_tensile.errors import MissingError, RequestError
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.timing.latency import DeviceSpeed, estimate

LAUNCH_NS = 5_000
_GIGA = 1_000_000_000
_MOST = 2**62  # bytes a second; the rates have to fit 64-bit integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One kind of device with the rates that its maker publishes."""

    name: str
    title: str
    speed: DeviceSpeed
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The time of the same step here, as measured, and on a machine, by its roofline."""

    here_ns: int
    there_ns: int


def link(gb_per_s: float) -> Link:
    """Return a link of this many gigabytes (10^9 bytes) a second in each direction, both directions at once.

    Raises RequestError unless the rate is at least one byte a second and below 2^62.
    """
    rate = round(gb_per_s * _GIGA) if isfinite(gb_per_s * _GIGA) else 0
    if not 0 < rate < _MOST:
        raise RequestError(
            f"the link rate of {gb_per_s} GB/s is out of range", hint="Give a positive number below 4 billion."
        )
    return Link(out_bytes_per_s=rate, in_bytes_per_s=rate)


def _machine(name: str, title: str, *, tflop_per_s: float, gb_per_s: int, link_gb_s: float) -> Machine:
    speed = DeviceSpeed(
        flops_per_s=round(tflop_per_s * 1000) * _GIGA, bytes_per_s=gb_per_s * _GIGA, launch_ns=LAUNCH_NS
    )
    return Machine(name=name, title=title, speed=speed, link=link(link_gb_s))


LINKS_GB_S = (12.0, 25.0, 55.0)  # PCI Express 3, 4 and 5 with sixteen lanes: measured rates, not printed ones
_PCIE_3, _PCIE_4, _PCIE_5 = LINKS_GB_S
REFERENCE = _machine("a6000", "RTX A6000, float32 without TF32", tflop_per_s=38.7, gb_per_s=768, link_gb_s=_PCIE_4)
_OTHERS = (
    _machine("a100", "A100 40 GB, TF32", tflop_per_s=156, gb_per_s=1_555, link_gb_s=_PCIE_4),
    _machine("h200", "H200, TF32", tflop_per_s=494.5, gb_per_s=4_800, link_gb_s=_PCIE_5),
    _machine("v100", "V100, float32", tflop_per_s=15.7, gb_per_s=900, link_gb_s=_PCIE_3),
    _machine("rtx4090", "RTX 4090, float32 without TF32", tflop_per_s=82.6, gb_per_s=1_008, link_gb_s=_PCIE_4),
)
MACHINES: Mapping[str, Machine] = MappingProxyType({m.name: m for m in (REFERENCE, *_OTHERS)})


def machine(name: str) -> Machine:
    """Return the machine of this name. Raises MissingError if there is none."""
    if name not in MACHINES:
        raise MissingError(f"there is no machine '{name}'", hint=f"Machines are: {', '.join(MACHINES)}.")
    return MACHINES[name]


def latencies(graph: StepGraph, machine: Machine) -> tuple[int, ...]:
    """Return the nanoseconds of each operator of the graph on this machine."""
    return estimate(graph, machine.speed)


def slowed(machine: Machine, pace: StepTimes) -> Link:
    """Return the machine's link, scaled by the ratio of the machine's step time to this device's step time."""

    def rate(bytes_per_s: int) -> int:
        return max(1, bytes_per_s * pace.there_ns // pace.here_ns)

    return Link(out_bytes_per_s=rate(machine.link.out_bytes_per_s), in_bytes_per_s=rate(machine.link.in_bytes_per_s))
