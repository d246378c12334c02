"""Runs admission in virtual time on one device: jobs arrive in a queue in memory, from which a claim is answered at
once (trace_controller.py).
"""

from collections.abc import Callable, Sequence
from math import inf

from indb_tensile.bench.harness.virtual_time.trace_controller import TraceController, VirtualTimeline
from indb_tensile.bench.harness.virtual_time.trace_device import TraceDevice
from indb_tensile.bench.harness.virtual_time.trace_outcome import Outcome
from indb_tensile.bench.harness.virtual_time.trace_workload import TraceJob
from indb_tensile.errors import InvariantError
from indb_tensile.job import ClaimedJob, ClaimToken, JobId, JobSpec, Relation, Task
from indb_tensile.scheduler.admission.admission_orders import RequeueJob
from indb_tensile.scheduler.admission.events import QueueChange, Tick
from indb_tensile.scheduler.admission.pool import Pool

ClaimOrder = Callable[[TraceJob], tuple[float, ...]]


def claim_order(job: TraceJob) -> tuple[float, ...]:
    """Return the place of a job in the queue: higher priorities first, then the order of arrival (claim_job)."""
    return (-job.priority, job.number)


def run_admission(
    pool: Pool,
    jobs: Sequence[TraceJob],
    device: TraceDevice,
    *,
    order: ClaimOrder = claim_order,
    most_ends: int | None = None,
) -> Outcome:
    """Run all jobs to their ends, or until `most_ends` of them have ended."""
    return _Run(pool, jobs, device, order).run(len(jobs) if most_ends is None else most_ends)


class _Run(TraceController):
    def __init__(self, pool: Pool, jobs: Sequence[TraceJob], device: TraceDevice, order: ClaimOrder) -> None:
        super().__init__(pool, device, {JobId(job.number): job for job in jobs}, VirtualTimeline())
        self._order = order
        self._queue: set[JobId] = set()
        for job in jobs:
            self.timeline.at(job.arrival_ns, lambda job=job: self._arrive(job))  # type: ignore[misc]

    def run(self, most_ends: int) -> Outcome:
        self.send(Tick())
        while len(self.ends_ns) < most_ends:
            next_ns = min(self.timeline.next_ns, self.here.next_change_ns())
            if next_ns == inf:
                stages = {member.job.job: member.stage.value for member in self.pool.members}
                raise InvariantError(f"admission runs none of its jobs {stages}, and {len(self._queue)} are queued")
            self.advance(next_ns)
            self.timeline.run_until(next_ns)
        return Outcome(
            ends_ns=self.ends_ns,
            attained_ns=self.here.attained_ns,
            changes=self.changes,
            peak_bytes=self.here.peak_bytes,
            decisions=tuple(self.decisions),
        )

    def next_job(self, passed_over: frozenset[int]) -> ClaimedJob | None:
        candidates = [self.jobs[job] for job in self._queue if self.jobs[job].owner not in passed_over]
        if not candidates:
            return None
        job = min(candidates, key=self._order)
        self._queue.remove(JobId(job.number))
        return _claimed(job)

    def take_back(self, order: RequeueJob) -> None:
        self._queue.add(order.job)
        self.after(0, QueueChange())

    def _arrive(self, job: TraceJob) -> None:
        self._queue.add(JobId(job.number))
        self.send(QueueChange())


def _claimed(job: TraceJob) -> ClaimedJob:
    spec = JobSpec(
        model=f"model {job.number}",
        relation=Relation(oid=job.number, schema="public", name="t"),
        target="y",
        task=Task.REGRESSION,
        architecture={"type": "mlp"},
    )
    return ClaimedJob(
        job=JobId(job.number),
        claim=ClaimToken(job.number),
        attempt=1,
        owner_oid=job.owner,
        spec=spec,
        priority=job.priority,
    )
