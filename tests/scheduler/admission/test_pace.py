"""A forecast of a job's end includes its time between iterations and the preparation before the first one."""

import pytest

from indb_tensile.scheduler.admission.completion_rule import demand_of
from indb_tensile.scheduler.admission.events import Adoption, Parking, PauseChange, StepsLeft, Tick
from indb_tensile.scheduler.admission.outlook import foretell_start, outlook_of
from indb_tensile.scheduler.admission.pace import pace
from indb_tensile.scheduler.admission.pool import Member, Sharing, TrainerId
from indb_tensile.scheduler.completion.contention import of_cores
from tests.scheduler.admission.fake_controller import FakeController, job


class Timed(FakeController):
    """A controller with a clock. Jobs have steps of 1,000 ns."""

    def __init__(self) -> None:
        super().__init__(20, sharing=Sharing.COMPLETION, contention=of_cores(2, 1))
        self.now_s = 0.0

    def passes(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.send(Tick(now_s=self.now_s))

    def member(self, trainer: TrainerId) -> Member:
        member = self.pool.of_trainer(trainer)
        assert member is not None
        return member

    def trained(self, number: int, *, read_s: float, copied_s: float, steps: float = 1e12) -> TrainerId:
        """Start a job that is read and captured, and copied to the device, for so long."""
        trainer = self.claim(job(number))
        self.send(Tick(now_s=self.now_s))  # claiming has set the clock of the pool back
        member = self.member(trainer)
        self.passes(read_s)
        self.capture(trainer, 2, steps=steps)
        self.passes(copied_s)
        self.send(Adoption(trainer=trainer, generation=1))
        assert member.claimed_s <= self.member(trainer).sent_s
        return trainer


def test_pace_is_the_time_of_a_turn_over_what_was_foretold_for_its_steps() -> None:
    controller = Timed()
    trainer = controller.trained(1, read_s=3.0, copied_s=1.0)
    assert pace(controller.pool, controller.member(trainer)) == 1.0, "nothing is known yet"
    controller.passes(10.0)
    controller.send(StepsLeft(trainer=trainer, steps_left=1e12 - 8e6))
    assert pace(controller.pool, controller.member(trainer)) == pytest.approx(10 / 8)
    outlook = outlook_of(controller.pool)
    assert outlook is not None
    assert outlook.running[0].steps_left == pytest.approx(1.25 * (1e12 - 8e6))
    controller.send(StepsLeft(trainer=trainer, steps_left=1e12 - 9e6))
    controller.send(StepsLeft(trainer=trainer, steps_left=1e12 - 9e6))
    assert pace(controller.pool, controller.member(trainer)) == pytest.approx(10 / 9)


def test_pace_has_bounds_and_begins_anew_when_the_job_comes_back_to_the_device() -> None:
    controller = Timed()
    trainer = controller.trained(1, read_s=1.0, copied_s=1.0)
    controller.passes(100.0)
    controller.send(StepsLeft(trainer=trainer, steps_left=1e12 - 1e6))
    assert pace(controller.pool, controller.member(trainer)) == 4.0
    number = controller.member(trainer).job.job
    controller.send(PauseChange(paused=frozenset({number})))
    controller.send(Parking(trainer=trainer, number=1, host_bytes=1))
    controller.passes(500.0)
    controller.send(PauseChange(paused=frozenset()))
    controller.adopt_all()
    assert pace(controller.pool, controller.member(trainer)) == 1.0
    controller.passes(8.0)
    controller.send(StepsLeft(trainer=trainer, steps_left=1e12 - 9e6))
    assert pace(controller.pool, controller.member(trainer)) == 1.0


def test_job_that_is_asked_about_is_foretold_to_be_prepared_as_long_as_the_last_jobs() -> None:
    controller = Timed()
    trainer = controller.trained(1, read_s=3.0, copied_s=1.0)
    assert controller.pool.prepare_s == 4.0
    controller.trained(2, read_s=1.0, copied_s=1.0)
    assert controller.pool.prepare_s == 3.0, "later jobs count more"
    outlook = outlook_of(controller.pool)
    assert outlook is not None
    forecast = foretell_start(outlook, demand_of(controller.pool, controller.member(trainer)))
    assert forecast is not None
    assert outlook.prepare_s == 3.0
    assert forecast.end_ns >= 3e9 + 1e15
