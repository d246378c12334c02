"""Jobs of known lengths under a fake controller whose changes of the device cost a known time."""

from typing import Any

from indb_tensile.scheduler.admission.admission_orders import ParkJob
from indb_tensile.scheduler.admission.events import Capture, Parking, StepsLeft
from indb_tensile.scheduler.admission.pool import JobStage, Sharing, TrainerId
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.link import Link

from .fake_controller import FakeController, graph, job, orders_of_type
from .test_completion_rule import TimedPlanner

STEP_NS = 10_000_000
_LINK = Link(out_bytes_per_s=1 << 30, in_bytes_per_s=1 << 30)
QUANTUM_STEPS = 200.0  # a change takes 0.1 s beside its copies, so the quantum is 2 s
_TURNS = Contention(points=((1, 1.0), (2, 2.0)))


def timed_controller(budget: int = 4, **rules: Any) -> FakeController:
    """Return a controller of `budget` regions that shares by completion times; `rules` change its pool."""
    defaults: dict[str, Any] = {
        "sharing": Sharing.COMPLETION,
        "contention": _TURNS,
        "entering_jobs": 8,
        "link": _LINK,
    }
    return FakeController(budget, TimedPlanner(), **(defaults | rules))


def capture(controller: FakeController, number: int, steps: float, regions: int = 4, **claimed: Any) -> TrainerId:
    """Claim a job of so many steps, whose plan takes `regions` of the device, and send its captured step."""
    trainer = controller.claim(job(number, **claimed))
    controller.send(
        Capture(trainer=trainer, graphs=(graph(regions),), latency_ns=((STEP_NS,),), unknown=0, steps=steps)
    )
    return trainer


def start(controller: FakeController, number: int, steps: float, **claimed: Any) -> TrainerId:
    """Claim a job that has captured its steps, and let it start if there is room."""
    trainer = capture(controller, number, steps, **claimed)
    controller.adopt_all()
    return trainer


def train(controller: FakeController, trainer: TrainerId, steps: float) -> None:
    """Let a job be so many steps nearer to its end."""
    member = controller.pool.of_trainer(trainer)
    assert member is not None
    controller.send(StepsLeft(trainer=trainer, steps_left=max(0.0, member.steps_left - steps)))


def park(controller: FakeController, trainer: TrainerId) -> None:
    """Let a trainer leave the device, as it was ordered to."""
    member = controller.pool.of_trainer(trainer)
    assert member is not None
    controller.send(Parking(trainer=trainer, number=member.parks, host_bytes=0))


def stages(controller: FakeController) -> dict[int, JobStage]:
    """Return the stage of each job."""
    return {m.job.job: m.stage for m in controller.pool.members}


def leaving_trainers(controller: FakeController) -> list[TrainerId]:
    """Return the trainers that the last orders let leave the device."""
    return [order.trainer for order in orders_of_type(controller.orders, ParkJob)]
