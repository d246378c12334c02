"""Ranks that are connected measure their network, from which their first exchanges are foretold."""

from itertools import pairwise
from statistics import fmean, median
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.ranks.exchange_traffic import exchanges_of, latencies_on_network
from indb_tensile.executor.ranks.network_measurement import (
    SIZES_BYTES,
    TransferRounds,
    mean_times,
    measure_network,
)
from indb_tensile.executor.ranks.rank_group import RankGroup
from indb_tensile.executor.ranks.step_exchange import exchanging
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.exchange_times import ExchangeTime
from indb_tensile.scheduler.link import FREE_COPIES
from indb_tensile.scheduler.memory.peak import LIVENESS
from indb_tensile.scheduler.timing.network_times import Collective, GangNetwork, NetworkTimes
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import DEFAULTS, job_of
from tests.executor.ranks.rank_steps import steps_of
from tests.executor.ranks.rank_threads import on_ranks


class _NotingGroup:
    """A group that notes how many elements this rank has sent and received in each all-to-all."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self.directions: set[tuple[int, int]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def alltoall_base(
        self, received: torch.Tensor, sent: torch.Tensor, receives: list[int], sends: list[int], /
    ) -> torch.distributed.Work:
        self.directions.add((sum(sends), sum(receives)))
        return self._group.alltoall_base(received, sent, receives, sends)


@pytest.mark.by_day("2")
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_operation_is_measured_at_every_size_by_every_rank(ranks: int) -> None:
    def measure(rank: int, group: RankGroup) -> tuple[NetworkTimes, set[tuple[int, int]]]:
        del rank
        noting = _NotingGroup(group)
        return measure_network(cast(RankGroup, noting), copies=True), noting.directions

    expected = [(collective, size_bytes) for collective, sizes in SIZES_BYTES.items() for size_bytes in sizes]
    one_way = {
        directions for size in SIZES_BYTES[Collective.ONE_WAY] for directions in ((size // 4, 0), (0, size // 4))
    }
    for rank, (times, directions) in enumerate(on_ranks(ranks, measure)):
        assert [(row.collective, row.size_bytes) for row in times.measured] == expected
        alone = {both for both in directions if min(both) == 0}
        assert alone == (one_way if rank < 2 else {(0, 0)}), "the third rank is in no pair"


def test_devices_that_do_not_compute_on_processors_lose_nothing_to_transfers() -> None:
    def measure(rank: int, group: RankGroup) -> NetworkTimes:
        del rank
        return measure_network(group, on_processor=False)

    for times in on_ranks(2, measure):
        assert all(row.time == ExchangeTime.free(row.time.alone_ns) for row in times.measured)
        assert times.copy_loss == FREE_COPIES


durations_ns = st.lists(st.integers(1, 1 << 40), min_size=1, max_size=9).map(tuple)


@given(sizes=st.lists(durations_ns, min_size=1, max_size=4))
def test_transfers_of_all_sizes_take_together_what_they_took_in_the_mean(sizes: list[tuple[int, ...]]) -> None:
    times = mean_times([TransferRounds(alone_ns=own) for own in sizes])
    assert all(time == ExchangeTime.free(time.alone_ns) for time in times)
    assert sum(time.alone_ns for time in times) >= sum(map(fmean, sizes)) - len(sizes)
    if min(time.alone_ns for time in times) > 1:  # none was raised to the least time
        assert sum(time.alone_ns for time in times) == pytest.approx(sum(map(fmean, sizes)), abs=len(sizes))
        for (own, time), (other, later) in pairwise(zip(sizes, times, strict=True)):
            assert later.alone_ns - time.alone_ns == pytest.approx(median(other) - median(own), abs=1)


@given(late=st.integers(0, 3))
def test_rare_long_waits_count_for_every_size_whichever_they_have_met(late: int) -> None:
    own_ns = (100, 200, 400, 1_600)
    rounds = [[ns] * 10 for ns in own_ns]
    rounds[late][:4] = [own_ns[late] + 4_000] * 4
    times = mean_times([TransferRounds(alone_ns=tuple(own)) for own in rounds])
    assert [time.alone_ns for time in times] == [500, 600, 800, 2_000], "4 of 40 rounds waited 4000 ns"


@given(alone=durations_ns, beside=durations_ns, lost=durations_ns)
def test_transfer_takes_no_less_beside_a_computation_than_alone(
    alone: tuple[int, ...], beside: tuple[int, ...], lost: tuple[int, ...]
) -> None:
    (time,) = mean_times([TransferRounds(alone_ns=alone, beside_ns=beside, lost_ns=lost)])
    assert time.beside_ns >= max(time.alone_ns, min(beside))
    assert time.lost_ns <= min(time.beside_ns, max(lost))


def test_one_of_several_rounds_beside_a_computation_may_have_been_disturbed() -> None:
    rounds = TransferRounds(alone_ns=(5,), beside_ns=(10, 20, 30, 9_000), lost_ns=(7_000, 1, 2, 3))
    assert mean_times([rounds]) == [ExchangeTime(alone_ns=5, beside_ns=25, lost_ns=2)]


@pytest.mark.by_day("exact")
@pytest.mark.parametrize("reduce", Reduce)
def test_two_ranks_foretell_the_network_of_each_exchange_before_they_make_the_first_one(reduce: Reduce) -> None:
    job = job_of("mlp", 0, DEFAULTS, Passes(micro_batch_size=4))
    shares = [RankShare(rank=rank, ranks=2, reduce=reduce) for rank in range(2)]
    steps = [steps_of(job, share) for share in shares]

    def run(rank: int, group: RankGroup) -> tuple[tuple[int, ...], tuple[int, ...]]:
        network = GangNetwork(hosts=("here", "here"), times=measure_network(group))
        step = steps[rank][0]
        foretold_ns = latencies_on_network(step, (0,) * len(step.graph.operators), shares[rank], network, {})
        runner = Runner(MemoryDevice(), job.state(), steps[rank], sample_every=1)
        with exchanging(group):
            runner.adopt((LIVENESS,) * 3, 1)
            for _ in range(3):
                runner.train(*job.batches[0], 0.1)
            measured = runner.measured()
        runner.close()
        assert measured is not None
        return foretold_ns, measured.latency_ns

    for rank, (foretold_ns, measured_ns) in enumerate(on_ranks(2, run)):
        step = steps[rank][0]
        waiting = [k for k, operator in enumerate(step.graph.operators) if operator.awaits is not None]
        assert len(waiting) == len(exchanges_of(step)) > 0
        assert all(foretold_ns[k] > 0 and measured_ns[k] > 0 for k in waiting)
        assert sum(foretold_ns) == sum(foretold_ns[k] for k in waiting), "other operators have no network in them"
