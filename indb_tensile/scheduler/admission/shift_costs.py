"""What it costs that a running job leaves the device and returns, and whether it may leave now.

A job that leaves waits in the host pool. If as many jobs as the setting `parked_jobs` wait there already, it *saves*:
it writes a checkpoint and goes back to the queue, and is later prepared and started anew. That costs more, so its
quantum is longer, and it does not leave before that is over. No job leaves if there is a place, but no room for its
state beside one region, which stays free for the swaps of other jobs.
"""

from collections.abc import Sequence

from indb_tensile.scheduler.admission.completion_rule import demand_of
from indb_tensile.scheduler.admission.decision import planned
from indb_tensile.scheduler.admission.fair_turns import is_early_rank
from indb_tensile.scheduler.admission.overheads import state_bytes
from indb_tensile.scheduler.admission.parking import free_places
from indb_tensile.scheduler.admission.pool import Member, Pool
from indb_tensile.scheduler.completion.shifts import CHANGE_SHARE
from indb_tensile.scheduler.host_memory import parked_bytes

# The trainer's part of a change beside its copies: buffers, graphs that are recorded anew, messages. `bench trace`
# assumes as much.
_HAND_OVER_NS = 100_000_000


def change_ns(pool: Pool, member: Member, *, saves: bool = False) -> float:
    """Return the time in which the job's state leaves the device and returns."""
    if pool.link is None or member.workload is None:
        return float("inf")
    moved_bytes = parked_bytes(member.workload.graphs)
    parked_ns = pool.link.out_ns(moved_bytes) + pool.link.in_ns(moved_bytes) + _HAND_OVER_NS
    return parked_ns + _restart_ns(pool, member) if saves else parked_ns


def quantum_ns(pool: Pool, member: Member, *, saves: bool = False) -> float:
    """Return how long a job trains at least before it leaves the device for another, in its time alone."""
    return change_ns(pool, member, saves=saves) / CHANGE_SHARE


def is_in_quantum(pool: Pool, member: Member, *, saves: bool = False) -> bool:
    """Return whether the job has trained for less than its quantum since it came to the device."""
    return (member.turn_steps - member.steps_left) * member.alone_ns < quantum_ns(pool, member, saves=saves)


def may_leave(pool: Pool, member: Member, *, saves: bool = False) -> bool:
    """Return whether the job has had its quantum, and goes on for longer than a change takes."""
    if member.job.gang is not None:  # the other devices of its job would wait for it
        return False
    if member.yielded and any(is_early_rank(pool, other) for other in pool.members):
        return False
    return not is_in_quantum(pool, member, saves=saves) and is_worth_a_change(pool, member, saves=saves)


def may_leave_early(pool: Pool, member: Member) -> bool:
    """Return whether the job may make way, before its quantum is over, for jobs that have not begun to train."""
    if member.job.gang is not None:
        return False
    whole_ns = member.steps * member.alone_ns
    begun = member.steps_left < member.turn_steps  # its user has seen its first step
    return begun and not member.parks and whole_ns >= quantum_ns(pool, member) and is_worth_a_change(pool, member)


def is_worth_a_change(pool: Pool, member: Member, *, saves: bool = False) -> bool:
    """Return whether the job goes on for longer than a change takes."""
    return member.steps_left * member.alone_ns > change_ns(pool, member, saves=saves)


def have_room(pool: Pool, leaving: Sequence[Member]) -> bool:
    """Return whether the host pool has room, beside one region that stays free, for those that will wait there."""
    parked = sorted(leaving, key=lambda member: member.job.claim)[: max(0, free_places(pool))]
    needed_bytes = sum(max(0, parked_bytes(planned(m).graphs) - m.host_bytes) for m in parked)
    return not parked or needed_bytes + pool.region_bytes <= pool.free_host_bytes


def _restart_ns(pool: Pool, member: Member) -> float:
    """Return the time until a job that was saved has been prepared and has started up. To save it is taken to be as
    long as to publish a version.
    """
    if pool.prepare_s is None:
        return float("inf")
    demand, size_bytes = demand_of(pool, member), state_bytes(planned(member).graphs[0])
    return pool.prepare_s * 1e9 + pool.overheads.startup_ns(demand.kind, size_bytes) + demand.closing_ns
