"""What a device's latency predictor learns from before any job has run there: drawn operators, measured.

TENSILE section IV-A measures every operator with different inputs and GPU usages when the system starts. So does
this, for a stated time of the device: networks are drawn, their operators run alone, and every fourth network's
beside processes that keep all of the device busy. Jobs may run meanwhile: what they disturbed is left out.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, perf_counter_ns, process_time_ns

from indb_tensile.executor.capture.capture import CapturedStep
from indb_tensile.executor.capture.record import Call
from indb_tensile.executor.latency.calibrate import kernels, measure_latency
from indb_tensile.executor.latency.drawn_operators import draw_steps
from indb_tensile.executor.latency.latency_predictor import Sample

DEVICE_S = 28.0  # some 4,000 operators on one core; capturing them takes as long again
LEAST_SHARE = 0.9
_CROWDED = 3  # on one core half a processor is fair beside one neighbour; less, and jobs take it
_BUSY_EVERY = 4

# Half arithmetic, half memory traffic, for as long as the process that started it lives.
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
) -> Iterator[Sample]:
    """Measured operators until that much of the device's time is used or `stopped` says so.

    Equal seeds draw equal operators. `neighbours` are the processes that count as a fully used device (default: as
    many as there are processors; 0: everything is measured alone). What had less than `least_share` of a processor,
    or less than a third of that beside neighbours, was disturbed and is left out.
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
                kept = share >= (least_share / _CROWDED if crowded else least_share)
                # Half of what was disturbed was others' time, and in all it stays below a minute.
                left_s -= (perf_counter() - started_s) * (1.0 if kept else 0.5)
                if kept:
                    yield Sample(description=call.description, latency_ns=latency_ns, utilisation=float(crowded))


def measure(step: CapturedStep, call: Call) -> tuple[int, float]:
    """Nanoseconds of one call, and the share of a processor that this process had meanwhile."""
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
