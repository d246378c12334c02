"""Decides which training iterations are timed operator by operator, and keeps their times for a summary."""

from collections import deque
from collections.abc import Sequence

from indb_tensile.device.device import Clock
from indb_tensile.executor.latency.gpu_clock import EventClock
from indb_tensile.executor.latency.sampled_iterations import SampledIterations, TimedIteration, summarise
from indb_tensile.executor.run.exchange_plan import operator_times
from indb_tensile.executor.run.joint_normalisations import shared_times
from indb_tensile.executor.run.program import Program
from indb_tensile.scheduler.rewrite import captured_latency

_SAMPLES_KEPT = 64  # more samples change the result little and would accumulate


class IterationSampler:
    """The samples of one job under its present plans.

    Every `every`-th iteration is timed, and so is an iteration that starts `after_ns` or more after the last timed
    one. `operator_clock` times operators that run asynchronously to the host; without it `clock` does.
    """

    def __init__(
        self, *, every: int, after_ns: int | None, clock: Clock, operator_clock: EventClock | None = None
    ) -> None:
        self._every = every
        self._after_ns = after_ns
        self._clock = clock
        self._operator_clock = operator_clock
        self._samples: deque[TimedIteration] = deque(maxlen=_SAMPLES_KEPT)
        self._iterations = 0
        self._sampled_ns: int | None = None  # the start of the last timed one, or the end of the first; None before
        self._graph_share = 1.0  # of an iteration's time operator by operator

    @property
    def empty(self) -> bool:
        """Whether no iteration was timed since the last summary."""
        return not self._samples

    def restart(self) -> None:
        """Drop all samples because other plans apply from now on.

        The first iteration under new plans is several times as long as later ones, so it is not timed.
        """
        self.forget()
        self._iterations, self._sampled_ns = 0, None

    def forget(self) -> None:
        """Drop all samples."""
        self._samples.clear()

    def takes_next(self) -> bool:
        """Count an iteration of the whole batch that begins now, and return whether it is to be timed."""
        self._iterations += 1
        return self._iterations % self._every == 0 or self._is_overdue()

    def note_end(self) -> None:
        """Note that an iteration has ended, timed or not."""
        if self._sampled_ns is None:
            self._sampled_ns = self._clock()

    def add(self, program: Program, times: Sequence[int], stalls: Sequence[int], stall_ns: int) -> None:
        """Add an iteration of this program. `times` and `stalls` are those that the program wrote down."""
        started_ns = times[0]
        if self._operator_clock is not None:
            times = self._operator_clock.read(times)
        taken_ns = shared_times(operator_times(program.wiring.graph, times, stalls), program.joint)
        latency_ns = captured_latency(taken_ns, program.plan)
        self._sampled_ns = started_ns if self._operator_clock is None else self._clock()
        self._samples.append(TimedIteration(latency_ns, times[-1] - times[0], stall_ns))

    def take_summary(self, launched_ns: Sequence[int], peak_bytes: int, *, in_round: bool) -> SampledIterations:
        """Return the summary of the samples, of which there is at least one, and drop them.

        `launched_ns` are the times of iterations that ran as one graph since the last summary. In a round none does,
        so the share of the graph is then the one known from before. Outside of rounds, graphs that were given up
        have none.
        """
        samples = tuple(self._samples)
        self.forget()
        on_gpu = self._operator_clock is not None
        known_share = self._graph_share if in_round else 1.0
        summary = summarise(samples, launched_ns, peak_bytes, on_gpu=on_gpu, graph_share=known_share)
        self._graph_share = summary.graph_share
        return summary

    def _is_overdue(self) -> bool:
        if self._after_ns is None or self._sampled_ns is None:
            return False
        return self._clock() - self._sampled_ns >= self._after_ns
