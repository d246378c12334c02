"""Runs a rival of `bench trace` in virtual time: arrivals, the rival's choices, and what changes cost.

A job that leaves the device before its end copies its state to the host, and later back. Where the memory suffices
for both, the job that leaves and the job that arrives copy at the same time, one on each lane. A job that was away
also records its graphs anew (`TraceDevice.hand_over_ns`), and so does the next job wait for the memory of one that
ended.
"""

from collections.abc import Sequence
from math import inf

from indb_tensile.bench.harness.virtual_time.trace_device import JobsOnDevice, TraceDevice
from indb_tensile.bench.harness.virtual_time.trace_outcome import Outcome
from indb_tensile.bench.harness.virtual_time.trace_rivals import WITHOUT_PLAN, Occupation, Rival, Situation
from indb_tensile.bench.harness.virtual_time.trace_workload import TraceJob
from indb_tensile.errors import InvariantError


def run_rival(rival: Rival, jobs: Sequence[TraceJob], device: TraceDevice) -> Outcome:
    """Run all jobs to their ends."""
    return _Run(rival, jobs, device).run()


class _Run:
    def __init__(self, rival: Rival, jobs: Sequence[TraceJob], device: TraceDevice) -> None:
        self.rival = rival
        self.device = device
        self.trace = {job.number: job for job in jobs}
        # the table is read and the step captured as soon as a job arrives, also while others train
        self.coming = sorted(((job.arrival_ns + device.prepare_ns, job) for job in jobs), key=lambda pair: pair[0])
        self.here = JobsOnDevice(device, jobs)
        self.runnable: dict[int, TraceJob] = {}
        self.ends_ns: dict[int, float] = {}
        self.changes = 0

    def run(self) -> Outcome:
        wake_ns = inf
        while len(self.ends_ns) < len(self.trace):
            arrival_ns = self.coming[0][0] if self.coming else inf
            next_ns = min(arrival_ns, wake_ns, self.here.next_change_ns())
            if next_ns == inf:
                raise InvariantError(f"{self.rival.name} runs none of the jobs {sorted(self.runnable)}")
            done = self.here.advance(next_ns)
            for number in done:
                self.ends_ns[number] = next_ns
                self.here.take(number)
                del self.runnable[number]
            while self.coming and self.coming[0][0] <= next_ns:
                _, job = self.coming.pop(0)
                self.runnable[job.number] = job
            if done or next_ns in (arrival_ns, wake_ns):
                wake_ns = self._occupy(self.rival.choose(self._situation()), freed=bool(done))
        return Outcome(
            ends_ns=self.ends_ns,
            attained_ns=self.here.attained_ns,
            changes=self.changes,
            peak_bytes=self.here.peak_bytes,
        )

    def _situation(self) -> Situation:
        return Situation(
            now_ns=self.here.now_ns,
            device=self.device,
            runnable=tuple(self.runnable[number] for number in sorted(self.runnable)),
            present=frozenset(self.here.numbers),
            left=self.here.left,
            attained_ns=self.here.attained_ns,
        )

    def _occupy(self, occupation: Occupation, *, freed: bool) -> float:
        """Take jobs off the device and put others on it. Return when the rival wants to be asked again.

        `freed` is True if a job has just ended, so that its memory is free only after the hand-over.
        """
        wanted = {job.number for job in occupation.jobs}
        leaving = [self.here.take(number) for number in self.here.numbers if number not in wanted]
        arriving = [job for job in occupation.jobs if job.number not in self.here.numbers]
        self.changes += len(leaving)
        needed_bytes = self.rival.memory_bytes(occupation.jobs, self.device)
        out_ns = sum(map(self.device.move_ns, leaving))
        in_ns = sum(map(self.device.move_ns, arriving))
        beside = self.rival.memory_bytes((*occupation.jobs, *leaving), self.device) <= self.device.budget_bytes
        copies_ns = max(out_ns, in_ns) if beside else out_ns + in_ns
        hand_over_ns = self.device.hand_over_ns if freed or leaving or arriving else 0
        for job in arriving:
            self.here.put(job, WITHOUT_PLAN, self.here.now_ns + hand_over_ns + copies_ns)
        self.here.use_memory(needed_bytes)
        return occupation.wake_ns
