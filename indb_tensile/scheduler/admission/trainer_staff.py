"""Who works for whom: trainers for jobs, spare trainers, and the next job; pauses where starting fails."""

from collections import Counter
from dataclasses import replace

from indb_tensile.scheduler.admission.admission_orders import AssignJob, ClaimNext, SpawnTrainer
from indb_tensile.scheduler.admission.decision import Draft
from indb_tensile.scheduler.admission.pool import Lost, Member, Pool, Spare, Stage, TrainerId

MOST_OVERTAKEN = 8  # jobs let in past one that waits for memory: then it holds the queue until it is in
LONGEST_PAUSE_TICKS = 60  # between two attempts to start what fails at once: a trainer, or a job on a lost device


def staff(draft: Draft) -> None:
    """Give the claimed job a trainer, keep spare ones, and claim the next job when a trainer is ready for it."""
    _assign(draft)
    _recruit(draft)
    _claim(draft)


def tick(draft: Draft) -> None:
    """A tick of every pause is over, and there may be work again."""
    pool = draft.pool
    draft.pool = replace(
        pool,
        queue_empty=False,
        spawn_pause_ticks=max(0, pool.spawn_pause_ticks - 1),
        claim_pause_ticks=max(0, pool.claim_pause_ticks - 1),
    )


def lengthened(times: int) -> int:
    """How many ticks to wait after so many failures in a row."""
    ticks: int = min(2**times, LONGEST_PAUSE_TICKS)
    return ticks


def _assign(draft: Draft) -> None:
    for member in draft.pool.at(Stage.CLAIMED):
        spare = next((s for s in draft.pool.spares if s.ready), None)
        if spare is None:
            return
        draft.pool = replace(draft.pool, spares=tuple(s for s in draft.pool.spares if s != spare))
        draft.put(replace(member, stage=Stage.CAPTURING, trainer=spare.trainer))
        draft.order(AssignJob(trainer=spare.trainer, job=member.job))


def _recruit(draft: Draft) -> None:
    """Keep spare trainers started; pause after those that die before they are ready."""
    if draft.pool.spawn_pause_ticks:
        return
    while len(draft.pool.spares) < draft.pool.spare_trainers:
        trainer = draft.pool.next_trainer
        draft.order(SpawnTrainer(trainer=trainer))
        draft.pool = replace(
            draft.pool, spares=(*draft.pool.spares, Spare(trainer=trainer)), next_trainer=TrainerId(trainer + 1)
        )


def holds_queue(member: Member) -> bool:
    """Whether no later job may be let in before this one, which was overtaken often enough."""
    return member.stage in (Stage.WAITING, Stage.UNMEASURED) and member.overtaken >= MOST_OVERTAKEN


def holdup(pool: Pool) -> str | None:
    """Why no job at all would be claimed now: what the next one waits for, in words. None where one would be."""
    held = next(filter(_holds_back, pool.members), None)
    if pool.stopping:
        return "a controller: this one is stopping"
    if pool.claim_pause_ticks:
        return "a device that works: its controller has lost the device, and pauses before the next attempt"
    if held is not None and held.stage is Stage.CLAIMED:
        return f"its turn: job {held.job.job} before it waits for its trainer to start"
    if held is not None and held.stage is Stage.ENDING:
        return f"a trainer of job {held.job.job} to end, whose claim was lost"
    if held is not None:
        return f"its turn: job {held.job.job} waits for device memory, and {held.overtaken} jobs have overtaken it"
    if len(pool.members) >= pool.max_jobs:
        return f"a place: all {pool.max_jobs} are taken by jobs"
    if any(s.ready for s in pool.spares):
        return None
    if pool.stillborn:
        return "a trainer: those started last ended before they were ready, as the controller's log says"
    return "a trainer to start"


def _claim(draft: Draft) -> None:
    """Ask for a job where a spare trainer is ready for it and nothing holds it up (`holdup`).

    Not for a while after the device was lost, since the next job would lose it too; not while a job holds the queue;
    and not while a lost claim's trainer is still leaving: its job might come back to us under a new claim. Owners
    with `entering_jobs` jobs on their way in are passed over: such a job may wait for a lock on its owner's table, or
    for memory, for as long as its owner likes.
    """
    pool = draft.pool
    if pool.claiming or holdup(pool) is not None:
        return
    entering = Counter(m.job.owner_oid for m in pool.members if _enters(m))
    passed_over = frozenset(owner for owner, jobs in entering.items() if jobs >= pool.entering_jobs)
    if pool.queue_empty and pool.passed_over <= passed_over:
        return
    draft.pool = replace(pool, claiming=True, passed_over=passed_over)
    draft.order(ClaimNext(passed_over=passed_over))


def _enters(member: Member) -> bool:
    return member.stage is not Stage.ENDING and (member.stage is not Stage.RUNNING or member.generation == 0)


def _holds_back(member: Member) -> bool:
    if member.stage is Stage.ENDING:
        return isinstance(member.outcome, Lost)
    return member.stage is Stage.CLAIMED or holds_queue(member)
