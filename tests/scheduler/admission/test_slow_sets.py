"""A set of jobs that is slower than one job alone is undone."""

from dataclasses import replace

import pytest

from indb_tensile.job import ClaimedRank, ClaimToken
from indb_tensile.scheduler.admission.events import Capture, ContentionChange, Tick
from indb_tensile.scheduler.admission.pool import JobStage, TrainerId
from indb_tensile.scheduler.completion.contention import Contention

from .fake_controller import graph, job, measurement
from .timed_jobs import STEP_NS, leaving_trainers, park, stages, start, timed_controller


def test_a_set_that_is_slower_than_one_job_alone_is_undone_and_not_formed_again() -> None:
    side_by_side = Contention(points=((1, 1.0), (8, 1.0)))
    controller = timed_controller(8, contention=side_by_side)
    first, second = (start(controller, number, 100_000.0) for number in (1, 2))
    assert stages(controller) == {1: JobStage.RUNNING, 2: JobStage.RUNNING}
    for _ in range(8):
        for trainer, slowdown in ((first, 2.5), (second, 3.0)):
            slow = replace(measurement(trainer, STEP_NS), iteration_ns=round(slowdown * STEP_NS))
            controller.send(slow)
            if leaving := leaving_trainers(controller):
                break
        if leaving:
            break
    assert leaving == [second], "the job that gained least"
    park(controller, second)
    controller.adopt_all()
    controller.send(Tick(now_s=1.0))
    controller.adopt_all()
    assert stages(controller) == {1: JobStage.RUNNING, 2: JobStage.WAITING}
    controller.finish(first)
    controller.adopt_all()
    assert stages(controller) == {2: JobStage.RUNNING}


def test_measured_contention_takes_the_place_of_the_estimate_in_the_next_decisions() -> None:
    estimated, measured = Contention(points=((1, 1.0), (8, 1.0))), Contention(points=((1, 1.0), (2, 2.5)))
    controller = timed_controller(8, contention=replace(estimated, taken_cores=0.25))
    first = start(controller, 1, 100_000.0)
    controller.send(ContentionChange(contention=measured))
    assert controller.pool.contention == replace(measured, taken_cores=0.25), "which was seen here"
    start(controller, 2, 100_000.0)
    assert stages(controller) == {1: JobStage.RUNNING, 2: JobStage.WAITING}
    controller.finish(first)
    controller.adopt_all()
    assert stages(controller) == {2: JobStage.RUNNING}


def test_a_job_that_waits_by_an_estimate_starts_when_the_measurement_is_better() -> None:
    controller = timed_controller(8, contention=Contention(points=((1, 1.0), (2, 2.5))))
    for number in (1, 2):
        start(controller, number, 100_000.0)
    assert stages(controller) == {1: JobStage.RUNNING, 2: JobStage.WAITING}
    controller.send(ContentionChange(contention=Contention(points=((1, 1.0), (2, 1.1)))))
    controller.adopt_all()
    assert stages(controller) == {1: JobStage.RUNNING, 2: JobStage.RUNNING}
    controller.send(ContentionChange(contention=Contention(points=((1, 1.0), (2, 2.5)))))
    controller.adopt_all()
    assert stages(controller) == {1: JobStage.RUNNING, 2: JobStage.RUNNING}, "a set that was formed goes on"


@pytest.mark.parametrize(("ranks", "leaves"), [((2,), [0]), ((1, 2), [])], ids=["one rank", "ranks only"])
def test_no_rank_leaves_a_set_that_is_slower_than_one_job_alone(ranks: tuple[int, ...], leaves: list[int]) -> None:
    controller = timed_controller(8, contention=Contention(points=((1, 1.0), (8, 1.0))))
    trainers = []
    for number in (1, 2):
        gang = ClaimedRank(rank=0, ranks=2, attempt_claim=ClaimToken(1000 + number)) if number in ranks else None
        trainers.append(controller.claim(replace(job(number), gang=gang)))
        latency_ns = ((STEP_NS,),)
        controller.send(
            Capture(trainer=trainers[-1], graphs=(graph(4),), latency_ns=latency_ns, unknown=0, steps=100_000.0)
        )
        controller.adopt_all()
    leaving: list[TrainerId] = []
    for _ in range(8):
        for trainer, slowdown in zip(trainers, (2.5, 3.0), strict=True):
            slow = replace(measurement(trainer, STEP_NS), iteration_ns=round(slowdown * STEP_NS))
            controller.send(slow)
            leaving += leaving_trainers(controller)
    assert leaving[:1] == [trainers[k] for k in leaves]


def test_a_set_that_is_as_fast_as_foretold_stays() -> None:
    side_by_side = Contention(points=((1, 1.0), (8, 1.0)))
    controller = timed_controller(8, contention=side_by_side)
    trainers = [start(controller, number, 100_000.0) for number in (1, 2)]
    for _ in range(8):
        for trainer in trainers:
            controller.send(replace(measurement(trainer, STEP_NS), iteration_ns=round(1.9 * STEP_NS)))
            assert leaving_trainers(controller) == []
