"""Decides which training iterations are timed operator by operator, and keeps their times for a summary."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from indb_tensile.device.device import Clock
from indb_tensile.executor.latency.gpu_clock import EventClock
from indb_tensile.executor.latency.sampled_iterations import SampledIterations, TimedIteration, summarise
from indb_tensile.executor.run.exchange_plan import operator_times
from indb_tensile.executor.run.joint_normalisations import shared_times
from indb_tensile.executor.run.program import Program
from indb_tensile.scheduler.rewrite import captured_latency

_SAMPLES_KEPT = 64  # more samples change the result little and would accumulate


@dataclass(frozen=True, slots=True)
class _Sample:
    """What is kept of a timed iteration until the summary. The rest is computed there and not between iterations."""

    program: Program
    taken_ns: list[int]  # by each position of the program
    iteration_ns: int
    stall_ns: int

    def timed(self) -> TimedIteration:
        taken_ns = shared_times(self.taken_ns, self.program.joint)
        return TimedIteration(captured_latency(taken_ns, self.program.plan), self.iteration_ns, self.stall_ns)


class IterationSampler:
    """The samples of one job under its present plans.

    Every `every`-th iteration is timed, and so is an iteration that starts `after_ns` or more after the last timed
    one. `operator_clock` times operators that run asynchronously to the host; without it `clock` does.

    The time between two iterations is that before the first operator of a timed one, since the end of the iteration
    before, and that after its last operator. With an `operator_clock` the host is ahead of the operators, so it is
    not measured.
    """

    def __init__(
        self, *, every: int, after_ns: int | None, clock: Clock, operator_clock: EventClock | None = None
    ) -> None:
        self._every = every
        self._after_ns = after_ns
        self._clock = clock
        self._operator_clock = operator_clock
        self._samples: deque[_Sample] = deque(maxlen=_SAMPLES_KEPT)
        self._between_ns: deque[int] = deque(maxlen=_SAMPLES_KEPT)
        self._ended_ns: int | None = None  # when the last iteration ended; None under new plans
        self._timed_since_ns: int | None = None  # the last operator's end, less the time before the first one
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
        self._ended_ns = self._timed_since_ns = None

    def forget(self) -> None:
        """Drop all samples."""
        self._samples.clear()
        self._between_ns.clear()

    def takes_next(self) -> bool:
        """Count an iteration of the whole batch that begins now, and return whether it is to be timed."""
        self._iterations += 1
        return self._iterations % self._every == 0 or self._is_overdue()

    def note_end(self) -> None:
        """Note that an iteration has ended, timed or not."""
        self._ended_ns = self._clock()
        if self._timed_since_ns is not None:
            self._between_ns.append(self._ended_ns - self._timed_since_ns)
            self._timed_since_ns = None
        if self._sampled_ns is None:
            self._sampled_ns = self._ended_ns

    def add(self, program: Program, times: Sequence[int], stalls: Sequence[int], stall_ns: int) -> None:
        """Add an iteration of this program. `times` and `stalls` are those that the program wrote down."""
        if self._operator_clock is not None:
            times = self._operator_clock.read(times)
            self._sampled_ns = self._clock()
        else:
            self._sampled_ns = times[0]
            if self._ended_ns is not None:
                self._timed_since_ns = times[-1] - (times[0] - self._ended_ns)
        taken_ns = operator_times(program.wiring.graph, times, stalls)
        self._samples.append(_Sample(program, taken_ns, times[-1] - times[0], stall_ns))

    def take_summary(self, launched_ns: Sequence[int], peak_bytes: int, *, in_round: bool) -> SampledIterations:
        """Return the summary of the samples, of which there is at least one, and drop them.

        `launched_ns` are the times of iterations that ran as one graph since the last summary. In a round none does,
        so the share of the graph is then the one known from before. Outside of rounds, graphs that were given up
        have none.
        """
        samples, between_ns = [sample.timed() for sample in self._samples], tuple(self._between_ns)
        self.forget()
        on_gpu = self._operator_clock is not None
        known_share = self._graph_share if in_round else 1.0
        summary = summarise(
            samples, launched_ns, peak_bytes, on_gpu=on_gpu, graph_share=known_share, between_ns=between_ns
        )
        self._graph_share = summary.graph_share
        return summary

    def _is_overdue(self) -> bool:
        if self._after_ns is None or self._sampled_ns is None:
            return False
        return self._clock() - self._sampled_ns >= self._after_ns
