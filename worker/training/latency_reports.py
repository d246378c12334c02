"""Reports measured latencies: of iterations to the controller, and less often of operators to the catalog."""

import time
from collections.abc import Callable

from indb_tensile.catalog import plans
from indb_tensile.executor.run.runner import Runner
from indb_tensile.messages import Measured, TrainerLink

from ..captured_steps import CapturedSteps
from .progress_writer import ProgressWriter
from .step_duration import StepDuration

CONTROLLER_REPORT_S = 1.0  # least seconds between two reports of latencies to the controller
FIRST_REPORT_S = 0.25  # of training before the first one, because first steps take up to three times as long
CATALOG_WRITE_S = 10.0  # least seconds between two writes of latencies to the catalog


class LatencyReports:
    """The reports of one training's latencies."""

    def __init__(
        self,
        *,
        runner: Runner,
        link: TrainerLink,
        steps: CapturedSteps,
        progress_writer: ProgressWriter,
        step_duration: StepDuration,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner, self._link, self._steps = runner, link, steps
        self._progress_writer, self._step_duration, self._clock_s = progress_writer, step_duration, clock_s
        self._reported_s: float | None = None
        self._recorded_s = clock_s()
        self._recorded = False

    def report(self, steps_left: float, *, trained_s: float, last: bool = False) -> None:
        """Report what was measured since the last report, if one is due. The job has trained for `trained_s` so far.

        The `last` report is for later jobs of this kind. A short training makes no other one.
        """
        now_s = self._clock_s()
        if self._reported_s is None:
            due = trained_s >= FIRST_REPORT_S
        else:
            due = now_s >= self._reported_s + CONTROLLER_REPORT_S
        if not (due or last):
            return
        measured = self._runner.measured()
        if measured is None:
            return
        self._reported_s = now_s
        self._steps.sampled_ns = measured.latency_ns
        self._link.send(
            Measured(
                job=self._progress_writer.job.job,
                generation=self._runner.generation,
                latency_ns=measured.latency_ns,
                iteration_ns=measured.iteration_ns,
                stall_ns=measured.stall_ns,
                peak_bytes=measured.peak_bytes,
                graph_share=measured.graph_share,
                step_ns=self._step_duration.take_ns(steps_left),
                last=last,
            )
        )
        if now_s >= self._recorded_s + CATALOG_WRITE_S or (last and not self._recorded):
            self._recorded_s, self._recorded = now_s, True
            self._record(measured.latency_ns, measured.samples)

    def _record(self, latency_ns: tuple[int, ...], samples: int) -> None:
        rows = self._steps.measurements(latency_ns, samples)
        self._progress_writer.remember(lambda c: plans.record_latencies(c, self._steps.kind, rows))
