"""Foretell the time of a training step of each job of a set that runs side by side, from the jobs' trade-offs.

A choice of starts tries hundreds of sets before any of their jobs is planned, so a forecast has to be fast. The
memory is divided along the jobs' trade-offs for the least sum of slowdowns, operators are slowed down by contention
(contention.py), and copies that need more than the lanes can carry slow down the jobs that copy. The planner later
makes real plans for the chosen set, whose forecasts then replace the estimate (`corrections`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.completion.demand import JobDemand, TradeOff
from indb_tensile.scheduler.completion.memory_division import MemoryCurve, divide_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSet:
    """A kind of set that was slower than foretold: the sorted kinds of its jobs, and each job's slowdown.

    A slowdown is the time of a step divided by its time alone with all the memory. The measurement counts until the
    time `until_s`.
    """

    kinds: tuple[str, ...]
    slowdowns: tuple[float, ...]
    until_s: float = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDevice:
    """The device that the jobs of a set share, and what is known of its use."""

    budget_bytes: int
    region_bytes: int
    contention: Contention
    max_slowdown: float  # the largest slowdown that a job of a set may have
    slow_sets: tuple[SlowSet, ...] = ()
    prepares_jobs: bool = False  # jobs that start up or close compute on the device, each with one processor
    # for how long jobs that have left the device, and are no demands any more, go on closing
    closing_ns: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    """The plans of the jobs of a set when the memory is divided, and the times of their steps, before corrections."""

    points: list[TradeOff]
    step_ns: list[float]


class SetForecasts:
    """The forecasts of sets of these jobs. A set is a bit mask: bit k stands for `demands[k]`. Remembers its results.

    `corrections` are the known step times of some sets, by position in the set, in nanoseconds. They hold for all
    sets of the same kinds of jobs: otherwise, of two equal jobs, the job that was planned would always look worse
    than the other. Two jobs are of one kind here if their graphs and their trade-offs are equal.
    """

    def __init__(
        self,
        demands: Sequence[JobDemand],
        device: SharedDevice,
        corrections: Mapping[int, tuple[float, ...]] | None = None,
        running: int = 0,
    ) -> None:
        """`running` is the set that runs now. It may go on, however slow its jobs are."""
        self.demands = tuple(demands)
        self.device = device
        self._running = running
        self._known: dict[int, tuple[float, ...] | None] = dict(corrections or {})
        self._known_parts: dict[tuple[int, int, int], tuple[float, ...] | None] = {}
        self._known_estimates: dict[int, _Estimate | None] = {}
        self._kinds = _kinds(demands)
        self._corrected = dict(map(self._by_kind, (corrections or {}).items()))
        # The demands compute these times anew whenever they are asked.
        self.alone_ns = tuple(demand.alone_ns for demand in demands)
        self.total_ns = tuple(demand.total_ns for demand in demands)
        self.closing_ns = tuple(demand.closing_ns for demand in demands)
        self._throughputs: dict[int, float] = {}
        self._edge_slowdowns: dict[tuple[int, int], float] = {}
        self._curves = [MemoryCurve(demand.trade_offs, device.region_bytes) for demand in demands]
        self._slow = {slow.kinds: slow.slowdowns for slow in device.slow_sets}

    def step_ns(self, jobs: int) -> tuple[float, ...] | None:
        """Return the time of a step of each job of the set, in the order of the bits; None if the set cannot run.

        A set cannot run if the jobs do not fit, or if a job would be slower than `max_slowdown` allows. The second
        condition does not apply if all jobs of the set run side by side now.
        """
        if jobs not in self._known:
            self._known[jobs] = self._forecast(jobs)
        return self._known[jobs]

    def part_step_ns(self, jobs: int, computing: int, edges: int = 0) -> tuple[float, ...] | None:
        """Return the time of a step of each job of the set that computes, while the others start up.

        Jobs that do not compute have their memory. `edges` is the number of jobs that start up or close with the
        device's own computing units, and slow the others down by that. None if the set cannot run.
        """
        if jobs == computing and not edges:
            return self.step_ns(jobs)
        part = (jobs, computing, edges)
        if part not in self._known_parts:
            self._known_parts[part] = self._forecast_part(*part)
        return self._known_parts[part]

    def edge_slowdown(self, computing: int, edges: int) -> float:
        """Return by how much longer a job starts up or closes if these jobs compute, and so many start up or close,
        with itself.
        """
        if not self.device.prepares_jobs:
            return 1.0
        beside = (computing, edges)
        if beside not in self._edge_slowdowns:
            loads = [self.demands[k].load for k in members(computing)]
            self._edge_slowdowns[beside] = self.device.contention.edge_slowdown_beside(loads, edges)
        return self._edge_slowdowns[beside]

    def startup_lead(self, computing: int, edges: int) -> float:
        """Return how long before the last step of so many jobs, so many others start to start up by it.

        The unit is the time for which they start up alone, and the last step is where it would be without them.
        """
        return self.device.contention.startup_lead(computing, edges) if self.device.prepares_jobs else 1.0

    def throughput(self, jobs: int) -> float:
        """Return the system throughput (STP) of the set: the sum of the jobs' speeds relative to alone."""
        known = self._throughputs.get(jobs)
        if known is None:
            rows = zip(members(jobs), self.step_ns(jobs) or (), strict=False)  # no rows if the set cannot run
            known = self._throughputs[jobs] = sum(self.alone_ns[k] / ns for k, ns in rows)
        return known

    def is_too_slow(self, job: int, step_ns: float) -> bool:
        """Return whether the rest of the job would take more than `max_slowdown` times as long as alone, with these
        times of its steps. Other jobs do not slow down its start and its end.
        """
        demand = self.demands[job]
        edges_ns, alone_ns = demand.startup_ns + demand.closing_ns, demand.steps_left * self.alone_ns[job]
        allowed_ns = self.device.max_slowdown * alone_ns + (self.device.max_slowdown - 1) * edges_ns
        return demand.steps_left * step_ns > allowed_ns

    def fit_unplanned(self, jobs: int) -> bool:
        """Return whether the jobs fit side by side without plans."""
        return sum(self._curves[k].rounded_bytes[0] for k in members(jobs)) <= self.device.budget_bytes

    def keeps_all_memory(self, jobs: int, job: int) -> bool:
        """Return whether this job of the set keeps all the memory that it can use when the memory is divided."""
        numbers = members(jobs)
        divided = self._divided(numbers)
        return divided is not None and divided[numbers.index(job)] == 0

    def _forecast(self, jobs: int) -> tuple[float, ...] | None:
        numbers = members(jobs)
        if self._corrected and (corrected := self._corrected.get(self._set_kind(numbers))):
            place = {number: at for at, number in enumerate(self._sorted_by_kind(numbers))}
            return tuple(corrected[place[number]] for number in numbers)
        estimate = self._estimate(jobs)
        if estimate is None:
            return None
        times = self._as_measured(numbers, estimate.step_ns) if self._slow else estimate.step_ns
        if len(numbers) > 1 and jobs & ~self._running:
            rows = zip(numbers, times, strict=True)
            if any(self.is_too_slow(k, ns) for k, ns in rows):
                return None
        return tuple(times)

    def _forecast_part(self, jobs: int, computing: int, edges: int) -> tuple[float, ...] | None:
        """Forecast a part like a whole set, in the memory that the jobs have in the whole set.

        If the times of the whole set are known from plans or measurements, the part is corrected by the same ratio.
        """
        whole = self.step_ns(jobs)
        if whole is None:
            return None
        places = [place for place, k in enumerate(members(jobs)) if computing >> k & 1]
        estimate = self._estimate(jobs)
        if estimate is None:  # a plan was found nevertheless
            return tuple(whole[place] for place in places)
        points = [estimate.points[place] for place in places]
        part = self._times(points, members(computing), edges)
        ratios = (whole[place] / estimate.step_ns[place] for place in places)
        return tuple(ns * ratio for ns, ratio in zip(part, ratios, strict=True))

    def _estimate(self, jobs: int) -> "_Estimate | None":
        """Return the estimate from the trade-offs; None if the jobs do not fit."""
        if jobs not in self._known_estimates:
            numbers = members(jobs)
            divided = self._divided(numbers)
            if divided is None:
                self._known_estimates[jobs] = None
            else:
                points = [self.demands[k].trade_offs[at] for k, at in zip(numbers, divided, strict=True)]
                self._known_estimates[jobs] = _Estimate(points=points, step_ns=self._times(points, numbers))
        return self._known_estimates[jobs]

    def _times(self, points: Sequence[TradeOff], numbers: Sequence[int], edges: int = 0) -> list[float]:
        """Return the times of the steps of these jobs, which compute under these plans while so many start up or
        close.
        """
        if not points:
            return []
        loads, steps_ns = [self.demands[k].load for k in numbers], [point.compute_ns for point in points]
        slowdowns = self.device.contention.slowdowns_of(loads, steps_ns, edges)
        times = [p.beside_others_ns(slowdown) for p, slowdown in zip(points, slowdowns, strict=True)]
        return _with_lanes(points, times)

    def _divided(self, numbers: Sequence[int]) -> list[int] | None:
        return divide_memory([self._curves[k] for k in numbers], self.device.budget_bytes)

    def _by_kind(self, correction: tuple[int, tuple[float, ...]]) -> tuple[tuple[int, ...], tuple[float, ...]]:
        jobs, times = correction
        by_number = dict(zip(members(jobs), times, strict=True))
        return self._set_kind(members(jobs)), tuple(by_number[k] for k in self._sorted_by_kind(members(jobs)))

    def _set_kind(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(self._kinds[k] for k in numbers))

    def _sorted_by_kind(self, numbers: Sequence[int]) -> list[int]:
        return sorted(numbers, key=lambda k: (self._kinds[k], k))

    def _as_measured(self, numbers: Sequence[int], times: list[float]) -> list[float]:
        """Return the times of the steps, no less than those that were measured in a slow set of the same kind."""
        order = sorted(range(len(numbers)), key=lambda at: (self.demands[numbers[at]].kind, at))
        slowdowns = self._slow.get(tuple(self.demands[numbers[at]].kind for at in order))
        if slowdowns is None:
            return times
        by_place = dict(zip(order, slowdowns, strict=True))
        return [max(ns, by_place[at] * self.alone_ns[numbers[at]]) for at, ns in enumerate(times)]


def fits_alone(trade_offs: Sequence[TradeOff], device: SharedDevice) -> bool:
    """Return whether some plan of a job fits if no other job runs."""
    return -(-trade_offs[-1].peak_bytes // device.region_bytes) * device.region_bytes <= device.budget_bytes


def members(jobs: int) -> tuple[int, ...]:
    """Return the numbers of the bits that are set, in increasing order. A choice asks for them thousands of times."""
    numbers = []
    while jobs:
        lowest = jobs & -jobs
        numbers.append(lowest.bit_length() - 1)
        jobs ^= lowest
    return tuple(numbers)


def _kinds(demands: Sequence[JobDemand]) -> list[int]:
    """Return for each job the number of the first job that has the same kind and the same trade-offs."""
    first: dict[tuple[str, tuple[TradeOff, ...]], int] = {}
    return [first.setdefault((demand.kind, demand.trade_offs), k) for k, demand in enumerate(demands)]


def _with_lanes(points: Sequence[TradeOff], times: list[float]) -> list[float]:
    """Return the times of the steps when the copies of all jobs have to share the lanes."""
    if not any(point.out_ns or point.in_ns for point in points):
        return times
    pairs = list(zip(points, times, strict=True))
    out_use = sum(point.out_ns / ns for point, ns in pairs)
    in_use = sum(point.in_ns / ns for point, ns in pairs)
    return [ns * max(1.0, out_use if point.out_ns else 0.0, in_use if point.in_ns else 0.0) for point, ns in pairs]
