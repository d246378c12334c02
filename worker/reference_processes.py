"""Processes that run reference steps side by side, as jobs would, for the measurement of contention.

The processes live for a few phases. In each phase some of them run their steps, and the others wait. So the speed of
a step alone and beside others is measured within a second, in the same processes. The speed of a step alone differs
by a tenth between one second and the next, and between two processes with other places in memory.
"""

import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from queue import Empty
from typing import Any

import torch

from indb_tensile.controller.parent_death import die_with_parent
from indb_tensile.device.processor_times import process_s
from indb_tensile.errors import DeviceError
from indb_tensile.executor.latency.contention_step import (
    ReferenceStep,
    StepSpeed,
    contention_step,
    step_speed,
    warm_up,
)
from indb_tensile.executor.run.open_device import torch_device

_TIMEOUT_S = 60.0  # time limit for the slowest process of a measurement
_CHECK_S = 0.25  # time between two checks, each of which asks the catalog once


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPhase:
    """For how long which of the processes run their steps. The processes are numbered from 0."""

    running: tuple[int, ...]
    seconds: float


def speeds_by_phase(
    device: str,
    threads: int,
    kinds: Sequence[ReferenceStep],
    phases: Sequence[StepPhase],
    check: Callable[[], None] = lambda: None,
) -> list[dict[int, StepSpeed]]:
    """Start a process for each of these steps, and return for each phase the speeds of those that run in it.

    `check` is called several times a second meanwhile. If it raises an error, the processes are killed. Raises
    DeviceError if a process fails or takes too long.
    """
    context = multiprocessing.get_context("fork")  # this process runs nothing on the device, so a fork is safe
    barrier, results = context.Barrier(len(kinds)), context.Queue()
    processes = [
        context.Process(target=_run, args=(device, threads, kind, number, phases, barrier, results), daemon=True)
        for number, kind in enumerate(kinds)
    ]
    for process in processes:
        process.start()
    try:
        speeds = dict(_next_result(results, check) for _ in processes)
        for process in processes:
            process.join(timeout=1)
    except Empty:
        raise DeviceError(f"{len(kinds)} processes on {device} did not answer within {_TIMEOUT_S:.0f} s") from None
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [{number: speeds[number][at] for number in phase.running} for at, phase in enumerate(phases)]


def own_processor_s() -> float:
    """Return the processor time of this process, and of all processes of its measurements so far."""
    running_s = sum(process_s(process.pid) or 0.0 for process in multiprocessing.active_children() if process.pid)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + running_s + ended.ru_utime + ended.ru_stime


def _next_result(results: Any, check: Callable[[], None]) -> Any:
    """Return what a process has put into the queue next. Raises Empty if none does in time."""
    ends_at_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < ends_at_s:
        check()
        with suppress(Empty):
            return results.get(timeout=_CHECK_S)
    raise Empty


def _run(
    device: str,
    threads: int,
    kind: ReferenceStep,
    number: int,
    phases: Sequence[StepPhase],
    barrier: Barrier,
    results: Any,
) -> None:
    die_with_parent()
    torch.set_num_threads(threads)
    place = torch_device(device)
    step = contention_step(kind, device, place)
    warm_up(step, place)
    speeds = {}
    for at, phase in enumerate(phases):
        barrier.wait(timeout=_TIMEOUT_S)
        if number in phase.running:
            speeds[at] = step_speed(step, place, phase.seconds)
    results.put((number, speeds))
