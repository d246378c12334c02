"""Chooses whether the devices of a training divide the optimizer's state, if the request leaves that open.

With the state divided a step needs less memory, and it has a few more exchanges. So the state stays whole where all
of it fits without a swap. Where it does not, rank 0 plans both steps for the memory of each device, and takes the one
whose iterations on all devices together are foretold to be faster. All ranks follow. The choice is made anew for each
attempt, and no bit depends on it: a checkpoint of either step goes on with the other.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from indb_tensile.executor.capture.storage_layout import Value
from indb_tensile.job import JobId
from indb_tensile.scheduler.graph import StepGraph
from indb_tensile.scheduler.link import CopyLoss, Link
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import plan_jobs
from indb_tensile.scheduler.timing.simulate_ranks import RankRun, simulate_ranks
from indb_tensile.scheduler.workload import Workload
from indb_tensile.sizes import size

from .training_events import EventHistory

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChoice:
    """What was chosen for devices of which the smallest has `budget_bytes`, and the foretold times of an iteration.

    Without `planned` there are none, because the whole state fits. A time is None if no plan fits.
    """

    divides: bool
    budget_bytes: int
    planned: bool = False
    whole_ns: int | None = None
    divided_ns: int | None = None

    @property
    def reason(self) -> str:
        """Why this was chosen, in words; empty if nothing was planned."""
        if not self.planned:
            return ""
        times = (
            f"with the state divided {_foretold(self.divided_ns)}, with the whole state {_foretold(self.whole_ns)}"
        )
        return f"within the {size(self.budget_bytes)} of a device {times}"


class PlannedSteps(Protocol):
    """What is used of the captured steps of a job."""

    @property
    def graphs(self) -> tuple[StepGraph, ...]:
        """The step graphs, in order."""
        ...

    @property
    def latency_ns(self) -> tuple[tuple[int, ...], ...]:
        """The best known latency of each operator."""
        ...

    @property
    def copy_loss(self) -> CopyLoss:
        """What copies cost operators beside them."""
        ...

    def rank_run(self, plan: Plan, *, link: Link, host: str) -> RankRun:
        """Return a rank on this host that runs the training step under the plan."""
        ...


def choose_state(
    job: JobId,
    whole: PlannedSteps,
    divided: Callable[[], PlannedSteps],
    *,
    budgets: Sequence[tuple[str, int]],
    link: Link,
    policy: str,
) -> StateChoice:
    """Return the choice. `divided` captures the steps with the state divided, where they count.

    `budgets` has the host of each device and the bytes that it can give. Equal arguments give equal choices. If both
    are equally fast, or neither fits, the state stays whole.
    """
    budget_bytes = min(size_bytes for _, size_bytes in budgets)
    if max(map(liveness_peak, whole.graphs)) <= budget_bytes:
        return StateChoice(divides=False, budget_bytes=budget_bytes)

    def foretold_ns(steps: PlannedSteps) -> int | None:
        workload = Workload(job=job, graphs=steps.graphs, latency_ns=steps.latency_ns, copy_loss=steps.copy_loss)
        plans: dict[int, Plan] = {}
        for size_bytes in sorted({size_bytes for _, size_bytes in budgets}):
            answer = plan_jobs((workload,), budget_bytes=size_bytes, link=link, policy=policy)
            if isinstance(answer, Infeasible):
                return None
            plans[size_bytes] = answer[0].plans[0]
        ranks = [steps.rank_run(plans[size_bytes], link=link, host=host) for host, size_bytes in budgets]
        return max(rank.forecast.iteration_ns for rank in simulate_ranks(ranks))

    whole_ns, divided_ns = foretold_ns(whole), foretold_ns(divided())
    return StateChoice(
        divides=divided_ns is not None and (whole_ns is None or divided_ns < whole_ns),
        budget_bytes=budget_bytes,
        planned=True,
        whole_ns=whole_ns,
        divided_ns=divided_ns,
    )


def tell_state(history: EventHistory, divided: Sequence[tuple[Value, int]], *, divides: bool, reason: str) -> None:
    """Add an event that says how much of the optimizer's state a device keeps. `divided` has owners of its values.

    No event says that each device keeps the whole state, unless there is a reason to say so.
    """
    if not divides and not reason:
        return
    kept_bytes = Counter[int]()
    for value, owner in divided:
        kept_bytes[owner] += math.prod(value.shape) * value.dtype.itemsize
    whole_bytes = sum(kept_bytes.values())
    own_bytes = max(kept_bytes.values(), default=0) if divides else whole_bytes
    kept = f"a device keeps {size(own_bytes)} of the optimizer's state"
    message = f"{kept}, of {size(whole_bytes)} in all" if divides else f"{kept}, all of it"
    detail = {"divided": divides, "device_bytes": own_bytes, "whole_bytes": whole_bytes}
    history.tell("optimizer_state", {"message": f"{message}: {reason}" if reason else message, **detail})


def _foretold(ns: int | None) -> str:
    return "no plan fits" if ns is None else f"an iteration is foretold to take {ns / _NS_PER_MS:.3g} ms"
