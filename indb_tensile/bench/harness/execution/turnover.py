"""Computes the turnover of a step: how much a link can move during the step. It tells which overheads are comparable.

`turnover` is the bytes that the link can move in one direction during an iteration without swaps, divided by the
step's liveness peak (the peak if every tensor is freed after its last use). At 1.0 all tensors of a step could leave
and return during an iteration without stalling it. A plan that reduces the peak by the same share costs more time at
a lower turnover. A step on a small input differs in turnover from the network at its usual size, on any machine: its
turnover is lower where it computes less for each byte of parameters, and higher where launches of operators take most
of its time.
"""

from collections.abc import Callable

from indb_tensile.bench.harness.networks import known_networks as networks
from indb_tensile.bench.harness.networks.known_networks import Network
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.timing.machines import Machine, latencies


def turnover(graph: StepGraph, link: Link, iteration_ns: float) -> float:
    """Return the bytes that the link's slower direction can move in `iteration_ns`, divided by the liveness peak."""
    movable_bytes = min(link.out_bytes_per_s, link.in_bytes_per_s) * iteration_ns / 1e9
    return movable_bytes / liveness_peak(graph)


def simulated_turnover(graph: StepGraph, machine: Machine) -> float:
    """Return the turnover of this step on a machine whose operators take their roofline time."""
    return turnover(graph, machine.link, sum(latencies(graph, machine)))


def network_turnover(
    network: Network, machine: Machine, graph_of: Callable[[str], StepGraph] = networks.graph_of
) -> float:
    """Return the turnover of a network at its usual batch and image size on a machine, as in simulated figures."""
    return simulated_turnover(graph_of(network.name), machine)


def scaled(link: Link, factor: float) -> Link:
    """Return the link with both bandwidths multiplied by `factor`."""
    return Link(
        out_bytes_per_s=max(1, round(link.out_bytes_per_s * factor)),
        in_bytes_per_s=max(1, round(link.in_bytes_per_s * factor)),
    )
