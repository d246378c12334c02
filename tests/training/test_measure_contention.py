"""Contention is measured by real processes, as many as jobs."""

import multiprocessing

import pytest

from indb_tensile.config import GIB, MIB
from indb_tensile.device.hardware import cores
from indb_tensile.errors import DeviceError
from indb_tensile.executor.latency.contention_step import ReferenceStep, StepSpeed, vector_bytes
from tests.controller.fakes import alive
from worker import measure_contention
from worker.reference_processes import StepPhase, speeds_by_phase


@pytest.mark.nightly
def test_jobs_beyond_the_cores_slow_each_other_down() -> None:
    [(alone, crowded)] = measure_contention.measure("cpu", 1, (1, 4 * cores()))
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
    alone, together = speeds_by_phase("cpu", 1, kinds, phases)
    assert list(alone) == [1]
    assert list(together) == [0, 1, 2, 3]
    assert all(speed.per_second > 0 for speed in (*alone.values(), *together.values()))
    assert all(0 < speed.processors < 1.5 for speed in together.values()), "one thread each"


def test_a_measurement_that_is_disturbed_ends_its_processes() -> None:
    children: list[int] = []

    def check() -> None:
        children.extend(process.pid for process in multiprocessing.active_children() if process.pid)
        raise DeviceError("disturbed")

    phases = [StepPhase(running=(0, 1), seconds=600.0)]
    with pytest.raises(DeviceError, match="disturbed"):
        speeds_by_phase("cpu", 1, (ReferenceStep.ARITHMETIC,) * 2, phases, check)
    assert len(children) == 2
    assert not any(map(alive, children))


def test_in_each_round_another_process_runs_alone() -> None:
    arithmetic, memory, *_ = ReferenceStep
    pair = measure_contention._rounds_of_phases((arithmetic, arithmetic), (0, 1), 2, 1.5, 0.1)
    assert [phase.running for phase in pair] == [(0,), (0, 1), (1,), (0, 1)]
    assert (pair[0].seconds, pair[1].seconds) == (0.1, 1.5 * 0.1)
    mixed = measure_contention._rounds_of_phases((arithmetic, memory), (0, 1), 1, 1.0, 0.1)
    assert [phase.running for phase in mixed] == [(0,), (1,), (0, 1)]
    beside = measure_contention._rounds_of_phases((arithmetic, memory), (0,), 1, 1.0, 0.1)
    assert [phase.running for phase in beside] == [(0,), (0, 1)]


def test_a_slowdown_compares_every_counted_step_with_one_of_its_kind_alone() -> None:
    arithmetic, memory, *_ = ReferenceStep
    together = {0: _speed(5.0), 1: _speed(2.0)}
    slowdown = measure_contention._slowdown(
        (arithmetic, memory), (0, 1), [{0: _speed(10.0)}, {1: _speed(6.0)}, together]
    )
    assert slowdown == (10 / 5 + 6 / 2) / 2
    assert measure_contention._slowdown((arithmetic, memory), (0,), [{0: _speed(10.0)}, together]) == 2.0


def test_steps_that_keep_fewer_cores_busy_than_they_have_threads_share_them_better() -> None:
    arithmetic, memory, *_ = ReferenceStep
    pair, busy = (arithmetic, arithmetic), {arithmetic: 1.8}
    assert measure_contention._share_of_cores(pair, busy, 2, 2) == 1.8
    assert measure_contention._share_of_cores(pair, busy, 2, 8) == 1.0, "there are cores for all"
    assert measure_contention._share_of_cores((arithmetic, memory), busy, 2, 2) == (1.8 + 2) / 2
    assert measure_contention._share_of_cores(pair, {arithmetic: 2.1}, 2, 2) == 2.0, "no more than all cores"


def test_a_busy_machine_makes_no_step_of_one_thread_seem_to_leave_its_core() -> None:
    arithmetic, switches = ReferenceStep.ARITHMETIC, ReferenceStep.SWITCHES
    busy = {arithmetic: 0.25, switches: 0.75}
    assert measure_contention._share_of_cores((arithmetic,) * 8, busy, 1, 2) == 4.0
    assert measure_contention._share_of_cores((switches,) * 8, busy, 1, 2) == 3.0, "they wait for a copy"


def test_the_cores_that_a_step_keeps_busy_are_those_of_its_phases_alone() -> None:
    arithmetic, memory, *_ = ReferenceStep
    together = {0: _speed(1.0, 0.5), 1: _speed(1.0, 0.5)}
    rounds = [[{0: _speed(1.0, 1.6)}, {1: _speed(1.0, 0.9)}, together], [{0: _speed(1.0, 1.8)}, together]]
    seen = list(measure_contention._busy_cores((arithmetic, memory), rounds))
    assert seen == [(arithmetic, 1.6), (memory, 0.9), (arithmetic, 1.8)]


def _speed(per_second: float, processors: float = 1.0) -> StepSpeed:
    return StepSpeed(per_second=per_second, processors=processors)


def test_vectors_are_longer_than_the_last_cache_where_the_memory_allows_it() -> None:
    assert vector_bytes(32 * MIB, 8 * GIB) == 64 * MIB
    assert vector_bytes(512 * MIB, 8 * GIB) == 128 * MIB, "16 vectors have a quarter of the free memory"
    assert vector_bytes(512 * MIB, GIB // 2) == 16 * MIB
    assert vector_bytes(0, 8 * GIB) == 16 * MIB, "a processor whose caches are not known"
