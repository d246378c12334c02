"""Assign trainers to jobs, keep spare trainers started, and claim the next job; pause after failed starts."""

from collections import Counter
from dataclasses import replace

from indb_tensile.scheduler.admission.admission_orders import AssignJob, ClaimNext, SpawnTrainer
from indb_tensile.scheduler.admission.decision import Decision
from indb_tensile.scheduler.admission.events import Tick
from indb_tensile.scheduler.admission.pool import JobStage, Lost, Member, Pool, Spare, TrainerId

# Jobs that may be let in past a job that waits for memory. After that many, the waiting job blocks the queue until it
# is in.
MOST_OVERTAKEN = 8
# the longest pause between two attempts to start a trainer, or a job on a lost device, that fail at once
LONGEST_PAUSE_TICKS = 60
_CORES_NOISE = 0.02  # of the cores that other programs keep busy


def assign_and_claim(decision: Decision) -> None:
    """Give the claimed job a trainer, start spare trainers, and claim the next job when a trainer is ready for it."""
    _assign(decision)
    _start_spares(decision)
    _claim(decision)


def tick(decision: Decision, event: Tick) -> None:
    """Count down every pause by one tick, and allow the next claim to look at the queue again."""
    pool = _with_taken_cores(decision.pool, event.taken_cores)
    decision.pool = replace(
        pool,
        now_s=pool.now_s if event.now_s is None else event.now_s,
        time_of_day=event.time_of_day or pool.time_of_day,
        queue_empty=False,
        spawn_pause_ticks=max(0, pool.spawn_pause_ticks - 1),
        claim_pause_ticks=max(0, pool.claim_pause_ticks - 1),
    )


def _with_taken_cores(pool: Pool, taken_cores: float | None) -> Pool:
    """Return the pool after other programs keep so many cores busy, unless that has hardly changed.

    Every change of the contention has the next choice of starts computed anew.
    """
    if taken_cores is None or abs(taken_cores - pool.contention.taken_cores) < _CORES_NOISE:
        return pool
    return replace(pool, contention=replace(pool.contention, taken_cores=taken_cores))


def lengthened(times: int) -> int:
    """Return the number of ticks to wait after `times` failures in a row."""
    ticks: int = min(2**times, LONGEST_PAUSE_TICKS)
    return ticks


def _assign(decision: Decision) -> None:
    for member in decision.pool.at(JobStage.CLAIMED):
        spare = next((s for s in decision.pool.spares if s.ready), None)
        if spare is None:
            return
        decision.pool = replace(decision.pool, spares=tuple(s for s in decision.pool.spares if s != spare))
        decision.put(replace(member, stage=JobStage.CAPTURING, trainer=spare.trainer))
        decision.order(AssignJob(trainer=spare.trainer, job=member.job))


def _start_spares(decision: Decision) -> None:
    """Start spare trainers until there are enough. Pause after trainers that die before they are ready."""
    if decision.pool.spawn_pause_ticks:
        return
    while len(decision.pool.spares) < decision.pool.spare_trainers:
        trainer = decision.pool.next_trainer
        decision.order(SpawnTrainer(trainer=trainer))
        decision.pool = replace(
            decision.pool, spares=(*decision.pool.spares, Spare(trainer=trainer)), next_trainer=TrainerId(trainer + 1)
        )


def holds_queue(member: Member) -> bool:
    """Return whether no later job may be let in before this one, because it has been overtaken often enough."""
    return member.overtaken >= MOST_OVERTAKEN and member.stage in (JobStage.WAITING, JobStage.UNMEASURED)


def is_waiting_rank(member: Member) -> bool:
    """Return whether the other devices of the job may hold memory and wait for this one. No later job goes first."""
    if member.job.gang is None:  # nearly all jobs; this is asked of each several times in a decision
        return False
    waits = member.stage in (JobStage.WAITING, JobStage.UNMEASURED)
    return waits and not (member.paused or member.over_quota)


def claim_blocker(pool: Pool) -> str | None:
    """Return the reason, in words, why no job would be claimed now; None if one would be."""
    blocker = next(filter(_holds_back, pool.members), None)
    if pool.stopping:
        return "a controller: this one is stopping"
    if pool.claim_pause_ticks:
        return "a device that works: its controller has lost the device, and pauses before the next attempt"
    if blocker is not None and blocker.stage is JobStage.CLAIMED:
        return f"its turn: job {blocker.job.job} before it waits for its trainer to start"
    if blocker is not None and blocker.stage is JobStage.ENDING:
        return f"a trainer of job {blocker.job.job} to end, whose claim was lost"
    if blocker is not None and is_waiting_rank(blocker):
        return f"its turn: job {blocker.job.job} waits for device memory, and its other devices wait for this one"
    if blocker is not None:
        return (
            f"its turn: job {blocker.job.job} waits for device memory, and {blocker.overtaken} jobs have overtaken it"
        )
    if len(pool.members) >= pool.max_jobs:
        return f"a place: all {pool.max_jobs} are taken by jobs"
    if any(s.ready for s in pool.spares):
        return None
    if pool.failed_starts:
        return "a trainer: those started last ended before they were ready, as the controller's log says"
    return "a trainer to start"


def _claim(decision: Decision) -> None:
    """Ask for a job if a spare trainer is ready for it and nothing blocks the queue (`claim_blocker`).

    No job is claimed for a while after the device was lost, because the next job would lose it too. No job is claimed
    while a job blocks the queue, or while the trainer of a lost claim is still exiting, because its job might return
    to us under a new claim. Owners with too many jobs on their way in are passed over.
    """
    pool = decision.pool
    if pool.claiming or claim_blocker(pool) is not None:
        return
    passed_over = _owners_with_enough(pool)
    if pool.queue_empty and pool.passed_over <= passed_over:
        return
    decision.pool = replace(pool, claiming=True, passed_over=passed_over)
    decision.order(ClaimNext(passed_over=passed_over))


def _owners_with_enough(pool: Pool) -> frozenset[int]:
    """Return the owners (oids) who have enough jobs on their way in.

    At most `entering_jobs` jobs of one owner are prepared at once: such a job may wait for a lock on its owner's
    table for as long as its owner likes. A job that is prepared and waits for the device only keeps a place from
    others, so an owner's jobs without a plan have half of the places. The more waiting jobs are known, the better is
    the choice between them, and a job that has been prepared starts as soon as another one ends. A job that takes no
    device never has a plan: it counts among the jobs without one, and not among those in preparation.
    """
    entering = [m for m in pool.members if _enters(m)]
    without_plan = Counter(m.job.owner_oid for m in entering)
    in_preparation = Counter(
        m.job.owner_oid for m in entering if m.stage is not JobStage.WAITING and m.job.spec.takes_device
    )
    most = max(pool.entering_jobs, pool.max_jobs // 2)
    return frozenset(
        owner for owner, jobs in without_plan.items() if jobs >= most or in_preparation[owner] >= pool.entering_jobs
    )


def _enters(member: Member) -> bool:
    return member.stage is not JobStage.ENDING and member.generation == 0


def _holds_back(member: Member) -> bool:
    if member.stage is JobStage.ENDING:
        return isinstance(member.outcome, Lost)
    return member.stage is JobStage.CLAIMED or holds_queue(member) or is_waiting_rank(member)
