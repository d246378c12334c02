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
    """The bytes that the slower direction of the link moves in this time, divided by the liveness peak."""
    moved_bytes = min(link.out_bytes_per_s, link.in_bytes_per_s) * iteration_ns / 1e9
    return moved_bytes / liveness_peak(graph)


def simulated_turnover(graph: StepGraph, machine: Machine) -> float:
    """The turnover of this step on a machine whose operators take their roofline time."""
    return turnover(graph, machine.link, sum(latencies(graph, machine)))


def network_turnover(
    network: Network, machine: Machine, graph_of: Callable[[str], StepGraph] = networks.graph_of
) -> float:
    """The turnover of a network at its own batch and image size on a machine, as in the simulated figures."""
    return simulated_turnover(graph_of(network.name), machine)


def scaled(link: Link, factor: float) -> Link:
    """A link with bandwidths multiplied by this factor."""
    return Link(
        out_bytes_per_s=max(1, round(link.out_bytes_per_s * factor)),
        in_bytes_per_s=max(1, round(link.in_bytes_per_s * factor)),
    )
