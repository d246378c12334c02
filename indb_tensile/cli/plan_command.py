"""`tensile plan` shows the memory plans of a job, or plans step graphs from files and shows the predicted result."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from indb_tensile.cli.budget_table import show_curves
from indb_tensile.cli.output import Row, print_json, show_one, show_rows
from indb_tensile.cli.shared_options import dsn_option, json_option, size_option
from indb_tensile.errors import InvariantError, MemoryLimitError, MissingError, RequestError
from indb_tensile.job import JobId
from indb_tensile.scheduler.document import Document, read_document
from indb_tensile.scheduler.judges import check
from indb_tensile.scheduler.link import Link
from indb_tensile.scheduler.memory.peak import liveness_peak
from indb_tensile.scheduler.plan import Infeasible, Plan
from indb_tensile.scheduler.planner import JobPlan, plan_jobs, schedules_of, together_bytes
from indb_tensile.scheduler.policies import DEFAULT_POLICY
from indb_tensile.scheduler.score import Score, overhead, score
from indb_tensile.scheduler.timing import machines
from indb_tensile.scheduler.timing.job_runs import Compute, JobRun
from indb_tensile.scheduler.timing.schedule import Schedule
from indb_tensile.scheduler.timing.simulate import timeline
from indb_tensile.scheduler.timing.trace_events import trace_events
from indb_tensile.scheduler.workload import Workload


def _with_graph_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for planning graphs, which are not used for a job of the database."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_OPTIONS = (
    click.option(
        "--graph", "graphs", multiple=True, metavar="FILE", help="a step graph; repeat it for jobs side by side"
    ),
    click.option("--policy", default=DEFAULT_POLICY, show_default=True, help="the policy that plans"),
    size_option("--budget", help="device memory for all graphs together, such as 800MB or a number of bytes"),
    click.option(
        "--link", "rates", default="25", show_default=True, metavar="GB/S[,GB/S]", help="to host, to device"
    ),
    click.option("--machine", help="use this machine's operator latencies instead of those in the file"),
    click.option(
        "--compute",
        type=click.Choice([kind.value for kind in Compute]),
        default=Compute.OVERLAP.value,
        show_default=True,
        help="whether jobs compute at the same time or in turn",
    ),
    click.option("--phases", is_flag=True, help="let jobs use the same memory at different times, by gates"),
    click.option(
        "--curve", is_flag=True, help="show the time at each budget, for each graph alone; needs no --budget"
    ),
    click.option("--timeline", "trace", metavar="FILE", help="write a trace for Perfetto or chrome://tracing"),
)
_picture_option = click.option(
    "--picture",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="draw where each tensor is over an iteration of the job's newest plan, or of the one graph, as SVG",
)


_LONGEST_NS = 2**60  # 36 years; a sum of several such times still fits into a machine integer


@click.command()
@dsn_option
@json_option
@click.argument("job_id", type=int, required=False)
@_picture_option
@_with_graph_options
def plan(
    dsn: str | None, as_json: bool, job_id: int | None, graphs: Sequence[str], picture: Path | None, **options: Any
) -> None:
    """Show the memory plans of JOB_ID, or plan step graphs and show the predicted result.

    For JOB_ID: peaks by policy, swaps and recomputations, predicted and measured times. For --graph files (see
    `tensile graph`), which need --budget and no database: the peaks of both baselines, the planned peak, the time,
    the stalls and the faults of each job. With --phases also the largest memory of all jobs together, the memory that
    phases save, and each gate: which operator of which iteration of a round waits for which operator of another job.
    """
    if (job_id is None) == (not graphs):
        raise click.UsageError("give either the number of a job or step graphs by --graph")
    if picture is not None and len(graphs) > 1:
        raise click.UsageError("--picture draws the plan of one graph")
    if job_id is not None:
        _show_job(dsn, job_id, as_json=as_json, picture=picture)
    else:
        _plan_graphs(graphs, as_json=as_json, picture=picture, **options)


def _show_job(dsn: str | None, job_id: int, *, as_json: bool, picture: Path | None) -> None:
    from psycopg.rows import dict_row

    from indb_tensile.catalog.connection import pinned
    from indb_tensile.cli.database_choice import open_connection
    from indb_tensile.cli.statements import statement
    from indb_tensile.monitor.job_pictures import job_plan_picture

    with (
        open_connection(dsn) as connection,
        pinned(connection),
        connection.cursor(row_factory=dict_row) as cursor,
    ):
        rows = cursor.execute(statement("plans"), {"job": job_id}).fetchall()
        if rows and picture is not None:
            picture.write_text(job_plan_picture(connection, job_id), encoding="utf-8")
    if not rows:
        raise MissingError(
            f"job {job_id} has no plan: it was not admitted yet, does not exist or belongs to another role",
            hint="tensile jobs lists your jobs",
        )
    show_rows(rows, as_json=as_json)


def _plan_graphs(
    paths: Sequence[str],
    *,
    as_json: bool,
    policy: str,
    budget: int | None,
    rates: str,
    machine: str | None,
    compute: str,
    phases: bool,
    curve: bool,
    trace: str | None,
    picture: Path | None,
) -> None:
    documents = [read_file(path) for path in paths]
    link = parse_link(rates)
    workloads = [_workload(number, document, machine) for number, document in enumerate(documents, start=1)]
    _check_times(documents, link)
    if curve:
        show_curves([document.name for document in documents], workloads, link, policy=policy, as_json=as_json)
        return
    if budget is None:
        needed = sum(liveness_peak(document.graph) for document in documents)
        raise RequestError("no budget is given", hint=f"add --budget; without planning {needed} bytes are needed")
    plan_workloads = partial(plan_jobs, workloads, budget_bytes=budget, link=link, policy=policy)
    start_ns = time.perf_counter_ns()
    planned = plan_workloads(phases=phases, compute=Compute(compute))
    planning_ms = (time.perf_counter_ns() - start_ns) / 1e6
    if isinstance(planned, Infeasible):
        _refuse(planned, as_json=as_json)
    plans = [job_plan.plans for job_plan in planned]
    schedules = [schedule.among([job_plan.job for job_plan in planned]) for schedule in schedules_of(planned)]
    scores = score(workloads, plans, link, compute=Compute(compute), schedules=schedules)
    if trace is not None:
        _write_trace(Path(trace), documents, workloads, plans, link, Compute(compute), schedules)
    if picture is not None:
        _write_picture(picture, documents[0], workloads[0], plans[0][0], budget)
    rows: list[Row] = [
        {
            "job": number,
            "model": document.name,
            "policy": policy,
            "link_gb_s": _rate(link),
            "budget_bytes": budget,
            **job_score.figures(),
            **({"gate_us": job_score.forecast.gate_ns / 1000} if phases else {}),
            "planning_ms": round(planning_ms, 3),
        }
        for number, (document, job_score) in enumerate(zip(documents, scores, strict=True), start=1)
    ]
    shared: Row | None = None
    if phases:
        apart = plan_workloads(phases=False, compute=Compute(compute))
        shared = _phases(workloads, planned, scores, None if isinstance(apart, Infeasible) else apart)
        rows.append(shared if as_json else {name: value for name, value in shared.items() if name != "gates"})
    _show(rows, as_json=as_json)
    if shared is not None and not as_json:
        for line in _describe_gates(shared["gates"]):
            click.echo(line)
    _check(scores, policy, [] if shared is None else shared["faults"])


def _phases(
    workloads: Sequence[Workload],
    planned: Sequence[JobPlan],
    scores: Sequence[Score],
    apart: Sequence[JobPlan] | None,
) -> Row:
    """Return the gain of the jobs by phases, and their gates.

    Memory is compared with the sum of the peaks of the same plans, and time with the plans within the budget without
    phases.
    """
    schedules = schedules_of(planned)
    placed = [schedule.among([job_plan.job for job_plan in planned]) for schedule in schedules]
    pairs = [
        list(zip(workload.graphs, job_plan.plans, strict=True))
        for workload, job_plan in zip(workloads, planned, strict=True)
    ]
    faults = check.faults_together(pairs, budget_bytes=together_bytes(planned), schedules=placed)
    peaks_bytes = sum(job_plan.peak_bytes for job_plan in planned)
    most_bytes = peaks_bytes if faults else check.together_bytes(pairs, placed)
    bases = [job_score.baseline for job_score in scores]
    return {
        "jobs": len(planned),
        "peaks_bytes": peaks_bytes,
        "together_bytes": most_bytes,
        "saved_bytes": peaks_bytes - most_bytes,
        "eor": round(overhead(bases, [job_score.forecast.iteration_ns for job_score in scores]), 6),
        "eor_without_phases": apart
        and round(overhead(bases, [job_plan.forecast.iteration_ns for job_plan in apart]), 6),
        "iterations": [n for schedule in schedules for n in schedule.iterations],
        "gates": [
            {
                "job": schedule.jobs[gate.job],
                "iteration": gate.iteration,
                "operator": gate.operator,
                "after_job": schedule.jobs[gate.after_job],
                "after_iteration": gate.after_iteration,
                "after_operator": gate.after_operator,
            }
            for schedule in schedules
            for gate in schedule.gates
        ],
        "faults": list(faults),
    }


def _describe_gates(gates: Sequence[Row]) -> Iterator[str]:
    """Describe each gate in words."""
    for gate in gates:
        yield (
            "job {job}, iteration {iteration}, operator {operator} waits for job {after_job}, "
            "iteration {after_iteration}, operator {after_operator}".format(**gate)
        )


def _show(rows: Sequence[Row], *, as_json: bool) -> None:
    for number, row in enumerate(rows):
        if number and not as_json:
            click.echo()
        show_one(row, as_json=as_json)


def _check(scores: Sequence[Score], policy: str, together: Sequence[str]) -> None:
    """Raise InvariantError for a plan that breaks a rule or for gates beyond the budget, after they were shown."""
    if together:
        raise InvariantError(f"the phases of policy {policy} break the rules", detail="\n".join(together))
    for number, job_score in enumerate(scores, start=1):
        if job_score.faults:
            text = "\n".join(job_score.faults)
            raise InvariantError(f"the plan of policy {policy} for job {number} breaks the rules", detail=text)


def _refuse(refusal: Infeasible, *, as_json: bool) -> NoReturn:
    short = {
        "infeasible": refusal.reason,
        "needed_bytes": refusal.needed_bytes,
        "budget_bytes": refusal.budget_bytes,
        "shortfall_bytes": refusal.shortfall_bytes,
    }
    if as_json:
        print_json(short)
    raise MemoryLimitError(
        f"{refusal.reason}, {refusal.shortfall_bytes} more than the budget of {refusal.budget_bytes}",
        hint=f"give --budget {refusal.needed_bytes}, or another --policy",
    )


def _workload(number: int, document: Document, machine: str | None) -> Workload:
    """Return the workload of this graph. A graph without latencies gets those of the reference machine."""
    latency_ns = document.latency_ns
    if machine is not None or latency_ns is None:
        chosen = machines.REFERENCE if machine is None else machines.machine(machine)
        latency_ns = machines.latencies(document.graph, chosen)
    return Workload(job=JobId(number), graphs=(document.graph,), latency_ns=(latency_ns,))


def _check_times(documents: Sequence[Document], link: Link) -> None:
    """Raise RequestError if copying all tensors over the link takes longer than machine integers can represent."""
    for document in documents:
        total_bytes = sum(tensor.size_bytes for tensor in document.graph.tensors)
        if max(link.out_ns(total_bytes), link.in_ns(total_bytes)) >= _LONGEST_NS:
            raise RequestError(
                f"the tensors of {document.name} have {total_bytes} bytes, and the link would copy them for decades",
                hint="give a faster --link, and check the sizes in the file, which are bytes",
            )


def _write_trace(
    path: Path,
    documents: Sequence[Document],
    workloads: Sequence[Workload],
    plans: Sequence[tuple[Plan, ...]],
    link: Link,
    compute: Compute,
    schedules: Sequence[Schedule],
) -> None:
    runs = [
        JobRun(graph=workload.graphs[0], plan=chosen[0], latency_ns=workload.latency_ns[0])
        for workload, chosen in zip(workloads, plans, strict=True)
    ]
    text = trace_events(
        runs, [document.name for document in documents], timeline(runs, link, compute=compute, schedules=schedules)
    )
    path.write_text(text, encoding="utf-8")


def _write_picture(path: Path, document: Document, workload: Workload, chosen: Plan, budget_bytes: int) -> None:
    from indb_tensile.monitor.plan_picture import PlannedStep, plan_picture

    step = PlannedStep(
        title=f"{document.name}, plan of policy {chosen.policy}",
        graph=workload.graphs[0],
        latency_ns=workload.latency_ns[0],
        plan=chosen,
        limit_bytes=budget_bytes,
    )
    path.write_text(plan_picture(step), encoding="utf-8")


def read_file(path: str) -> Document:
    """Read the step graph from this file, or from stdin for `-`. Raises RequestError that names the file."""
    try:
        text = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return read_document(text)
    except RequestError as error:
        raise RequestError(f"{path}: {error.message}", detail=error.detail, hint=error.hint) from error
    except FileNotFoundError:
        raise MissingError(f"there is no file {path}", hint="tensile graph export writes step graphs") from None


def parse_link(text: str) -> Link:
    """Parse `25` or `25,12`: gigabytes a second to the host and to the device. Raises click.BadParameter."""
    try:
        rates = [machines.link(float(part)) for part in text.split(",")]
    except (ValueError, RequestError):
        rates = []
    if len(rates) not in (1, 2):
        raise click.BadParameter(
            f"{text!r} is not one or two rates in GB/s, such as 25 or 25,12", param_hint="--link"
        )
    return Link(out_bytes_per_s=rates[0].out_bytes_per_s, in_bytes_per_s=rates[-1].in_bytes_per_s)


def _rate(link: Link) -> float | list[float]:
    both = [link.out_bytes_per_s / 1e9, link.in_bytes_per_s / 1e9]
    return both[0] if both[0] == both[1] else both
