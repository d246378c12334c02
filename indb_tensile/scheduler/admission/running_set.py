"""Record which jobs run side by side, with the system throughput that is foretold for them and that is measured.

System throughput (STP, Eyerman and Eeckhout 2008) is the sum over the jobs of their speed beside the others, relative
to their speed alone with all the memory. One job alone has a throughput of 1, and so have jobs that take turns.

A job belongs to the set from the first plan that its trainer follows, until it has given back its memory. Before that
plan the trainer creates the job's state and copies it to the device, which may take seconds. Jobs whose rows are
read, whose graphs are captured or calibrated, whose state is created, or whose version is published, compute too. If
the device is the processor, they compute with the device's cores. A job that is calibrated slows the set down like
one more job, and each of the others as an edge, which uses one processor (completion/contention.py). The set is
foretold anew whenever their number changes.
"""

from collections.abc import Sequence
from dataclasses import replace

from indb_tensile.scheduler.admission.admission_orders import LeaveSet, RecordSet
from indb_tensile.scheduler.admission.completion_rule import between_ns, planned_step_ns
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.pool import Interrupted, JobStage, Member, Pool, RunningSet


def watch(decision: Decision) -> None:
    """Record the jobs that train now, if these jobs or the number of jobs that are prepared have changed."""
    pool = decision.pool
    training = [member for member in pool.at(JobStage.RUNNING) if _trains(member)]
    jobs = tuple(member.job.job for member in training)
    calibrating, preparing = _preparing(pool) if training else (0, 0)
    before = pool.running_set
    if (jobs, calibrating, preparing) == (before.jobs, before.calibrating, before.preparing):
        return
    speeds = [_foretold_speed(pool, member, training, calibrating, preparing) for member in training]
    for member in pool.members:
        # the last row of a job that has ended stays open (tensile.job_sets.ended_at)
        away = member.stage is not JobStage.ENDING or isinstance(member.outcome, Interrupted)
        if away and member.job.job in before.jobs and member.job.job not in jobs:
            decision.order(LeaveSet(job=member.job.job, claim=member.job.claim))
    same = before if jobs == before.jobs else RunningSet(jobs=jobs)
    decision.pool = replace(pool, running_set=replace(same, calibrating=calibrating, preparing=preparing))
    for member, speed in zip(training, speeds, strict=True):
        beside = tuple(job for job in jobs if job != member.job.job)
        decision.order(
            RecordSet(
                job=member.job.job,
                claim=member.job.claim,
                beside=beside,
                foretold_throughput=sum(speeds),
                foretold_speed=speed,
            )
        )


def measured_throughput(decision: Decision, member: Member, iteration_ns: int) -> float | None:
    """Add a job's measured time of an iteration. Return the throughput of the set once all its jobs are measured."""
    running_set = decision.pool.running_set
    if member.job.job not in running_set.jobs or iteration_ns <= 0:
        return None
    speeds = dict(running_set.speeds) | {member.job.job: _measured_speed(decision.pool, member, iteration_ns)}
    decision.pool = replace(decision.pool, running_set=replace(running_set, speeds=tuple(sorted(speeds.items()))))
    return sum(speeds.values()) if len(speeds) == len(running_set.jobs) else None


def _trains(member: Member) -> bool:
    """Return whether the trainer follows a plan, and its state is on the device."""
    return member.trains and not member.parked


def _preparing(pool: Pool) -> tuple[int, int]:
    """Return how many jobs are calibrated, and how many are prepared or closed, each with one processor."""
    calibrating = len(pool.at(JobStage.CALIBRATING))
    if not pool.prepares_on_device:
        return calibrating, 0
    entering = sum(not _trains(member) for member in pool.at(JobStage.RUNNING))
    return calibrating, entering + len(pool.at(JobStage.CAPTURING, JobStage.CLOSING))


def _measured_speed(pool: Pool, member: Member, iteration_ns: int) -> float:
    """Return the speed relative to alone.

    The work between iterations takes as long as alone, unless it computes with the device and is slowed down like the
    iteration.
    """
    alone_ns = _alone_ns(member)
    if pool.prepares_on_device:
        return alone_ns / iteration_ns
    rest_ns = between_ns(pool, member)
    return (alone_ns + rest_ns) / (iteration_ns + rest_ns)


def _foretold_speed(
    pool: Pool, member: Member, training: Sequence[Member], calibrating: int, preparing: int
) -> float:
    """Return the job's speed relative to alone, if these jobs train, so many are calibrated, and so many are prepared
    or closed.
    """
    plan = member.target.plan if member.target is not None else member.plan
    if plan is None:
        return 0.0
    others = [m for m in training if m.job.job != member.job.job]
    step_ns = planned_step_ns(pool, member, plan, others, unknown=calibrating, edges=preparing)
    return (_alone_ns(member) + between_ns(pool, member)) / step_ns


def _alone_ns(member: Member) -> float:
    """Return the time of an iteration alone with all the memory. The other ranks of its job do not become faster.

    Without trade-offs, which only foretold completion needs, it is the time of the operators and of the upload.
    """
    plan = member.target.plan if member.target is not None else member.plan
    if member.trade_offs:
        return max(member.others.needed_ns, member.trade_offs[0].iteration_ns)
    return max(member.others.needed_ns, member.alone_ns + (plan.forecast.upload_ns if plan is not None else 0))
