"""Check which jobs `decide()` claims: it keeps spare trainers ready, claims one job at a time, and states what the
next claim waits for.
"""

from hypothesis import given
from hypothesis import strategies as st

from indb_tensile.scheduler.admission.admission_orders import (
    AssignJob,
    ClaimNext,
    EndMethod,
    EndTrainer,
    ReleaseTrainer,
    SpawnTrainer,
)
from indb_tensile.scheduler.admission.events import (
    Claim,
    ClaimLoss,
    Exit,
    Failure,
    PlacesChange,
    QueueChange,
    Silence,
    SpareReady,
    Stop,
    Tick,
)
from indb_tensile.scheduler.admission.pool import Fault, TrainerId
from indb_tensile.scheduler.admission.trainer_assignment import claim_blocker
from tests.scheduler.admission.fake_controller import FakeController, job, orders_of_type


def test_tick_starts_spares_and_claims_nothing_before_one_is_ready() -> None:
    controller = FakeController(10, spare_trainers=2)
    assert controller.send(Tick()) == (SpawnTrainer(trainer=TrainerId(1)), SpawnTrainer(trainer=TrainerId(2)))
    assert controller.send(Tick()) == ()
    assert controller.send(SpareReady(trainer=TrainerId(1))) == (ClaimNext(),)


def test_empty_queue_is_polled_at_the_next_tick_or_notification() -> None:
    controller = FakeController(10)
    controller.send(Tick())
    controller.send(SpareReady(trainer=TrainerId(1)))
    assert controller.send(Claim(job=None)) == ()
    assert controller.send(SpareReady(trainer=TrainerId(1))) == ()
    assert controller.send(QueueChange()) == (ClaimNext(),)
    controller.send(Claim(job=None))
    assert controller.send(Tick()) == (ClaimNext(),)


def test_claimed_job_gets_the_ready_spare_and_a_new_spare_starts() -> None:
    controller = FakeController(10)
    controller.send(Tick())
    controller.send(SpareReady(trainer=TrainerId(1)))
    assert controller.send(Claim(job=job(7))) == (
        AssignJob(trainer=TrainerId(1), job=job(7)),
        SpawnTrainer(trainer=TrainerId(2)),
    )


def test_next_job_is_claimed_as_soon_as_a_trainer_is_ready() -> None:
    controller = FakeController(6)
    controller.claim(job(1))
    assert controller.send(SpareReady(trainer=controller.pool.spares[0].trainer)) == (ClaimNext(),)


def test_only_one_claim_is_in_flight() -> None:
    controller = FakeController(10)
    controller.send(Tick())
    assert controller.send(SpareReady(trainer=TrainerId(1))) == (ClaimNext(),)
    assert controller.send(Tick()) == ()
    assert controller.send(QueueChange()) == ()


def test_no_more_than_max_jobs_are_claimed() -> None:
    controller = FakeController(100, max_jobs=1)
    controller.start(1, 4)
    controller.send(SpareReady(trainer=controller.pool.spares[0].trainer))
    assert controller.send(Tick()) == ()


def test_owner_with_two_entering_jobs_is_passed_over_until_one_has_its_plan() -> None:
    controller = FakeController(10, spare_trainers=1)
    first = controller.claim(job(1))
    controller.claim(job(2))
    passed = ClaimNext(passed_over=frozenset({10}))
    assert controller.send(SpareReady(trainer=controller.pool.spares[0].trainer)) == (passed,)
    assert controller.send(Claim(job=None)) == ()
    assert ClaimNext() in controller.capture(first, 2)
    controller.send(Claim(job=job(3, owner=20)))
    assert [m.job.job for m in controller.pool.members] == [1, 2, 3]


def test_entering_jobs_limits_the_entering_jobs_of_one_owner() -> None:
    controller = FakeController(10, spare_trainers=1, entering_jobs=3)
    for number in (1, 2, 3):
        controller.claim(job(number))
    assert controller.send(SpareReady(trainer=controller.pool.spares[0].trainer)) == (
        ClaimNext(passed_over=frozenset({10})),
    )


def test_owner_has_half_of_the_places_for_jobs_that_wait_for_the_device() -> None:
    controller = FakeController(10, max_jobs=8, spare_trainers=1)
    controller.start(1, 10)
    for number in (2, 3, 4, 5):
        trainer = controller.claim(job(number))
        controller.capture(trainer, 10)
        passed_over = {10} if number == 5 else set()
        orders = controller.send(SpareReady(trainer=controller.pool.spares[0].trainer))
        assert orders == (ClaimNext(passed_over=frozenset(passed_over)),)
        controller.send(Claim(job=None))
        controller.send(Tick())


def test_claim_blocker_states_what_the_next_job_waits_for() -> None:
    controller = FakeController(10, max_jobs=1)
    controller.send(Tick())
    assert claim_blocker(controller.pool) == "a trainer to start"
    controller.send(Exit(trainer=controller.pool.spares[0].trainer, code=1))
    assert claim_blocker(controller.pool) == (
        "a trainer: those started last ended before they were ready, as the controller's log says"
    )
    while not controller.pool.spares:
        controller.send(Tick())
    controller.send(SpareReady(trainer=controller.pool.spares[0].trainer))
    assert claim_blocker(controller.pool) is None
    trainer = controller.claim(job(1))
    assert claim_blocker(controller.pool) == "a place: all 1 are taken by jobs"
    device_lost = Fault(sqlstate="58000", message="the device is gone")
    controller.send(Failure(trainer=trainer, fault=device_lost, retry=True, lost=True))
    assert claim_blocker(controller.pool) == (
        "a device that works: its controller has lost the device, and pauses before the next attempt"
    )
    controller.send(Stop())
    assert claim_blocker(controller.pool) == "a controller: this one is stopping"


def test_lost_claim_blocks_the_next_claim_until_its_trainer_ends() -> None:
    controller = FakeController(10)
    controller.claim(job(1))
    controller.send(ClaimLoss(claim=job(1).claim))
    assert claim_blocker(controller.pool) == "a trainer of job 1 to end, whose claim was lost"


@given(st.integers(0, 3), st.integers(1, 4), st.booleans())
def test_job_is_claimed_exactly_when_nothing_blocks_it(members: int, places: int, ready: bool) -> None:
    controller = FakeController(10, max_jobs=places, entering_jobs=64, spare_trainers=1)
    for number in range(1, 1 + min(members, places)):
        controller.claim(job(number))
    controller.send(Claim(job=None)) if controller.pool.claiming else None
    if ready and controller.pool.spares:
        orders = controller.send(SpareReady(trainer=controller.pool.spares[0].trainer))
        assert (ClaimNext() in orders) == (claim_blocker(controller.pool) is None)


def test_lowered_max_jobs_ends_no_job_and_blocks_claims() -> None:
    controller = FakeController(20, max_jobs=2)
    controller.start(1, 4)
    controller.start(2, 4)
    assert not orders_of_type(controller.send(PlacesChange(max_jobs=1)), EndTrainer)
    assert claim_blocker(controller.pool) == "a place: all 1 are taken by jobs"
    controller.send(PlacesChange(max_jobs=3))
    assert controller.pool.max_jobs == 3


def test_silent_spare_is_killed_and_counts_as_a_failed_start() -> None:
    controller = FakeController(10)
    controller.send(Tick())
    assert controller.send(Silence(trainer=TrainerId(1))) == (
        EndTrainer(trainer=TrainerId(1), method=EndMethod.KILL),
    )
    controller.send(Exit(trainer=TrainerId(1), code=-9))
    assert (controller.pool.failed_starts, controller.pool.spawn_pause_ticks) == (1, 2)


def test_failed_trainer_starts_are_retried_after_growing_pauses() -> None:
    controller = FakeController(10)
    controller.send(Tick())
    assert controller.send(Exit(trainer=TrainerId(1), code=1)) == (ReleaseTrainer(trainer=TrainerId(1)),)
    assert controller.send(Tick()) == ()
    assert controller.send(Tick()) == (SpawnTrainer(trainer=TrainerId(2)),)
    controller.send(Exit(trainer=TrainerId(2), code=1))
    ticks = 0
    while not controller.send(Tick()):
        ticks += 1
    assert ticks == 3
