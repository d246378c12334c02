"""One of several controllers in virtual time: `decide()` with the claims, leases and gangs of a real catalog.

As in trace_controller.py, no process runs. Jobs come from the catalog by the code of the controllers, so claims,
deferred jobs, offered ranks and gangs that are given back follow the rules that controllers follow. Their clock is
virtual (virtual_catalog.py). A rank trains when all ranks of its job have memory, and a job ends when all ranks have
done its steps; until then all keep their memory.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from indb_tensile.bench.harness.virtual_time.simulated_gangs import GangAttempt, SharedState, SimulatedRank
from indb_tensile.bench.harness.virtual_time.trace_controller import TraceController, VirtualTimeline
from indb_tensile.bench.harness.virtual_time.trace_device import TraceDevice
from indb_tensile.bench.harness.virtual_time.virtual_catalog import VirtualSession
from indb_tensile.catalog import jobs, plans, ranks
from indb_tensile.catalog.connection import Connection
from indb_tensile.catalog.jobs import Progress
from indb_tensile.catalog.plans import DeviceUse
from indb_tensile.catalog.ranks import RankState
from indb_tensile.controller.device_records import DeviceRecords
from indb_tensile.controller.records import CatalogRecords
from indb_tensile.controller.worker_registration import WorkerRegistration
from indb_tensile.errors import InvariantError, LostClaimError
from indb_tensile.job import ClaimedJob, ClaimToken, JobId, Phase
from indb_tensile.scheduler.admission.admission_orders import RequeueJob
from indb_tensile.scheduler.admission.events import ClaimLoss, Finish, IdleDevice, QueueChange, Tick
from indb_tensile.scheduler.admission.pool import Pool, Sharing, TrainerId
from indb_tensile.scheduler.admission.trainer_assignment import claim_blocker

Result = TypeVar("Result")

# A controller looks at the queue, and sends a heartbeat, every second. Half as many change a makespan of jobs of some
# seconds by little. With heartbeats each 5 s it was a tenth longer, because a job is handed over after three of them.
POLL_S = 2.0
BEAT_S = 2.0
LEASE_S = 15.0
_KIND = "simulated"
_SECOND_NS = 1_000_000_000


class CatalogController(TraceController):
    """A controller, its worker in the catalog, and its device."""

    def __init__(
        self, pool: Pool, device: TraceDevice, timeline: VirtualTimeline, shared: SharedState, session: VirtualSession
    ) -> None:
        super().__init__(pool, device, shared.jobs, timeline)
        self._shared = shared
        self._session = session
        records = CatalogRecords(
            "",
            application_name=_KIND,
            host=_KIND,
            pid=1,
            device_kind=_KIND,
            policy=_KIND,
            lease_s=LEASE_S,
            slots=pool.max_jobs,
            entering=pool.entering_jobs,
            makes_way=pool.sharing is Sharing.COMPLETION,
            session=session,
        )
        self._membership = WorkerRegistration(records, session.clock)
        self._device_records = DeviceRecords(records, session.clock)
        self._worker = self._membership.join()
        use = DeviceUse(
            kind=_KIND,
            capacity_bytes=pool.budget_bytes,
            budget_bytes=pool.budget_bytes,
            granted_bytes=0,
            used_bytes=0,
            high_water_bytes=0,
            host_bytes=0,
        )
        session.run(lambda connection: plans.record_device(connection, self._worker, use))

    def begin(self, delay_s: float) -> None:
        """Start the ticks and heartbeats, the first after this time."""
        self.after(round(delay_s * _SECOND_NS), self._tick)
        self.after(round((delay_s + BEAT_S) * _SECOND_NS), self._beat)

    def look(self) -> None:
        """Look at the queue, as a notification makes all controllers do."""
        self.send(QueueChange())

    def next_job(self, passed_over: frozenset[int]) -> ClaimedJob | None:
        """Claim the next job, or leave it to a better worker."""
        job = self._membership.claim(passed_over)
        if job is not None:
            self.here.expect(job.job, self._shared.left[job.job])
        return job

    def take_back(self, order: RequeueJob) -> None:
        """Put a job back into the queue, where other controllers find it."""
        self._leave_device(order.job)
        self._membership.write(order)
        self.after(0, self._shared.notify)

    def prepare(self, trainer: TrainerId, job: ClaimedJob) -> None:
        """Read the table and capture the step. A rank then waits for the others."""
        if job.gang is None:
            super().prepare(trainer, job)
            self.after(
                self.device.prepare_ns, partial(self._write, job, partial(jobs.set_phase, phase=Phase.WAITING))
            )
        else:
            attempt = self._shared.attempt(job.gang)
            attempt.ranks[job.gang.rank] = SimulatedRank(controller=self, trainer=trainer, job=job)
            self.after(self.device.prepare_ns, partial(self._prepared, attempt, job))

    def _prepared(self, attempt: GangAttempt, job: ClaimedJob) -> None:
        self._write(job, partial(ranks.enter_state, state=RankState.PREPARED))
        others = self._write(job, ranks.states)
        if others is None or any(state in (RankState.OFFERED, RankState.PREPARING) for state in others):
            return
        for rank in attempt.ranks.values():
            rank.controller.after(0, rank.controller.capture(rank.trainer, self.jobs[job.job]))

    def train(self, job: ClaimedJob, plan: int) -> None:
        """Put the job on the device; a rank only when all ranks of its job have memory."""
        if job.gang is None:
            self._begin(job, plan)
            return
        attempt = self._shared.attempts.get(job.gang.attempt_claim)
        if attempt is None:
            return  # it was given back meanwhile
        rank = attempt.ranks[job.gang.rank]
        rank.plan = plan
        if attempt.trains:
            if not rank.done:
                super().train(job, plan)
            return
        self._write(job, partial(ranks.enter_state, state=RankState.ADMITTED))
        if self._write(job, ranks.states) is None:
            return  # it was given back meanwhile, as the next heartbeat says
        attempt.admit(self.now_s)
        if attempt.is_complete:
            attempt.trains = True
            self._shared.half_gang_s.append(attempt.held_s(self.now_s))
            for other in attempt.ranks.values():
                other.controller.begin_rank(other)

    def begin_rank(self, rank: SimulatedRank) -> None:
        """Let the trainer of one rank train. All ranks of its job have their memory."""
        assert rank.plan is not None
        self._write(rank.job, partial(ranks.enter_state, state=RankState.TRAINING))
        self._begin(rank.job, rank.plan)

    def _begin(self, job: ClaimedJob, plan: int) -> None:
        super().train(job, plan)
        self._shared.began_s.setdefault(job.job, self.now_s)
        if not job.follows:
            self._write(job, jobs.start_running)
            self._tell_progress(job)

    def _tell_progress(self, job: ClaimedJob) -> None:
        """Write when the job will end, about, as its trainer does."""
        eta_s = self.here.left[job.job] * self.here.step_ns().get(job.job, 0.0) / _SECOND_NS
        progress = Progress(epoch=1, epochs=1, step=1, steps=1, eta_s=eta_s)
        self._write(job, partial(jobs.report_progress, progress=progress))

    def finish(self, job: JobId) -> None:
        """The job has done its last step; one of several ranks waits for the others then."""
        member = self.pool.of_job(job)
        if member is None:
            raise InvariantError(f"job {job} trained without a trainer")
        claimed = member.job
        if claimed.gang is None:
            self._end_in_catalog(claimed)
            super().finish(job)
            self.after(0, self._shared.notify)
            return
        self.here.take(job)
        self.changed()
        attempt = self._shared.attempts[claimed.gang.attempt_claim]
        attempt.ranks[claimed.gang.rank].done = True
        if all(rank.done for rank in attempt.ranks.values()):
            del self._shared.attempts[claimed.gang.attempt_claim]
            self._end_in_catalog(attempt.ranks[0].job)
            for rank in attempt.ranks.values():
                rank.controller.ends_ns[job] = self.here.now_ns
                rank.controller.after(0, Finish(trainer=rank.trainer))
            self.after(0, self._shared.notify)

    def end_trainer(self, trainer: TrainerId) -> None:
        """Let the trainer exit, and take its job off the device if it is not done."""
        member = self.pool.of_trainer(trainer)
        if member is not None and member.job.job not in self.ends_ns:
            self._leave_device(member.job.job)
        super().end_trainer(trainer)

    @property
    def now_s(self) -> float:
        """The time of the device."""
        return self.here.now_ns / _SECOND_NS

    def _leave_device(self, job: JobId) -> None:
        if job in self.here.numbers:
            self.here.take(job)
            self.changed()
        member = self.pool.of_job(job)
        if member is None or member.job.gang is None:
            self._shared.left[job] = self.here.left[job]

    def _end_in_catalog(self, job: ClaimedJob) -> None:
        """End the job. Nothing is published, so its state says that it was cancelled."""
        self._session.run(lambda connection: jobs.cancelled(connection, job.job, job.claim))
        self._shared.end(job.job, self.now_s)

    def _write(self, job: ClaimedJob, write: Callable[[Connection, JobId, ClaimToken], Result]) -> Result | None:
        """Write to the catalog for a job that this controller has claimed, unless the claim was lost."""
        with suppress(LostClaimError):
            return self._session.run(lambda connection: write(connection, job.job, job.claim))
        return None

    def _lose(self, claim: ClaimToken) -> None:
        member = self.pool.of_claim(claim)
        if member is not None and member.job.gang is not None:
            self._shared.give_back(member.job.gang.attempt_claim, self.now_s)
        self.send(ClaimLoss(claim=claim))

    # --- ticks and heartbeats ------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.send(Tick())
        self._device_records.record_holdup(self._worker, claim_blocker(self.pool))
        self.after(round(POLL_S * _SECOND_NS), self._tick)

    def _beat(self) -> None:
        self._membership.rescue()
        held = {member.job.job: member.job.claim for member in self.pool.members}
        reply = self._session.run(lambda c: jobs.beat(c, self._worker, held))
        for job in reply.lost:
            self._lose(held[job])
        if reply.idle_bytes is not None or self.pool.idle_reports:
            self.send(IdleDevice(budget_bytes=reply.idle_bytes))
        for member in self.pool.members:
            if member.job.job in self.here.numbers and not member.job.follows:
                self._tell_progress(member.job)
        self.after(round(BEAT_S * _SECOND_NS), self._beat)
