"""How much a link can move while a step computes: the figure by which overheads of steps are comparable.

`turnover` is the bytes that the link moves in one direction during an iteration without a plan, over the step's
liveness peak. At 1.0 all that a step holds could leave and come back, unseen, in an iteration. What a plan saves at
the same share of the peak costs more where it is lower. A step on a small input has another one than the network at
its own size, on any machine: lower where it computes less for each byte of parameters, higher where starting
operators takes most of its time.
"""

from collections.abc import Callable

from indb_tensile.bench import networks
from indb_tensile.bench.networks import Network
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.machines import Machine, latencies
from indb_tensile.scheduler.peak import liveness_peak


def turnover(graph: StepGraph, link: Link, iteration_ns: float) -> float:
    """The bytes that the slower direction moves in so long, over the liveness peak."""
    moved_bytes = min(link.out_bytes_per_s, link.in_bytes_per_s) * iteration_ns / 1e9
    return moved_bytes / liveness_peak(graph)


def simulated_turnover(graph: StepGraph, machine: Machine) -> float:
    """Of this step on a machine, by its roofline."""
    return turnover(graph, machine.link, sum(latencies(graph, machine)))


def network_turnover(
    network: Network, machine: Machine, graph_of: Callable[[str], StepGraph] = networks.graph_of
) -> float:
    """Of a network at its own batch and size on a machine: what simulated figures are of."""
    return simulated_turnover(graph_of(network.name), machine)


def scaled(link: Link, factor: float) -> Link:
    """A link so many times as wide."""
    return Link(
        out_bytes_per_s=max(1, round(link.out_bytes_per_s * factor)),
        in_bytes_per_s=max(1, round(link.in_bytes_per_s * factor)),
    )
