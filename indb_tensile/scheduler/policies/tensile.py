"""TENSILE as published (IEEE version, sections III and IV): Algorithm 3 for any number of jobs.

First comes the activity analysis. Then, round by round, the largest tensor at any job's peak is swapped, without any
operator waiting for a copy, until no tensor at a peak can be swapped or the rounds no longer reduce the peaks. If the
peaks still exceed the memory, tensors are recomputed. One function serves both planning phases: a cold start plans
with predicted latencies and an update with measured ones (section IV-E); the caller decides when.

Its parts are in tensile/: sequence.py (tensor accesses), channel.py (the exclusive channel's free intervals),
swap_events.py (Algorithms 1 and 2), recompute_events.py (section IV-D). tensile+ is another algorithm, our own.

The paper is incomplete or contradictory in the following points. Our decisions:

- `budget_bytes` and a job's limit are the memory that recomputation has to meet. Swapping lowers the peaks as far as
  it can, whatever they are (section IV-C, V-A "save as much as possible").
- Algorithm 2 goes through all tensors at the peak; section IV-C analyses the peak again after each swapped tensor. So
  one tensor is swapped in a round.
- Every job has a channel of its own: jobs run asynchronously and their copies cannot be ordered. The maximum swapping
  rate keeps them apart, a share of all tensors swapped (section IV-C). It is compared as in line 28: up to the rate
  and once over it. A job alone has every share.
- The stop rule breaks the loop of Algorithm 3 altogether. Here it ends only swapping, because section IV-D asks for
  recomputation wherever swapping was not enough.
- Algorithm 3 sets swap_succeed to False and never back (lines 9-12). We read a round that swapped something as True.
- A job may have several graphs here, one at a time on the device. Its peak is that of its worst graph, which is
  planned next. A tensor that a graph never accesses is in none of its access sequences, and stays on the host if it
  would matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan import Plan
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.tensile.recompute_events import Offer, RecomputeEvents
from indb_tensile.scheduler.tensile.swap_events import Rules, SwapEvents
from indb_tensile.scheduler.workload import Workload

NAME = "tensile"
_ROUNDS_BEFORE_STOP = 100  # Algorithm 3, line 4: rounds before the stop rule applies
_ROUNDS_COMPARED = 3
_LEAST_REDUCTION = 0.0005
_ALL = Rules()


def tensile(
    workloads: Sequence[Workload],
    *,
    budget_bytes: int,
    link: Link,
    rewrites: bool = True,
    cache: PlanCache | None = None,
    rules: Rules = _ALL,
) -> tuple[tuple[Plan, ...], ...]:
    """Return plans with the least peaks that swapping without waiting reaches, plus recomputation while over the
    budget.
    """
    jobs = [_Job(workload, link, rules, PlanCache() if cache is None else cache) for workload in workloads]
    _swap(jobs, rules)
    if rewrites and rules.recomputes:
        _recompute(jobs, budget_bytes)
    return tuple(tuple(job.plan(number) for number in range(len(job.graphs))) for job in jobs)


@dataclass(slots=True)
class _Job:
    """One job's graphs while they are planned."""

    workload: Workload
    link: Link
    rules: Rules
    cache: PlanCache
    graphs: list[SwapEvents] = field(init=False)
    recomputed: dict[int, RecomputeEvents] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pairs = zip(self.workload.graphs, self.workload.latency_ns, strict=True)
        self.graphs = [SwapEvents(graph, latency, self.link, self.rules) for graph, latency in pairs]

    @property
    def peaks(self) -> list[int]:
        """The peak of each graph in bytes."""
        peak_list = [graph.peak.size_bytes for graph in self.graphs]
        for number, events in self.recomputed.items():
            peak_list[number] = events.peak_bytes
        return peak_list

    @property
    def peak_bytes(self) -> int:
        return max(self.peaks)

    @property
    def worst(self) -> int:
        """The number of the graph that sets the job's peak."""
        peaks = self.peaks
        return peaks.index(max(peaks))

    @property
    def swapped(self) -> int:
        """The number of swapped tensors, the paper's SON."""
        return sum(graph.swapped for graph in self.graphs)

    def recomputing(self, number: int) -> RecomputeEvents:
        """Return one graph's recomputation events. Its swaps must not change afterwards."""
        if number not in self.recomputed:
            graph, latency_ns = self.workload.graphs[number], self.workload.latency_ns[number]
            self.recomputed[number] = RecomputeEvents(graph, latency_ns, self.graphs[number], self.cache)
        return self.recomputed[number]

    def plan(self, number: int) -> Plan:
        """Return the plan of one graph from the decisions so far."""
        if number in self.recomputed:
            return self.recomputed[number].plan(NAME)
        events = self.graphs[number]
        return Plan(policy=NAME, swaps=events.swaps, away=frozenset(events.away))


# --- swapping --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Round:
    """The job whose tensor was swapped, and the peaks of all jobs after it."""

    job: int
    peaks: tuple[int, ...]


def _swap(jobs: Sequence[_Job], rules: Rules) -> None:
    rounds: list[_Round] = []
    while not (rules.stands_still and stands_still([r.job for r in rounds], [r.peaks for r in rounds])):
        job = _swap_largest(jobs)
        if job is None:
            return
        rounds.append(_Round(job, tuple(job.peak_bytes for job in jobs)))


def _swap_largest(jobs: Sequence[_Job]) -> int | None:
    """Swap the largest tensor at any job's peak that can be swapped. Of equal tensors the earlier job's comes first.
    Return its job.
    """
    total = sum(job.swapped for job in jobs)
    offers = {number: _largest_of(job, total) for number, job in enumerate(jobs)}
    while True:
        sizes = [(job.graphs[job.worst].size_of(o), -n) for n, job in enumerate(jobs) if (o := offers[n]) is not None]
        if not sizes:
            return None
        number = -max(sizes)[1]
        job, offer = jobs[number], offers[number]
        graph = job.graphs[job.worst]
        assert offer is not None
        if graph.schedule(offer, graph.peak.operator):
            return number
        offers[number] = _largest_of(job, total)


def _largest_of(job: _Job, total: int) -> int | None:
    graph = job.graphs[job.worst]
    limited = over_its_rate(job.swapped, total, job.workload.max_swapping_rate)
    numbers = graph.candidates(graph.peak.operator, limited=limited)
    return int(numbers[0]) if len(numbers) else None


def over_its_rate(swapped: int, total: int, rate: float) -> bool:
    """Return whether the job's share of all swapped tensors exceeds its maximum swapping rate
    (Algorithm 2, line 28).
    """
    return swapped > rate * total


def stands_still(selected: Sequence[int], peaks: Sequence[Sequence[int]]) -> bool:
    """Return whether the selected jobs' mean peak fell too little over the last 3 of more than 100 rounds (Algorithm
    3, line 4).

    `selected` is the job of each round, `peaks` are all jobs' peaks after it.
    """
    if len(selected) <= _ROUNDS_BEFORE_STOP:
        return False
    jobs = set(selected[-_ROUNDS_COMPARED:])
    before = sum(peaks[-1 - _ROUNDS_COMPARED][job] for job in jobs)
    now = sum(peaks[-1][job] for job in jobs)
    return before - now < _LEAST_REDUCTION * before


# --- recomputation ---------------------------------------------------------------------------------------------


def _recompute(jobs: Sequence[_Job], budget_bytes: int) -> None:
    """Recompute the tensor with the largest MSPS of all jobs that have to be lower, until none has to or none can
    (section IV-D).
    """
    while _recompute_as_estimated(jobs, budget_bytes):
        for job in jobs:
            for events in job.recomputed.values():
                events.correct()
        if not _to_lower(jobs, budget_bytes):
            return


def _recompute_as_estimated(jobs: Sequence[_Job], budget_bytes: int) -> bool:
    """Recompute until the estimates fit. Return False if nothing was left to recompute, or nothing had to be
    recomputed.
    """
    if not _to_lower(jobs, budget_bytes):
        return False
    while lowering := _to_lower(jobs, budget_bytes):
        offers = [(number, _offer(jobs[number])) for number in lowering]
        open_offers = [(number, offer) for number, offer in offers if offer is not None]
        if not open_offers:
            return False
        number, best = max(open_offers, key=lambda entry: (entry[1].msps, -entry[0]))
        jobs[number].recomputing(jobs[number].worst).take(best)
    return True


def _offer(job: _Job) -> Offer | None:
    return job.recomputing(job.worst).offer()


def _to_lower(jobs: Sequence[_Job], budget_bytes: int) -> list[int]:
    """Return the jobs whose peak has to fall: all if the sum is too high, else those over their own limit."""
    if sum(job.peak_bytes for job in jobs) > budget_bytes:
        return list(range(len(jobs)))
    limits = [job.workload.limit_bytes for job in jobs]
    return [n for n, limit in enumerate(limits) if limit is not None and jobs[n].peak_bytes > limit]
