"""A controller with fakes around it, whose loop the test turns."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from indb_tensile.controller.background_planner import BackgroundPlanner, ImprovementCancellation
from indb_tensile.controller.controller_loop import Controller, Mail
from indb_tensile.controller.device_ledger import ChangingRegions, DeviceMemory
from indb_tensile.controller.device_room import Headroom
from indb_tensile.controller.heartbeat import Heartbeat
from indb_tensile.controller.load_gauge import Gauge
from indb_tensile.controller.mailbox import Mailbox
from indb_tensile.controller.oom_kills import OomKills
from indb_tensile.controller.policy_planner import PolicyPlanner
from indb_tensile.controller.round_players import RoundPlayers
from indb_tensile.controller.service_process import NoService
from indb_tensile.controller.trainers import Trainers
from indb_tensile.device.ledger import Ledger
from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.admission_orders import RequeueJob
from indb_tensile.scheduler.admission.pool import Planner, Pool, TrainerId
from tests.controller.fakes import (
    DEADLINE_S,
    FAKE_TRAINER,
    LINK,
    MIB,
    FakeLedger,
    FakePassages,
    FakeRecords,
    FakeRegions,
)
from tests.controller.warm_forks import fork_server


class ControllerHarness:
    """A controller with fakes around it. The test turns its loop."""

    def __init__(
        self,
        *,
        budget: int,
        policy: str,
        planner: Planner | None,
        beat_s: float,
        lease_s: float,
        grace_s: float,
        ledger: FakeLedger | Ledger,
        regions: FakeRegions | None = None,
        cancellation: ImprovementCancellation | None = None,
        starvation: OomKills | None = None,
        gauge: Gauge | None = None,
        headroom: Headroom | None = None,
        changing: ChangingRegions | None = None,
        **pool: Any,
    ) -> None:
        self.records = FakeRecords()
        self.ledger: Any = ledger
        self.mailbox: Mailbox[Mail] = Mailbox()
        self.forks = fork_server(os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
        self.trainers = Trainers(
            forks=self.forks,
            module=FAKE_TRAINER,
            device_fd=self.ledger.fd,
            grace_s=grace_s,
            wake=self.mailbox,
            regions=regions,
            starvation=starvation,
        )
        self.planner = BackgroundPlanner(
            planner or PolicyPlanner(link=LINK, policy=policy), self.mailbox.post, cancellation
        )
        self.controller = Controller(
            pool=replace(Pool(budget_bytes=budget * MIB, region_bytes=MIB, spare_trainers=1), **pool),
            planner=self.planner,
            records=self.records,
            trainers=self.trainers,
            memory=DeviceMemory(self.ledger, kind="fake", gauge=gauge, headroom=headroom, regions=changing),
            rounds=RoundPlayers(FakePassages()),
            mailbox=self.mailbox,
            service=NoService(),
            poll_s=0.05,
            answer_s=60.0,
        )
        self.heartbeat = Heartbeat(
            pulse=self.records,
            beat_s=beat_s,
            lease_s=lease_s,
            claims=self.controller.held,
            tell=self.mailbox.post,
            stop_trainers=self.trainers.kill_all,
        )
        self.controller._join(self.heartbeat)

    def until(self, condition: Callable[[], object]) -> None:
        """Turn the loop until the condition is true."""
        end_s = time.monotonic() + DEADLINE_S
        while not condition():
            state = f"{self.controller.pool} {self.records.states}"
            assert time.monotonic() < end_s, f"not within {DEADLINE_S} s: {state}"
            self.controller.turn(self.heartbeat)

    def until_state(self, job: JobId, state: str) -> None:
        self.until(lambda: self.records.states[job] == state)

    def until_adopted(self, job: JobId) -> None:
        self.until(lambda: any(m.job.job == job and m.adopted for m in self.controller.pool.members))

    def until_requeued(self, job: JobId) -> RequeueJob:
        """Turn the loop until the job is requeued, and return the order that requeued it."""
        self.until_state(job, "requeued")
        (order,) = [order for order in self.records.written if isinstance(order, RequeueJob)]
        return order

    def trainer_of(self, job: JobId) -> TrainerId:
        member = self.controller.pool.of_job(job)
        assert member is not None
        assert member.trainer is not None
        return member.trainer

    def pid_of(self, job: JobId) -> int:
        return self.trainers.pid(self.trainer_of(job))


@contextmanager
def controller_harness(
    *,
    budget: int = 16,
    policy: str = "tensile+",
    planner: Planner | None = None,
    beat_s: float = 0.05,
    lease_s: float = 30.0,
    grace_s: float = 5.0,
    ledger: FakeLedger | Ledger | None = None,
    regions: FakeRegions | None = None,
    cancellation: ImprovementCancellation | None = None,
    starvation: OomKills | None = None,
    gauge: Gauge | None = None,
    headroom: Headroom | None = None,
    changing: ChangingRegions | None = None,
    **pool: Any,
) -> Iterator[ControllerHarness]:
    harness = ControllerHarness(
        budget=budget,
        policy=policy,
        planner=planner,
        beat_s=beat_s,
        lease_s=lease_s,
        grace_s=grace_s,
        ledger=ledger or FakeLedger(budget * MIB),
        regions=regions,
        cancellation=cancellation,
        starvation=starvation,
        gauge=gauge,
        headroom=headroom,
        changing=changing,
        **pool,
    )
    try:
        yield harness
    finally:
        harness.heartbeat.close()
        harness.trainers.close()
        harness.forks.close()
        harness.planner.close()
        harness.ledger.close()
        harness.mailbox.close()
