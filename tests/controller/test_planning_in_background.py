"""Check that the controller works while plans are computed and improved, and how it handles a planner's exception."""

import os
import signal
import threading
from dataclasses import dataclass, field
from typing import NoReturn

import pytest

from indb_tensile.controller.background_planner import NICENESS, ImprovementCancellation
from indb_tensile.controller.policy_planner import PolicyPlanner
from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.admission.admission_orders import (
    RecordMeasurement,
)
from indb_tensile.scheduler.admission.events import Measurement
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.workload import Workload
from tests.controller.fakes import (
    LINK,
    MIB,
)
from tests.controller.harness import controller_harness


class BrokenPlanner(PolicyPlanner):
    """A planner that raises an error instead of returning a plan."""

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> NoReturn:
        raise InvariantError("no plan")


def test_controller_that_ends_with_a_fault_leaves_its_worker_out_of_order() -> None:
    with controller_harness(planner=BrokenPlanner(link=LINK, policy="tensile+")) as harness:
        harness.records.enqueue("train")
        with pytest.raises(InvariantError, match="no plan"):
            harness.controller.run(harness.heartbeat)
        assert harness.records.fallen == [1]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedPlanner(PolicyPlanner):
    """A planner that reports when it begins to plan for more than one job, and then waits for permission."""

    planning: threading.Event = field(default_factory=threading.Event)
    finish_planning: threading.Event = field(default_factory=threading.Event)

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        if len(workloads) > 1:
            self.planning.set()
            self.finish_planning.wait()
        return PolicyPlanner.plan(self, workloads, budget_bytes=budget_bytes)


def test_controller_reports_cancels_and_beats_while_a_plan_is_computed() -> None:
    planner = GatedPlanner(link=LINK, policy="tensile+")
    with controller_harness(planner=planner) as harness:
        try:
            first = harness.records.enqueue("report", 4 * MIB)
            harness.until_adopted(first)
            second = harness.records.enqueue("train", 5 * MIB)
            harness.until(planner.planning.is_set)
            before, beats = len(harness.records.written), harness.records.beats
            os.kill(harness.pid_of(first), signal.SIGUSR1)
            harness.until(lambda: any(isinstance(w, RecordMeasurement) for w in harness.records.written[before:]))
            harness.until(lambda: harness.records.beats > beats)
            harness.records.cancels.add(first)
            harness.until_state(first, "cancelled")
            assert list(harness.ledger.grants.values()) == [0]
        finally:
            planner.finish_planning.set()
        harness.until_adopted(second)  # the plan for both jobs is dropped, so the second job's plan is for it alone
        assert list(harness.ledger.grants.values()) == [5 * MIB]


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerImprover(PolicyPlanner):
    """A planner that improves plans until it is cancelled. It records the niceness of planning and of improving."""

    niceness: dict[str, int] = field(default_factory=dict)
    improving: threading.Event = field(default_factory=threading.Event)

    def plan(self, workloads: tuple[Workload, ...], *, budget_bytes: int) -> tuple[JobPlan, ...] | Infeasible:
        self.niceness["plan"] = os.getpriority(os.PRIO_PROCESS, 0)
        return PolicyPlanner.plan(self, workloads, budget_bytes=budget_bytes)

    def renew(
        self, workloads: tuple[Workload, ...], plans: tuple[JobPlan, ...], *, budget_bytes: int, thorough: bool = True
    ) -> tuple[JobPlan, ...] | None:
        self.niceness["renew"] = os.getpriority(os.PRIO_PROCESS, 0)
        self.improving.set()
        while True:
            self.cancellation_check()


def test_plan_improvement_runs_at_low_priority_and_is_cancelled_by_a_new_job() -> None:
    cancellation = ImprovementCancellation()
    planner = EagerImprover(link=LINK, policy="tensile+", cancellation_check=cancellation.check)
    with controller_harness(planner=planner, cancellation=cancellation) as harness:
        first = harness.records.enqueue("train", 4 * MIB)
        harness.until_adopted(first)
        member = harness.controller.pool.of_job(first)
        assert member is not None
        harness.until(lambda: any(isinstance(w, RecordMeasurement) for w in harness.records.written))
        drifted_measurement = Measurement(
            trainer=harness.trainer_of(first),
            generation=member.adopted,
            latency_ns=(10_000,),
            iteration_ns=10_000,
            stall_ns=0,
            peak_bytes=4 * MIB,
        )
        harness.controller.fold(drifted_measurement)
        harness.until(planner.improving.is_set)
        second = harness.records.enqueue("train", 5 * MIB)
        harness.until_adopted(second)
        assert harness.controller.pool.due is None
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert planner.niceness == {"plan": own, "renew": min(19, own + NICENESS)}


def test_exception_of_the_planner_ends_the_controller_loop() -> None:
    with controller_harness(planner=BrokenPlanner(link=LINK, policy="tensile+")) as harness:
        harness.records.enqueue("train")
        with pytest.raises(InvariantError, match="no plan"):
            harness.until(lambda: False)
