"""Foretells the iteration of a training on devices of several sizes, each under its own plan, and the slowest one.

Which devices will train is not known before the job is claimed. So these are the ones with the largest budgets of
their kind, and the job is foretold alone on them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import JobPlan
from indb_tensile.scheduler.timing.simulate_ranks import RankRun, simulate_ranks
from indb_tensile.sizes import size

_NS_PER_MS = 1_000_000
_ALMOST = 1.05  # a device that needs so little more time than the others is not named


@dataclass(frozen=True, slots=True, kw_only=True)
class GangOutline:
    """The foretold iteration of all devices together, and what is to be said about them in words."""

    iteration_ns: int
    text: str


def outline_gang(
    devices: Sequence[tuple[str, int]],
    plan_within: Callable[[int], JobPlan | Infeasible],
    rank_run: Callable[[Plan, str], RankRun],
) -> GangOutline | None:
    """Return the outline for devices of these hosts and bytes of memory; None if they all have the same.

    `plan_within` plans the job alone within so many bytes, and `rank_run` returns a rank under a plan on a host.
    """
    if len({size_bytes for _, size_bytes in devices}) < 2:
        return None
    answers = {size_bytes: plan_within(size_bytes) for size_bytes in sorted({own for _, own in devices})}
    runs: list[RankRun] = []
    for host, size_bytes in devices:
        answer = answers[size_bytes]
        if isinstance(answer, Infeasible):
            return GangOutline(
                iteration_ns=0,
                text=f"one of the {len(devices)} largest devices is too small: that of {host} has a budget of "
                f"{size(size_bytes)}, and the job needs {size(answer.needed_bytes)}",
            )
        runs.append(rank_run(answer.plans[0], host))
    together_ns = max(own.forecast.iteration_ns for own in simulate_ranks(runs))
    alone_ns = [simulate_ranks([run])[0].forecast.iteration_ns for run in runs]
    slow_ns, slowest = max((ns, place) for place, ns in enumerate(alone_ns))
    text = f"an iteration of {len(devices)} devices is foretold to take {together_ns / _NS_PER_MS:.3g} ms"
    if slow_ns > _ALMOST * min(alone_ns):
        host, size_bytes = devices[slowest]
        text += f", and the slowest device is that of {host}, with a budget of {size(size_bytes)}"
    return GangOutline(iteration_ns=together_ns, text=text)
