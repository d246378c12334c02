"""Summarises sampled iterations: the latencies of a job's operators, and the time of an iteration.

Timed iterations run operator by operator. If the other iterations run as one CUDA graph, they are shorter, because a
graph has no gaps between operators. The summary therefore reports the graph's time and scales the operators' times to
it. In a round of jobs that share memory in phases no iteration runs as a graph; the operators' times are then scaled
as they were before the round, so that all reports of a job agree. If several processes share a GPU, an interrupted
operator appears to take longer by another job's time slice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledIterations:
    """A summary of the training iterations sampled since the last report, and the peak of all iterations.

    On the processor the figures are means, because means add up: operators and stalls give the iteration that the
    simulator predicts. Beside other jobs an operator is sometimes interrupted for long, and a stall may occur in
    every other iteration; medians would hide both (three trainings on two cores computed 10 to 18 % longer than the
    sum of their operators' medians). On a GPU an interruption is another job's time slice and not the operator's own
    time. There latencies are medians, and `iteration_ns` is the mean including interruptions.

    `graph_share` is the time of an iteration as one graph, as a share of its time operator by operator.

    `between_ns` is the time between the last operator of an iteration and the first one of the next: the batch is
    put in place, the loss is read, and memory is accounted for. It is the median, because a validation, a checkpoint
    or an order of the controller may lie between two iterations. It is 0 if it was not measured, as on a GPU.
    """

    latency_ns: tuple[int, ...]
    iteration_ns: int
    stall_ns: int
    peak_bytes: int
    samples: int
    graph_share: float = 1.0
    between_ns: int = 0


@dataclass(frozen=True, slots=True)
class TimedIteration:
    """One timed iteration."""

    latency_ns: tuple[int, ...]
    iteration_ns: int
    stall_ns: int


def summarise(
    samples: Sequence[TimedIteration],
    launched_ns: Sequence[int],
    peak_bytes: int,
    *,
    on_gpu: bool,
    graph_share: float = 1.0,
    between_ns: Sequence[int] = (),
) -> SampledIterations:
    """Summarise the timed iterations and those that ran as one graph.

    `graph_share` is that of the last summary. It applies if no iteration has run as a graph since. `between_ns` are
    the times between two iterations.
    """
    typical = median if on_gpu else fmean
    columns = zip(*(sample.latency_ns for sample in samples), strict=True)
    latency_ns = [typical(column) for column in columns]
    stall_ns = typical([sample.stall_ns for sample in samples])
    share = _share_of_graph(sum(latency_ns) + stall_ns, launched_ns) if launched_ns else graph_share
    iteration_ns = fmean(launched_ns) if launched_ns else fmean(sample.iteration_ns for sample in samples)
    return SampledIterations(
        latency_ns=tuple(round(operator_ns * share) for operator_ns in latency_ns),
        iteration_ns=round(iteration_ns),
        stall_ns=round(stall_ns * (share if launched_ns else 1.0)),
        peak_bytes=peak_bytes,
        samples=len(samples),
        graph_share=share,
        between_ns=round(median(between_ns)) if between_ns else 0,
    )


def _share_of_graph(alone_ns: float, launched_ns: Sequence[int]) -> float:
    """Return the graph's share of the time that the same operators take one by one.

    The fastest iteration of the graph counts, because nothing interrupted it. The share is at most 1: a graph that is
    slower, because copies end with it, does not make operators slower.
    """
    fastest_ns = min(launched_ns, default=0)
    return min(1.0, fastest_ns / alone_ns) if fastest_ns and alone_ns else 1.0
