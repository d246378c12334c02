"""Records iterations for a trace when the job's owner has asked for one, and stores the recording in the catalog."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from time import perf_counter_ns

from indb_tensile.catalog import traces
from indb_tensile.catalog.stored_recordings import encode_recording
from indb_tensile.device.device import Device
from indb_tensile.executor.run.iteration_recorder import IterationRecorder
from indb_tensile.executor.run.runner import Runner
from indb_tensile.scheduler.document import Document
from indb_tensile.scheduler.timing.recorded_iterations import PauseKind

from .progress_writer import ProgressWriter

_NS_PER_S = 1_000_000_000


class TraceRecording:
    """The recordings of one job that trains, one after the other.

    `document` returns the training step with the newest latencies of its operators; it is stored with a recording.
    """

    def __init__(
        self,
        runner: Runner,
        device: Device,
        progress_writer: ProgressWriter,
        document: Callable[[], Document],
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._runner = runner
        self._device = device
        self._progress_writer = progress_writer
        self._document = document
        self._clock = clock
        self._request: traces.TraceRequest | None = None
        self._seen: datetime | None = None  # the request that was last looked up
        self._starts_ns = 0

    def look(self) -> None:
        """Begin a recording that was asked for, and store one that is complete. Call this after each iteration."""
        asked = self._progress_writer.trace_requested_at
        if asked is not None and asked != self._seen:
            self._seen = asked
            self._look_up()
        if self._request is None:
            return
        if self._runner.recorder is None:
            if self._clock() >= self._starts_ns:
                self._begin(self._request)
        elif self._runner.recorder.is_full:
            self._store()

    def end(self) -> None:
        """Store what there is of a recording, because the job trains no more."""
        if self._runner.recorder is not None and self._runner.recorder.iterations:
            self._store()
        self._runner.recorder = None

    def pause(self, kind: PauseKind, start_ns: int) -> None:
        """Record that the job has not trained since `start_ns`."""
        if self._runner.recorder is not None:
            self._runner.recorder.pause(kind, start_ns, self._clock())

    def waited(self, waited_s: float) -> None:
        """Record that the job has waited this long for its batch until now."""
        if self._runner.recorder is not None:
            self.pause(PauseKind.BATCH, self._clock() - round(waited_s * _NS_PER_S))

    @contextmanager
    def pausing(self, kind: PauseKind) -> Iterator[None]:
        """Record that the job does not train within the context."""
        start_ns = self._clock()
        yield
        self.pause(kind, start_ns)

    def _look_up(self) -> None:
        """Read the request. If the database is away now, the next progress report shows the request again."""
        requests: list[traces.TraceRequest | None] = []
        job = self._progress_writer.job.job
        self._progress_writer.remember(lambda c: requests.append(traces.find_request(c, job)))
        self._runner.recorder, self._request = None, requests[0] if requests else None
        if self._request is None:
            self._seen = None
            return
        self._starts_ns = self._clock() + round(self._request.starts_in_s * _NS_PER_S)

    def _begin(self, request: traces.TraceRequest) -> None:
        until_ns = self._clock() + round(request.seconds * _NS_PER_S)
        self._runner.recorder = IterationRecorder(
            self._device, most_iterations=request.iterations, until_ns=until_ns, clock=self._clock
        )

    def _store(self) -> None:
        recorder, request = self._runner.recorder, self._request
        assert recorder is not None
        assert request is not None
        self._runner.recorder = self._request = None
        recording, job = encode_recording(recorder.recording()), self._progress_writer.job
        document = self._document()
        self._progress_writer.remember(lambda c: traces.save_job_graph(c, job.job, job.claim, document))
        self._progress_writer.remember(
            lambda c: traces.save_trace(c, job.job, job.claim, request.requested_at, recording)
        )
