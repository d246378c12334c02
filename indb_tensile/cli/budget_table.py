"""`tensile plan --curve` prints the budget curve of each step graph: its iteration time at each memory budget."""

from collections.abc import Sequence

from indb_tensile.cli.output import Row, show_rows
from indb_tensile.scheduler.budget_curve import curve
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.score import baselines, score
from indb_tensile.scheduler.workload import Workload

_SHOWN = ("peak_bytes", "bound_bytes", "msr_vanilla", "msr_liveness", "iteration_us", "eor", "out_bytes", "in_bytes")


def show_curves(names: Sequence[str], workloads: Sequence[Workload], link: Link, *, as_json: bool) -> None:
    """Print one row for each point of each curve, from the largest peak to the smallest."""
    rows = [row for name, job in zip(names, workloads, strict=True) for row in _rows(name, job, link)]
    show_rows(rows, as_json=as_json)


def _rows(name: str, workload: Workload, link: Link) -> list[Row]:
    budget_curve = curve(workload.graphs[0], workload.latency_ns[0], link)
    against = baselines([workload], link)
    rows = []
    for point in budget_curve.points:
        (point_score,) = score([workload], ((point.plan,),), link, against=against)
        figures = point_score.figures()
        rows.append({"model": name, **{field: figures[field] for field in _SHOWN}, "faults": len(point_score.faults)})
    return rows
