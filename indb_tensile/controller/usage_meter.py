"""Measures how much each job uses the device, from the device's use as it is recorded once a second.

A job with device memory uses the device in the larger of two shares (dominant resource fairness, Ghodsi et al. 2011):
its granted part of the budget, and its part of the compute, which is taken as equal for all jobs with memory. Memory
that it is lent for its next batch, until others need it, is not charged. Each moment stands for the time since the
previous one. A job that starts or ends between two moments is charged the whole interval or nothing of it, which is
right on average.
"""

from collections.abc import Sequence
from dataclasses import replace

from indb_tensile.catalog.plans import JobUse
from indb_tensile.catalog.usage import JobUsage
from indb_tensile.job import JobId


class UsageMeter:
    """Adds up the use of each job until the sums are stored."""

    def __init__(self) -> None:
        self._measured_at_s: float | None = None
        self._pending: dict[JobId, JobUsage] = {}

    def measure(self, now_s: float, budget_bytes: int, shares: Sequence[JobUse]) -> None:
        """Add what these jobs have used since the last call. `now_s` never goes back."""
        elapsed_s = 0.0 if self._measured_at_s is None else now_s - self._measured_at_s
        self._measured_at_s = now_s
        computing = [share for share in shares if share.granted_bytes > 0]
        if elapsed_s <= 0.0:
            return
        for share in computing:
            before = self._pending.get(share.job) or _nothing(share.job)
            own_bytes = share.granted_bytes - share.lent_bytes
            part = max(1 / len(computing), min(1.0, own_bytes / max(1, budget_bytes)))
            self._pending[share.job] = replace(
                before,
                device_s=before.device_s + elapsed_s * part,
                byte_s=before.byte_s + elapsed_s * own_bytes,
                running_s=before.running_s + elapsed_s,
                measured_s=before.measured_s + (0.0 if share.speed is None else elapsed_s),
                alone_s=before.alone_s + elapsed_s * (share.speed or 0.0),
            )
        for share in shares:
            if share.granted_bytes == 0:
                before = self._pending.get(share.job) or _nothing(share.job)
                self._pending[share.job] = replace(before, waiting_s=before.waiting_s + elapsed_s)

    @property
    def pending(self) -> tuple[JobUsage, ...]:
        """The use that is not stored yet, in the order of the jobs."""
        return tuple(self._pending[job] for job in sorted(self._pending))

    def clear(self) -> None:
        """Note that all that was pending is stored."""
        self._pending.clear()


def _nothing(job: JobId) -> JobUsage:
    return JobUsage(job=job, device_s=0.0, byte_s=0.0, running_s=0.0)
