"""Check when a trainer reports measured latencies to the controller and to the catalog."""

from types import SimpleNamespace
from typing import Any

from indb_tensile.executor.latency.sampled_iterations import SampledIterations
from indb_tensile.job import JobId
from indb_tensile.messages import Measured
from worker.training.latency_reports import CATALOG_WRITE_S, CONTROLLER_REPORT_S, FIRST_REPORT_S, LatencyReports
from worker.training.step_duration import StepDuration

SAMPLED = SampledIterations(latency_ns=(3, 4), iteration_ns=9, stall_ns=2, peak_bytes=64, samples=5, graph_share=0.5)


class _Scene:
    """A training with samples to report, and what the controller and the catalog get of them."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.sampled: SampledIterations | None = SAMPLED
        self.sent: list[Any] = []
        self.written: list[Any] = []
        runner: Any = SimpleNamespace(generation=2, measured=lambda: self.sampled)
        link: Any = SimpleNamespace(send=self.sent.append)
        steps: Any = SimpleNamespace(kind="cpu", sampled_ns=None, measurements=lambda *sampled: sampled)
        writer: Any = SimpleNamespace(job=SimpleNamespace(job=JobId(7)), remember=self.written.append)
        self.steps = steps
        self.step_duration = StepDuration(lambda: self.now_s)
        self.reports = LatencyReports(
            runner=runner,
            link=link,
            steps=self.steps,
            progress_writer=writer,
            step_duration=self.step_duration,
            clock_s=lambda: self.now_s,
        )

    def report_after(self, pause_s: float, *, last: bool = False) -> tuple[int, int]:
        """Report after a pause. Returns how many reports the controller and the catalog have got so far."""
        self.now_s += pause_s
        self.reports.report(10.0, trained_s=FIRST_REPORT_S, last=last)
        return len(self.sent), len(self.written)


def test_a_report_has_the_samples_and_the_time_of_a_step() -> None:
    scene = _Scene()
    scene.step_duration.begin(12.0)
    scene.report_after(3.0)
    assert scene.sent == [
        Measured(
            job=JobId(7),
            generation=2,
            latency_ns=(3, 4),
            iteration_ns=9,
            stall_ns=2,
            peak_bytes=64,
            graph_share=0.5,
            step_ns=1_500_000_000,
        )
    ]
    assert scene.steps.sampled_ns == (3, 4)


def test_the_first_report_waits_until_the_first_steps_are_over() -> None:
    scene = _Scene()
    scene.reports.report(10.0, trained_s=FIRST_REPORT_S / 2)
    assert scene.sent == []
    assert scene.report_after(0.0) == (1, 0)


def test_the_controller_gets_a_report_more_often_than_the_catalog() -> None:
    scene = _Scene()
    assert scene.report_after(0.0) == (1, 0)
    assert scene.report_after(CONTROLLER_REPORT_S / 2) == (1, 0)
    assert scene.report_after(CONTROLLER_REPORT_S / 2) == (2, 0)
    assert scene.report_after(CATALOG_WRITE_S) == (3, 1)
    assert scene.report_after(CONTROLLER_REPORT_S) == (4, 1)


def test_without_samples_nothing_is_reported_and_the_next_report_is_due_at_once() -> None:
    scene = _Scene()
    scene.sampled = None
    assert scene.report_after(CATALOG_WRITE_S, last=True) == (0, 0)
    scene.sampled = SAMPLED
    assert scene.report_after(0.0) == (1, 1)


def test_the_last_report_is_never_too_early_and_reaches_the_catalog_once() -> None:
    short, long = _Scene(), _Scene()
    short.reports.report(0.0, trained_s=0.0, last=True)
    assert [each.last for each in short.sent] == [True]
    assert len(short.written) == 1, "a short training makes no other report"
    assert long.report_after(CATALOG_WRITE_S) == (1, 1)
    assert long.report_after(0.0, last=True) == (2, 1)
