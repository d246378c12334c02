"""A process that measures once how much jobs side by side slow each other down on this kind of device, and then ends.

The controller starts it before its first job if the catalog has no measurement. Of the controllers that start
together one measures. 1, 2, 4 and 8 processes, as many as jobs, run reference steps at the same time: all bound by
arithmetic, all bound by memory, and half of each; and all short ones, and half of them beside either of the others. A
GPU is measured in its present mode, with or without MPS. On a processor, the processor time of a step is measured,
which grows as jobs share caches and the memory bus, and is multiplied by the share of the cores. Exit codes are those
of the controller.
"""

import logging
import multiprocessing
import os
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from queue import Empty
from statistics import mean, median
from typing import Any

import psycopg
import torch

from indb_tensile import settings_loader
from indb_tensile.catalog import device_contention
from indb_tensile.catalog.connection import WORK_LOCK_TIMEOUT_MS, Session
from indb_tensile.catalog.device_contention import ALONE, MeasuredContention
from indb_tensile.config import Settings
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.device.backend import kind_of
from indb_tensile.device.hardware import cores
from indb_tensile.errors import DeviceError, TensileError
from indb_tensile.executor.latency.contention_step import BoundBy, contention_step, steps_per_second
from indb_tensile.executor.run.open_device import torch_device
from indb_tensile.log import start_log
from indb_tensile.scheduler.completion.contention import of_cores

log = logging.getLogger("contention")

JOBS = (1, 2, 4, 8)
_SPAN_S = 0.25  # processor time of one measurement; shorter ones vary by more than 10 % on a machine with other work
_ALONE_RUNS = 3  # every factor is relative to the steps alone, and one process is a single sample
# Whether two jobs run side by side or in turns is decided most often. Single measurements of two jobs of two threads
# each differed by a third within minutes.
_PAIR_RUNS = 3
_OTHERS_S = 300.0  # for the measurement of another controller of this kind, which takes a minute on a busy machine
_TIMEOUT_S = 60.0  # time limit for the slowest process of a measurement
_ARITHMETIC, _MEMORY, _SWITCHES = BoundBy


def main() -> int:
    """Measure the contention and store it. Returns the exit code."""
    settings = settings_loader.load(os.environ)
    start_log("contention", settings.log_level.upper())
    try:
        die_with_parent()
        most = max(2, min(max(JOBS), settings.max_jobs))
        numbers = tuple(jobs for jobs in JOBS if jobs <= most)
        kind = kind_of(settings.device, settings.threads)
        with _session(settings) as claim, _session(settings) as store:
            rows = claim.run(
                lambda claiming: store.run(
                    lambda storing: device_contention.contention_measured_once(
                        claiming, storing, kind, lambda: measure(settings.device, settings.threads, numbers)
                    ),
                    wait_for_locks=False,
                )
            )
    except (TensileError, psycopg.Error) as error:
        log.error("contention was not measured: %s", error)  # noqa: TRY400 - no traceback needed
        return error.exit_code if isinstance(error, TensileError) else 1
    for row in rows:
        factors = row.jobs, row.arithmetic, row.memory, row.mixed, row.short, row.short_mixed
        log.info("%d jobs: %.2f, %.2f and %.2f times as long, short steps %.2f and %.2f", *factors)
    return 0


def _session(settings: Settings) -> Session:
    return Session(
        settings.dsn,
        application_name="tensile contention",
        retry_s=_OTHERS_S,
        lock_timeout_ms=WORK_LOCK_TIMEOUT_MS,
    )


def measure(device: str, threads: int, numbers: tuple[int, ...]) -> tuple[MeasuredContention, ...]:
    """Return the contention of these numbers of jobs, of which the first is 1. Raises DeviceError."""
    alone = {
        kind: median(_rates(device, threads, (kind,), _SPAN_S)[0] for _ in range(_ALONE_RUNS)) for kind in BoundBy
    }
    shared = None if device.startswith("cuda") else of_cores(cores(), threads)

    def factor(kinds: tuple[BoundBy, ...], *of: BoundBy) -> float:
        """Return by what factor these steps take longer side by side: the mean of all, or of the kinds `of` only."""
        share = 1.0 if shared is None else shared.slowdown(len(kinds))

        def single() -> float:
            rates = _rates(device, threads, kinds, _SPAN_S * share)  # as much processor time for each as alone
            return mean(alone[kind] / rate for kind, rate in zip(kinds, rates, strict=True) if kind in (of or kinds))

        return median(single() for _ in range(_PAIR_RUNS if len(kinds) == 2 else 1)) * share

    def together(jobs: int) -> MeasuredContention:
        half = jobs // 2
        mixed = (factor((_SWITCHES, other) * half, _SWITCHES) for other in (_ARITHMETIC, _MEMORY))
        return MeasuredContention(
            jobs=jobs,
            arithmetic=factor((_ARITHMETIC,) * jobs),
            memory=factor((_MEMORY,) * jobs),
            mixed=factor((_ARITHMETIC, _MEMORY) * half),
            short=factor((_SWITCHES,) * jobs),
            short_mixed=mean(mixed),
        )

    single = replace(ALONE, short_ns=round(1e9 / alone[_SWITCHES]))
    return tuple(single if jobs == 1 else together(jobs) for jobs in numbers)


def _rates(device: str, threads: int, kinds: tuple[BoundBy, ...], span_s: float) -> list[float]:
    """Return the steps a second of each of these steps, when all run for this long in processes of their own."""
    context = multiprocessing.get_context("fork")  # this process runs nothing on the device, so a fork is safe
    barrier, results = context.Barrier(len(kinds)), context.Queue()
    processes = [
        context.Process(target=_run, args=(device, threads, kind, number, span_s, barrier, results), daemon=True)
        for number, kind in enumerate(kinds)
    ]
    for process in processes:
        process.start()
    try:
        rates = dict(results.get(timeout=_TIMEOUT_S) for _ in processes)
    except Empty:
        raise DeviceError(f"{len(kinds)} processes on {device} did not answer within {_TIMEOUT_S:.0f} s") from None
    finally:
        for process in processes:
            process.join(timeout=1)
            process.kill()
    return [rates[number] for number in range(len(kinds))]


def _run(
    device: str, threads: int, kind: BoundBy, number: int, span_s: float, barrier: Barrier, results: Any
) -> None:
    die_with_parent()
    torch.set_num_threads(threads)
    place = torch_device(device)
    step = contention_step(kind, device, place)
    barrier.wait(timeout=_TIMEOUT_S)
    results.put((number, steps_per_second(step, place, span_s)))


if __name__ == "__main__":
    raise SystemExit(main())
