"""Measures drawn operators, from which a device's latency predictor learns before any job has run on the device.

TENSILE section IV-A measures every operator with different inputs and GPU usages when the system starts. This survey
does the same for a stated time: networks are drawn and their operators run alone; the operators of every fourth
network run beside processes that keep the whole device busy. Jobs may run meanwhile; measurements that they disturbed
are dropped.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, perf_counter_ns, process_time_ns

from indb_tensile.executor.capture.record import Call
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.calibrate import kernels, measure_latency
from indb_tensile.executor.latency.drawn_operators import draw_steps
from indb_tensile.executor.latency.latency_predictor import MeasuredOperator

DEVICE_S = 28.0  # about 4,000 operators on one core; capturing them takes the same time again
LEAST_SHARE = 0.9
_CROWDED = 3  # beside one neighbour on one core half a processor is fair; a share below a third means that jobs run
_BUSY_EVERY = 4

# Half arithmetic, half memory traffic. The process ends when the process that started it ends.
_NEIGHBOUR = """
import os, numpy
parent, block = os.getppid(), numpy.full((512, 512), 1e-3, dtype=numpy.float32)
wide = numpy.ones(1 << 22, dtype=numpy.float32)
while os.getppid() == parent:
    block @ block
    wide *= 1.0
"""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def survey(
    seed: int,
    *,
    device_s: float = DEVICE_S,
    neighbours: int | None = None,
    least_share: float = LEAST_SHARE,
    stopped: Callable[[], bool] | None = None,
) -> Iterator[MeasuredOperator]:
    """Yield measured operators until `device_s` of the device's time is used or `stopped` returns True.

    Equal seeds draw equal operators. `neighbours` is the number of processes that count as a fully used device
    (default: the number of processors; 0: everything is measured alone). A measurement is dropped as disturbed if
    this process had less than `least_share` of a processor, or less than a third of that share beside neighbours.
    """
    busy = (os.cpu_count() or 1) if neighbours is None else neighbours
    left_s = device_s
    seen: set[tuple[str, bool]] = set()
    for turn, step in enumerate(draw_steps(seed)):
        crowded = busy > 0 and turn % _BUSY_EVERY == _BUSY_EVERY - 1
        with _neighbours(busy if crowded else 0):
            for signature, (_, call) in kernels([step]).items():
                if left_s <= 0 or (stopped is not None and stopped()):
                    return
                if (signature, crowded) in seen:
                    continue
                seen.add((signature, crowded))
                started_s = perf_counter()
                latency_ns, share = measure(step, call)
                undisturbed = share >= (least_share / _CROWDED if crowded else least_share)
                # Half the time of a disturbed measurement belonged to others. The total stays below a minute.
                left_s -= (perf_counter() - started_s) * (1.0 if undisturbed else 0.5)
                if undisturbed:
                    yield MeasuredOperator(
                        description=call.description, latency_ns=latency_ns, utilisation=float(crowded)
                    )


def measure(step: CapturedStep, call: Call) -> tuple[int, float]:
    """Measure the nanoseconds of one call, and the share of a processor that this process had meanwhile."""
    started_ns, used_ns = perf_counter_ns(), process_time_ns()
    latency_ns = measure_latency(step, call)
    return latency_ns, (process_time_ns() - used_ns) / max(1, perf_counter_ns() - started_ns)


@contextmanager
def _neighbours(count: int) -> Iterator[None]:
    started = [
        subprocess.Popen(
            (sys.executable, "-c", _NEIGHBOUR), env={**os.environ, **_ONE_THREAD}, stdin=subprocess.DEVNULL
        )
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
