"""Find plans that fit into a budget when their tensors have addresses, in whole regions.

A planner counts the bytes of the resident tensors at each moment. A job takes the size of its placement: SmartPool's
(tensor_placement.py) is usually within 1 % of that load, and a device gives whole regions. A job is therefore granted
the size of its placement. If a plan does not fit only because of gaps between tensors and rounding, the planner is
asked again for that much less.

Each job's plan is placed from offset 0 in a range of addresses of its own. The first design placed all jobs in one
address space of the device. Now the trainer maps the regions that it was granted into its range one behind the other
(native/device/window.hpp), so it does not matter which regions they are and whether they are neighbours:

- There is no fragmentation across jobs. A grant fits wherever enough regions are free, and a job that comes, grows,
  shrinks or goes moves no other job. In one address space each job would need a run of neighbours, or all jobs would
  be placed anew.
- A job's offsets depend on its graph and plan alone. They are computed once, and are the same on every machine.
- The cost is a mapping for each region when a plan is adopted, and nothing while it is followed. Emulated: 170 us to
  map a region of 1 MiB, with its 256 pages' tables filled, and 70 us to unmap it (two cores, 512 regions). On a GPU,
  where a region has 64 MiB, `tests/gpu` reports the time for 1,280 of them; it has not been measured yet.

In one address space a job could put tensors into its neighbours' gaps. Those are gaps in time, within an iteration,
and the neighbours' iterations are not synchronized. Only memory that is free during a whole iteration could be lent:
the rest of the last region, less than a region for each job. SmartPool's own gaps, within 1 % of the load, are as
large in either design. If jobs ever run in lock-step (Zico), their tensors can be placed together.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from indb_tensile.errors import InvariantError
from indb_tensile.scheduler.admission.parking import parked_host_bytes
from indb_tensile.scheduler.admission.pool import Planner, Pool
from indb_tensile.scheduler.plan import Infeasible
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.workload import Workload

# Attempts that ask for exactly the excess less. Later attempts ask for twice, four times, ... the excess less.
_GENTLE_ATTEMPTS = 4
_MOST_LOST = 0.01  # share of the memory that the first attempt may leave to rounding

Plans = tuple[JobPlan, ...]


def fit(planner: Planner, pool: Pool, workloads: Sequence[Workload], *, budget_bytes: int) -> Plans | Infeasible:
    """Return plans whose placements fit into the budget together, and each into its job's own limit.

    A job for which no such plan exists even with the device to itself gets a plan that cannot be placed. Its tensors
    are then in ordinary memory, and its grant is the plan's peak.
    """
    if not workloads:
        return ()
    room_bytes = pool.whole(max(0, budget_bytes))
    requested_bytes = room_bytes - _rounding_bytes(pool, len(workloads), room_bytes)
    requested: Sequence[Workload] = [beside(pool, w) for w in workloads]
    unplaceable: list[Plans] = []  # plans that do not fit when they are placed
    for attempt in count():
        plans = _planned(planner, pool, requested, requested_bytes)
        if isinstance(plans, Infeasible) and attempt == 0 and requested_bytes < room_bytes:
            requested_bytes = room_bytes
            continue
        if isinstance(plans, Infeasible):
            refusal = plans
            break
        if fits(planner, pool, workloads, plans, budget_bytes=room_bytes):
            return plans
        unplaceable.append(plans)
        harder = 1 << max(0, attempt - _GENTLE_ATTEMPTS)
        requested = [
            _limited(planner, pool, *arguments, harder) for arguments in zip(requested, workloads, plans, strict=True)
        ]
        excess_bytes = max(0, _taken_bytes(planner, pool, workloads, plans) - room_bytes)
        peaks_bytes = sum(plan.peak_bytes for plan in plans)
        least_bytes = sum(planner.least_bytes(w) for w in workloads)
        requested_bytes = peaks_bytes - harder * excess_bytes
        if requested_bytes < least_bytes < peaks_bytes:
            requested_bytes = least_bytes
    if not unplaceable:
        return replace(refusal, budget_bytes=room_bytes)
    if len(workloads) == 1 and grant_of(planner, pool, workloads[0], unplaceable[-1][0]) <= room_bytes:
        return unplaceable[0]
    needed_bytes = _taken_bytes(planner, pool, workloads, unplaceable[-1])
    return Infeasible(needed_bytes=needed_bytes, budget_bytes=room_bytes, reason="no room for whole regions")


def _rounding_bytes(pool: Pool, jobs: int, room_bytes: int) -> int:
    """Return the bytes that rounding to whole regions may cost jobs that share the memory, or 0 if that is too much.

    Without them, most first attempts would fail by less than a region for each job.
    """
    lost_bytes = jobs * pool.region_bytes if jobs > 1 else 0
    return lost_bytes if lost_bytes <= _MOST_LOST * room_bytes else 0


def beside(pool: Pool, workload: Workload) -> Workload:
    """Return the workload with its job's present share of the host pool, which other jobs' plans must leave to it,
    and with the share of parked jobs, which all plans must leave to them.
    """
    member = pool.of_job(workload.job)
    if member is None:
        return workload
    occupied_bytes = parked_host_bytes(pool, workload.job)
    return replace(workload, host_bytes=member.host_bytes, parked_host_bytes=occupied_bytes)


def fits(
    planner: Planner, pool: Pool, workloads: Sequence[Workload], plans: Sequence[JobPlan], *, budget_bytes: int
) -> bool:
    """Return whether the placements of the plans fit the budget together, and each fits its job's own limit."""
    limited = all(_excess_bytes(planner, pool, *arguments) == 0 for arguments in zip(workloads, plans, strict=True))
    return limited and _taken_bytes(planner, pool, workloads, plans) <= budget_bytes


def grant_of(planner: Planner, pool: Pool, workload: Workload, plan: JobPlan) -> int:
    """Return the size of the plan's placement, or the plan's peak if it cannot be placed on the device."""
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
    """Return by how much a placement exceeds the job's own limit, in whole regions."""
    if workload.limit_bytes is None:
        return 0
    return max(0, _taken_bytes(planner, pool, (workload,), (plan,)) - pool.regions(workload.limit_bytes))


def _limited(
    planner: Planner, pool: Pool, requested: Workload, own: Workload, plan: JobPlan, harder: int
) -> Workload:
    """Return the request with a lower limit of the job's own if its placement exceeds that limit."""
    excess_bytes = _excess_bytes(planner, pool, own, plan)
    if not excess_bytes:
        return requested
    limit_bytes, least_bytes = plan.peak_bytes - harder * excess_bytes, planner.least_bytes(own)
    # The excess is in whole regions. So a job may exceed its limit by a byte, and could give no region.
    if limit_bytes < least_bytes < plan.peak_bytes:
        limit_bytes = least_bytes
    return replace(requested, limit_bytes=limit_bytes)
