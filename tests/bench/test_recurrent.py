"""Unrolled recurrent networks of any length are valid steps of the requested size."""

import pytest

from indb_tensile.bench.harness.networks.recurrent import recurrent
from indb_tensile.scheduler.graph import Role, Stage
from indb_tensile.scheduler.memory.peak import liveness_peak, vanilla_peak


@pytest.mark.parametrize("operators", [1, 100, 3_000])
def test_a_network_has_the_requested_operators_and_hardly_more(operators: int) -> None:
    assert operators <= len(recurrent(operators).operators) <= operators + 25


def test_every_time_step_reads_the_same_weights_forward_and_backward() -> None:
    graph = recurrent(140)
    (weights,) = [t.id for t in graph.tensors if t.role is Role.PARAMETER]
    reads = {stage: sum(weights in o.reads for o in graph.operators if o.stage is stage) for stage in Stage}
    assert (reads[Stage.FORWARD], reads[Stage.BACKWARD], reads[Stage.OPTIMIZER]) == (10, 10, 1)


def test_activations_of_a_time_step_live_until_their_backward_pass() -> None:
    graph = recurrent(3_000)
    persistent_bytes = sum(t.size_bytes for t in graph.tensors if t.persistent)
    assert 5 * persistent_bytes < liveness_peak(graph) < vanilla_peak(graph)


def test_equal_lengths_give_equal_graphs() -> None:
    assert recurrent(300) == recurrent(300)
