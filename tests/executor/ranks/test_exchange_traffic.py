"""Check what is foretold of a rank's exchanges before any is made: their transfers, and their time on the network."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import Passes
from indb_tensile.executor.capture.rank_share import RankShare, Reduce
from indb_tensile.executor.capture.step_capture import CapturedStep, capture_training
from indb_tensile.executor.ranks.exchange_traffic import (
    awaiting_signatures,
    copy_loss_of,
    exchanges_of,
    latencies_on_network,
    transfers_of,
)
from indb_tensile.executor.ranks.foretold_rank import foretold_rank
from indb_tensile.job import JobId
from indb_tensile.scheduler.exchange_times import ExchangeTime
from indb_tensile.scheduler.link import CopyLoss, Link
from indb_tensile.scheduler.memory.peak import vanilla_peak
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import JobPlan, Workload, plan_jobs
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.network_times import Collective, NetworkTimes
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.scheduler.timing.simulate_ranks import simulate_ranks
from tests.executor.ranks.counting_group import make_exchanges
from tests.scheduler.timing.networks import network_of

LINK = Link(out_bytes_per_s=10**9, in_bytes_per_s=10**9)
TIMES = {"alone_ns": 900, "beside_ns": 1_000, "lost_ns": 500}
EVERY_SUM = [(reduce, divides) for reduce in Reduce for divides in (False, True)]


def capture(share: RankShare, *, width: int = 900, rows: int = 12, micro_batch_size: int = 4) -> CapturedStep:
    """Capture a step with gradients for a bucket, for the library's all-reduce, and for several pieces.

    Its parts also have statistics of batch normalisation.
    """
    module = nn.Sequential(
        *(nn.Linear(48, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 6),
    )
    batch = torch.zeros(rows, 48), torch.zeros(rows, dtype=torch.int64)
    settings = OptimizerSettings(kind="adam", clip_norm=1.0)
    return capture_training(
        module, nn.CrossEntropyLoss(), *batch, settings, Passes(micro_batch_size=micro_batch_size), share
    )


@pytest.mark.by_day("0-2-fast-False", "2-3-exact-True")
@pytest.mark.parametrize(("reduce", "divides_state"), EVERY_SUM)
@pytest.mark.parametrize(("rank", "ranks"), [(0, 2), (1, 2), (0, 3), (2, 3)])
def test_foretold_transfers_are_those_that_a_rank_makes(
    rank: int, ranks: int, reduce: Reduce, divides_state: bool
) -> None:
    share = RankShare(rank=rank, ranks=ranks, reduce=reduce, divides_state=divides_state)
    for step in (
        capture(share),
        capture(share, rows=4),
    ):  # the smaller batch has one part, and no work for some ranks
        count, transfers = make_exchanges(step, rank, ranks)
        calls = exchanges_of(step)
        assert len(calls) == count > 0
        assert [part for call in calls for part in transfers_of(step, call, share)] == transfers != []


@pytest.mark.parametrize("reduce", Reduce)
def test_first_forecast_has_the_network_in_each_exchange_until_a_training_has_measured_it(reduce: Reduce) -> None:
    share, network = RankShare(rank=0, ranks=2, reduce=reduce), network_of(2)
    step = capture(share)
    own_ns = (1_000,) * len(step.graph.operators)
    waiting = [k for k, operator in enumerate(step.graph.operators) if operator.awaits is not None]
    first_ns = latencies_on_network(step, own_ns, share, network, {})
    transfers = [transfers_of(step, call, share) for call in exchanges_of(step)]
    assert [first_ns[k] for k in waiting] == [1_000 + network.times.foretell(own).alone_ns for own in transfers]
    assert [ns for k, ns in enumerate(first_ns) if k not in waiting] == [1_000] * (len(own_ns) - len(waiting))
    known = {network.signature_of(signature): (7_000, 0) for signature in awaiting_signatures(step)}
    trained_ns = latencies_on_network(step, own_ns, share, network, known)
    assert [trained_ns[k] for k in waiting] == [7_000] * len(waiting)
    elsewhere = network_of(2, host="there")
    assert latencies_on_network(step, own_ns, share, elsewhere, known) == first_ns


@pytest.mark.parametrize("reduce", Reduce)
def test_first_forecast_on_busy_processors_has_what_exchanges_take_of_them_until_a_training_has_measured_it(
    reduce: Reduce,
) -> None:
    share, free, busy = RankShare(rank=0, ranks=2, reduce=reduce), network_of(2), network_of(2, busy=True)
    step = capture(share)
    waiting = awaiting_signatures(step)
    own_ns = tuple(0 if o.signature in waiting else 1_000_000 for o in step.graph.operators)
    computing = [k for k, ns in enumerate(own_ns) if ns]
    taken_ns = {
        network: [latencies_on_network(step, own_ns, share, network, {})[k] for k in computing]
        for network in (free, busy)
    }
    assert set(taken_ns[free]) == {1_000_000}
    lost_ns = [ns - 1_000_000 for ns in taken_ns[busy]]
    transfers = [part for call in exchanges_of(step) for part in transfers_of(step, call, share)]
    assert min(lost_ns) == 0 < sum(lost_ns) <= busy.times.foretell(transfers).lost_ns + len(lost_ns)
    known = {busy.signature_of(signature): (7_000, 0) for signature in waiting}
    assert [latencies_on_network(step, own_ns, share, busy, known)[k] for k in computing] == taken_ns[free]


def test_copies_cost_operators_nothing_more_once_a_training_has_measured_them() -> None:
    share, network = RankShare(rank=0, ranks=2), network_of(2)
    copied = replace(network.times.measured[0], collective=Collective.COPY, time=ExchangeTime(**TIMES))
    network = replace(network, times=NetworkTimes(measured=(*network.times.measured, copied)))
    step = capture(share)
    known = {network.signature_of(signature): (7_000, 0) for signature in awaiting_signatures(step)}
    assert copy_loss_of((step,), network, {}) == CopyLoss(per_copy_ns=500)
    assert copy_loss_of((step,), network, known) == copy_loss_of((step,), None, {}) == CopyLoss()


def test_plan_before_anything_is_exchanged_waits_for_the_network() -> None:
    share = RankShare(rank=0, ranks=2, reduce=Reduce.FAST)
    step = capture(share)
    own_ns = (1_000,) * len(step.graph.operators)
    first_ns = latencies_on_network(step, own_ns, share, network_of(2, message_ns=10**9), {})
    alone, first = (_planned(step, latency_ns) for latency_ns in (own_ns, first_ns))
    exchanges = len(exchanges_of(step))
    assert exchanges > 1
    assert alone.forecast.exchange_ns < exchanges * 1_000
    assert first.forecast.exchange_ns > (exchanges - 1) * 10**9


@pytest.mark.parametrize("busy", [False, True])
def test_equal_ranks_take_as_long_together_as_one_whose_exchanges_are_latencies(busy: bool) -> None:
    share, network = RankShare(rank=0, ranks=2), network_of(2, busy=busy)
    step = capture(share)
    own_ns = (50_000,) * len(step.graph.operators)
    plan = Plan(policy="test")
    ranks = [foretold_rank(step, plan, own_ns, share, network, {}, link=LINK, host="here")] * 2
    latency_ns = latencies_on_network(step, own_ns, share, network, {})
    (alone,) = simulate([JobRun(graph=step.graph, plan=plan, latency_ns=latency_ns)], LINK)
    for own in simulate_ranks(ranks):
        assert own.late_ns == 0
        assert own.forecast.iteration_ns == pytest.approx(alone.iteration_ns, rel=1e-4)
        assert own.forecast.exchange_ns == pytest.approx(alone.exchange_ns, rel=1e-3)


def _planned(step: CapturedStep, latency_ns: tuple[int, ...]) -> JobPlan:
    workload = Workload(job=JobId(1), graphs=(step.graph,), latency_ns=(latency_ns,))
    plans = plan_jobs((workload,), budget_bytes=vanilla_peak(step.graph), link=LINK)
    assert not isinstance(plans, Infeasible)
    return plans[0]
