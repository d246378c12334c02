"""Check the rooflines and links of the known machines: how long operators and copies take on each."""

import re

import pytest

from indb_tensile.errors import MissingError, RequestError
from indb_tensile.scheduler.graph import Operator, Role, Stage, StepGraph, Tensor, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.timing.machines import MACHINES, REFERENCE, StepTimes, latencies, link, machine, slowed

BYTES = 768_000_000  # the reference machine's memory takes a millisecond for them
FLOPS = 38_700_000_000  # the reference machine takes a millisecond for them


def test_operator_takes_the_longer_of_arithmetic_and_traffic_plus_five_microseconds() -> None:
    operators = ((3 * FLOPS, (0,)), (FLOPS, (0, 1)), (0, ()))
    graph = StepGraph(
        tensors=tuple(Tensor(id=TensorId(k), name=f"p{k}", size_bytes=BYTES, role=Role.PARAMETER) for k in range(2)),
        operators=tuple(
            Operator(
                name="op",
                signature="op",
                stage=Stage.FORWARD,
                reads=tuple(map(TensorId, reads)),
                writes=(),
                flops=flops,
            )
            for flops, reads in operators
        ),
    )
    assert latencies(graph, REFERENCE) == (3_005_000, 2_005_000, 5_000)


def test_link_is_as_fast_in_both_directions() -> None:
    assert link(12.5) == Link(out_bytes_per_s=12_500_000_000, in_bytes_per_s=12_500_000_000)


@pytest.mark.parametrize("rate", [0.0, -3.0, 1e-300, 1e300, 5e9, float("nan"), float("inf")])
def test_link_rate_out_of_range_is_refused(rate: float) -> None:
    with pytest.raises(RequestError, match=re.escape(f"the link rate of {rate} GB/s is out of range")):
        link(rate)


def test_unknown_machine_is_refused() -> None:
    assert all(machine(name) is known for name, known in MACHINES.items())
    with pytest.raises(MissingError, match="there is no machine 'abacus'"):
        machine("abacus")


def test_link_is_slowed_down_as_much_as_the_step() -> None:
    assert slowed(REFERENCE, StepTimes(here_ns=500_000_000, there_ns=2_000_000)) == link(0.1)
