"""Builders of the parts of plans from plain numbers, and the simulated time of a plan."""

from indb_tensile.scheduler.graph import Operator, OpIndex, Stage, StepGraph, TensorId
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import Gap
from indb_tensile.scheduler.plan import Execution, Plan, Swap
from indb_tensile.scheduler.timing.job_runs import JobRun
from indb_tensile.scheduler.timing.simulate import simulate


def swap(tensor: int, out_after: int, free_at: int, in_at: int, needed_by: int, *, copies: bool = True) -> Swap:
    """Return a swap of this tensor with these boundaries."""
    return Swap(
        tensor=TensorId(tensor),
        out_after=OpIndex(out_after),
        free_at=OpIndex(free_at),
        in_at=OpIndex(in_at),
        needed_by=OpIndex(needed_by),
        copies=copies,
    )


def idle_gap(tensor: int, out_after: int, needed_by: int) -> Gap:
    """Return the gap between two accesses of this tensor."""
    return Gap(tensor=TensorId(tensor), out_after=OpIndex(out_after), needed_by=OpIndex(needed_by))


def execution_order(*operators: int) -> tuple[Execution, ...]:
    """Return executions of these whole operators, in this order."""
    return tuple(Execution(operator=OpIndex(k)) for k in operators)


def forward_operator(reads: tuple[TensorId, ...], writes: tuple[TensorId, ...], workspace_bytes: int = 0) -> Operator:
    """Return an operator of the forward pass."""
    return Operator(
        name="op", signature="op", stage=Stage.FORWARD, reads=reads, writes=writes, workspace_bytes=workspace_bytes
    )


def iteration_ns(graph: StepGraph, plan: Plan, latency_ns: tuple[int, ...], link: Link) -> int:
    """Return the simulated time of one iteration of a job that has the device to itself."""
    (forecast,) = simulate([JobRun(graph=graph, plan=plan, latency_ns=latency_ns)], link)
    return forecast.iteration_ns
