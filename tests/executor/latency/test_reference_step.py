"""Tests of the reference step, which compares this machine's speed with that of the reference GPU."""

import pytest

from indb_tensile.executor.latency.reference_step import measure_pace, reference_step
from indb_tensile.scheduler.graph import Stage
from indb_tensile.scheduler.timing.machines import LAUNCH_NS, REFERENCE, latencies


def test_the_reference_step_keeps_a_gpu_busy_with_a_whole_training_iteration() -> None:
    graph = reference_step().graph
    assert {operator.stage for operator in graph.operators} == set(Stage)
    busy_ns = sum(latencies(graph, REFERENCE)) - LAUNCH_NS * len(graph.operators)
    convolutions = [o for o in graph.operators if "convolution" in o.name]
    assert len(convolutions) == 14  # 7 forward, 7 backward
    assert busy_ns > 2 * LAUNCH_NS * len(graph.operators)


@pytest.mark.nightly
def test_the_reference_step_takes_longer_on_this_machine_than_the_roofline_says_of_the_reference_gpu() -> None:
    pace = measure_pace(REFERENCE)
    assert pace.there_ns == sum(latencies(reference_step().graph, REFERENCE))
    assert pace.here_ns > pace.there_ns
