"""Residual networks of any depth are valid steps of the requested size."""

import pytest

from indb_tensile.bench.harness.networks.residual import residual
from indb_tensile.scheduler.graph import Role, Stage
from indb_tensile.scheduler.memory.peak import liveness_peak, vanilla_peak


@pytest.mark.parametrize("operators", [1, 100, 3_000])
def test_a_network_has_the_requested_operators_and_hardly_more(operators: int) -> None:
    assert operators <= len(residual(operators).operators) <= operators + 50


def test_every_parameter_is_read_forward_and_backward_and_updated_once() -> None:
    graph = residual(200)
    parameters = {t.id for t in graph.tensors if t.role is Role.PARAMETER}
    for stage, uses in ((Stage.FORWARD, 1), (Stage.BACKWARD, 1), (Stage.OPTIMIZER, 1)):
        read = [t for o in graph.operators if o.stage is stage for t in o.reads if t in parameters]
        assert sorted(read) == sorted([*parameters] * uses)
    updates = [o for o in graph.operators if o.splittable]
    assert len(updates) == len(parameters)


def test_activations_live_until_their_backward_pass() -> None:
    graph = residual(1_000)
    persistent_bytes = sum(t.size_bytes for t in graph.tensors if t.persistent)
    assert 5 * persistent_bytes < liveness_peak(graph) < vanilla_peak(graph)


def test_equal_sizes_give_equal_graphs() -> None:
    assert residual(300) == residual(300)
