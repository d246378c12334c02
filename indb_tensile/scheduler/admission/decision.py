"""A decision that is being made: the pool after the decision, and the orders so far."""

from dataclasses import replace

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.admission.admission_orders import EndMethod, EndTrainer, Order, SetGrant, SetWaitsFor
from indb_tensile.scheduler.admission.pool import JobStage, Member, Outcome, Planner, PlanReason, Pool
from indb_tensile.scheduler.link import FREE_COPIES
from indb_tensile.scheduler.timing.rank_steps import latencies_without_waits
from indb_tensile.scheduler.workload import Workload


class Decision:
    """A decision that is being made: the pool after the decision, and the orders so far."""

    def __init__(self, pool: Pool, planner: Planner) -> None:
        self.pool = pool
        self.planner = planner
        self.orders: list[Order] = []

    def order(self, order: Order) -> None:
        """Append an order."""
        self.orders.append(order)

    def put(self, member: Member) -> Member:
        """Replace the member of the same claim. Return the new member."""
        claim = member.job.claim
        members = tuple(member if m.job.claim == claim else m for m in self.pool.members)
        self.pool = replace(self.pool, members=members)
        return member

    def grant(self, member: Member, grant_bytes: int) -> Member:
        """Set this member's grant in the ledger. Raises InvariantError if a higher grant exceeds the budget.

        After a lower grant, the memory that the member gives back is not free until the ledger confirms it.
        """
        if grant_bytes == member.granted_bytes or member.trainer is None:
            return member
        if grant_bytes - member.held_bytes > self.pool.free_bytes:
            raise InvariantError(
                f"job {member.job.job}: a grant of {grant_bytes} bytes instead of {member.held_bytes} exceeds the "
                f"budget of {self.pool.budget_bytes} bytes, of which {self.pool.held_bytes} are held"
            )
        self.order(SetGrant(trainer=member.trainer, grant_bytes=grant_bytes))
        held_bytes = max(member.held_bytes, grant_bytes)
        return self.put(replace(member, granted_bytes=grant_bytes, held_bytes=held_bytes))

    def end(self, member: Member, outcome: Outcome, method: EndMethod) -> None:
        """End the member's trainer. The outcome is written when the trainer has exited and its memory is free."""
        if member.trainer is None:
            raise InvariantError(f"job {member.job.job} has no trainer to end")
        self.order(EndTrainer(trainer=member.trainer, method=method))
        self.put(replace(member, stage=JobStage.ENDING, outcome=outcome, target=None))

    def wait(self, member: Member, text: str | None) -> Member:
        """Set the text that says what the member waits for, if the text has changed."""
        if text is not None and member.made_way:
            text = f"{text}; {member.made_way}"
        if member.waits_for == text:
            return member
        self.order(SetWaitsFor(job=member.job.job, claim=member.job.claim, text=text))
        return self.put(replace(member, waits_for=text))

    def plan_anew(self, reason: PlanReason) -> None:
        """Mark all jobs to be planned anew, with the latencies known now. A drift adds nothing if planning is due
        already.

        Later measurements wait until the next time: a question that changed with every report would never be answered
        in time.
        """
        if self.pool.due is not None and reason is PlanReason.DRIFT:
            return
        self.pool = replace(self.pool, due=reason, members=tuple(map(_with_corrected_latencies, self.pool.members)))


def _with_corrected_latencies(member: Member) -> Member:
    if member.workload is None:
        return member
    known_ns, true_ns = member.workload.latency_ns[0], true_latencies(member)
    is_known = known_ns is true_ns or known_ns == true_ns  # thousands of operators in most jobs
    if is_known and member.workload.others_ns == member.others.needed_ns:
        return member
    return replace(member, workload=corrected(member))


def corrected(member: Member) -> Workload:
    """Return the member's workload with the training step's latencies as corrected by measurements.

    If they were measured beside copies, what these cost operators is in them. A rank's do not contain its waits for
    other ranks, as far as these are known.
    """
    workload = planned(member)
    return replace(
        workload,
        latency_ns=(true_latencies(member), *workload.latency_ns[1:]),
        copy_loss=FREE_COPIES if member.copies_measured else workload.copy_loss,
        others_ns=member.others.needed_ns,
    )


def true_latencies(member: Member) -> tuple[int, ...]:
    """Return the latencies as corrected by measurements, without what a rank waits for others at its exchanges."""
    if member.workload is None or not member.measured:
        return member.corrected_ns
    return latencies_without_waits(member.workload.graphs[0], member.corrected_ns, member.others)


def planned(member: Member) -> Workload:
    """Return the member's workload with the latencies of its present or next plan."""
    if member.workload is None:
        raise InvariantError(f"job {member.job.job} is {member.stage} without a workload")
    return member.workload
