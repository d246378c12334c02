"""Plans that fit into a budget when their tensors have addresses, in whole regions.

A planner counts what tensors hold at each moment. What a job takes is its placement: SmartPool's (placement.py) comes
within 1 % of that load as a rule, and a device gives whole regions. So a job is granted its placement, and where gaps
and rounding are what does not fit, the planner is asked again for as much less.

Each job's plan is placed from offset 0 in a range of addresses of its own, and not all jobs in one address space of
the device, as it was designed at first. The trainer maps whatever regions it was granted into that range one behind
the other (native/device/window.hpp), so which ones they are, and whether they are neighbours, is nobody's concern:

- there is no fragmentation across jobs: a grant fits wherever as many regions are free, and a job that comes, grows,
  shrinks or goes moves nobody else. In one address space each would need a run of neighbours, or all be placed anew.
- a job's offsets depend on its graph and plan alone: they are computed once, and the same on every machine.
- it costs a mapping for each region when a plan is taken up, none while it is followed. Emulated: 170 us to map a
  region of 1 MiB, its 256 pages' tables filled, and 70 us to unmap it (two cores, 512 regions). On a GPU, where a
  region has 64 MiB, `tests/gpu` reports the time for 1,280 of them; it has not been measured yet.

One address space would let a job put tensors into its neighbours' gaps. Those are gaps in time, within an iteration,
and the neighbours' iterations keep no step with each other: only what is free during a whole iteration could be lent,
which is what the last region's rounding leaves, less than a region for each job. SmartPool's own gaps, within 1 % of
the load, are as large in either. Should jobs ever run in lock-step (Zico), their tensors can be placed together.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.admission.pool import Planner, Pool
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.workload import Workload

_PATIENCE = 4  # times to ask for just what is too much less; from then on for twice, four times, ... that

Plans = tuple[JobPlan, ...]


def fit(planner: Planner, pool: Pool, workloads: Sequence[Workload], *, budget_bytes: int) -> Plans | Infeasible:
    """Plans whose placements fit into the budget together, and each into its job's own limit.

    A job that has no such plan even with the device to itself gets one that cannot be placed: its tensors are in
    ordinary memory then, and its grant is what they hold.
    """
    if not workloads:
        return ()
    room_bytes = asked_bytes = pool.whole(max(0, budget_bytes))
    asked: Sequence[Workload] = [beside(pool, w) for w in workloads]
    loose: list[Plans] = []  # those that do not fit when they are placed
    for attempt in count():
        plans = _planned(planner, pool, asked, asked_bytes)
        if isinstance(plans, Infeasible):
            refusal = plans
            break
        if fits(planner, pool, workloads, plans, budget_bytes=room_bytes):
            return plans
        loose.append(plans)
        harder = 1 << max(0, attempt - _PATIENCE)
        asked = [_limited(planner, pool, *one, harder) for one in zip(asked, workloads, plans, strict=True)]
        excess_bytes = max(0, _taken_bytes(planner, pool, workloads, plans) - room_bytes)
        held_bytes = sum(plan.peak_bytes for plan in plans)
        least_bytes = sum(planner.least_bytes(w) for w in workloads)
        asked_bytes = held_bytes - harder * excess_bytes
        if asked_bytes < least_bytes < held_bytes:
            asked_bytes = least_bytes
    if not loose:
        return replace(refusal, budget_bytes=room_bytes)
    if len(workloads) == 1 and grant_of(planner, pool, workloads[0], loose[-1][0]) <= room_bytes:
        return loose[0]
    needed_bytes = _taken_bytes(planner, pool, workloads, loose[-1])
    return Infeasible(needed_bytes=needed_bytes, budget_bytes=room_bytes, reason="no room for whole regions")


def beside(pool: Pool, workload: Workload) -> Workload:
    """The workload with what its job has of the host pool now: other jobs' plans must leave it that."""
    member = pool.of_job(workload.job)
    return workload if member is None else replace(workload, host_bytes=member.host_bytes)


def fits(
    planner: Planner, pool: Pool, workloads: Sequence[Workload], plans: Sequence[JobPlan], *, budget_bytes: int
) -> bool:
    """Whether the plans, as they are placed, keep to the budget together and each to its job's own limit."""
    limited = all(_excess_bytes(planner, pool, *one) == 0 for one in zip(workloads, plans, strict=True))
    return limited and _taken_bytes(planner, pool, workloads, plans) <= budget_bytes


def grant_of(planner: Planner, pool: Pool, workload: Workload, plan: JobPlan) -> int:
    """What the plan takes when it is placed; what it holds, where there is no such place on the device."""
    taken_bytes = _taken_bytes(planner, pool, (workload,), (plan,))
    placeable = taken_bytes <= pool.whole(pool.budget_bytes) and not _excess_bytes(planner, pool, workload, plan)
    return taken_bytes if placeable else pool.regions(plan.peak_bytes)


def _planned(planner: Planner, pool: Pool, workloads: Sequence[Workload], budget_bytes: int) -> Plans | Infeasible:
    if budget_bytes <= 0:
        needed_bytes = sum(pool.regions(planner.least_bytes(w)) for w in workloads)
        return Infeasible(needed_bytes=needed_bytes, budget_bytes=0, reason="no room for whole regions")
    plans = planner.plan(tuple(workloads), budget_bytes=budget_bytes)
    if not isinstance(plans, Infeasible) and sum(plan.peak_bytes for plan in plans) > budget_bytes:
        used = [plan.peak_bytes for plan in plans]
        raise InvariantError(f"the planner was given {budget_bytes} bytes and used {used}")
    return plans


def _taken_bytes(planner: Planner, pool: Pool, workloads: Sequence[Workload], plans: Sequence[JobPlan]) -> int:
    pairs = zip(workloads, plans, strict=True)
    return sum(pool.regions(planner.placed_bytes(w, p, region_bytes=pool.region_bytes)) for w, p in pairs)


def _excess_bytes(planner: Planner, pool: Pool, workload: Workload, plan: JobPlan) -> int:
    """By how much a placement exceeds the job's own limit, in whole regions."""
    if workload.limit_bytes is None:
        return 0
    return max(0, _taken_bytes(planner, pool, (workload,), (plan,)) - pool.regions(workload.limit_bytes))


def _limited(planner: Planner, pool: Pool, asked: Workload, own: Workload, plan: JobPlan, harder: int) -> Workload:
    excess_bytes = _excess_bytes(planner, pool, own, plan)
    return replace(asked, limit_bytes=plan.peak_bytes - harder * excess_bytes) if excess_bytes else asked
