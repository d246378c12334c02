"""`tensile plan --curve` prints the budget curve of each step graph: its iteration time at each memory budget."""

from collections.abc import Sequence

from indb_tensile.cli.output import Row, show_rows
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.plan_cache import PlanCache
from indb_tensile.scheduler.policies import policy_named
from indb_tensile.scheduler.policies.policy import Policy
from indb_tensile.scheduler.score import baselines, score
from indb_tensile.scheduler.workload import Workload

_SHOWN = ("peak_bytes", "bound_bytes", "msr_vanilla", "msr_liveness", "iteration_us", "eor", "out_bytes", "in_bytes")


def show_curves(
    names: Sequence[str], workloads: Sequence[Workload], link: Link, *, policy: str, as_json: bool
) -> None:
    """Print one row for each point of each curve, from the largest peak to the smallest."""
    planning_policy = policy_named(policy)
    rows = [
        row for name, job in zip(names, workloads, strict=True) for row in _rows(name, job, link, planning_policy)
    ]
    show_rows(rows, as_json=as_json)


def _rows(name: str, workload: Workload, link: Link, policy: Policy) -> list[Row]:
    cache = PlanCache()
    budget_curve = policy.budget_curve(workload.graphs[0], workload.latency_ns[0], link, cache=cache)
    against = baselines([workload], link, cache=cache)
    rows = []
    for point in budget_curve.points:
        (point_score,) = score([workload], ((point.plan,),), link, against=against, cache=cache)
        figures = point_score.figures()
        rows.append({"model": name, **{field: figures[field] for field in _SHOWN}, "faults": len(point_score.faults)})
    return rows
