"""One job of a synchronous client."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Boolean, Text

from indb_tensile.client import catalog_requests as requests
from indb_tensile.client.job_outcome import pauses, raise_fault, timed_out
from indb_tensile.client.kept_interrupts import kept_interrupts
from indb_tensile.client.progress_display import choose_display, progress_html
from indb_tensile.job import ENDED_STATES, JobState

if TYPE_CHECKING:
    from indb_tensile.client.sync_client import Tensile


class Job:
    """A training, a search or a stored prediction. `number` is that of `tensile.stat_jobs`.

    `notices` are what the database said when the job was enqueued, such as the task that it chose.
    """

    def __init__(self, client: "Tensile", number: int, notices: tuple[str, ...] = ()) -> None:
        self._client = client
        self.number = number
        self.notices = notices

    def __repr__(self) -> str:
        return f"<Job {self.number}>"

    def _repr_html_(self) -> str:
        return progress_html(*self._client.run(requests.job_progress(self.number)))

    @property
    def record(self) -> dict[str, Any]:
        """Return the job as `tensile.stat_jobs` shows it now."""
        return self._client.run(requests.job_record(self.number))

    @property
    def state(self) -> JobState:
        """Return queued, starting, running, succeeded, failed or cancelled."""
        return JobState(self.record["state"])

    @property
    def version(self) -> int | None:
        """Return the number of the version that the job published, or None."""
        number: int | None = self.record["version"]
        return number

    @property
    def metrics(self) -> dict[str, float]:
        """Return the newest value of each loss and metric of the training."""
        return {name: value for epoch in self.history() for name, value in epoch.items() if name != "epoch"}

    def history(self) -> list[dict[str, Any]]:
        """Return the losses and metrics after each epoch, as dicts with the key `epoch`."""
        return self._client.run(requests.job_history(self.number))

    def log(self) -> list[dict[str, Any]]:
        """Return the events of the job, as dicts with `at`, `kind` and `detail`."""
        return self._client.run(requests.job_log(self.number))

    def report(self) -> list[dict[str, Any]]:
        """Return the data report: rows, split, target, columns with their encodings, and warnings."""
        return self._client.run(requests.rows_of_job("tensile_data_report", requests.REPORT_COLUMNS, self.number))

    def trials(self) -> list[dict[str, Any]]:
        """Return the trials of a search, the best first."""
        return self._client.run(requests.trials(self.number))

    def wait(self, timeout_s: float | None = None, *, cancel_on_interrupt: bool = True) -> Self:
        """Return this job when it has succeeded.

        Raises the job's error if it failed, CancelledJobError if it was cancelled, and WaitTimeoutError after
        `timeout_s`. Ctrl-C cancels the job, unless `cancel_on_interrupt` is False. A restart of the database is
        waited for.
        """
        raise_fault(self._until_ended(lambda _record: None, timeout_s, cancel_on_interrupt=cancel_on_interrupt))
        return self

    def progress(self, *, cancel_on_interrupt: bool = False) -> Self:
        """Show the progress until the job has ended: a bar in a terminal, a widget in a notebook, lines elsewhere.

        Ctrl-C ends the display, and the job goes on. Errors are those of `wait`.
        """
        with choose_display() as display:

            def show(_record: dict[str, Any]) -> None:
                display.show(*self._client.run_retrying(requests.job_progress(self.number)))

            record = self._until_ended(show, None, cancel_on_interrupt=cancel_on_interrupt)
        raise_fault(record)
        return self

    def cancel(self) -> bool:
        """Cancel the job: a queued one at once, a running one within a heartbeat. False if it had ended already."""
        return bool(self._client.run(requests.call_for_job("tensile_cancel", Boolean(), job=self.number)))

    def pause(self) -> None:
        """Let the job give up its device memory until `resume`."""
        self._client.run(requests.call_for_job("tensile_pause", Text(), job=self.number))

    def resume(self) -> None:
        """Let a paused job continue."""
        self._client.run(requests.call_for_job("tensile_resume", Text(), job=self.number))

    def set_priority(self, priority: int) -> None:
        """Change the priority, from -1000 to 1000."""
        self._client.run(requests.call_for_job("tensile_set_priority", Text(), job=self.number, priority=priority))

    def retry(self) -> "Job":
        """Enqueue the request of a job that failed or was cancelled again, and return the new job."""
        return Job(self._client, self._client.run(requests.retry(self.number)))

    def _until_ended(
        self,
        show: Callable[[dict[str, Any]], None],
        timeout_s: float | None,
        *,
        cancel_on_interrupt: bool,
    ) -> dict[str, Any]:
        """Return the job's record once it has ended. `show` gets the record at each look."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            with kept_interrupts() as raise_lost_interrupt:
                for pause_s in pauses():
                    record = self._client.run_retrying(requests.awaited_job(self.number))
                    show(record)
                    raise_lost_interrupt()
                    if record["state"] in ENDED_STATES:
                        return record
                    if deadline_s is not None and time.monotonic() >= deadline_s:
                        assert timeout_s is not None
                        raise timed_out(self.number, timeout_s)
                    time.sleep(
                        pause_s if deadline_s is None else max(0.0, min(pause_s, deadline_s - time.monotonic()))
                    )
        except KeyboardInterrupt:
            if cancel_on_interrupt:
                self.cancel()
            raise
        raise AssertionError("pauses() never ends")
