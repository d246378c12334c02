"""A process that measures once how much jobs side by side slow each other down on this kind of device, and then ends.

The controller starts it before its first job if the catalog has no measurement. Of the controllers that start
together one measures. 1, 2, 4 and 8 processes, as many as jobs, run reference steps at the same time: all of them
steps of a training; all bound by arithmetic, all bound by memory, and half of each; and all short ones, and half of
them beside either of the two before. A GPU is measured in its present mode, with or without MPS. On a processor, the
processor time of a step is measured, which grows as jobs share caches and the memory bus, and is multiplied by the
share of the cores. Exit codes are those of the controller.
"""

import logging
import multiprocessing
import os
from collections.abc import Collection, Mapping
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
from indb_tensile.executor.latency.contention_step import ReferenceStep, contention_step, steps_per_second
from indb_tensile.executor.run.open_device import torch_device
from indb_tensile.log import start_log
from indb_tensile.scheduler.completion.contention import of_cores

log = logging.getLogger("contention")

JOBS = (1, 2, 4, 8)
_SPAN_S = 0.25  # processor time of one measurement; shorter ones vary by more than 10 % on a machine with other work
_ALONE_RUNS = 3  # every factor is relative to the steps alone, and one process is a single sample
# Whether two trainings run side by side or in turns is decided most often, and a factor a tenth too high or too low
# decides it wrongly. Of 0.5 s each, single factors varied by a tenth; short steps by as much.
_TRAINING_RUNS = 5
_TRAINING_S = 0.5
_SHORT_PAIR_RUNS = 3
_OTHERS_S = 300.0  # for the measurement of another controller of this kind, which takes a minute on a busy machine
_TIMEOUT_S = 60.0  # time limit for the slowest process of a measurement
_ARITHMETIC, _MEMORY, _SWITCHES, _TRAINING = ReferenceStep


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
        log.info(
            "%d jobs: %.2f times as long; bound by arithmetic %.2f, by memory %.2f, half of each %.2f; "
            "short steps %.2f, beside others %.2f",
            *(row.jobs, row.training, row.arithmetic, row.memory, row.mixed, row.short, row.short_mixed),
        )
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
    site = _Site(device, threads)
    alone = {
        kind: median(site.rates((kind,))[0] for _ in range(_ALONE_RUNS)) for kind in (_ARITHMETIC, _MEMORY, _SWITCHES)
    }

    def factor(kinds: tuple[ReferenceStep, ...], *of: ReferenceStep) -> float:
        """Return by what factor these steps take longer side by side: the mean of all, or of the kinds `of` only."""
        runs = _SHORT_PAIR_RUNS if len(kinds) == 2 and _SWITCHES in kinds else 1
        return median(site.factor(kinds, alone, of or kinds) for _ in range(runs))

    def together(jobs: int) -> MeasuredContention:
        half = jobs // 2
        mixed = (factor((_SWITCHES, other) * half, _SWITCHES) for other in (_ARITHMETIC, _MEMORY))
        return MeasuredContention(
            jobs=jobs,
            training=site.training_factor(jobs),
            arithmetic=factor((_ARITHMETIC,) * jobs),
            memory=factor((_MEMORY,) * jobs),
            mixed=factor((_ARITHMETIC, _MEMORY) * half),
            short=factor((_SWITCHES,) * jobs),
            short_mixed=mean(mixed),
        )

    single = replace(ALONE, short_ns=round(1e9 / alone[_SWITCHES]))
    return tuple(single if jobs == 1 else together(jobs) for jobs in numbers)


class _Site:
    """The device on which reference steps run, and the share of its cores that each of several processes has."""

    def __init__(self, device: str, threads: int) -> None:
        self._device = device
        self._threads = threads
        self._shared = None if device.startswith("cuda") else of_cores(cores(), threads)

    def factor(
        self,
        kinds: tuple[ReferenceStep, ...],
        alone: Mapping[ReferenceStep, float],
        of: Collection[ReferenceStep],
        span_s: float = _SPAN_S,
    ) -> float:
        """Return by what factor the steps of the kinds `of` take longer side by side, as a mean, from one run.

        `alone` are the steps a second of each kind alone.
        """
        share = 1.0 if self._shared is None else self._shared.slowdown(len(kinds))
        rates = self.rates(kinds, span_s * share)  # as much processor time for each as alone
        return share * mean(alone[kind] / rate for kind, rate in zip(kinds, rates, strict=True) if kind in of)

    def training_factor(self, jobs: int) -> float:
        """Return by what factor steps of a training take longer side by side.

        The speed of a step alone drifts by a tenth within seconds on a machine that others use as well, so each run
        of several is compared with one alone just before it.
        """
        kinds = (_TRAINING,) * jobs
        runs = _TRAINING_RUNS if jobs == 2 else 1

        def single() -> float:
            (rate,) = self.rates((_TRAINING,), _TRAINING_S)
            return self.factor(kinds, {_TRAINING: rate}, kinds, _TRAINING_S)

        return median(single() for _ in range(runs))

    def rates(self, kinds: tuple[ReferenceStep, ...], span_s: float = _SPAN_S) -> list[float]:
        """Return the steps a second of each of these steps, when all run for this long in processes of their own."""
        return _rates(self._device, self._threads, kinds, span_s)


def _rates(device: str, threads: int, kinds: tuple[ReferenceStep, ...], span_s: float) -> list[float]:
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
    device: str, threads: int, kind: ReferenceStep, number: int, span_s: float, barrier: Barrier, results: Any
) -> None:
    die_with_parent()
    torch.set_num_threads(threads)
    place = torch_device(device)
    step = contention_step(kind, device, place)
    barrier.wait(timeout=_TIMEOUT_S)
    results.put((number, steps_per_second(step, place, span_s)))


if __name__ == "__main__":
    raise SystemExit(main())
