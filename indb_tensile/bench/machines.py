"""The machines that simulated figures are printed for: published peak rates as a roofline, and links.

Operator time is the roofline of `scheduler/latency.py`: arithmetic or memory traffic, whichever is longer, plus
5 us to start it. Views cost nothing, as they are no operators. The RTX A6000 without TF32 is the reference machine,
the one with bars; on faster ones a link of the same width hides less: an iteration of VGG-16 at batch 16 takes 54 ms
there, 18 ms on an A100 with TF32 and 6 ms on an H200. Rates are the makers' data sheets' (dense, not sparse).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from indb_tensile.errors import MissingError, RequestError
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.latency import DeviceSpeed, estimate
from indb_tensile.scheduler.link import Link

LAUNCH_NS = 5_000
_GIGA = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One kind of device, as fast as its maker says."""

    name: str
    title: str
    speed: DeviceSpeed


def _machine(name: str, title: str, *, tflop_per_s: float, gb_per_s: int) -> Machine:
    speed = DeviceSpeed(
        flops_per_s=round(tflop_per_s * 1000) * _GIGA, bytes_per_s=gb_per_s * _GIGA, launch_ns=LAUNCH_NS
    )
    return Machine(name=name, title=title, speed=speed)


REFERENCE = _machine("a6000", "RTX A6000, float32 without TF32", tflop_per_s=38.7, gb_per_s=768)
_OTHERS = (
    _machine("a100", "A100 40 GB, TF32", tflop_per_s=156, gb_per_s=1_555),
    _machine("h200", "H200, TF32", tflop_per_s=494.5, gb_per_s=4_800),
    _machine("v100", "V100, float32", tflop_per_s=15.7, gb_per_s=900),
    _machine("rtx4090", "RTX 4090, float32 without TF32", tflop_per_s=82.6, gb_per_s=1_008),
)
MACHINES: Mapping[str, Machine] = MappingProxyType({m.name: m for m in (REFERENCE, *_OTHERS)})
LINKS_GB_S = (12.0, 25.0, 55.0)  # PCI Express 3, 4 and 5, sixteen lanes, as measured rather than as printed


def machine(name: str) -> Machine:
    """The machine of this name. Raises MissingError where there is none."""
    if name not in MACHINES:
        raise MissingError(f"there is no machine '{name}'", hint=f"Machines are: {', '.join(MACHINES)}.")
    return MACHINES[name]


def latencies(graph: StepGraph, machine: Machine) -> tuple[int, ...]:
    """Nanoseconds for each operator of the graph on this machine."""
    return estimate(graph, machine.speed)


def link(gb_per_s: float) -> Link:
    """A link of so many gigabytes (10^9) a second each way, both at once. Raises RequestError unless positive."""
    rate = round(gb_per_s * _GIGA) if isfinite(gb_per_s) else 0
    if rate <= 0:
        raise RequestError(f"a link of {gb_per_s} GB/s is none", hint="Give a positive number.")
    return Link(out_bytes_per_s=rate, in_bytes_per_s=rate)
