"""One job of an asynchronous client."""

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Boolean, Text

from indb_tensile.client import catalog_requests as requests
from indb_tensile.client.job_outcome import pauses, raise_fault, timed_out
from indb_tensile.client.kept_interrupts import raise_lost_cancellation
from indb_tensile.job import ENDED_STATES, JobState

if TYPE_CHECKING:
    from indb_tensile.client.async_client import AsyncTensile


class AsyncJob:
    """A training, a search or a stored prediction; its methods are those of `Job`, and are awaited."""

    def __init__(self, client: "AsyncTensile", number: int, notices: tuple[str, ...] = ()) -> None:
        self._client = client
        self.number = number
        self.notices = notices

    def __repr__(self) -> str:
        return f"<AsyncJob {self.number}>"

    async def record(self) -> dict[str, Any]:
        """Return the job as `tensile.stat_jobs` shows it now."""
        return await self._client.run(requests.job_record(self.number))

    async def state(self) -> JobState:
        """Return queued, starting, running, succeeded, failed or cancelled."""
        return JobState((await self.record())["state"])

    async def version(self) -> int | None:
        """Return the number of the version that the job published, or None."""
        number: int | None = (await self.record())["version"]
        return number

    async def metrics(self) -> dict[str, float]:
        """Return the newest value of each loss and metric of the training."""
        history = await self.history()
        return {name: value for epoch in history for name, value in epoch.items() if name != "epoch"}

    async def history(self) -> list[dict[str, Any]]:
        """Return the losses and metrics after each epoch, as dicts with the key `epoch`."""
        return await self._client.run(requests.job_history(self.number))

    async def log(self) -> list[dict[str, Any]]:
        """Return the events of the job, as dicts with `at`, `kind` and `detail`."""
        return await self._client.run(requests.job_log(self.number))

    async def report(self) -> list[dict[str, Any]]:
        """Return the data report: rows, split, target, columns with their encodings, and warnings."""
        return await self._client.run(
            requests.rows_of_job("tensile_data_report", requests.REPORT_COLUMNS, self.number)
        )

    async def trials(self) -> list[dict[str, Any]]:
        """Return the trials of a search, the best first."""
        return await self._client.run(requests.trials(self.number))

    async def wait(self, timeout_s: float | None = None, *, cancel_on_interrupt: bool = True) -> Self:
        """Return this job when it has succeeded; errors are those of `Job.wait`.

        If the task that awaits it is cancelled, the job is cancelled too, unless `cancel_on_interrupt` is False.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            for pause_s in pauses():
                record = await self._client.run_retrying(requests.awaited_job(self.number))
                raise_lost_cancellation()
                if record["state"] in ENDED_STATES:
                    raise_fault(record)
                    return self
                if deadline_s is not None and time.monotonic() >= deadline_s:
                    assert timeout_s is not None
                    raise timed_out(self.number, timeout_s)
                rest_s = pause_s if deadline_s is None else min(pause_s, deadline_s - time.monotonic())
                await asyncio.sleep(max(0.0, rest_s))
        except asyncio.CancelledError:
            if cancel_on_interrupt:
                await asyncio.shield(self.cancel())
            raise
        raise AssertionError("pauses() never ends")

    async def cancel(self) -> bool:
        """Cancel the job: a queued one at once, a running one within a heartbeat. False if it had ended already."""
        return bool(await self._client.run(requests.call_for_job("tensile_cancel", Boolean(), job=self.number)))

    async def pause(self) -> None:
        """Let the job give up its device memory until `resume`."""
        await self._client.run(requests.call_for_job("tensile_pause", Text(), job=self.number))

    async def resume(self) -> None:
        """Let a paused job continue."""
        await self._client.run(requests.call_for_job("tensile_resume", Text(), job=self.number))

    async def set_priority(self, priority: int) -> None:
        """Change the priority, from -1000 to 1000."""
        await self._client.run(
            requests.call_for_job("tensile_set_priority", Text(), job=self.number, priority=priority)
        )

    async def retry(self) -> "AsyncJob":
        """Enqueue the request of a job that failed or was cancelled again, and return the new job."""
        return AsyncJob(self._client, await self._client.run(requests.retry(self.number)))
