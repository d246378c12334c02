"""Let a job start before another one leaves the device, so that its start-up ends with the last step of the other.

The choice names that job (completion/choose_starts.py). A decision is needed when the time has come, and no job comes
or ends then. So every report of progress, of which each trainer sends two a second, is compared with the time for
which the job starts up. On a processor the steps take longer meanwhile, so the job starts later than that before the
last step would be without it.
"""

from indb_tensile.scheduler.admission.completion_rule import SOON_NS, demand_of, planned_steps_ns, startup_ns
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.pool import JobStage, PlanReason, Pool, Sharing


def start_soon(decision: Decision) -> None:
    """Have the memory divided again if the job that was chosen to start soon has to start before the next report."""
    pool = decision.pool
    if pool.sharing is not Sharing.COMPLETION or pool.last_choice is None or pool.due is not None or pool.asked:
        return
    job = pool.last_choice.choice.soon
    member = None if job is None else pool.of_job(job)
    if member is None or member.stage is not JobStage.WAITING or member.workload is None:
        return
    running = len(pool.at(JobStage.RUNNING))
    lead = pool.contention.startup_lead(running, 1) if pool.prepares_on_device and running else 1.0
    if _leaves_ns(pool) <= lead * startup_ns(pool, member) + SOON_NS:
        decision.plan_anew(PlanReason.START)


def _leaves_ns(pool: Pool) -> float:
    """Return the foretold time until the first of the running jobs leaves; infinite if none follows a plan."""
    running = [(m, m.plan) for m in pool.at(JobStage.RUNNING) if m.plan is not None]
    times = zip(running, planned_steps_ns(pool, running), strict=True)
    return min((demand_of(pool, m).steps_left * ns for (m, _), ns in times if m.trade_offs), default=float("inf"))
