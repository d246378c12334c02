"""Record which jobs run side by side, with the system throughput that is foretold for them and that is measured.

System throughput (STP, Eyerman and Eeckhout 2008) is the sum over the jobs of their speed beside the others, relative
to their speed alone with all the memory. One job alone has 1, and so has taking turns.
"""

from dataclasses import replace

from indb_tensile.scheduler.admission.admission_orders import RecordSet
from indb_tensile.scheduler.admission.completion_rule import planned_step_ns
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.pool import JobStage, Member, RunningSet


def watch(decision: Decision) -> None:
    """Record the jobs that run now, if they are others than before."""
    running = decision.pool.at(JobStage.RUNNING)
    jobs = tuple(member.job.job for member in running)
    if jobs == decision.pool.running_set.jobs:
        return
    throughput = sum(_foretold_speed(decision, member, len(jobs)) for member in running)
    decision.pool = replace(decision.pool, running_set=RunningSet(jobs=jobs))
    for member in running:
        beside = tuple(job for job in jobs if job != member.job.job)
        decision.order(
            RecordSet(job=member.job.job, claim=member.job.claim, beside=beside, foretold_throughput=throughput)
        )


def measured_throughput(decision: Decision, member: Member, iteration_ns: int) -> float | None:
    """Add a job's measured time of an iteration. Return the throughput of the set once all its jobs are measured."""
    running_set = decision.pool.running_set
    if member.job.job not in running_set.jobs or iteration_ns <= 0:
        return None
    speeds = dict(running_set.speeds) | {member.job.job: _alone_ns(member) / iteration_ns}
    decision.pool = replace(decision.pool, running_set=replace(running_set, speeds=tuple(sorted(speeds.items()))))
    return sum(speeds.values()) if len(speeds) == len(running_set.jobs) else None


def _foretold_speed(decision: Decision, member: Member, jobs: int) -> float:
    plan = member.target.plan if member.target is not None else member.plan
    if plan is None:
        return 0.0
    slowdown = decision.pool.contention.slowdown(jobs)
    return _alone_ns(member) / planned_step_ns(member, plan, slowdown)


def _alone_ns(member: Member) -> float:
    """Return the time of an iteration alone with all the memory.

    Without trade-offs, which only foretold completion needs, it is the time of the operators and of the upload.
    """
    plan = member.target.plan if member.target is not None else member.plan
    if member.trade_offs:
        return member.trade_offs[0].iteration_ns
    return member.alone_ns + (plan.forecast.upload_ns if plan is not None else 0)
