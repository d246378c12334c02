"""What sampled iterations say of a job's operators: their latencies, and how long an iteration takes.

Timed iterations run operator by operator. Where the others run as one CUDA graph they are shorter: the gaps between
operators go. So the graph's time is what is reported, and the operators' times are scaled to it. While several
processes take turns on a GPU an operator that is interrupted seems to last for a time slice of another job longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The sampled training iterations since the last report, and the peak of all.

    On the processor they are means, which add up: operators and stalls make the iteration that the simulator
    foretells. Beside other jobs an operator is at times interrupted for long, and a stall may come every other
    iteration; medians would hide both (three trainings on two cores computed 10 to 18 % longer than the sum of their
    operators' medians). On a GPU an interruption is another job's time slice and not the operator's own: there
    latencies are medians, and `iteration_ns` is the mean with all that came between.
    """

    latency_ns: tuple[int, ...]
    iteration_ns: int
    stall_ns: int
    peak_bytes: int
    samples: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed iteration."""

    latency_ns: tuple[int, ...]
    iteration_ns: int
    stall_ns: int


def summed_up(samples: Sequence[Sample], launched_ns: Sequence[int], peak_bytes: int, *, on_gpu: bool) -> Measurement:
    """Summarise the timed iterations and those that ran as one graph."""
    typical = median if on_gpu else fmean
    columns = zip(*(one.latency_ns for one in samples), strict=True)
    latency_ns = [typical(column) for column in columns]
    stall_ns = typical([one.stall_ns for one in samples])
    share = _share_of_graph(sum(latency_ns) + stall_ns, launched_ns)
    iteration_ns = fmean(launched_ns) if launched_ns else fmean(one.iteration_ns for one in samples)
    return Measurement(
        latency_ns=tuple(round(one * share) for one in latency_ns),
        iteration_ns=round(iteration_ns),
        stall_ns=round(stall_ns * share),
        peak_bytes=peak_bytes,
        samples=len(samples),
    )


def _share_of_graph(alone_ns: float, launched_ns: Sequence[int]) -> float:
    """What a graph takes of the time that the same operators take one by one: the fastest, which nothing interrupted.

    Where it is slower, for copies that end with it, the operators are not.
    """
    fastest_ns = min(launched_ns, default=0)
    return min(1.0, fastest_ns / alone_ns) if fastest_ns and alone_ns else 1.0
