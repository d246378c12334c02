"""A process that measures once how much jobs side by side slow each other down on this kind of device, and then ends.

On processors the controller starts it when no job runs and other programs rest (controller/contention_process.py). It
ends with the exit code 75 as soon as a job of another controller runs on this host, or other programs keep more than
`survey_busy_cores` busy. So it notices the jobs of other databases' controllers too. On a GPU the controller runs it
when it starts, before it takes the device's memory. What the catalog has already is not measured again. Of the
controllers of a kind of device, and of those that share the cores of a host, one measures at a time.

1, 2, 4 and 8 processes, as many as jobs, run reference steps at the same time: all of them steps of a training; all
bound by arithmetic, all bound by memory, and half of each; and all short ones, and half of them beside either of the
two before. A GPU is measured in its present mode, with or without MPS. On a processor, the processor time of a step
is measured, which grows as jobs share caches and the memory bus, and is multiplied by the share of the cores that the
steps keep busy. The other exit codes are those of the controller.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean, median

import psycopg

from indb_tensile import settings_loader
from indb_tensile.catalog import device_contention
from indb_tensile.catalog.connection import WORK_LOCK_TIMEOUT_MS, Connection, Session
from indb_tensile.catalog.device_contention import ALONE, MeasuredContention, numbers_to_measure
from indb_tensile.config import Settings
from indb_tensile.controller.contention_process import DISTURBED
from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.device.backend import kind_of
from indb_tensile.device.hardware import cores
from indb_tensile.device.other_load import OtherLoad, tolerated_cores
from indb_tensile.device.processor_times import busy_s
from indb_tensile.errors import TensileError
from indb_tensile.executor.latency.contention_step import ReferenceStep, StepSpeed
from indb_tensile.log import start_log
from indb_tensile.scheduler.completion.contention import of_cores
from worker.reference_processes import StepPhase, own_processor_s, speeds_by_phase

log = logging.getLogger("contention")

# Processor time of each process in a phase, of which it needs at least that of one step. Many short phases say more
# than few long ones, because the speed of a step drifts by a tenth within seconds.
_TRAINING_SPAN_S = 0.12  # one step on a core of 2026
_SHORT_SPAN_S = 0.1  # about 70 short steps
_LIMIT_SPAN_S = 0.05  # of work bound by one resource, whose factors decide nothing
# Whether two jobs run side by side or in turns is decided most often, and a factor that is a tenth too high decides
# it wrongly. Factors of single rounds vary by a tenth.
_TRAINING_ROUNDS = 12
_SHORT_ROUNDS = 5
_FEW_ROUNDS = 3  # of short steps of more jobs: with one, the factor of four jobs was 2.4 to 3.3
_OTHERS_S = 300.0  # for the measurement of another controller of this kind, which takes a minute on a busy machine
_ARITHMETIC, _MEMORY, _SWITCHES, _TRAINING = ReferenceStep


class _DisturbedError(Exception):
    """Something else computes on this host, so what is measured now would contain its load."""


def main() -> int:
    """Measure the contention and store it. Returns the exit code."""
    settings = settings_loader.load(os.environ)
    start_log("contention", settings.log_level.upper())
    try:
        die_with_parent()
        rows = _measured_once(settings)
    except _DisturbedError as disturbance:
        log.info("%s: how jobs slow each other down is measured later", disturbance)
        return DISTURBED
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


def _measured_once(settings: Settings) -> tuple[MeasuredContention, ...]:
    """Measure and store what the catalog does not have yet, and return all. Raises _DisturbedError beside jobs."""
    device, threads = settings.device, settings.threads
    # Jobs and measurements on other GPUs of this host do not disturb a GPU.
    host = None if device.startswith("cuda") else socket.gethostname()

    def measured_once(claiming: Connection, storing: Connection) -> tuple[MeasuredContention, ...]:
        load = OtherLoad()

        def check() -> None:
            if host is None:
                return
            if device_contention.has_jobs(storing, host):
                raise _DisturbedError("a job runs on this host")
            _check_load(load, settings)

        return device_contention.contention_measured_once(
            claiming,
            storing,
            kind_of(device, threads),
            numbers_to_measure(settings.max_jobs),
            lambda missing: measure(device, threads, missing, check),
            host,
        )

    with _session(settings) as claim, _session(settings) as store:
        return claim.run(
            lambda claiming: store.run(lambda storing: measured_once(claiming, storing), wait_for_locks=False)
        )


def _check_load(load: OtherLoad, settings: Settings) -> None:
    """Raise _DisturbedError if other programs have kept too many cores busy during the last seconds."""
    used_s = busy_s()
    if used_s is None:  # a control group's quota leaves fewer cores, so the load of the others is not known
        return
    others = load.add(time.monotonic(), used_s - own_processor_s())
    if others is not None and others > tolerated_cores(cores(), settings.survey_busy_cores):
        raise _DisturbedError(f"other programs keep {others:.2f} cores of this host busy")


def _session(settings: Settings) -> Session:
    return Session(
        settings.dsn,
        application_name="tensile contention",
        retry_s=_OTHERS_S,
        lock_timeout_ms=WORK_LOCK_TIMEOUT_MS,
    )


def measure(
    device: str, threads: int, numbers: tuple[int, ...], check: Callable[[], None] = lambda: None
) -> Iterator[tuple[MeasuredContention, ...]]:
    """Yield the contention of these numbers of jobs, that of one job together with the next. Raises DeviceError.

    `check` is called several times a second, and once more before rows are yielded. It may raise an error to end the
    measurement.
    """
    limit = None if device.startswith("cuda") else cores()
    # Other programs on the machine make a step alone seem less busy, so the largest value of all rounds counts.
    busy: dict[ReferenceStep, float] = {}

    def factor(kinds: tuple[ReferenceStep, ...], *of: ReferenceStep, span_s: float, rounds: int = 1) -> float:
        """Return by what factor these steps take longer side by side: the mean of all, or of the kinds `of` only."""
        counted = [number for number, kind in enumerate(kinds) if kind in (of or kinds)]
        most = 1.0 if limit is None else of_cores(limit, threads).slowdown(len(kinds))
        phases = _rounds_of_phases(kinds, counted, rounds, most, span_s)
        speeds = speeds_by_phase(device, threads, kinds, phases, check)
        length = len(phases) // rounds
        of_rounds = [speeds[at : at + length] for at in range(0, len(phases), length)]
        for kind, processors in _busy_cores(kinds, of_rounds):
            busy[kind] = max(processors, busy.get(kind, 0.0))
        share = 1.0 if limit is None else _share_of_cores(kinds, busy, threads, limit)
        return share * median(_slowdown(kinds, counted, of_round) for of_round in of_rounds)

    def together(jobs: int) -> MeasuredContention:
        half = jobs // 2
        short = partial(factor, rounds=_SHORT_ROUNDS if jobs == 2 else _FEW_ROUNDS, span_s=_SHORT_SPAN_S)
        mixed = (short((_SWITCHES, other) * half, _SWITCHES) for other in (_ARITHMETIC, _MEMORY))
        training_rounds = max(2, _TRAINING_ROUNDS // half**2)  # more processes have more steps in each round
        return MeasuredContention(
            jobs=jobs,
            training=factor((_TRAINING,) * jobs, rounds=training_rounds, span_s=_TRAINING_SPAN_S),
            arithmetic=factor((_ARITHMETIC,) * jobs, span_s=_LIMIT_SPAN_S),
            memory=factor((_MEMORY,) * jobs, span_s=_LIMIT_SPAN_S),
            mixed=factor((_ARITHMETIC, _MEMORY) * half, span_s=_LIMIT_SPAN_S),
            short=short((_SWITCHES,) * jobs),
            short_mixed=mean(mixed),
        )

    rows: list[MeasuredContention] = []
    for jobs in numbers:
        rows.append(_alone(device, threads, check) if jobs == 1 else together(jobs))
        check()
        if jobs > 1:
            yield tuple(rows)
            rows.clear()


def _alone(device: str, threads: int, check: Callable[[], None]) -> MeasuredContention:
    """Return the row of one job, with the time of a short step."""
    phases = [StepPhase(running=(0,), seconds=_SHORT_SPAN_S)] * _SHORT_ROUNDS
    speeds = speeds_by_phase(device, threads, (_SWITCHES,), phases, check)
    return replace(ALONE, short_ns=round(1e9 / median(speed[0].per_second for speed in speeds)))


def _rounds_of_phases(
    kinds: Sequence[ReferenceStep], counted: Sequence[int], rounds: int, share: float, span_s: float
) -> list[StepPhase]:
    """Return the phases of all rounds. In each round, one of the counted processes of each kind runs alone for
    `span_s`, and then all run together for `share` times as long, so that each has as much processor time as alone.
    """
    everyone = tuple(range(len(kinds)))
    phases = []
    for number in range(rounds):
        for kind in dict.fromkeys(kinds[process] for process in counted):
            same = [process for process in counted if kinds[process] is kind]
            phases.append(StepPhase(running=(same[number % len(same)],), seconds=span_s))
        phases.append(StepPhase(running=everyone, seconds=span_s * share))
    return phases


def _busy_cores(
    kinds: Sequence[ReferenceStep], rounds: Sequence[Sequence[Mapping[int, StepSpeed]]]
) -> Iterator[tuple[ReferenceStep, float]]:
    """Yield how many cores the steps of each kind kept busy whenever they ran alone."""
    for *single, _ in rounds:
        for phase in single:
            for process, speed in phase.items():
                yield kinds[process], speed.processors


def _share_of_cores(
    kinds: Sequence[ReferenceStep], busy: Mapping[ReferenceStep, float], threads: int, limit: int
) -> float:
    """Return by what factor these steps take longer because they share `limit` cores.

    Steps of several threads keep fewer cores busy than they have threads, because threads wait for each other. So two
    of them side by side take less than twice as long. `busy` is how many cores each kind kept busy alone. A kind that
    is missing, or that has one thread and never waits, is taken to keep all its cores busy.
    """
    most = min(threads, limit)
    waits = {kind for kind in kinds if threads > 1 or kind is _SWITCHES}
    return max(1.0, sum(min(most, busy.get(kind, most)) if kind in waits else most for kind in kinds) / limit)


def _slowdown(
    kinds: Sequence[ReferenceStep], counted: Sequence[int], speeds: Sequence[Mapping[int, StepSpeed]]
) -> float:
    """Return by what factor the counted steps need more time together than alone, as a mean, from one round."""
    *single, together = speeds
    alone = {kinds[process]: speed.per_second for phase in single for process, speed in phase.items()}
    return mean(alone[kinds[process]] / together[process].per_second for process in counted)


if __name__ == "__main__":
    raise SystemExit(main())
