"""Several controllers in virtual time on a real catalog: all jobs end once, and neither gangs nor others starve."""

import random
from collections.abc import Sequence

import pytest

from indb_tensile.bench.harness.virtual_time.catalog_controller import POLL_S
from indb_tensile.bench.harness.virtual_time.catalog_run import CatalogOutcome, DevicesJob, run_on_catalog
from indb_tensile.bench.harness.virtual_time.controllers_workload import arriving, at_once
from indb_tensile.bench.harness.virtual_time.trace_device import TraceDevice
from indb_tensile.bench.harness.virtual_time.trace_networks import JobKind
from indb_tensile.bench.harness.virtual_time.trace_workload import TraceJob
from indb_tensile.cluster import Cluster
from indb_tensile.scheduler.admission.pool import Pool, Sharing
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.completion.demand import TradeOff
from indb_tensile.scheduler.link import Link
from tests.conftest import Database, fresh_database

pytestmark = pytest.mark.postgres

SECOND_NS = 1_000_000_000
REGION = 1 << 20
STEP_NS = 10_000_000
HELD_S = 15.0 + 2 * POLL_S  # for which a rank has memory while others of its job have none, outside of a turn
TURNS = Contention(points=((1, 1.0), (2, 2.0)))
LARGE = JobKind(
    name="more than half of the device",
    trade_offs=(TradeOff(peak_bytes=60 * REGION, iteration_ns=STEP_NS, compute_ns=STEP_NS),),
    state_bytes=10 * REGION,
)


def job(at_s: float, run_s: float) -> TraceJob:
    return TraceJob(
        number=1, owner=1, priority=0, arrival_ns=at_s * SECOND_NS, kind=LARGE, steps=run_s * SECOND_NS / STEP_NS
    )


def run(
    database: Database,
    jobs: Sequence[DevicesJob],
    *,
    controllers: int,
    sharing: Sharing = Sharing.COMPLETION,
    places: int = 8,
    until_s: float | None = None,
) -> CatalogOutcome:
    pool = Pool(
        budget_bytes=100 * REGION,
        region_bytes=REGION,
        sharing=sharing,
        contention=TURNS,
        max_jobs=places,
        link=Link(out_bytes_per_s=10**10, in_bytes_per_s=10**10),
    )
    device = TraceDevice(budget_bytes=100 * REGION, region_bytes=REGION, contention=TURNS)
    return run_on_catalog(database.dsn("postgres"), pool, device, jobs, controllers=controllers, until_s=until_s)


def check_ended(outcome: CatalogOutcome, jobs: Sequence[DevicesJob]) -> None:
    assert len(outcome.courses) == len(jobs)
    assert all(course.ended_s is not None for course in outcome.courses)
    assert (outcome.left_over, outcome.held_bytes) == ((0, 0, 0), 0)


@pytest.mark.nightly
def test_two_controllers_divide_jobs_and_train_a_gang_among_them(database: Database) -> None:
    jobs = [DevicesJob(trace=job(0, 8)), DevicesJob(trace=job(0, 8)), DevicesJob(trace=job(1, 5), devices=2)]
    outcome = run(database, jobs, controllers=2)
    check_ended(outcome, jobs)
    first, second, gang = outcome.courses
    assert max(first.ended_s or 0.0, second.ended_s or 0.0) < 20, "each has one of the two devices"
    assert gang.waited_s is not None
    assert outcome.half_gang_s <= HELD_S


@pytest.mark.nightly
def test_single_jobs_start_soon_on_one_device_while_a_gang_waits_for_the_other(database: Database) -> None:
    """The other device is taken for longer than a turn of the gang could last, so no turn begins."""
    jobs = [
        DevicesJob(trace=job(0, 2_000)),
        DevicesJob(trace=job(30, 60), devices=2),
        *(DevicesJob(trace=job(60 + 120 * k, 60)) for k in range(5)),
    ]
    outcome = run(database, jobs, controllers=2, sharing=Sharing.ANY_PRICE, until_s=700)
    _, gang, *singles = outcome.courses
    assert gang.began_s is None
    assert all(single.waited_s is not None and single.waited_s < 2 * HELD_S for single in singles)
    assert outcome.given_back > 1
    assert outcome.half_gang_s <= HELD_S


@pytest.mark.nightly
def test_owner_whose_jobs_wait_on_all_devices_gets_a_gang_started(database: Database) -> None:
    """Half of the places have jobs of this owner that wait, so controllers pass over the owner's other jobs."""
    jobs = [DevicesJob(trace=job(0, 100)) for _ in range(12)]
    jobs.insert(2, DevicesJob(trace=job(0, 10), devices=2))
    outcome = run(database, jobs, controllers=2, sharing=Sharing.ANY_PRICE, until_s=700)
    (gang,) = (course for course in outcome.courses if course.devices == 2)
    assert gang.waited_s is not None


def draw_mix(seed: int) -> list[DevicesJob]:
    """Return gangs of 2 or 3 devices and single jobs of many lengths."""
    chance = random.Random(seed)
    mix = [
        DevicesJob(
            trace=job(chance.uniform(0, 400), chance.choice((5, 30, 200))), devices=chance.choice((1, 1, 2, 3))
        )
        for _ in range(14)
    ]
    return sorted(mix, key=lambda entry: entry.trace.arrival_ns)


@pytest.mark.nightly
@pytest.mark.parametrize("sharing", Sharing)
@pytest.mark.parametrize("seed", range(8))
def test_gangs_that_need_the_same_devices_all_train(database: Database, seed: int, sharing: Sharing) -> None:
    """No gang holds memory that another one waits for, no two gangs take turns without end, and none starves."""
    jobs = draw_mix(seed)
    outcome = run(database, jobs, controllers=3, sharing=sharing, until_s=12_000)
    check_ended(outcome, jobs)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("sharing", "places", "run_s"),
    [(Sharing.COMPLETION, 8, 300.0), (Sharing.ANY_PRICE, 2, 120.0), (Sharing.ANY_PRICE, 8, 120.0)],
)
def test_gang_of_all_devices_trains_although_single_jobs_keep_them_busy(
    database: Database, sharing: Sharing, places: int, run_s: float
) -> None:
    """Single jobs arrive with three times the work that the devices can do."""
    chance = random.Random(1)
    arrivals = sorted(chance.uniform(0, 3_000) for _ in range(round(3 * 3 * 3_000 / run_s)))
    jobs = [DevicesJob(trace=job(at_s, chance.uniform(0.5, 1.5) * run_s)) for at_s in arrivals]
    jobs.append(DevicesJob(trace=job(400, 60), devices=3))
    jobs.sort(key=lambda entry: entry.trace.arrival_ns)
    outcome = run(database, jobs, controllers=3, sharing=sharing, places=places, until_s=3_000)
    (gang,) = (course for course in outcome.courses if course.devices == 3)
    assert gang.began_s is not None, "it starves"
    singles = [course for course in outcome.courses if course.devices == 1 and course.came_s < 300]
    assert all(course.began_s is not None for course in singles), "the gang holds them back for ever"


@pytest.mark.nightly
def test_single_jobs_do_not_starve_behind_gangs_that_follow_each_other(database: Database) -> None:
    gangs = [DevicesJob(trace=job(60 * k, 60), devices=2) for k in range(40)]
    singles = [DevicesJob(trace=job(100 + 200 * k, 30)) for k in range(5)]
    jobs = sorted([*gangs, *singles], key=lambda entry: entry.trace.arrival_ns)
    outcome = run(database, jobs, controllers=2, until_s=2_400)
    assert all(course.ended_s is not None for course in outcome.courses if course.devices == 1)


@pytest.mark.nightly
def test_makespan_of_four_controllers_is_about_a_fourth_of_that_of_one(
    cluster: Cluster, template: str, database: Database
) -> None:
    jobs = at_once([job(0, 1)] * 60, 30.0, seed=0)
    with fresh_database(cluster, template) as other:
        alone = run(other, jobs, controllers=1)
    shared = run(database, jobs, controllers=4)
    for outcome in (alone, shared):
        check_ended(outcome, jobs)
    longest_s = max(entry.trace.alone_ns for entry in jobs) / SECOND_NS
    assert shared.makespan_s <= 1.25 * max(alone.makespan_s / 4, longest_s), "of 200 jobs it is 1.1"


def test_gangs_come_among_single_jobs_in_the_order_of_arrivals() -> None:
    jobs = arriving([job(0, 1)], until_s=600, mean_s=60, load=1.0, devices=4, gangs=3, seed=0)
    assert [entry.devices for entry in jobs if entry.devices > 1] == [2, 3, 4]
    assert len(jobs) == 43
    arrivals = [entry.trace.arrival_ns for entry in jobs]
    assert arrivals == sorted(arrivals)
