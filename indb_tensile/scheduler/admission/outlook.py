"""Foretell what one more job would do: whether it starts at once, whom it slows down, and when it is done.

The controller records its outlook: what the jobs on its device still need. Whoever has the outlook and the demand of
a job that is not queued yet can ask the same rule that will decide about the job (completion/choose_starts.py).
"""

from dataclasses import dataclass, replace

from indb_tensile.job import JobId
from indb_tensile.scheduler.admission.completion_rule import demand_of, shared_device
from indb_tensile.scheduler.admission.pace import pace
from indb_tensile.scheduler.admission.pool import JobStage, Member, Pool, Sharing
from indb_tensile.scheduler.completion.choose_starts import choose_starts
from indb_tensile.scheduler.completion.demand import JobDemand
from indb_tensile.scheduler.completion.set_forecasts import SetForecasts, SharedDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What the jobs on a device still need. `waiting` are in fair order.

    Steps of running jobs are multiplied by their pace, and a job that is still to be claimed trains `prepare_s` later
    (pace.py). `lent_bytes` are granted to running jobs only as long as nobody else needs them (batch_loans.py).
    """

    device: SharedDevice
    running: tuple[JobDemand, ...]
    waiting: tuple[JobDemand, ...]
    lent_bytes: int = 0
    prepare_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartForecast:
    """What is foretold for one more job.

    `slowdowns` has each running job with the factor by which its training steps would become longer; only if the job
    starts. `end_ns` is the time until the job is done. `ahead` is the number of jobs that wait before it.
    """

    starts: bool
    slowdowns: tuple[tuple[JobId, float], ...]
    end_ns: float
    ahead: int


def outlook_of(pool: Pool) -> Outlook | None:
    """Return the outlook; None if another rule decides, or while some job's trade-offs are not known."""
    running = pool.at(JobStage.RUNNING)
    waiting = pool.at(JobStage.WAITING)
    if pool.sharing is not Sharing.COMPLETION or not all(m.trade_offs for m in (*running, *waiting)):
        return None
    reserved_bytes = sum(m.granted_bytes for m in pool.at(JobStage.CALIBRATING))
    return Outlook(
        device=replace(shared_device(pool, pool.budget_bytes - reserved_bytes), slow_sets=()),
        running=tuple(_at_its_pace(pool, member) for member in running),
        waiting=tuple(demand_of(pool, member) for member in waiting),
        lent_bytes=pool.lent_bytes,
        prepare_s=pool.prepare_s or 0.0,
    )


def _at_its_pace(pool: Pool, member: Member) -> JobDemand:
    """Return the demand with as many more steps as the job takes longer than they do."""
    demand, factor = demand_of(pool, member), pace(pool, member)
    return replace(demand, steps=demand.steps * factor, steps_left=demand.steps_left * factor)


def foretell_start(outlook: Outlook, job: JobDemand) -> StartForecast | None:
    """Return what is foretold if this job, the last in fair order, waited for admission now.

    None if the job could not even run alone, or if too many jobs wait for a forecast of its end.
    """
    demands = (*outlook.running, *outlook.waiting, replace(job, job=JobId(-1)))
    own = 1 << len(demands) - 1
    running = (1 << len(outlook.running)) - 1
    forecasts = SetForecasts(demands, outlook.device, running=running)
    if forecasts.step_ns(own) is None:
        return None
    choice = choose_starts(forecasts, running)
    end_ns = choice.ends_ns.get(JobId(-1))
    if end_ns is None:
        return None
    starts = JobId(-1) in choice.starts
    started = sum(1 << k for k, demand in enumerate(demands) if demand.job in choice.starts)
    before, after = forecasts.step_ns(running), forecasts.step_ns(running | started)
    slowdowns: tuple[tuple[JobId, float], ...] = ()
    if starts and before and after:
        factors = (late / early for early, late in zip(before, after, strict=False))
        slowdowns = tuple(zip((demand.job for demand in outlook.running), factors, strict=True))
    end_ns += outlook.prepare_s * 1e9
    return StartForecast(starts=starts, slowdowns=slowdowns, end_ns=end_ns, ahead=len(outlook.waiting))
