"""Ranks that are connected measure their network, from which their first exchanges are foretold."""

from typing import Any, cast

import pytest
import torch

from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.ranks.exchange_traffic import exchanges_of, latencies_on_network
from indb_tensile.executor.ranks.network_measurement import SIZES_BYTES, measure_network
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
