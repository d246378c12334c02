"""How much a link moves while a step computes: by its definition, and on a device that was made to have as much."""

import pytest

from indb_tensile.bench.harness.execution.device_rig import RunTarget, set_up
from indb_tensile.bench.harness.execution.turnover import network_turnover, scaled, simulated_turnover, turnover
from indb_tensile.bench.harness.networks.known_networks import NETWORKS
from indb_tensile.scheduler.graph import Role
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.timing.machines import REFERENCE, latencies
from tests.bench.subjects import tiny
from tests.scheduler.access_rows import graph_from_rows

GRAPH = graph_from_rows((600, Role.ACTIVATION, "wr."), (400, Role.ACTIVATION, ".wr"))  # its peak is 1,000 bytes


def test_it_is_the_bytes_of_the_slower_direction_over_the_liveness_peak() -> None:
    link = Link(out_bytes_per_s=2_000_000, in_bytes_per_s=8_000_000)
    assert turnover(GRAPH, link, 1_000_000) == pytest.approx(2.0)
    assert turnover(GRAPH, scaled(link, 0.25), 1_000_000) == pytest.approx(0.5)
    assert scaled(link, 0.25) == Link(out_bytes_per_s=500_000, in_bytes_per_s=2_000_000)


def test_on_a_machine_it_follows_from_the_roofline() -> None:
    iteration_ns = sum(latencies(GRAPH, REFERENCE))
    assert simulated_turnover(GRAPH, REFERENCE) == turnover(GRAPH, REFERENCE.link, iteration_ns)
    assert network_turnover(NETWORKS["vgg16"], REFERENCE, lambda _: GRAPH) == simulated_turnover(GRAPH, REFERENCE)


def test_an_emulated_link_is_made_as_wide_as_a_turnover_asks() -> None:
    with set_up(RunTarget(), tiny(), throttled=False) as rig:
        own = simulated_turnover(rig.step.graph, REFERENCE)
    with set_up(RunTarget(turnover=100_000 * own), tiny(), throttled=False) as wide:
        assert wide.link.out_bytes_per_s > 50 * rig.link.out_bytes_per_s  # each reads the clock, on a busy machine
