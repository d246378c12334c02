"""Jobs leave the device for a while: their state waits in the host pool, and their memory serves other jobs.

A job is to leave while its owner has paused it, while the division of the memory has set it aside for others, or
because another device has nothing to do (idle_devices.py). It leaves at the end of an iteration, so its grant is not
free before its trainer says so:

    running -- ParkJob --> parking -- Parking --> parked -- may return --> waiting -- SendPlans --> running

The plans of the other jobs are made as soon as the job is told to leave, and are sent when its memory is free. A job
that may return waits for admission like a new one. Its plan comes in the ordinary way, since the plan of a first
iteration, too, finds the whole state in host memory.

A parked job keeps its trainer, one of the places of the controller (`max_jobs`), its share of the host pool and, on a
GPU, a context. So at most `parked_jobs` wait like this, and at least one place is left for other jobs. A job beyond
that, or one for which the host pool has no room, saves a checkpoint, and its trainer ends. So does a job that several
devices train, because its other ranks would keep their memory while they wait. So does the trainer of a
paused job that has not begun to train: such a job only goes back to the queue, where it stays until it is resumed.
"""

from dataclasses import replace

from indb_tensile.job import Blame, JobId, Phase
from indb_tensile.scheduler.admission.admission_orders import EndMethod, ParkJob, RecordPhase, RequeueJob
from indb_tensile.scheduler.admission.decision import Decision, planned
from indb_tensile.scheduler.admission.events import Parking
from indb_tensile.scheduler.admission.pool import Interrupted, JobStage, Member, PlanReason, Pool
from indb_tensile.scheduler.host_memory import parked_bytes

_PAUSED = "its owner paused it"


def mark_paused(decision: Decision, paused: frozenset[JobId]) -> None:
    """Note which jobs their owners have paused. `park` takes the steps that follow."""
    for member in decision.pool.members:
        is_paused = member.job.job in paused
        if member.stage is not JobStage.ENDING and member.paused != is_paused:
            member = decision.put(replace(member, paused=is_paused))
            if member.stage is JobStage.PARKED and (member.paused or member.set_aside):
                _record_phase(decision, member)


def set_aside(decision: Decision, member: Member) -> Member:
    """Let a running job leave the device at the end of its iteration, until `bring_back`."""
    return decision.put(replace(member, set_aside=True))


def bring_back(decision: Decision, member: Member) -> Member:
    """Let a job that was set aside return, unless its owner has paused it. It then waits for admission."""
    return decision.put(replace(member, set_aside=False))


def park(decision: Decision) -> None:
    """Take every step out of the device, and back into the queue for its memory, that is possible now."""
    for member in decision.pool.members:
        if member.paused or member.set_aside or member.moving:
            _leave(decision, member)
        elif member.stage is JobStage.PARKED:
            member = decision.put(replace(member, stage=JobStage.WAITING, overtaken=0))
            _record_phase(decision, member)
            decision.plan_anew(PlanReason.START)


def parked(decision: Decision, parking: Parking) -> None:
    """The trainer has left the device: its grant is free as soon as the ledger confirms that."""
    member = decision.pool.of_trainer(parking.trainer)
    if member is None or member.stage is not JobStage.PARKING or parking.number != member.parks:
        return
    member = decision.grant(member, 0)
    member = replace(member, stage=JobStage.PARKED, parked=True, host_bytes=max(0, parking.host_bytes))
    member = replace(member, lent_bytes=0, returning=False, moving=False, stays=member.stays or member.moving)
    _record_phase(decision, decision.put(replace(member, plan=None, planned_bytes=0, planned_host_bytes=0)))


def parked_host_bytes(pool: Pool, job: JobId) -> int:
    """Return the bytes of the host pool that jobs hold which are not on the device, without those of `job` itself."""
    away = (m for m in pool.members if m.stage is JobStage.PARKING or (m.parked and m.stage is not JobStage.RUNNING))
    return sum(member.host_bytes for member in away if member.job.job != job)


def free_places(pool: Pool) -> int:
    """Return how many more jobs may wait in the host pool, and leave a place for jobs that train."""
    away = sum(member.parked or member.stage is JobStage.PARKING for member in pool.members)
    return min(pool.parked_jobs, pool.max_jobs - 1) - away


def _leave(decision: Decision, member: Member) -> None:
    match member.stage:
        case JobStage.RUNNING if not member.in_flight and member.generation:
            if member.parked:  # it has a target, and was not sent its plan yet
                _put_back(decision, member)
            else:
                _order(decision, member)
        case JobStage.WAITING if member.parked:
            _put_back(decision, member)
        case JobStage.PARKING | JobStage.PARKED | JobStage.ENDING:
            pass
        case _ if member.paused and not member.generation:
            _hand_back(decision, member)


def _order(decision: Decision, member: Member) -> None:
    """Tell the trainer to leave the device, and plan the other jobs without this one."""
    assert member.trainer is not None
    host_bytes = parked_bytes(planned(member).graphs)
    in_memory = (
        member.job.gang is None
        and free_places(decision.pool) > 0
        and host_bytes - member.host_bytes <= decision.pool.free_host_bytes
    )
    number = member.parks + 1
    decision.order(ParkJob(trainer=member.trainer, number=number, in_memory=in_memory, elsewhere=member.moving))
    if in_memory:
        member = replace(member, host_bytes=max(member.host_bytes, host_bytes))
    decision.put(replace(member, stage=JobStage.PARKING, target=None, parks=number))
    decision.plan_anew(PlanReason.PARKING)


def _put_back(decision: Decision, member: Member) -> None:
    """Keep a job parked that was about to return."""
    member = decision.wait(replace(member, stage=JobStage.PARKED, target=None), None)
    _record_phase(decision, decision.put(member))
    decision.plan_anew(PlanReason.PARKING)


def _hand_back(decision: Decision, member: Member) -> None:
    """Give a paused job that has not begun to train back to the queue."""
    if member.trainer is not None:
        decision.end(member, Interrupted(reason=_PAUSED, blame=Blame.NOBODY), EndMethod.TERMINATE)
        return
    claim = member.job.claim
    decision.pool = replace(decision.pool, members=tuple(m for m in decision.pool.members if m.job.claim != claim))
    decision.order(RequeueJob(job=member.job.job, claim=claim, reason=_PAUSED, blame=Blame.NOBODY))


def _record_phase(decision: Decision, member: Member) -> None:
    phase = Phase.WAITING
    if member.stage is JobStage.PARKED:
        phase = Phase.PAUSED if member.paused else Phase.PARKED
    decision.order(RecordPhase(job=member.job.job, claim=member.job.claim, phase=phase))
