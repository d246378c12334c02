"""The ways in which tensile+ divides a budget between jobs: along their curves, in equal parts, or by their peaks.

A job's curve has the time of an iteration over its peak. Along the curves, each byte is taken where the slowdown for
it is least. The planner simulates the plans of several divisions and decides between them (tensile_plus.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from indb_tensile.scheduler.policies.job_candidates import JobCandidates
from indb_tensile.scheduler.policies.quotas import equal_parts, parts_by_peak
from indb_tensile.scheduler.search.candidate import CandidatePlan

_LEAST_RATE = 0.01
_LANE_PRICE = 0.01
_STEEP = 3  # The power of a job's slowdown in the division that counts slow jobs more.

# Gets the jobs, what each needs at least and can use at most, and the budget, in bytes. Returns each job's part.
Division = Callable[[Sequence[JobCandidates], Sequence[int], Sequence[int], int], tuple[int, ...]]


def along_curves(
    jobs: Sequence[JobCandidates], leasts: Sequence[int], caps: Sequence[int], budget_bytes: int, *, power: int = 1
) -> tuple[int, ...]:
    """Divide the budget so that no job is above its own cap or below what its graphs need."""
    curves = [
        [
            _bounded(candidate, least, cap, job.curve()[0].iteration_ns, power, job.workload.others_ns)
            for candidate in job.curve()
        ]
        for job, least, cap in zip(jobs, leasts, caps, strict=True)
    ]
    weights = [1 / max(_LEAST_RATE, job.workload.max_swapping_rate) for job in jobs]
    return divide_by_curves(curves, weights, budget_bytes)


def along_steep_curves(
    jobs: Sequence[JobCandidates], leasts: Sequence[int], caps: Sequence[int], budget_bytes: int
) -> tuple[int, ...]:
    """Divide the budget for the least sum of powers of the slowdowns, so that no slowdown is much
    larger than others.
    """
    return along_curves(jobs, leasts, caps, budget_bytes, power=_STEEP)


def equally(
    jobs: Sequence[JobCandidates], leasts: Sequence[int], caps: Sequence[int], budget_bytes: int
) -> tuple[int, ...]:
    """Give each job an equal part, within what it needs and can use."""
    return equal_parts(leasts, caps, budget_bytes)


def _part_of_the_way(
    jobs: Sequence[JobCandidates], leasts: Sequence[int], caps: Sequence[int], budget_bytes: int, *, way: float
) -> tuple[int, ...]:
    """Divide the budget a fraction `way` of the way from equal parts to the division along the curves."""
    equal = equally(jobs, leasts, caps, budget_bytes)
    along = along_curves(jobs, leasts, caps, budget_bytes)
    return tuple(part + int(way * (other - part)) for part, other in zip(equal, along, strict=True))


# further on, jobs starve as they do along the curves
BETWEEN = tuple(partial(_part_of_the_way, way=way) for way in (0.25, 0.5))


def by_peak(
    jobs: Sequence[JobCandidates], leasts: Sequence[int], caps: Sequence[int], budget_bytes: int
) -> tuple[int, ...]:
    """Give each job the same share of what it would use without a plan."""
    return parts_by_peak(leasts, caps, budget_bytes)


def _bounded(
    candidate: CandidatePlan, least_bytes: int, cap_bytes: int, fastest_ns: int, power: int, others_ns: int
) -> CandidatePlan:
    peak_bytes = max(least_bytes, min(cap_bytes, candidate.peak_bytes))
    iteration_ns, fastest_ns = max(candidate.iteration_ns, others_ns), max(fastest_ns, others_ns)
    if power > 1:
        iteration_ns = round(fastest_ns * (iteration_ns / fastest_ns) ** power)
    return replace(candidate, peak_bytes=peak_bytes, iteration_ns=iteration_ns)


def divide_by_curves(
    curves: Sequence[Sequence[CandidatePlan]], weights: Sequence[float], budget_bytes: int
) -> tuple[int, ...]:
    """Return the limit of each job's peak, from curves of falling peaks: the least weighted slowdown for the bytes.

    Starting from the first candidate of each curve, the step down with the least slowdown for each byte is taken,
    relative to the curve's fastest candidate. A step may skip candidates, because only the convex hull of the curve
    matters. Excess bytes of the last step are given back.
    """
    at = [0] * len(curves)
    while sum(c[k].peak_bytes for c, k in zip(curves, at, strict=True)) > budget_bytes:
        steps = [_step(number, c, at[number], weights[number]) for number, c in enumerate(curves)]
        offers = [step for step in steps if step is not None]
        if not offers:
            break
        _, number, at[number] = min(offers)
    caps = [c[k].peak_bytes for c, k in zip(curves, at, strict=True)]
    spare_bytes = max(0, budget_bytes - sum(caps))
    for number in sorted(range(len(curves)), key=lambda n: (-_left(curves[n], at[n]), n)):
        raised = min(caps[number] + spare_bytes, curves[number][0].peak_bytes)
        spare_bytes -= raised - caps[number]
        caps[number] = raised
    return tuple(caps)


def _step(number: int, curve: Sequence[CandidatePlan], at: int, weight: float) -> tuple[float, int, int] | None:
    """Return the cheapest step down this curve: weighted slowdown for each byte, number of the curve, and target
    candidate.
    """
    steps = [
        (weight * (_cost_ns(candidate) - _cost_ns(curve[at])) / curve[0].iteration_ns / lower, number, k)
        for k, candidate in enumerate(curve[at + 1 :], at + 1)
        if (lower := curve[at].peak_bytes - candidate.peak_bytes) > 0
    ]
    return min(steps, default=None)


def _left(curve: Sequence[CandidatePlan], at: int) -> float:
    """Return the slowdown that one more byte removes at this candidate, relative to the fastest candidate."""
    if at == 0:
        return 0.0
    higher, lower = curve[at - 1], curve[at]
    return (
        (lower.iteration_ns - higher.iteration_ns)
        / curve[0].iteration_ns
        / (higher.peak_bytes - lower.peak_bytes + 1)
    )


def _cost_ns(candidate: CandidatePlan) -> float:
    """Return the time, plus a little for copies that cost no time now, because they may meet other jobs' copies."""
    return candidate.iteration_ns + _LANE_PRICE * candidate.lane_ns
