"""Contention is measured by real processes, as many as jobs."""

import pytest

from indb_tensile.config import GIB, MIB
from indb_tensile.device.hardware import cores
from indb_tensile.executor.latency.contention_step import ReferenceStep, vector_bytes
from worker import measure_contention


@pytest.mark.nightly
def test_jobs_beyond_the_cores_slow_each_other_down() -> None:
    alone, crowded = measure_contention.measure("cpu", 1, (1, 4 * cores()))
    assert (alone.jobs, alone.arithmetic, alone.memory, alone.mixed) == (1, 1.0, 1.0, 1.0)
    assert alone.short_ns is not None
    assert 10_000 < alone.short_ns < 1_000_000_000
    assert crowded.jobs == 4 * cores()
    # Four jobs share a core. Half of their slowdown leaves room for errors of a short measurement.
    assert min(crowded.arithmetic, crowded.memory, crowded.mixed) > 2
    assert crowded.training is not None
    assert crowded.short is not None
    assert crowded.short_mixed is not None
    assert min(crowded.training, crowded.short, crowded.short_mixed) > 2


def test_every_process_runs_its_own_kind_of_step() -> None:
    rates = measure_contention._rates("cpu", 1, tuple(ReferenceStep), 0.05)
    assert len(rates) == 4
    assert all(rate > 0 for rate in rates)


def test_vectors_are_longer_than_the_last_cache_where_the_memory_allows_it() -> None:
    assert vector_bytes(32 * MIB, 8 * GIB) == 64 * MIB
    assert vector_bytes(512 * MIB, 8 * GIB) == 128 * MIB, "16 vectors have a quarter of the free memory"
    assert vector_bytes(512 * MIB, GIB // 2) == 16 * MIB
    assert vector_bytes(0, 8 * GIB) == 16 * MIB, "a processor whose caches are not known"
