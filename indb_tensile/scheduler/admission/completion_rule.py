"""Let waiting jobs in by foretold completion: only if all jobs then end earlier (completion/choose_starts.py).

The planner's trade-offs of each job, the contention that was measured, and the steps that are left foretell every
candidate set. The set that is chosen is then planned, and the forecasts of these plans replace the estimate for that
set: if the set is no longer the best choice, the job waits.

Latencies are measured while other jobs run, so they contain contention. A job's latencies alone are those of its
calibration, and of every measurement while no other job runs. Measurements beside k - 1 other jobs, relative to
alone, correct the contention of k jobs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.decision import Decision, planned
from indb_tensile.scheduler.admission.gang_forecast import gang_text
from indb_tensile.scheduler.admission.overheads import expected_steps_left, state_bytes
from indb_tensile.scheduler.admission.pool import JobStage, Member, PlanReason, Pool, Sharing
from indb_tensile.scheduler.completion.choose_starts import HORIZON, KnownChoice, StartChoice, choose_starts
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.completion.demand import JobDemand, TradeOff
from indb_tensile.scheduler.completion.processor_shares import ProcessorLoad, training_niceness, weight_of
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, SharedDevice, fits_alone, members
from indb_tensile.scheduler.completion.start_rules import MARGIN, is_worth_a_delay
from indb_tensile.scheduler.exchange_times import blocking_ns
from indb_tensile.scheduler.graph import OpIndex, Stage
from indb_tensile.scheduler.planner import JobPlan

_LEAST_STEPS = 1e-6  # a job at its end still counts as work that is not done
# A job that is to start within this time starts now. Trainers report progress twice a second, so it is known to a
# quarter of a second when a job is about to leave.
SOON_NS = 250_000_000
# The largest slowdown that counts as contention, over the number of jobs. A device that one job fills loses some
# throughput to two, and must be found to do so: if a slowdown beyond 1 counted as 1, jobs would go on to start there
# for the gaps between their operators. Beyond a tenth, other causes are more likely.
_MOST_CONTENTION = 1.1


class StartRule:
    """Says which waiting jobs start now. Made anew for each division of the memory.

    Planner.trade_offs may raise Unanswered while a rule is made.
    """

    def __init__(self, decision: Decision, waiting: tuple[Member, ...], budget_bytes: int) -> None:
        """`waiting` are the jobs that could start, in fair order. `budget_bytes` is the memory for all plans."""
        pool = decision.pool
        self._pool = pool
        running = [with_trade_offs(decision, m) for m in pool.at(JobStage.RUNNING)]
        waiting = tuple(with_trade_offs(decision, m) for m in waiting)
        # Without trade-offs a job's own limit is too low for any plan. `_admit` ends such a job if it waits.
        runnable = [m for m in waiting if m.trade_offs]
        self._beyond = {m.job.job: m for m in runnable[HORIZON:]}
        self._members = [*(m for m in running if m.trade_offs), *runnable[:HORIZON]]
        apart_bytes = sum(m.planned_bytes for m in (*running, *waiting) if not m.trade_offs)
        self._running = sum(1 << k for k, m in enumerate(self._members) if m.stage is JobStage.RUNNING)
        self._device = shared_device(pool, budget_bytes - apart_bytes)
        self._numbers = {m.job.job: k for k, m in enumerate(self._members)}
        self._demands = tuple(demand_of(pool, m) for m in self._members)
        self._corrections: dict[int, tuple[float, ...]] = {}
        self._forecasts = SetForecasts(self._demands, self._device, running=self._running)
        self.choice = self._first_choice(decision)

    def considers(self, job: JobId) -> bool:
        """Return whether the job can run alone at all. Other jobs have to be ended with an explanation."""
        number = self._number(job)
        if number is not None:
            return self._forecasts.step_ns(1 << number) is not None
        member = self._beyond.get(job)
        return member is not None and fits_alone(member.trade_offs, self._device)

    def confirms(self, jobs: tuple[JobId, ...], plans: tuple[JobPlan, ...]) -> bool:
        """Return whether the jobs still start now that these plans, of the running jobs and their own, are known."""
        numbers = [self._number(job) for job in jobs]
        if None in numbers:
            return True
        together = self._running | sum(1 << number for number in numbers if number is not None)
        by_job = {plan.job: plan for plan in plans}
        chosen = [(self._members[k], by_job.get(self._members[k].job.job)) for k in members(together)]
        if any(plan is None for _, plan in chosen):
            return True
        times = planned_steps_ns(self._pool, [(member, plan) for member, plan in chosen if plan is not None])
        rows = zip(members(together), times, strict=True)
        if len(times) > 1 and any(self._forecasts.is_too_slow(k, ns) for k, ns in rows):
            return False
        estimated = self._forecasts.step_ns(together)
        if estimated is not None and all(
            ns <= (1 + MARGIN) * estimate for ns, estimate in zip(times, estimated, strict=True)
        ):
            return set(jobs) <= set(self.choice.starts)  # hardly slower, so no other choice has become clearly better
        self._corrections[together] = times
        self._forecasts = SetForecasts(self._demands, self._device, self._corrections, self._running)
        self.choice = choose_starts(self._forecasts, self._running, soon_ns=SOON_NS)
        return set(jobs) <= set(self.choice.starts)

    @property
    def known_sets(self) -> int:
        """The number of sets whose plans were slower than foretold. The choice follows from their times."""
        return len(self._corrections)

    def keeps_all_memory(self, job: JobId) -> bool:
        """Return whether the job keeps all the memory that it can use beside all jobs that run or start now."""
        number = self._number(job)
        starts = (self._number(other) for other in self.choice.starts)
        together = self._running | sum(1 << other for other in starts if other is not None)
        return (
            number is not None and bool(together >> number & 1) and self._forecasts.keeps_all_memory(together, number)
        )

    def is_worth_a_delay(self, job: JobId) -> bool:
        """Return whether the job, which starts now, may run beside jobs with lower priorities and not in their place.

        It may if that raises the throughput clearly, or if one of them is about to leave.
        """
        number = self._number(job)
        if number is None or self.choice.at_an_end:
            return True
        return is_worth_a_delay(self._forecasts, self._running, 1 << number)

    def throughput(self, jobs: frozenset[JobId]) -> float:
        """Return the foretold system throughput (STP) of these jobs side by side."""
        numbers = sum(1 << k for k, member in enumerate(self._members) if member.job.job in jobs)
        return self._forecasts.throughput(numbers)

    def waiting_text(self, job: JobId) -> str:
        """Return what a job that does not start now waits for, and why."""
        number = self._number(job)
        if not self._running or number is None:  # beyond the horizon of the choice
            return "its turn"
        ends_ns = self.choice.ends_ns
        ends = sorted((ends_ns.get(self._demands[k].job, 0.0), self._demands[k].job) for k in members(self._running))
        names = " or ".join(f"job {other}" for _, other in ends)
        beside = "it" if len(ends) == 1 else "them"
        gangs = [gang_text(self._members[k]) for k in members(self._running)]
        text = f"{names} to end, the first in about {seconds(ends[0][0])}: "
        why = f"if it started beside {beside} now, all jobs together would end no earlier"
        if self._forecasts.step_ns(self._running | 1 << number) is None:
            slowdown = f"{self._device.max_slowdown:g}"
            why = f"beside {beside}, the jobs do not fit, or one would be more than {slowdown} times slower"
        return "; ".join(filter(None, (f"{text}{why}", *gangs)))

    def _first_choice(self, decision: Decision) -> StartChoice:
        """Return the choice before any plan is known. A division is repeated for each answer of the planner, mostly
        with the same jobs; then the choice is not computed again.
        """
        last = decision.pool.last_choice
        if last is not None and last.holds(self._forecasts, self._running):
            return last.choice
        choice = choose_starts(self._forecasts, self._running, soon_ns=SOON_NS)
        known = KnownChoice(demands=self._demands, device=self._device, running=self._running, choice=choice)
        decision.pool = replace(decision.pool, last_choice=known)
        return choice

    def _number(self, job: JobId) -> int | None:
        return self._numbers.get(job)


def shared_device(pool: Pool, budget_bytes: int) -> SharedDevice:
    """Return what jobs with this much memory for their plans share."""
    return SharedDevice(
        budget_bytes=budget_bytes,
        region_bytes=pool.region_bytes,
        contention=pool.contention,
        max_slowdown=pool.max_slowdown,
        slow_sets=tuple(slow for slow in pool.slow_sets if slow.until_s > pool.now_s),
        prepares_jobs=pool.prepares_on_device,
        closing_ns=_closing_ns(pool) if pool.prepares_on_device else (),
    )


def _closing_ns(pool: Pool) -> tuple[float, ...]:
    """Return for how long each job that closes goes on, as if it had begun now: most decisions are made then.

    As many waiting jobs may start up meanwhile.
    """
    closing = [m for m in pool.at(JobStage.CLOSING) if m.workload is not None]
    next_jobs = min(len(closing), len(pool.at(JobStage.WAITING)))
    factor = pool.contention.edge_slowdown_beside((), len(closing) + next_jobs)
    return tuple(factor * pool.overheads.closing_ns(_kind(m), state_bytes(planned(m).graphs[0])) for m in closing)


def with_trade_offs(decision: Decision, member: Member) -> Member:
    """Return the member with its trade-offs, which are computed when its kind first needs them."""
    if member.trade_offs or member.workload is None:
        return member
    workload, known = planned(member), decision.pool.trade_offs
    points = known.of(workload, _scaled)
    if not points:
        points = decision.planner.trade_offs(replace(workload, others_ns=0))
        decision.pool = replace(decision.pool, trade_offs=known.with_those_of(workload, points))
    return decision.put(replace(member, trade_offs=points))


def demand_of(pool: Pool, member: Member) -> JobDemand:
    """Return what the job needs until it is done."""
    spec = member.job
    kind, size_bytes = _kind(member), state_bytes(planned(member).graphs[0])
    trained_share = pool.overheads.trained_share(kind)
    steps_left = max(_LEAST_STEPS, expected_steps_left(member.steps, member.steps_left, trained_share))
    between_ns = pool.overheads.between_ns(kind, size_bytes)
    return JobDemand(
        job=spec.job,
        owner=spec.owner_oid,
        priority=spec.priority,
        steps=steps_left,
        steps_left=steps_left,
        trade_offs=tuple(
            point.with_steps_of(between_ns, computes=pool.prepares_on_device) for point in _points_of(member)
        ),
        kind=kind,
        startup_ns=_startup_left_ns(pool, member, kind, size_bytes),
        closing_ns=pool.overheads.closing_ns(kind, size_bytes),
        load=load_of(pool, member),
        has_left=member.parked and member.stage is JobStage.WAITING and pool.now_s < member.away_until_s,
    )


def _points_of(member: Member) -> tuple[TradeOff, ...]:
    """Return the member's trade-offs. A rank needs no plan that is faster than the other ranks."""
    others_ns = member.others.needed_ns
    return useful(point.waiting_for(others_ns) for point in member.trade_offs) if others_ns else member.trade_offs


def load_of(pool: Pool, member: Member) -> ProcessorLoad:
    """Return what the job's steps want of the processors; nothing is known of it on another device.

    A trainer chooses its niceness by the time that the whole training takes alone.
    """
    if not pool.prepares_on_device or member.alone_ns <= 0:
        return ProcessorLoad()
    return ProcessorLoad(weight=weight_of(training_niceness(member.steps * member.alone_ns / 1e9)))


def training_beside(pool: Pool, member: Member) -> tuple[Member, ...]:
    """Return the other jobs that train now."""
    jobs = pool.running_set.jobs
    return tuple(m for m in pool.members if m.job.job in jobs and m.job.job != member.job.job)


def contention_measured(decision: Decision, contention: Contention) -> None:
    """Use this contention from now on, and decide again which waiting jobs start.

    Jobs that run side by side go on. They are undone only if they turn out to be slower than one alone, as if jobs
    had taught this contention. What other programs take of the cores has been seen here, and stays.
    """
    known = decision.pool.contention
    contention = replace(contention, taken_cores=known.taken_cores or contention.taken_cores)
    changed = contention != known
    decision.pool = replace(decision.pool, contention=contention)
    if changed and decision.pool.due is None and decision.pool.at(JobStage.WAITING):
        decision.pool = replace(decision.pool, due=PlanReason.START)


def note_startup(decision: Decision, member: Member, took_ns: int | None) -> Member:
    """Return the member after a first step, and remember how long its kind starts up: the time without the step."""
    if took_ns is None or member.stepped or member.workload is None or member.plan is None:
        return member
    others = training_beside(decision.pool, member)
    startup_ns = max(0.0, took_ns - planned_step_ns(decision.pool, member, member.plan, others))
    kind, size_bytes = _kind(member), state_bytes(member.workload.graphs[0])
    known = decision.pool.overheads
    decision.pool = replace(decision.pool, overheads=known.started(kind, size_bytes, startup_ns))
    if not known.kinds and decision.pool.due is None:  # what was decided before assumed that jobs start at once
        decision.pool = replace(decision.pool, due=PlanReason.START)
    return decision.put(replace(member, stepped=True))


def note_between(decision: Decision, member: Member, step_ns: int, iteration_ns: int, compute_ns: int) -> None:
    """Remember how long the member's kind takes between two iterations, from means of a step and of an iteration.

    Where other jobs slow that down, they slow it down as much as the iteration's operators, which took `compute_ns`.
    """
    if member.workload is None or not 0 < iteration_ns < step_ns:
        return
    took_ns = float(step_ns - iteration_ns)
    if decision.pool.prepares_on_device and compute_ns > 0:
        took_ns *= min(1.0, member.alone_ns / compute_ns)
    kind, size_bytes = _kind(member), state_bytes(member.workload.graphs[0])
    times = decision.pool.overheads.stepped(kind, size_bytes, took_ns)
    decision.pool = replace(decision.pool, overheads=times)


def note_last_step(decision: Decision, member: Member, steps_left: float | None) -> None:
    """Remember what share of its steps the member's kind trains, if so many were left after the last one."""
    if member.workload is None or steps_left is None or not 0 <= steps_left < member.steps < float("inf"):
        return
    kind, size_bytes = _kind(member), state_bytes(member.workload.graphs[0])
    times = decision.pool.overheads.ended(kind, size_bytes, 1 - steps_left / member.steps)
    decision.pool = replace(decision.pool, overheads=times)


def note_closing(decision: Decision, member: Member, closing_ns: int | None) -> None:
    """Remember how long the member's kind closes."""
    if member.workload is None or closing_ns is None:
        return
    kind, size_bytes = _kind(member), state_bytes(member.workload.graphs[0])
    times = decision.pool.overheads.closed(kind, size_bytes, float(closing_ns))
    decision.pool = replace(decision.pool, overheads=times)


def startup_ns(pool: Pool, member: Member) -> float:
    """Return how long a waiting job will start up."""
    return _startup_left_ns(pool, member, _kind(member), state_bytes(planned(member).graphs[0]))


def _startup_left_ns(pool: Pool, member: Member, kind: str, size_bytes: int) -> float:
    """Return for how long the job starts up from now on. What a job that comes back copies is part of its shift."""
    if member.stepped or (member.trains and member.steps_left < member.steps):
        return 0.0
    passed_ns = (pool.now_s - member.sent_s) * 1e9 if member.generation else 0.0
    return max(0.0, pool.overheads.startup_ns(kind, size_bytes) - max(0.0, passed_ns))


def observe(pool: Pool, member: Member, compute_ns: int) -> tuple[Pool, Member]:
    """Return pool and member after a training step of this job computed for `compute_ns`.

    Alone, this is the new time of the job's operators alone, and its trade-offs are scaled to it. A time beside other
    jobs counts as alone if it is less: no job is faster beside others, and a calibration overestimates by up to a
    third. It also is the time of waiting jobs with the same graph. Otherwise it corrects the contention. What a
    slowdown exceeds the number of jobs by counts up to a tenth, since more of it has other causes.
    """
    if pool.sharing is not Sharing.COMPLETION or member.alone_ns <= 0 or compute_ns <= 0:
        return pool, member
    jobs = len(pool.at(JobStage.RUNNING))
    if jobs < 2 or compute_ns < member.alone_ns:
        kind = _kind(member)
        members = tuple(
            _with_alone_time(m, compute_ns)
            if m.stage is JobStage.WAITING and not m.measured and _kind(m) == kind
            else m
            for m in pool.members
        )
        return replace(pool, members=members), _with_alone_time(member, compute_ns)
    slowdown = min(_MOST_CONTENTION * jobs, compute_ns / member.alone_ns)
    others = [m for m in pool.at(JobStage.RUNNING) if m.job.job != member.job.job]
    foretold = _slowdown(pool, member, others, member.alone_ns)
    return replace(pool, contention=pool.contention.observed(jobs, slowdown, member.alone_ns, foretold)), member


def _with_alone_time(member: Member, compute_ns: int) -> Member:
    """Return the member with this new time of its operators alone. Its trade-offs are scaled to the time."""
    scaled = _scaled(member.trade_offs, compute_ns / max(1, member.alone_ns))
    return replace(member, alone_ns=compute_ns, trade_offs=scaled)


def _scaled(points: tuple[TradeOff, ...], ratio: float) -> tuple[TradeOff, ...]:
    return useful(scaled_by(point, ratio) for point in points)


def _kind(member: Member) -> str:
    return planned(member).graphs[0].signature or f"job {member.job.job}"


def planned_step_ns(
    pool: Pool, member: Member, plan: JobPlan, others: Sequence[Member] = (), *, unknown: int = 0, edges: int = 0
) -> float:
    """Return the time of a step under this plan, if these other jobs compute and so many start up or close.

    `unknown` is the number of further jobs that compute and do not train yet. The plan's latencies may contain the
    contention of an earlier set.
    """
    point = planned_point(member, plan).waiting_for(member.others.needed_ns)
    point = point.with_steps_of(between_ns(pool, member), computes=pool.prepares_on_device)
    return point.beside_others_ns(_slowdown(pool, member, others, point.compute_ns, unknown, edges))


def planned_steps_ns(pool: Pool, planned: Sequence[tuple[Member, JobPlan]]) -> tuple[float, ...]:
    """Return the time of a step of each of these jobs under its plan, if they compute side by side."""
    jobs = [member for member, _ in planned]
    return tuple(
        planned_step_ns(pool, member, plan, [*jobs[:at], *jobs[at + 1 :]])
        for at, (member, plan) in enumerate(planned)
    )


def _slowdown(
    pool: Pool, member: Member, others: Sequence[Member], compute_ns: float, unknown: int = 0, edges: int = 0
) -> float:
    """Return the factor by which others slow down the operators of a job, which take `compute_ns` alone."""
    loads = [load_of(pool, member), *(load_of(pool, m) for m in others), *[ProcessorLoad()] * unknown]
    return pool.contention.slowdowns_of(loads, [compute_ns] * len(loads), edges)[0]


def between_ns(pool: Pool, member: Member) -> float:
    """Return the time between two iterations of this job, alone on the device."""
    if not pool.overheads.kinds or member.workload is None:
        return 0.0
    return pool.overheads.between_ns(_kind(member), state_bytes(member.workload.graphs[0]))


def planned_point(member: Member, plan: JobPlan) -> TradeOff:
    """Return the memory and the time of an iteration under this plan, alone on the device."""
    forecast = plan.forecast
    point = TradeOff(
        peak_bytes=plan.peak_bytes,
        iteration_ns=forecast.iteration_ns,
        compute_ns=forecast.operators_ns,
        stall_ns=forecast.stall_out_ns + forecast.stall_in_ns,
    )
    return scaled_by(point, member.alone_ns / _foreseen_operators_ns(member, plan))


def _foreseen_operators_ns(member: Member, plan: JobPlan) -> float:
    """Return the sum of the operators' latencies with which the plan's forecast was made.

    The workload's latencies are not these: measurements renew the forecast first, and new plans renew the latencies
    first. The forecast's computation is the sum without the uploads, multiplied by what the plan runs again, and
    divided by `graph_share` in a round, where no iteration runs as a graph.
    """
    workload = member.workload
    compute_ns = float(plan.forecast.operators_ns or member.alone_ns)
    if workload is None:
        return compute_ns
    latency_ns = blocking_ns(workload.graphs[0], workload.latency_ns[0])
    if plan.part is not None:
        compute_ns *= workload.graph_share
    operators, order = workload.graphs[0].operators, plan.plans[0].executions
    runs = [(run.operator, run.parts) for run in order] or [(OpIndex(k), 1) for k in range(len(operators))]
    computed = ((k, parts) for k, parts in runs if operators[k].stage is not Stage.UPLOAD)
    executed_ns = sum(latency_ns[k] / parts for k, parts in computed)
    return compute_ns * sum(latency_ns) / executed_ns if executed_ns else compute_ns


def gains_by(member: Member, has_bytes: int, more_bytes: int) -> bool:
    """Return whether a plan with so much more memory than the job has would be clearly faster, by its trade-offs.

    True if these are not known.
    """

    def shortest_ns(size_bytes: int) -> float:
        return min((point.iteration_ns for point in member.trade_offs if point.peak_bytes <= size_bytes), default=inf)

    return not member.trade_offs or shortest_ns(has_bytes + more_bytes) < (1 - MARGIN) * shortest_ns(has_bytes)


def scaled_by(point: TradeOff, ratio: float) -> TradeOff:
    """Return the same plan for operators that take `ratio` times as long. Its copies take as long as before."""
    added_ns = round((ratio - 1) * point.compute_ns)
    return replace(point, iteration_ns=max(1, point.iteration_ns + added_ns), compute_ns=point.compute_ns + added_ns)


def useful(points: Iterable[TradeOff]) -> tuple[TradeOff, ...]:
    """Return the plans without those that need more memory than another and are not faster.

    Plans come with decreasing memory. A plan that computes more instead of copying may become slower than one that
    needs less memory, when operators turn out to take longer than was foretold.
    """
    kept: list[TradeOff] = []
    for point in reversed(tuple(points)):
        if not kept or point.iteration_ns < kept[-1].iteration_ns:
            kept.append(point)
    return tuple(reversed(kept))


def seconds(duration_ns: float) -> str:
    """Return a duration for people."""
    seconds = duration_ns / 1_000_000_000
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
