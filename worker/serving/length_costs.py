"""What the steps of a training on texts of several lengths cost, as `tensile_explain` tells."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import LIVENESS, peak
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.timing.job_runs import Forecast, JobRun
from indb_tensile.scheduler.timing.simulate import simulate
from indb_tensile.sizes import size

from .foretold_lengths import ForetoldLengths

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCosts:
    """The steps of an epoch's full batches, one for each length of texts, in the order of `texts.lengths`.

    `unplanned_ns` are the times of the steps without planning.
    """

    texts: ForetoldLengths
    forecasts: tuple[Forecast, ...]
    unplanned_ns: tuple[int, ...]
    peak_bytes: tuple[int, ...]

    @classmethod
    def of(
        cls, texts: ForetoldLengths, steps: Sequence[tuple[StepGraph, Plan, tuple[int, ...]]], link: Link
    ) -> "LengthCosts":
        """Simulate each step under its plan, and without one. A step is its graph, its plan and its latencies."""

        def run(graph: StepGraph, plan: Plan, latency_ns: tuple[int, ...]) -> Forecast:
            return simulate([JobRun(graph=graph, plan=plan, latency_ns=latency_ns)], link)[0]

        return cls(
            texts=texts,
            forecasts=tuple(run(*step) for step in steps),
            unplanned_ns=tuple(run(graph, LIVENESS, latency_ns).iteration_ns for graph, _, latency_ns in steps),
            peak_bytes=tuple(peak(graph, plan) for graph, plan, _ in steps),
        )

    def figures(self) -> dict[str, Any]:
        """Return the figures of an iteration that are means over the batches of an epoch (scheduler/score.py)."""
        mean, every = self.texts.mean, self.forecasts
        iteration_ns = mean([own.iteration_ns for own in every])
        return {
            "iteration_us": iteration_ns / 1000,
            "eor": round(iteration_ns / mean(self.unplanned_ns), 6),
            "stall_out_us": mean([own.stall_out_ns for own in every]) / 1000,
            "stall_in_us": mean([own.stall_in_ns for own in every]) / 1000,
        }

    @property
    def text(self) -> str:
        """Return in words what each length costs."""
        total = max(1, sum(self.texts.batches))
        rows = zip(self.texts.lengths, self.texts.batches, self.forecasts, self.peak_bytes, strict=True)
        parts = [
            f"{length} tokens in {count / total:.0%} of batches, {own.iteration_ns / _NS_PER_MS:.2f} ms and "
            f"{size(peak_bytes)}"
            for length, count, own, peak_bytes in rows
        ]
        return f'by a sample of its texts column "{self.texts.column}" has {"; ".join(parts)}'
