"""Messages of trainers become facts for decide()."""

import pytest

from indb_tensile.controller.message_facts import fact
from indb_tensile.job import JobId, Phase
from indb_tensile.messages import Finished, LeftDevice, Message, Progressed
from indb_tensile.scheduler.admission.events import Departure, Event, Finish, StepsLeft
from indb_tensile.scheduler.admission.pool import TrainerId

_TRAINER = TrainerId(3)


def _progressed(steps_left: float | None, startup_s: float | None = None) -> Progressed:
    return Progressed(job=JobId(1), phase=Phase.TRAINING, epoch=1, step=1, steps_left=steps_left, startup_s=startup_s)


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (_progressed(None), None),
        (_progressed(9.5), StepsLeft(trainer=_TRAINER, steps_left=9.5)),
        (_progressed(9.5, 0.25), StepsLeft(trainer=_TRAINER, steps_left=9.5, startup_ns=250_000_000)),
        (_progressed(9.5, float("nan")), StepsLeft(trainer=_TRAINER, steps_left=9.5)),
        (_progressed(9.5, -1.0), StepsLeft(trainer=_TRAINER, steps_left=9.5)),
        (Finished(job=JobId(1)), Finish(trainer=_TRAINER)),
        (Finished(job=JobId(1), closing_s=0.5), Finish(trainer=_TRAINER, closing_ns=500_000_000)),
        (Finished(job=JobId(1), closing_s=float("inf")), Finish(trainer=_TRAINER)),
        (LeftDevice(job=JobId(1), steps_left=3.5), Departure(trainer=_TRAINER, steps_left=3.5)),
        (LeftDevice(job=JobId(1)), Departure(trainer=_TRAINER)),
    ],
)
def test_progress_and_ends_tell_how_long_jobs_started_up_and_closed(message: Message, event: Event | None) -> None:
    assert fact(_TRAINER, message) == event
