"""A trainer reports each operator that outgrew its plan once, and stores its need before it runs out of memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from indb_tensile.catalog import plans
from indb_tensile.catalog.connection import Session
from indb_tensile.errors import InvariantError, OutgrownMemoryError
from indb_tensile.executor.capture.rank_share import RankShare
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.run.operator_excess import OperatorExcess
from indb_tensile.job import JobId
from indb_tensile.messages import Corrected
from tests.executor.conftest import prepared
from tests.executor.models import BATCH
from tests.executor.ranks.rank_steps import sum_parts
from worker.captured_steps import CapturedSteps
from worker.training.memory_corrections import MemoryCorrections

pytestmark = pytest.mark.postgres

KIB = 1024


class _Scene:
    """A training whose runner reports excesses, and what the controller and the job's history get from it."""

    def __init__(self, session: Session) -> None:
        _, steps = prepared("mlp")
        self.session = session
        self.sent: list[Any] = []
        self.events: list[tuple[str, Any]] = []
        self.excesses: tuple[OperatorExcess, ...] = ()
        self.relocated: list[tuple[CapturedStep, ...]] = []
        self.steps = CapturedSteps(steps, BATCH)
        self.operator = max(self.steps.graphs[0].operators, key=lambda o: o.name)
        runner: Any = SimpleNamespace(take_excesses=self.take_excesses, relocate=self.relocated.append)
        link: Any = SimpleNamespace(send=self.sent.append)
        writer: Any = SimpleNamespace(
            job=SimpleNamespace(job=JobId(7)),
            session=session,
            keep=lambda _, write: session.run(write),
            tell=lambda kind, detail: self.events.append((kind, detail)),
        )
        self.corrections = MemoryCorrections(
            runner=runner, steps=self.steps, scripted=steps, link=link, progress_writer=writer
        )

    def take_excesses(self) -> tuple[OperatorExcess, ...]:
        excesses, self.excesses = self.excesses, ()
        return excesses

    def exceed(self, excess_bytes: int, planned_bytes: int = 0) -> None:
        """Let the operator have used this much memory beyond a plan with this workspace."""
        self.excesses = (
            OperatorExcess(
                signature=self.operator.signature,
                name=self.operator.name,
                planned_bytes=planned_bytes,
                excess_bytes=excess_bytes,
            ),
        )

    def stored_bytes(self) -> int:
        """Return the operator's workspace in the catalog."""
        key = self.operator.signature
        known = self.session.run(lambda c: plans.known_latencies(c, self.steps.kind, [key]))
        return known[key][1] if key in known else 0

    def workspaces(self, message: Corrected) -> set[int]:
        """Return the operator's workspace in all graphs of the message."""
        operators = [o for graph in message.graphs for o in graph.operators]
        return {o.workspace_bytes for o in operators if o.signature == self.operator.signature}


@pytest.fixture
def scene(session: Session) -> _Scene:
    return _Scene(session)


def test_operators_of_a_rank_are_measured_again_without_the_other_ranks(scene: _Scene) -> None:
    entered: list[str] = []

    @contextmanager
    def alone() -> Iterator[None]:
        entered.append("alone")
        yield

    scene.steps.alone = alone  # type: ignore[method-assign]
    scene.corrections.look()
    assert entered == [], "nothing is measured"
    scene.exceed(64 * KIB)
    scene.corrections.look()
    scene.exceed(128 * KIB)
    scene.corrections.end()
    assert entered == ["alone"] * 2


def test_steps_of_a_rank_run_alone_without_an_exchange() -> None:
    _, steps = prepared("mlp")
    value = torch.ones(3)
    with CapturedSteps(steps, BATCH, share=RankShare(rank=1, ranks=2)).alone():
        sum_parts(value, [1, 1])
    with CapturedSteps(steps, BATCH).alone(), pytest.raises(InvariantError, match="without a connection"):
        sum_parts(value, [1, 1])


def test_training_within_its_plan_reports_nothing(scene: _Scene) -> None:
    scene.corrections.start()
    scene.corrections.look()
    scene.corrections.end()
    assert (scene.sent, scene.events, scene.relocated) == ([], [], [])


def test_operator_is_reported_once_for_each_size_with_all_graphs(scene: _Scene) -> None:
    for _ in range(5):
        scene.exceed(64 * KIB)
        scene.corrections.look()
    (message,) = scene.sent
    assert (message.job, message.number) == (7, 1)
    assert [(o.name, o.planned_bytes, o.measured_bytes) for o in message.outgrown] == [
        (scene.operator.name, 0, 64 * KIB)
    ]
    assert scene.workspaces(message) == {64 * KIB}
    assert scene.stored_bytes() == 64 * KIB
    ((kind, detail),) = scene.events
    assert kind == "memory_corrected"
    assert detail == {
        "message": f"operator {scene.operator.name} needs a workspace of 64.0 kB, and 0 B were planned for it",
        "operators": [{"operator": scene.operator.name, "planned_bytes": 0, "measured_bytes": 64 * KIB}],
    }
    scene.corrections.steps_for(1)  # the job follows a plan with the reported size, and needs still more
    for _ in range(3):
        scene.exceed(16 * KIB, planned_bytes=64 * KIB)
        scene.corrections.look()
    assert [message.number for message in scene.sent] == [1, 2]
    assert scene.workspaces(scene.sent[1]) == {80 * KIB}
    assert scene.stored_bytes() == 80 * KIB


def test_plans_for_earlier_workspaces_get_steps_with_these_workspaces(scene: _Scene) -> None:
    for _ in range(2):
        scene.exceed(64 * KIB)
        scene.corrections.look()

    def workspace_bytes(number: int) -> set[int]:
        operators = [o for step in scene.corrections.steps_for(number) for o in step.graph.operators]
        return {o.workspace_bytes for o in operators if o.signature == scene.operator.signature}

    assert workspace_bytes(0) == {scene.operator.workspace_bytes}
    assert workspace_bytes(1) == {64 * KIB}


def test_smaller_measurement_of_a_running_job_does_not_come_back(scene: _Scene) -> None:
    for _ in range(2):
        scene.exceed(64 * KIB)
        scene.corrections.look()
    scene.steps.look_up(scene.session)
    assert scene.workspaces(Corrected(job=JobId(7), number=1, graphs=scene.steps.graphs, outgrown=())) == {64 * KIB}


def test_need_that_was_refused_is_stored_and_blamed_only_when_it_was_known(scene: _Scene) -> None:
    for known in (False, True):
        scene.exceed(64 * KIB)
        with pytest.raises(OutgrownMemoryError) as caught, scene.corrections.storing_refusals():
            raise torch.OutOfMemoryError("CUDA out of memory")
        assert caught.value.known is known
        assert scene.operator.name in caught.value.message
        assert "64.0 kB" in caught.value.message
        assert scene.stored_bytes() == 64 * KIB
    assert "the next attempt is planned with it" not in caught.value.detail


def test_need_that_was_reported_and_is_not_planned_yet_is_not_blamed(scene: _Scene) -> None:
    for _ in range(2):
        scene.exceed(64 * KIB)
        scene.corrections.look()
    scene.exceed(64 * KIB)
    with pytest.raises(OutgrownMemoryError) as caught, scene.corrections.storing_refusals():
        raise MemoryError
    assert not caught.value.known


@pytest.mark.parametrize("excess_bytes", [0, 64 * KIB])
def test_errors_with_other_causes_pass_unchanged(scene: _Scene, excess_bytes: int) -> None:
    if excess_bytes:
        scene.exceed(excess_bytes)
    error = RuntimeError("shapes differ") if excess_bytes else torch.OutOfMemoryError("of another kind of memory")
    with pytest.raises(type(error)) as caught, scene.corrections.storing_refusals():
        raise error
    assert caught.value is error
    assert scene.stored_bytes() == 0
