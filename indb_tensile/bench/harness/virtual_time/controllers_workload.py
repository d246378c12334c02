"""Jobs of `bench controllers`: the networks of `bench trace` with other run times and arrivals, and gangs."""

import random
from collections.abc import Sequence
from dataclasses import replace

from indb_tensile.bench.harness.virtual_time.catalog_run import DevicesJob
from indb_tensile.bench.harness.virtual_time.trace_workload import TraceJob

_SECOND_NS = 1_000_000_000


def at_once(drawn: Sequence[TraceJob], mean_s: float | None, *, seed: int) -> list[DevicesJob]:
    """Return these jobs, all of which come at the begin. With `mean_s` their run times are exponential."""
    chance = random.Random(f"controllers {seed}")  # noqa: S311 - a fixed sequence is wanted
    return [
        DevicesJob(trace=_timed(job, 0.0, job.alone_ns / _SECOND_NS if mean_s is None else _run_s(chance, mean_s)))
        for job in drawn
    ]


def arriving(
    drawn: Sequence[TraceJob], *, until_s: float, mean_s: float, load: float, devices: int, gangs: int, seed: int
) -> list[DevicesJob]:
    """Return single jobs that come all the time until then, and gangs among them, in the order of their arrivals.

    The single jobs have `load` times the work that the devices can do one job after another; networks are those of
    `drawn`, in turns. Gangs have 2 devices up to all of them, and come at equal distances.
    """
    chance = random.Random(f"gangs {seed}")  # noqa: S311 - a fixed sequence is wanted
    singles = round(load * devices * until_s / mean_s)
    arrivals = [(chance.uniform(0.0, until_s), 1) for _ in range(singles)]
    arrivals += [((k + 0.5) * until_s / gangs, 2 + k % (devices - 1)) for k in range(gangs)]
    return [
        DevicesJob(trace=_timed(drawn[k % len(drawn)], at_s, _run_s(chance, mean_s)), devices=wanted)
        for k, (at_s, wanted) in enumerate(sorted(arrivals))
    ]


def _run_s(chance: random.Random, mean_s: float) -> float:
    return 1.0 + chance.expovariate(1.0 / mean_s)


def _timed(job: TraceJob, at_s: float, run_s: float) -> TraceJob:
    """Return the job with another arrival and another run time, for an owner who has them all."""
    return replace(job, owner=1, priority=0, arrival_ns=at_s * _SECOND_NS, steps=run_s * _SECOND_NS / job.step_ns)
