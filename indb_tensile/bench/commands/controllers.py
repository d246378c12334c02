"""Runs several controllers with simulated devices in virtual time on one catalog: makespan, and waits of gangs.

    tensile bench controllers [--dsn "host=… user=postgres"] [--jobs 200] [--controllers 4] [--times exponential]
        [--mean 15] [--device gpu] [--seeds 1] [--json]
    tensile bench controllers --gangs 20 --mean 120 [--hours 1] [--load 2] [--sharing completion] …

The real `decide()` of each controller claims from a real catalog, whose clock is virtual (bench/harness/
catalog_controller.py): the rules of claims, deferred jobs, offered ranks and gangs run as they are. Devices, networks
and errors of forecasts are those of `bench trace`.

The first form enqueues all jobs at once, lets one controller do them and then `--controllers` of them, and prints the
makespans. `ratio` is that of several controllers over the larger of their equal part of one controller's and the
longest job alone: no division of the jobs can be much better. It has to be at most 1.1, else the exit code is 1.
Run times are exponential with `--mean` seconds, or `trace`: those of `bench trace`. There the longest job often is
as long as a fourth of all jobs, and has to start at once. Nobody knows which job it is before it is captured, so the
target is not for those.

The second form lets single jobs arrive all the time, with `--load` times the work that the devices can do, and gangs
of 2 devices up to all devices among them. Rows say how long gangs and single jobs waited for their first step, how
many attempts of gangs were given back, and for how long part of a gang had memory while the other part had none. With
more work than the devices can do, jobs that come late train after the end of the run. So a gang has starved, and the
exit code is 1, if it never trained although a job that came ten minutes later did.

The benchmark creates databases and drops them at the end, so the dsn needs a superuser.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from indb_tensile.bench.commands.trace import DEVICES, TraceCase
from indb_tensile.bench.harness.processes.argument_types import number, whole
from indb_tensile.bench.harness.processes.bench_database import temporary_database
from indb_tensile.bench.harness.processes.process_exit import run
from indb_tensile.bench.harness.results.rows import Row
from indb_tensile.bench.harness.virtual_time.catalog_run import CatalogOutcome, DevicesJob, run_on_catalog
from indb_tensile.bench.harness.virtual_time.controllers_workload import arriving, at_once
from indb_tensile.bench.harness.virtual_time.trace_workload import TraceOptions
from indb_tensile.scheduler.admission.pool import Sharing

RATIO_BAR = 1.1
_SECOND_NS = 1_000_000_000
_OVERTAKEN_S = 600.0  # a small job may overtake where it delays nobody, and nobody does so for ten minutes


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each seed. The exit code is 1 if a target is not met."""
    options = _parser().parse_args(arguments)
    met = True
    for row in _rows(options):
        met = met and bool(row["met"])
        print(json.dumps(row) if options.json else "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    sys.exit(0 if met else 1)


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    for seed in range(options.seeds):
        case = TraceCase(
            device=options.device,
            jobs=TraceOptions(jobs=options.jobs, seed=seed, time_scale=options.time_scale),
            excess=0.1,
            memory=1.3,
        )
        sharing = Sharing(options.sharing)
        if options.gangs:
            yield gang_row(options.dsn, case, sharing, options)
        else:
            yield makespan_row(options.dsn, case, sharing, options)


def makespan_row(dsn: str, case: TraceCase, sharing: Sharing, options: argparse.Namespace) -> Row:
    """Return the makespans of one controller and of several, for the same jobs."""
    mean_s = options.mean if options.times == "exponential" else None
    jobs = at_once(case.draw(), mean_s, seed=case.jobs.seed)
    alone = _outcome(dsn, case, sharing, jobs, 1)
    shared = _outcome(dsn, case, sharing, jobs, options.controllers)
    longest_s = max(job.trace.alone_ns for job in jobs) / _SECOND_NS
    ratio = shared.makespan_s / max(alone.makespan_s / options.controllers, longest_s)
    return {
        "times": options.times,
        "device": case.device,
        "seed": case.jobs.seed,
        "jobs": len(jobs),
        "controllers": options.controllers,
        "one_controller_s": round(alone.makespan_s, 1),
        "several_controllers_s": round(shared.makespan_s, 1),
        "longest_job_s": round(longest_s, 1),
        "ratio": round(ratio, 4),
        "met": ratio <= RATIO_BAR or options.times != "exponential",
    }


def gang_row(dsn: str, case: TraceCase, sharing: Sharing, options: argparse.Namespace) -> Row:
    """Return how long gangs and single jobs waited for each other."""
    until_s = options.hours * 3600.0
    jobs = arriving(
        case.draw(),
        until_s=until_s,
        mean_s=options.mean,
        load=options.load,
        devices=options.controllers,
        gangs=options.gangs,
        seed=case.jobs.seed,
    )
    outcome = _outcome(dsn, case, sharing, jobs, options.controllers, until_s=until_s)
    gangs = [course for course in outcome.courses if course.devices > 1]
    singles = [course for course in outcome.courses if course.devices == 1]
    waits_s = sorted(course.waited_s for course in gangs if course.waited_s is not None)
    single_waits_s = sorted(course.waited_s for course in singles if course.waited_s is not None)
    last_s = max((course.came_s for course in outcome.courses if course.began_s is not None), default=0.0)
    starved = [course for course in gangs if course.began_s is None and course.came_s + _OVERTAKEN_S < last_s]
    return {
        "sharing": sharing.value,
        "device": case.device,
        "seed": case.jobs.seed,
        "controllers": options.controllers,
        "gangs": len(gangs),
        "gangs_trained": len(waits_s),
        "gang_wait_s": round(median(waits_s)) if waits_s else None,
        "gang_longest_wait_s": round(waits_s[-1]) if waits_s else None,
        "singles": len(singles),
        "singles_trained": len(single_waits_s),
        "single_wait_s": round(median(single_waits_s)) if single_waits_s else None,
        "single_longest_wait_s": round(single_waits_s[-1]) if single_waits_s else None,
        "given_back": outcome.given_back,
        "half_gang_s": round(outcome.half_gang_s, 1),
        "starved": len(starved),
        "met": not starved,
    }


def _outcome(
    dsn: str,
    case: TraceCase,
    sharing: Sharing,
    jobs: Sequence[DevicesJob],
    controllers: int,
    until_s: float | None = None,
) -> CatalogOutcome:
    with temporary_database(dsn, "controllers") as own:
        pool = replace(case.pool(sharing), max_jobs=case.max_jobs, moves_trained=True)
        return run_on_catalog(own, pool, case.true_device(), jobs, controllers=controllers, until_s=until_s)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dsn", default="", help="a superuser's connection to any database of the server")
    parser.add_argument("--jobs", type=whole(), default=200, help="jobs that are enqueued at once")
    parser.add_argument("--controllers", type=whole(2), default=4)
    parser.add_argument("--times", choices=("exponential", "trace"), default="exponential", help="run times of jobs")
    parser.add_argument("--mean", type=number(1.0), default=15.0, help="of exponential run times, in seconds")
    parser.add_argument("--time-scale", type=number(0.0001), default=0.002, help="run times over the trace's")
    parser.add_argument("--device", choices=tuple(DEVICES), default="gpu", help="how jobs slow each other down")
    parser.add_argument("--sharing", choices=[sharing.value for sharing in Sharing], default=Sharing.COMPLETION.value)
    parser.add_argument("--gangs", type=whole(0), default=0, help="jobs for several devices among single ones")
    parser.add_argument("--hours", type=number(0.01), default=1.0, help="virtual time of a run with gangs")
    parser.add_argument("--load", type=number(0.01), default=2.0, help="work of single jobs over what devices can do")
    parser.add_argument("--seeds", type=whole(), default=1, help="runs with other jobs")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


if __name__ == "__main__":
    run(main)
