"""A job that needs more memory than was planned: its workloads are corrected, and all jobs are planned anew.

A workspace is measured before a job trains. If an operator needs more in an iteration, the trainer reports its graphs
with the measured workspaces. The job then grows at one of its next boundaries if memory is free, and other jobs
shrink if not. If the jobs do not fit together any more, the youngest goes back to the queue, as it does when the
budget is lowered. Only a job that the whole budget cannot hold fails, with the operator that outgrew its plan.

A trainer may also be unable to place a block for which it has the regions, because other memory of its own lies in
them. Its tensors have then left the block, and the controller sends the trainer its plan once more.
"""

from dataclasses import replace

from indb_tensile.errors import InvariantError
from indb_tensile.job import Blame
from indb_tensile.scheduler.admission.admission_orders import EndMethod
from indb_tensile.scheduler.admission.decision import Decision, planned
from indb_tensile.scheduler.admission.events import Correction, Misplacement
from indb_tensile.scheduler.admission.oversized_job import least_limit, too_large
from indb_tensile.scheduler.admission.pool import Broken, Fault, Interrupted, JobStage, Member, Outcome, PlanReason
from indb_tensile.scheduler.admission.region_fit import fit
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.workload import Workload

MOST_MISPLACED = 3  # further attempts to place the same job's block would hardly succeed, and each moves its state


def correct_memory(decision: Decision, correction: Correction) -> None:
    """Give the job's workload its measured workspaces, and have all jobs planned anew.

    A plan that was decided for the old workspaces and not sent yet is dropped.
    """
    member = decision.pool.of_trainer(correction.trainer)
    if member is None or member.workload is None or member.stage is JobStage.ENDING:
        return
    if correction.number <= member.correction:
        return
    try:
        workload = _with_graphs(member.workload, correction)
    except InvariantError as error:
        decision.end(member, Broken(fault=Fault.of(error)), EndMethod.TERMINATE)
        return
    decision.put(
        replace(
            member,
            workload=workload,
            trade_offs=(),
            correction=correction.number,
            outgrown=correction.outgrown,
            target=None,
        )
    )
    decision.plan_anew(PlanReason.MEMORY)


def place_again(decision: Decision, misplacement: Misplacement) -> None:
    """Send a job its plan once more, unless its trainer was unable to place several in a row."""
    member = decision.pool.of_trainer(misplacement.trainer)
    if member is None or member.stage is not JobStage.RUNNING or misplacement.generation != member.adopted:
        return
    in_a_row = member.misplaced + 1 if misplacement.generation == member.misplaced_generation + 1 else 1
    member = replace(member, misplaced=in_a_row, misplaced_generation=misplacement.generation)
    if in_a_row > MOST_MISPLACED or misplacement.block_bytes > member.planned_bytes:
        decision.put(member)
        return
    decision.put(replace(member, resend=True))
    decision.plan_anew(PlanReason.MEMORY)


def make_memory(decision: Decision, reason: PlanReason) -> bool:
    """End one of the jobs that do not fit together since a workspace was corrected. Return False if none was.

    In this order: a job that cannot be held at all; a job whose owner's other jobs leave too little of its quota; the
    youngest job.
    """
    outgrown = [m for m in decision.pool.at(JobStage.RUNNING) if m.planned_correction < m.correction]
    for member in outgrown:
        own_bytes = least_limit(member.job.spec.memory_limit_bytes, member.job.owner_limit_bytes)
        alone = _alone(decision, replace(planned(member), limit_bytes=own_bytes))
        if isinstance(alone, Infeasible):
            return _end(decision, member, too_large(decision, member, alone), reason)
    for member in outgrown:
        if isinstance(_alone(decision, planned(member)), Infeasible):
            return _end(decision, member, _set_back(member, "its owner's other jobs leave it too little"), reason)
    if not outgrown:
        return False
    youngest = decision.pool.at(JobStage.RUNNING, JobStage.CALIBRATING)[-1]
    return _end(decision, youngest, _set_back(outgrown[0], f"job {outgrown[0].job.job} had to grow"), reason)


def _with_graphs(workload: Workload, correction: Correction) -> Workload:
    """Return the workload with larger workspaces. Raise InvariantError if anything else differs."""
    job, before, after = workload.job, workload.graphs, correction.graphs
    if [len(g.operators) for g in before] != [len(g.operators) for g in after]:
        raise InvariantError(f"job {job}: a correction has {len(after)} graphs with other operators than the first")
    return replace(workload, graphs=after)


def _alone(decision: Decision, workload: Workload) -> object:
    return fit(decision.planner, decision.pool, (workload,), budget_bytes=decision.pool.budget_bytes)


def _set_back(outgrown: Member, why: str) -> Interrupted:
    operators = "; ".join(f"operator {operator}" for operator in outgrown.outgrown)
    return Interrupted(reason=f"{why}: {operators}", blame=Blame.NOBODY)


def _end(decision: Decision, member: Member, outcome: Outcome, reason: PlanReason) -> bool:
    decision.end(member, outcome, EndMethod.TERMINATE)
    decision.plan_anew(reason)
    return True
