"""The system throughput of the jobs that train is foretold with the jobs that are prepared beside them."""

from dataclasses import replace
from typing import Any

import pytest

from indb_tensile.job import ClaimToken, JobId
from indb_tensile.scheduler.admission.admission_orders import LeaveSet, Order, RecordMeasurement, RecordSet
from indb_tensile.scheduler.admission.events import Adoption, Departure, Exit, Failure, Finish, Parking, PauseChange
from indb_tensile.scheduler.admission.pool import Fault, TrainerId
from indb_tensile.scheduler.completion.contention import Contention, of_cores
from tests.scheduler.admission.fake_controller import FakeController, job, measurement, orders_of_type

_TWO_CORES = of_cores(2, 1)


class Watched(FakeController):
    """A controller of a processor with two cores that notes the throughput of each set, with its number of jobs."""

    def __init__(self, *, prepares_on_device: bool = True, contention: Contention = _TWO_CORES) -> None:
        super().__init__(20, contention=contention, prepares_on_device=prepares_on_device)
        self.foretold: list[tuple[int, float]] = []

    def decide(self, event: Any) -> tuple[Order, ...]:
        orders = super().decide(event)
        sets = {(1 + len(o.beside), round(o.foretold_throughput, 3)) for o in orders_of_type(orders, RecordSet)}
        assert len(sets) <= 1, "all jobs of a set have the same throughput"
        speeds = [o.foretold_speed for o in orders_of_type(orders, RecordSet)]
        assert [pytest.approx(sum(speeds), abs=1e-3)] * len(sets) == [throughput for _, throughput in sets]
        self.foretold += sets
        return orders

    def adopt(self, trainer: TrainerId) -> None:
        self.send(Adoption(trainer=trainer, generation=1))


def test_each_job_that_is_read_captured_or_creates_its_state_slows_the_set_down_like_one_more() -> None:
    controller = Watched()
    controller.start(1, 4)
    second = controller.claim(job(2))
    third = controller.claim(job(3))
    assert controller.foretold == [(1, 1.0), (1, 1.0), (1, 0.667)], "two cores, and then three jobs that compute"
    controller.capture(second, 4)
    controller.adopt(second)
    assert controller.foretold[3:] == [(2, 1.333)]
    controller.capture(third, 4)
    assert controller.foretold[4:] == [], "it still computes"
    controller.adopt(third)
    assert controller.foretold[4:] == [(3, 2.0)]


@pytest.mark.parametrize(("cores", "threads", "throughput"), [(8, 4, 1.75), (2, 2, 0.667), (3, 1, 2.0)])
def test_job_that_closes_slows_jobs_of_several_threads_down_by_one_processor(
    cores: int, threads: int, throughput: float
) -> None:
    controller = Watched(contention=of_cores(cores, threads))
    trainers = [controller.start(number, 4) for number in (1, 2, 3)]
    controller.send(Departure(trainer=trainers[0]))
    assert controller.foretold[-1] == (2, throughput)
    assert (controller.pool.running_set.calibrating, controller.pool.running_set.preparing) == (0, 1)


def test_short_steps_are_foretold_to_be_slowed_down_like_the_short_step_that_was_measured() -> None:
    short = replace(
        _TWO_CORES, short_points=((1, 1.0), (2, 1.25), (4, 2.5)), short_ns=1000
    )  # as long as a job's step
    controller = Watched(contention=short)
    for number in (1, 2):
        controller.start(number, 4)
    assert controller.foretold[-1] == (2, 1.6)


def test_jobs_that_are_prepared_by_the_host_do_not_slow_a_gpu_down() -> None:
    controller = Watched(prepares_on_device=False)
    controller.start(1, 4)
    for number in (2, 3):
        controller.claim(job(number))
    assert controller.foretold == [(1, 1.0)]


def test_job_that_is_prepared_in_vain_leaves_the_throughput_as_it_was() -> None:
    controller = Watched()
    controller.start(1, 4)
    controller.start(2, 4)
    trainer = controller.claim(job(3))
    controller.send(Exit(trainer=trainer, code=1))
    assert controller.foretold[-3:] == [(2, 2.0), (2, 1.333), (2, 2.0)]


def test_speeds_that_were_measured_stay_while_another_job_is_prepared() -> None:
    controller = Watched()
    trainers = [controller.start(number, 4) for number in (1, 2)]
    for trainer in trainers:
        controller.send_twice(measurement(trainer, 1000))
    speeds = controller.pool.running_set.speeds
    assert len(speeds) == 2
    controller.claim(job(3))
    assert (controller.pool.running_set.speeds, controller.pool.running_set.preparing) == (speeds, 1)


@pytest.mark.parametrize(("on_device", "throughput"), [(False, 4 / 3), (True, 1.0)])
def test_what_lies_between_iterations_counts_in_the_speed_unless_it_is_slowed_down_with_them(
    on_device: bool, throughput: float
) -> None:
    controller = Watched(prepares_on_device=on_device)
    trainers = [controller.start(1, 4)]
    alone = replace(measurement(trainers[0], 1000), step_ns=2000)
    controller.send_twice(alone)
    trainers.append(controller.start(2, 4))
    for trainer in trainers:
        beside = replace(alone, trainer=trainer, latency_ns=(2000,), iteration_ns=2000, step_ns=0)
        controller.send_twice(beside)
    (recorded,) = orders_of_type(controller.orders, RecordMeasurement)
    assert recorded.throughput == pytest.approx(throughput)


def test_job_that_is_away_is_in_no_set() -> None:
    controller = Watched()
    trainer = controller.start(1, 4)
    controller.start(2, 4)
    controller.send(PauseChange(paused=frozenset({controller.pool.members[0].job.job})))
    left = orders_of_type(controller.orders, LeaveSet)
    assert left == [LeaveSet(job=JobId(1), claim=ClaimToken(1001))]
    controller.send(Parking(trainer=trainer, number=1, host_bytes=5))
    assert controller.foretold[-1] == (1, 1.0)
    assert [int(number) for number in controller.pool.running_set.jobs] == [2]


def test_job_whose_attempt_is_interrupted_leaves_its_set_and_one_that_ends_needs_no_word() -> None:
    controller = Watched()
    first, second = (controller.start(number, 4) for number in (1, 2))
    controller.send(Finish(trainer=first))
    assert orders_of_type(controller.orders, LeaveSet) == []
    fault = Fault(sqlstate="58000", message="no luck")
    controller.send(Failure(trainer=second, fault=fault, retry=True))
    assert orders_of_type(controller.orders, LeaveSet) == [LeaveSet(job=JobId(2), claim=ClaimToken(1002))]


def mean(rows: list[tuple[float, float, float]]) -> float:
    return sum((end - start) * value for start, end, value in rows) / sum(end - start for start, end, _ in rows)


def test_forecast_of_a_recorded_run_leaves_out_the_time_in_which_a_job_of_the_set_does_not_train_yet() -> None:
    """The quickstart's three trainings on two busy cores.

    The first trained from 5.2 to 43.2 s, the second was planned at 2.9 and trained from 10.4 to 27.2 s, and the third
    was planned at 28.5 and trained from 35.2 to 45.2 s. Plans of the first and the third made them slower.
    """
    controller = Watched()
    first = controller.claim(job(1))
    second = controller.claim(job(2))
    controller.capture(first, 4)
    controller.capture(second, 4)
    controller.adopt(first)
    ((jobs, before),) = controller.foretold
    controller.adopt(second)
    together = controller.foretold[-1][1]
    controller.finish(second)
    alone = controller.foretold[-1][1]
    assert (jobs, before, together, alone) == (1, 1.0, 2.0, 1.0)
    squeezed = 1.15
    now = mean([(5.2, 10.4, before), (10.4, 27.2, together), (27.2, 35.2, alone), (35.2, 45.2, squeezed)])
    planned = mean([(2.9, 27.3, together), (27.3, 28.5, alone), (28.5, 43.2, squeezed), (43.2, 45.2, alone)])
    assert (round(now, 2), round(planned, 2)) == (1.46, 1.63)
    assert now / planned == pytest.approx(0.89, abs=0.01)
