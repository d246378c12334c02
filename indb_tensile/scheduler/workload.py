"""The input of a policy: one job's graphs with their latencies and limits."""

from dataclasses import dataclass

from indb_tensile.errors import InvariantError
from indb_tensile.job import JobId
from indb_tensile.scheduler.exchange_times import blocking_ns
from indb_tensile.scheduler.graph import StepGraph, Tensor
from indb_tensile.scheduler.link import FREE_COPIES, CopyLoss
from indb_tensile.scheduler.memory.peak import floor
from indb_tensile.scheduler.plan_cache import PlanCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One job to plan: the training step first, then its other graphs, which share its persistent tensors.

    `limit_bytes` is the most that this job's peak may be, whatever the budget. `max_swapping_rate` is TENSILE's
    priority (section IV-C): if the job's share of all swapped tensors exceeds this rate, other jobs are asked to swap
    first. A lower rate means a higher priority. `host_bytes` is the job's share of the pinned host pool until the job
    follows another plan. `parked_host_bytes` is the share of other jobs, which wait there until they return to the
    device; it is the same for all jobs that are planned together.

    `graph_share` is the time of an iteration that a GPU runs as one CUDA graph, as a share of its time operator by
    operator. The latencies are those in the graph. In a round no iteration runs as a graph (round_plans.py).

    `batch` names the tensors that the trainer uploads for the next iteration while the present one runs, where the
    plan has room (memory/next_batch.py). It is empty if the trainer never does. With `batch_beside` the job is lent
    memory for them beside its plan (admission/batch_loans.py). No plan is made with that: only forecasts know it.

    `others_ns` is the iteration that the other ranks of the job need, if several devices train it. A division of
    memory gains nothing by a faster one.

    `copy_loss` is what copies cost the operators beside them. It is nothing if the latencies were measured under a
    plan with copies, because it is in them.
    """

    job: JobId
    graphs: tuple[StepGraph, ...]
    latency_ns: tuple[tuple[int, ...], ...]
    limit_bytes: int | None = None
    max_swapping_rate: float = 1.0
    host_bytes: int = 0
    parked_host_bytes: int = 0
    graph_share: float = 1.0
    batch: tuple[str, ...] = ()
    batch_beside: bool = False
    copy_loss: CopyLoss = FREE_COPIES
    others_ns: int = 0

    def __post_init__(self) -> None:
        if not self.graphs or len(self.graphs) != len(self.latency_ns):
            raise InvariantError(f"job {self.job}: {len(self.latency_ns)} latency rows for {len(self.graphs)} graphs")
        for number, (graph, latency) in enumerate(zip(self.graphs, self.latency_ns, strict=True)):
            if len(latency) != len(graph.operators):
                count = len(graph.operators)
                raise InvariantError(
                    f"job {self.job}, graph {number}: {len(latency)} latencies for {count} operators"
                )
            if min(latency) < 0 or sum(latency) == 0:
                raise InvariantError(f"job {self.job}, graph {number}: latencies must not be negative nor all 0")
            if _persistent(graph) != _persistent(self.graphs[0]):
                raise InvariantError(f"job {self.job}, graph {number}: persistent tensors are not those of graph 0")
        if not 0.0 <= self.max_swapping_rate <= 1.0:
            rate = self.max_swapping_rate
            raise InvariantError(f"job {self.job}: max_swapping_rate is {rate}, not between 0 and 1")
        if not 0.0 < self.graph_share <= 1.0:
            raise InvariantError(f"job {self.job}: graph_share is {self.graph_share}, not above 0 and at most 1")

    @property
    def step_ns(self) -> int:
        """The time of the training step's operators in captured order, without waits for copies."""
        return sum(blocking_ns(self.graphs[0], self.latency_ns[0]))


def least_bytes(workload: Workload, cache: PlanCache | None = None) -> int:
    """Return the largest floor of the job's graphs. No plan for the job needs less."""
    return max(floor(graph, cache) for graph in workload.graphs)


def _persistent(graph: StepGraph) -> list[Tensor]:
    return [tensor for tensor in graph.tensors if tensor.persistent]
