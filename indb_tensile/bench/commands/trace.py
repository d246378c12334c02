"""Simulates admission over 10, 100 and 1,000 jobs of a published trace's distribution, against known schedulers.

    python -m indb_tensile.bench trace [--jobs 10 100 1000] [--devices gpu filled] [--seeds 3] [--load 0.9]
        [--excess 0.1] [--error 0.1] [--memory 1.3] [--time-scale 0.05] [--max-jobs 8] [--max-slowdown 3]
        [--urgent 0.1] [--runnable 100 1000] [--share ROWS.json] [--json]

The real `decide()` is driven in virtual time (bench/harness/virtual_time/trace_scheduler_run.py), with the planner's
trade-offs of six networks (trace_networks.py) and run times of Microsoft's Philly trace (trace_workload.py, which
cites it). Rivals run the same jobs on the same device (trace_rivals.py): first in first out, shortest remaining first
(which knows the true remaining times), least attained service (Tiresias), packing with profiles (Gandiva) and Zico.
"Any price" is `decide()` with the setting that lets every job in for which any plan fits.

Devices differ in how much jobs slow each other down, as admission assumes it before it has measured anything. On
`gpu` two jobs take 1.5 times as long as one, as a controller assumes of a GPU. On `filled` one job fills the device:
jobs side by side do no more work than in turns, as with as many threads for each job as there are cores. On `half`
two jobs do not slow each other down, as with one thread for each job on two cores. The true slowdown is larger by
`--excess`, and true times differ from foretold ones by `--error` (trace_device.py). The device has `--memory` times
the memory of the largest job without plans.

A row has the medians over the seeds for one number of jobs, device and method; its figures are explained in
trace_outcome.py. `decision_ms` is the processor's time of a call of `decide()` that plans, or in which a job comes or
goes, without the planner's own time; `decision_most_ms` is the longest. For `--runnable` jobs that all arrive at once
at a controller that takes them all, only the decisions are printed, until ten jobs have ended. The first line is the
error of foretold throughput in rows of `bench share`, which then also is the default of `--error`. The targets come
last, as medians of ratios for the same jobs with their range over the seeds. The trace has so few and so long jobs
that the range is wide; compare settings on the same seeds, and on more of them than the default. The exit code is 0
also where targets are not met.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType

from indb_tensile.bench.harness.processes.argument_types import number, portion, whole
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.rows import Row
from indb_tensile.bench.harness.virtual_time import trace_outcome
from indb_tensile.bench.harness.virtual_time.trace_device import HOST_BYTES_PER_S, TraceDevice
from indb_tensile.bench.harness.virtual_time.trace_networks import job_kinds
from indb_tensile.bench.harness.virtual_time.trace_outcome import (
    DECISION_BAR_MS,
    Bar,
    Outcome,
    bars,
    decision_figures,
    figures,
    over_seeds,
    share_errors,
)
from indb_tensile.bench.harness.virtual_time.trace_rival_run import run_rival
from indb_tensile.bench.harness.virtual_time.trace_rivals import rivals
from indb_tensile.bench.harness.virtual_time.trace_scheduler_run import run_admission
from indb_tensile.bench.harness.virtual_time.trace_workload import TraceJob, TraceOptions, draw_jobs
from indb_tensile.controller.garbage_collection import leave_modules_out
from indb_tensile.scheduler.admission.pool import Pool, Sharing
from indb_tensile.scheduler.completion.contention import Contention
from indb_tensile.scheduler.link import Link

DEVICES = MappingProxyType(
    {
        "gpu": Contention(points=((1, 1.0), (2, 1.5))),
        "filled": Contention(points=((1, 1.0), (2, 2.0))),
        "half": Contention(points=((1, 1.0), (2, 1.0), (4, 2.0))),
    }
)
JOBS = (10, 100, 1_000)
_ERROR = 0.1  # until bench share has measured it
_SHARINGS = ((trace_outcome.COMPLETION, Sharing.COMPLETION), (trace_outcome.ANY_PRICE, Sharing.ANY_PRICE))
_NEARLY = 0.9  # a decision is counted if it is about at least this share of the runnable jobs
_REGION_BYTES = 16 << 20

Figures = dict[str, list[Row]]  # by method, one for each seed


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCase:
    """One number of jobs on one kind of device, with the errors that admission does not know."""

    device: str
    jobs: TraceOptions
    excess: float
    memory: float
    max_jobs: int = 8
    max_slowdown: float = 3.0

    @property
    def budget_bytes(self) -> int:
        """The memory of the device."""
        return round(self.memory * max(kind.peak_bytes for kind in job_kinds()))

    def seeded(self, seed: int) -> "TraceCase":
        """Return the case with other jobs of the same distribution."""
        return replace(self, jobs=replace(self.jobs, seed=seed))

    def draw(self) -> tuple[TraceJob, ...]:
        """Return the jobs."""
        return draw_jobs(job_kinds(), self.jobs)

    def true_device(self) -> TraceDevice:
        """Return the device as it is."""
        points = DEVICES[self.device].points
        return TraceDevice(
            budget_bytes=self.budget_bytes,
            region_bytes=_REGION_BYTES,
            contention=Contention(points=tuple((k, f * (1 + self.excess) if k > 1 else f) for k, f in points)),
            error=self.jobs.error,
            seed=self.jobs.seed,
        )

    def pool(self, sharing: Sharing) -> Pool:
        """Return the state of a controller that has measured nothing yet."""
        return Pool(
            budget_bytes=self.budget_bytes,
            region_bytes=_REGION_BYTES,
            max_jobs=self.max_jobs,
            sharing=sharing,
            max_slowdown=self.max_slowdown,
            contention=DEVICES[self.device],
            link=Link(out_bytes_per_s=HOST_BYTES_PER_S, in_bytes_per_s=HOST_BYTES_PER_S),
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the simulator's error, one row per case and method, and the targets."""
    options = _parser().parse_args(arguments)
    error = options.error
    if options.share is not None:
        errors = share_errors(options.share)
        error = round(median(errors), 4) if error is None else error
        first_line = f"foretold throughput against {len(errors)} rows of bench share: off by {median(errors):.1%} "
        first_line += f"on the median, by {max(errors):.1%} at most"
    else:
        first_line = "no rows of bench share are given (--share), so the simulator's error is not known"
    if not options.json:
        print(f"{first_line}; errors drawn here: {_ERROR if error is None else error:.1%}", flush=True)
    targets: list[Bar] = []
    leave_modules_out()  # as a controller does when it has started
    for case in _cases(options, _ERROR if error is None else error):
        rows, outcomes = measure(case, options.seeds)
        for row in summary(case, rows, outcomes):
            print(json.dumps(row) if options.json else _line(row), flush=True)
        targets += [replace(bar, text=f"{case.device}, {case.jobs.jobs} jobs: {bar.text}") for bar in bars(rows)]
    for runnable in filter(None, options.runnable):
        row = runnable_row(_case(options, options.devices[0], runnable, _ERROR if error is None else error))
        print(json.dumps(row) if options.json else _decision_line(row), flush=True)
        text = f"longest decision about {runnable} runnable jobs in ms"
        targets.append(Bar(text=text, values=(row["decision_most_ms"],), limit=DECISION_BAR_MS))
    if not options.json:
        print(*(bar.line() for bar in targets), sep="\n")


def measure(case: TraceCase, seeds: int) -> tuple[Figures, list[Outcome]]:
    """Return the figures of each method, one for each seed, and the outcomes of our own."""
    rows: Figures = defaultdict(list)
    ours: list[Outcome] = []
    for seeded in map(case.seeded, range(seeds)):
        jobs = seeded.draw()
        for name, outcome in _outcomes(seeded, jobs):
            rows[name].append(figures(jobs, outcome))
            if name == trace_outcome.COMPLETION:
                ours.append(outcome)
    return rows, ours


def summary(case: TraceCase, rows: Figures, ours: Sequence[Outcome]) -> Iterator[Row]:
    """Yield a row for each method, with the medians over the seeds."""
    for method, runs in rows.items():
        timed = ours if method == trace_outcome.COMPLETION else ()
        yield {
            "device": case.device,
            "jobs": case.jobs.jobs,
            "method": method,
            "seeds": len(runs),
            **over_seeds(runs),
            "budget_bytes": case.budget_bytes,
            **decision_figures(timed),
        }


def runnable_row(case: TraceCase) -> Row:
    """Return the times of decisions about this many jobs that are all runnable at once."""
    count = case.jobs.jobs
    jobs = tuple(replace(job, arrival_ns=0.0) for job in case.draw())
    pool = replace(case.pool(Sharing.COMPLETION), max_jobs=count, entering_jobs=count, spare_trainers=count)
    outcome = run_admission(pool, jobs, case.true_device(), most_ends=max(1, min(10, count // 10)))
    return {
        "device": case.device,
        "runnable": count,
        "method": trace_outcome.COMPLETION,
        **decision_figures((outcome,), round(_NEARLY * count)),
    }


def _outcomes(case: TraceCase, jobs: tuple[TraceJob, ...]) -> Iterator[tuple[str, Outcome]]:
    for name, sharing in _SHARINGS:
        yield name, run_admission(case.pool(sharing), jobs, case.true_device())
    for rival in rivals(case.jobs.time_scale):
        yield rival.name, run_rival(rival, jobs, case.true_device())


def _cases(options: argparse.Namespace, error: float) -> list[TraceCase]:
    return [_case(options, device, jobs, error) for device in options.devices for jobs in options.jobs]


def _case(options: argparse.Namespace, device: str, jobs: int, error: float) -> TraceCase:
    return TraceCase(
        device=device,
        jobs=TraceOptions(
            jobs=jobs, load=options.load, time_scale=options.time_scale, urgent=options.urgent, error=error
        ),
        excess=options.excess,
        memory=options.memory,
        max_jobs=options.max_jobs,
        max_slowdown=options.max_slowdown,
    )


def _line(row: Row) -> str:
    decisions = ""
    if row["decision_ms"] is not None:
        decisions = f"  decisions {row['decision_ms']:.1f} ms, at most {row['decision_most_ms']:.1f} ms"
    return (
        f"{row['device']:<7}{row['jobs']:>6} jobs  {row['method']:<25} completion mean {row['mean_s']:>9.0f} s, "
        f"median {row['median_s']:>7.0f} s, 99 % {row['p99_s']:>8.0f} s; makespan {row['makespan_s']:>8.0f} s; ANTT "
        f"{row['antt']:>8.2f}; Jain {row['jain']:.3f}; {row['changes']:>6.0f} changes{decisions}"
    )


def _decision_line(row: Row) -> str:
    return (
        f"{row['device']:<7}{row['runnable']:>6} runnable jobs at once: decisions {row['decision_ms']} ms on the "
        f"median, {row['decision_most_ms']} ms at most"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", nargs="+", type=whole(), default=list(JOBS), metavar="N")
    parser.add_argument("--devices", nargs="+", choices=tuple(DEVICES), default=["gpu", "filled"])
    parser.add_argument("--seeds", type=whole(), default=3, help="runs with other jobs; rows have the medians")
    parser.add_argument("--load", type=number(0.01), default=0.9, help="work that arrives, over what turns can do")
    parser.add_argument("--excess", type=portion, default=0.1, help="true contention above the assumed one")
    parser.add_argument("--error", type=portion, help=f"of foretold times; default {_ERROR}, or that of --share")
    parser.add_argument("--memory", type=number(1.0), default=1.3, help="of the device, over the largest job's")
    parser.add_argument("--time-scale", type=number(0.0001), default=0.05, help="run times over the trace's")
    parser.add_argument("--max-jobs", type=whole(), default=8, help="jobs that a controller claims at a time")
    parser.add_argument("--max-slowdown", type=number(1.0), default=3.0, help="as the controller's setting")
    parser.add_argument("--urgent", type=portion, default=0.1, help="share of the jobs with a higher priority")
    parser.add_argument(
        "--runnable", nargs="+", type=whole(0), default=[100], metavar="N", help="jobs at once; 0: none"
    )
    parser.add_argument("--share", type=Path, metavar="FILE", help="rows that bench share --json printed")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
