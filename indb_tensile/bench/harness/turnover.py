"""Turnover: how much a link can move while a step computes. It tells which overheads of steps are comparable.

`turnover` is the bytes that the link moves in one direction during an iteration without a plan, over the step's
liveness peak. At 1.0 all tensors of a step could leave and return during an iteration without stalling it. Saving the
same share of the peak costs more at a lower turnover. A step on a small input differs in turnover from the network at
its own size, on any machine: its turnover is lower where it computes less for each byte of parameters, and higher
where starting operators takes most of its time.
"""

from collections.abc import Callable

from indb_tensile.bench.harness import networks
from indb_tensile.bench.harness.networks import Network
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.timing.machines import Machine, latencies


def turnover(graph: StepGraph, link: Link, iteration_ns: float) -> float:
    """Return the bytes that the link's slower direction moves in `iteration_ns`, divided by the liveness peak."""
    moved_bytes = min(link.out_bytes_per_s, link.in_bytes_per_s) * iteration_ns / 1e9
    return moved_bytes / liveness_peak(graph)


def simulated_turnover(graph: StepGraph, machine: Machine) -> float:
    """Return the turnover of this step on a machine whose operators take their roofline time."""
    return turnover(graph, machine.link, sum(latencies(graph, machine)))


def network_turnover(
    network: Network, machine: Machine, graph_of: Callable[[str], StepGraph] = networks.graph_of
) -> float:
    """Return the turnover of a network at its own batch and image size on a machine, as in simulated figures."""
    return simulated_turnover(graph_of(network.name), machine)


def scaled(link: Link, factor: float) -> Link:
    """Return the link with both bandwidths multiplied by `factor`."""
    return Link(
        out_bytes_per_s=max(1, round(link.out_bytes_per_s * factor)),
        in_bytes_per_s=max(1, round(link.in_bytes_per_s * factor)),
    )
