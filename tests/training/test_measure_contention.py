"""Contention is measured by real processes, as many as jobs."""

import pytest

from indb_tensile.config import GIB, MIB
from indb_tensile.device.hardware import cores
from indb_tensile.executor.latency.contention_step import ReferenceStep, vector_bytes
from worker import measure_contention
from worker.reference_processes import StepPhase, rates_by_phase


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


def test_every_process_runs_its_own_kind_of_step_in_its_phases() -> None:
    kinds = tuple(ReferenceStep)
    phases = [StepPhase(running=(1,), seconds=0.05), StepPhase(running=(0, 1, 2, 3), seconds=0.05)]
    alone, together = rates_by_phase("cpu", 1, kinds, phases)
    assert list(alone) == [1]
    assert list(together) == [0, 1, 2, 3]
    assert min(*alone.values(), *together.values()) > 0


def test_in_each_round_another_process_runs_alone() -> None:
    arithmetic, memory, *_ = ReferenceStep
    pair = measure_contention._rounds_of_phases((arithmetic, arithmetic), (0, 1), 2, 1.5)
    assert [phase.running for phase in pair] == [(0,), (0, 1), (1,), (0, 1)]
    assert pair[1].seconds == 1.5 * pair[0].seconds
    mixed = measure_contention._rounds_of_phases((arithmetic, memory), (0, 1), 1, 1.0)
    assert [phase.running for phase in mixed] == [(0,), (1,), (0, 1)]
    beside = measure_contention._rounds_of_phases((arithmetic, memory), (0,), 1, 1.0)
    assert [phase.running for phase in beside] == [(0,), (0, 1)]


def test_a_slowdown_compares_every_counted_step_with_one_of_its_kind_alone() -> None:
    arithmetic, memory, *_ = ReferenceStep
    slowdown = measure_contention._slowdown((arithmetic, memory), (0, 1), [{0: 10.0}, {1: 6.0}, {0: 5.0, 1: 2.0}])
    assert slowdown == (10 / 5 + 6 / 2) / 2
    assert measure_contention._slowdown((arithmetic, memory), (0,), [{0: 10.0}, {0: 5.0, 1: 2.0}]) == 2.0


def test_vectors_are_longer_than_the_last_cache_where_the_memory_allows_it() -> None:
    assert vector_bytes(32 * MIB, 8 * GIB) == 64 * MIB
    assert vector_bytes(512 * MIB, 8 * GIB) == 128 * MIB, "16 vectors have a quarter of the free memory"
    assert vector_bytes(512 * MIB, GIB // 2) == 16 * MIB
    assert vector_bytes(0, 8 * GIB) == 16 * MIB, "a processor whose caches are not known"
