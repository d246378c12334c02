"""Fixtures of the executor's tests. They set one thread and ordinary attention, and cache calibrated steps."""

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import WHOLE, Passes
from indb_tensile.executor.capture.step_capture import CapturedStep
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from tests.executor.models import Job, make_job

GRANT_BYTES = 1 << 30


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Give captured and eager runs the same settings wherever a setting changes bits."""
    threads, fused = torch.get_num_threads(), torch.backends.mha.get_fastpath_enabled()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # eager evaluation would use another kernel than a captured step
    yield
    torch.set_num_threads(threads)
    torch.backends.mha.set_fastpath_enabled(fused)


DEFAULTS = OptimizerSettings()


@cache
def job_of(kind: str, seed: int = 0, settings: OptimizerSettings = DEFAULTS, passes: Passes = WHOLE) -> Job:
    """Return a job that other tests of this process use too."""
    return make_job(kind, seed, settings, passes=passes)


@cache
def captured(kind: str, settings: OptimizerSettings = DEFAULTS, passes: Passes = WHOLE) -> tuple[CapturedStep, ...]:
    """Return the steps of a job, captured once in this process, because a capture takes up to two seconds."""
    return job_of(kind, 0, settings, passes).steps


@cache
def calibrated(kind: str, settings: OptimizerSettings = DEFAULTS, passes: Passes = WHOLE) -> tuple[CapturedStep, ...]:
    """Return the steps of a job, captured and calibrated once in this process."""
    steps = captured(kind, settings, passes)
    return calibrate(steps, unknown_signatures(steps, {}), {}, GRANT_BYTES).steps


def prepared(
    kind: str, seed: int = 0, settings: OptimizerSettings = DEFAULTS, passes: Passes = WHOLE
) -> tuple[Job, tuple[CapturedStep, ...]]:
    """Return a job and its calibrated steps, which are the same for every seed: they depend on shapes only."""
    return job_of(kind, seed, settings, passes), calibrated(kind, settings, passes)
