"""Fixtures of the executor's tests: one thread, ordinary attention, steps captured and calibrated once."""

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from indb_tensile.executor.capture.capture import CapturedStep
from indb_tensile.executor.capture.optimizer import OptimizerSettings
from indb_tensile.executor.capture.passes import WHOLE, Passes
from indb_tensile.executor.latency.calibrate import calibrate, unknown_signatures
from tests.executor.models import Job, make_job

GRANT_BYTES = 1 << 30


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """What bits depend on, the same on both sides of every comparison."""
    threads, fused = torch.get_num_threads(), torch.backends.mha.get_fastpath_enabled()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # eager evaluation would take another kernel than captured
    yield
    torch.set_num_threads(threads)
    torch.backends.mha.set_fastpath_enabled(fused)


@cache
def prepared(
    kind: str, seed: int = 0, settings: OptimizerSettings | None = None, passes: Passes = WHOLE
) -> tuple[Job, tuple[CapturedStep, ...]]:
    """A job with its steps, calibrated."""
    job = make_job(kind, seed, settings, passes=passes)
    captured = job.steps
    return job, calibrate(captured, unknown_signatures(captured, {}), {}, GRANT_BYTES).steps
