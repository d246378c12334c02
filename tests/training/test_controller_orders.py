"""Check how a trainer follows the controller's orders between two iterations."""

from types import SimpleNamespace
from typing import Any

import pytest

from indb_tensile.device.device import Device
from indb_tensile.errors import HandedOverError, InvariantError, NoRoomToParkError
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.placer import Placer
from indb_tensile.executor.run.runner import Runner
from indb_tensile.job import JobId
from indb_tensile.messages import (
    Adopt,
    Adopted,
    Calibrate,
    LeavePhases,
    LeftPhases,
    Lend,
    Lent,
    Message,
    Misplaced,
    Park,
    Parked,
)
from indb_tensile.scheduler.memory.peak import LIVENESS
from tests.device.fake_device import FakeDevice
from tests.device.memory_device import MemoryDevice
from tests.executor.conftest import prepared
from worker.training.controller_orders import ControllerOrders

ADOPT = Adopt(generation=2, grant_bytes=1 << 24, plans=(LIVENESS,) * 3)


class _Scene:
    """A runner that has adopted a plan, and the orders to it, which all have arrived."""

    def __init__(
        self, orders: list[Message], *, device: Device | None = None, saves: bool = True, placer: Placer | None = None
    ) -> None:
        job, steps = prepared("mlp")
        self.orders = orders
        self.sent: list[Message] = []
        self.calls: list[str] = []
        self.now_s = 0.0
        self.saves = saves
        self.device = device or MemoryDevice()
        self.state = job.state()
        self.runner = Runner(self.device, self.state, steps, placer=placer)
        self.runner.adopt(ADOPT.plans, 1)
        self.link: Any = SimpleNamespace(send=self.sent.append)
        self.progress: Any = SimpleNamespace(
            job=SimpleNamespace(job=JobId(7)),
            enter_again=lambda: self.calls.append("enter again"),
            signs=SimpleNamespace(begin=lambda: self.calls.append("begin")),
        )

    def poll(self) -> Message | None:
        return self.orders.pop(0) if self.orders else None

    def next(self) -> Message:
        self.now_s += 50.0
        self.calls.append("wait")
        return self.orders.pop(0)

    def save(self, for_all_hosts: bool) -> bool:
        self.calls.append("save for all hosts" if for_all_hosts else "save")
        return self.saves

    def follow(self) -> float:
        made = ControllerOrders(self.runner, self.link, self, self.progress, self.save, lambda: self.now_s)
        return made.follow()


def test_parked_trainer_waits_off_the_device_for_its_next_plan() -> None:
    scene = _Scene([Park(number=3), ADOPT])
    assert scene.follow() == 50.0
    parked, adopted = scene.sent
    assert isinstance(parked, Parked)
    assert (parked.job, parked.number) == (7, 3)
    assert parked.host_bytes > 0
    assert adopted == Adopted(job=JobId(7), generation=2)
    assert scene.calls == ["wait", "enter again", "begin"]
    assert scene.runner.generation == 2


def test_controller_is_told_that_the_plans_block_had_no_place() -> None:
    placer: Any = Placer()
    scene = _Scene([ADOPT], placer=placer)
    adopt = placer.adopt

    def adopt_elsewhere(*arguments: Any) -> None:
        adopt(*arguments)
        placer.unplaced_bytes = 4096

    placer.adopt = adopt_elsewhere
    scene.follow()
    assert scene.sent == [
        Adopted(job=JobId(7), generation=2),
        Misplaced(job=JobId(7), generation=2, block_bytes=4096),
    ]


def test_plans_for_corrected_workspaces_replace_the_steps() -> None:
    scene = _Scene([Adopt(generation=2, grant_bytes=1 << 24, plans=(LIVENESS,) * 3, correction=5)])
    steps = prepared("mlp")[1]
    larger = tuple(step.with_measured({o.signature: 64 for o in step.graph.operators}) for step in steps)
    asked: list[int] = []

    def steps_for(number: int) -> tuple[CapturedStep, ...]:
        asked.append(number)
        return larger

    orders = ControllerOrders(
        scene.runner, scene.link, scene, scene.progress, scene.save, lambda: 0.0, steps_for=steps_for
    )
    orders.follow()
    assert asked == [5]
    assert scene.device.usage().used_bytes > 0


def test_trainer_that_leaves_its_round_waits_for_its_next_plan_on_the_device() -> None:
    scene = _Scene([LeavePhases(number=4), ADOPT])
    used_bytes = scene.runner._device.usage().used_bytes
    assert scene.follow() == 50.0
    assert scene.sent == [LeftPhases(job=JobId(7), number=4), Adopted(job=JobId(7), generation=2)]
    assert scene.calls == ["wait", "begin"]
    assert scene.runner._device.usage().used_bytes == used_bytes > 0


def test_trainer_that_has_left_its_round_can_be_parked() -> None:
    scene = _Scene([LeavePhases(number=4), Park(number=1), ADOPT])
    assert scene.follow() == 100.0
    assert [type(message) for message in scene.sent] == [LeftPhases, Parked, Adopted]


def test_order_that_no_trainer_expects_after_it_has_left_its_round_is_refused() -> None:
    scene = _Scene([LeavePhases(number=4), Calibrate(grant_bytes=1)])
    with pytest.raises(InvariantError, match="the controller sent Calibrate to a job that has left its round"):
        scene.follow()


def test_plans_are_adopted_without_a_pause() -> None:
    scene = _Scene([ADOPT])
    assert scene.follow() == 0.0
    assert scene.sent == [Adopted(job=JobId(7), generation=2)]


@pytest.mark.parametrize(
    ("saves", "text"), [(True, "from the checkpoint that it has just saved"), (False, "from its last checkpoint")]
)
def test_trainer_that_may_not_wait_in_host_memory_saves_a_checkpoint_and_ends(saves: bool, text: str) -> None:
    scene = _Scene([Park(number=1, in_memory=False)], saves=saves)
    with pytest.raises(NoRoomToParkError, match=text):
        scene.follow()
    assert (scene.sent, scene.calls) == ([], ["save"])


def test_trainer_saves_a_checkpoint_for_all_hosts_before_its_job_goes_elsewhere() -> None:
    scene = _Scene([Park(number=1, elsewhere=True)], saves=True)
    with pytest.raises(HandedOverError, match="job 7 left its device for one that has nothing to do"):
        scene.follow()
    assert (scene.sent, scene.calls) == ([], ["save for all hosts"])


def test_trainer_waits_in_host_memory_if_other_hosts_could_not_read_its_checkpoint() -> None:
    scene = _Scene([Park(number=1, elsewhere=True), ADOPT], saves=False)
    assert scene.follow() == 50.0
    assert [type(message) for message in scene.sent] == [Parked, Adopted]
    assert scene.calls == ["save for all hosts", "wait", "enter again", "begin"]


def test_full_host_pool_is_named_as_the_reason() -> None:
    device = FakeDevice(1 << 24, 1 << 24)
    scene = _Scene([Park(number=1)], device=device)
    device.host_pool_bytes = 0
    with pytest.raises(NoRoomToParkError) as caught:
        scene.follow()
    assert "could not be parked in host memory" in caught.value.detail
    assert scene.calls == ["save"]
    assert scene.state.export(), "the state is whole while the checkpoint is saved"


@pytest.mark.parametrize("orders", [[Calibrate(grant_bytes=1)], [Park(number=1), Park(number=2)]])
def test_order_that_makes_no_sense_now_is_an_error(orders: list[Message]) -> None:
    with pytest.raises(InvariantError, match="the controller sent"):
        _Scene(orders).follow()


def test_trainer_answers_when_it_has_given_lent_memory_back_or_cannot_use_it() -> None:
    scene = _Scene([Lend(number=1, size_bytes=1 << 20)])
    scene.follow()
    assert (scene.sent, scene.runner.lent_for_batch > 0) == ([], True)
    scene.orders.append(Lend(number=2, size_bytes=0))
    scene.follow()
    assert (scene.sent, scene.runner.lent_for_batch) == ([Lent(job=JobId(7), number=2, size_bytes=0)], 0)
    scene.orders.append(Lend(number=3, size_bytes=1))
    scene.follow()
    assert scene.sent[1:] == [Lent(job=JobId(7), number=3, size_bytes=0)]


def test_trainer_gives_lent_memory_back_with_its_plans_when_it_parks_and_after_its_last_step() -> None:
    scene = _Scene(
        [Lend(number=1, size_bytes=1 << 20), ADOPT, Lend(number=2, size_bytes=1 << 20), Park(number=1), ADOPT]
    )
    scene.follow()
    assert [type(message) for message in scene.sent] == [Adopted, Parked, Adopted]
    scene.orders.append(Lend(number=3, size_bytes=1 << 20))
    made = ControllerOrders(scene.runner, scene.link, scene, scene.progress, scene.save, lambda: scene.now_s)
    made.follow()
    made.give_loan_back()
    made.give_loan_back()
    assert scene.sent[3:] == [Lent(job=JobId(7), number=3, size_bytes=0)]
    assert scene.runner.lent_for_batch == 0
