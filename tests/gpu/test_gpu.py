"""The device on a GPU: regions, lanes, torch's allocator, planned steps, and processes that are killed."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing

import pytest

from indb_tensile.controller.gpu_regions import broker
from indb_tensile.controller.shared_regions import SharedRegions
from indb_tensile.device.backend import choose, torch_architectures, torch_cuda
from indb_tensile.device.cuda import CudaBroker, Gpu, NoGpu, probe
from indb_tensile.device.ledger import Ledger
from indb_tensile.device.nvml import NoNvml, Nvml
from indb_tensile.device.torch_wheels import installation_hint
from indb_tensile.device.trainer_footprint import FIRST_FOOTPRINT_BYTES
from indb_tensile.scheduler.admission.pool import TrainerId
from tests.gpu.conftest import ROOT, Bench, answer, report, resume
from tests.gpu.parts import WITHOUT_SETTINGS
from tests.gpu.place import ON_DOUBLE

RIVALS = ("eager", "checkpoint", "save_on_cpu", "compile")

pytestmark = pytest.mark.gpu


def test_a_broker_needs_no_context(gpu: Gpu, bench: Bench) -> None:
    nvml = Nvml.start()
    if isinstance(nvml, NoNvml):
        pytest.skip(nvml.reason)
    with nvml:
        reading = nvml.read(gpu.uuid)
    report("broker without a context", used_bytes=reading.used_bytes, processes=str(reading.processes))
    assert reading.used_bytes >= 16 * bench.region_bytes
    if reading.processes:
        assert os.getpid() not in {process.pid for process in reading.processes}


def test_many_regions_are_mapped_at_once(gpu: Gpu) -> None:
    region_bytes = gpu.granularity_bytes
    count = min(1280, gpu.memory_bytes // region_bytes // 2)
    start_s = time.perf_counter()
    regions = CudaBroker(gpu.ordinal, region_bytes, count)
    made_s = time.perf_counter() - start_s
    bench = Bench(Ledger.create(count * region_bytes, region_bytes, 1, 1, None), regions, region_bytes)
    with bench.trainer("map_regions", 1) as trainer:
        figures = answer(trainer)
        report("mapping", regions=count, region_bytes=region_bytes, made_s=made_s, mapped_s=figures["mapping_s"])
        assert figures["bytes"] == count * region_bytes
        resume(trainer)
        assert trainer.wait(60) == 0


def test_a_trainer_leaves_room_for_others(gpu: Gpu, bench: Bench) -> None:
    """Measure a trainer's memory beside the regions (its first estimate is in device/trainer_footprint.py)."""
    nvml = Nvml.start()
    if isinstance(nvml, NoNvml):
        pytest.skip(nvml.reason)
    with nvml:
        before_bytes, each_bytes = nvml.read(gpu.uuid).used_bytes, {}
        for count in (1, 2, 4, 8):
            with ExitStack() as stack:
                trainers = [stack.enter_context(bench.trainer("attach", 1)) for _ in range(count)]
                figures = [answer(trainer) for trainer in trainers]
                used_bytes = nvml.read(gpu.uuid).used_bytes - before_bytes
                each_bytes[count] = used_bytes // count
                listed = {process.pid for process in nvml.read(gpu.uuid).processes or ()}
                spent_s = sum(row["processor_s"] for row in figures) / count
            report(
                "footprint",
                trainers=count,
                bytes_each=each_bytes[count],
                processor_s_each=spent_s,
                listed=sum(trainer.pid in listed for trainer in trainers),
            )
    report("first guess of a footprint", size_bytes=FIRST_FOOTPRINT_BYTES, measured_bytes=each_bytes[8])
    assert each_bytes[8] > 0


@pytest.mark.skipif(ON_DOUBLE, reason="torch has no kernels for the driver's double")
def test_this_torch_has_kernels_for_this_gpu(gpu: Gpu) -> None:
    gpus = probe()
    assert not isinstance(gpus, NoGpu)
    chosen = choose("auto", gpus, torch_cuda(), torch_architectures)
    report("choice", driver=gpus.driver_version, torch_cuda=torch_cuda(), architectures=torch_architectures())
    assert chosen == gpu
    assert installation_hint(gpus.driver_version, gpu.capability).startswith("Install torch's build")


def test_another_process_maps_and_writes_to_the_regions_of_this_process(gpu: Gpu) -> None:
    mapper = (sys.executable, "-m", "worker.probe_sharing")
    made, capacity_bytes = broker(
        gpu, region_bytes=64 << 20, capacity_bytes=gpu.memory_bytes, least_bytes=64 << 20, shares=True, mapper=mapper
    )
    report("capacity", shares=made is not None, of_bytes=gpu.memory_bytes, capacity_bytes=capacity_bytes)
    assert made is not None
    assert capacity_bytes > gpu.memory_bytes // 2


def test_released_regions_are_free_for_other_programs_and_come_back(gpu: Gpu) -> None:
    region_bytes, nvml = 64 << 20, Nvml.start()
    count = gpu.memory_bytes // region_bytes // 2
    made = CudaBroker(gpu.ordinal, region_bytes, count)
    own_end, trainer_end = socket.socketpair()
    settings = json.dumps({"socket": trainer_end.fileno()})
    command = [sys.executable, "-m", "tests.gpu.trainer_process", "follow_regions", settings]
    with (
        closing(SharedRegions(made, region_bytes)) as shared,
        subprocess.Popen(
            command,
            cwd=ROOT,
            pass_fds=(trainer_end.fileno(),),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as trainer,
    ):
        trainer_end.close()
        shared.send(TrainerId(1), own_end)
        answer(trainer)
        used = [_used_bytes(nvml, gpu)]
        for change in (shared.release, shared.create):
            start_s = time.perf_counter()
            change(range(count // 2, count))
            while shared.changing:
                shared.take_created()
            report(
                "change of regions",
                change=change.__name__,
                regions=count - count // 2,
                s=time.perf_counter() - start_s,
            )
            used.append(_used_bytes(nvml, gpu))
        resume(trainer)
        assert trainer.wait(60) == 0
    report("memory that changes of regions free and take", used_bytes=used)
    assert shared.made_bytes == count * region_bytes
    if used[0] is not None and used[1] is not None and used[2] is not None:
        assert used[0] - used[1] > (count - count // 2 - 1) * region_bytes
        assert used[2] > used[1]


def _used_bytes(nvml: Nvml | NoNvml, gpu: Gpu) -> int | None:
    return None if isinstance(nvml, NoNvml) else nvml.read(gpu.uuid).used_bytes


def test_too_small_a_grant_is_an_overflow_and_torchs_own_error(bench: Bench) -> None:
    with bench.trainer("overflow", 2) as trainer:
        figures = answer(trainer)
    report("overflow", **figures)
    assert figures["overflow_bytes"] > 0
    assert ON_DOUBLE or figures["error"] == "OutOfMemoryError"


def test_attention_in_float32_becomes_a_graph(bench: Bench) -> None:
    with bench.trainer("attention", 8) as trainer:
        figures = answer(trainer)
    report("attention", **figures)
    assert ON_DOUBLE or figures["launched"] > 0


def test_tf32_follows_the_precision_and_the_signatures_differ_by_precision(bench: Bench) -> None:
    figures = {}
    for precision in ("torch", "float32", "tf32"):
        with bench.trainer("precision", 14, precision=precision) as trainer:
            figures[precision] = answer(trainer)
        with bench.trainer("planned", 1, method="eager", precision=precision) as trainer:
            eager_ms = answer(trainer)["step_ms"]
        report("precision", precision=precision, eager_ms=eager_ms, **figures[precision])
    if ON_DOUBLE:
        return  # a processor has one form of float32
    assert figures["torch"]["latency_sum_ms"] <= 1.1 * figures["float32"]["latency_sum_ms"]
    assert len({tuple(row["signatures"]) for row in figures.values()}) == 3


def test_tensors_are_swapped_over_memory_that_others_use_in_between(bench: Bench) -> None:
    with bench.trainer("round_trip", 1) as trainer:
        assert answer(trainer) == {"same": True, "moved": False}


def test_lanes_are_measured_for_one_and_for_two_processes(bench: Bench) -> None:
    alone = {}
    for lanes in (["out"], ["in"], ["out", "in"]):
        with bench.trainer("copy", 4, lanes=lanes) as trainer:
            answer(trainer)
            resume(trainer)
            alone["+".join(lanes)] = answer(trainer)["bytes_per_s"]
    with (
        bench.trainer("copy", 4, lanes=["out", "in"]) as first,
        bench.trainer("copy", 4, lanes=["out", "in"]) as second,
    ):
        for trainer in (first, second):
            answer(trainer)
        for trainer in (first, second):
            resume(trainer)
        both = [answer(trainer)["bytes_per_s"] for trainer in (first, second)]
    report("lanes", alone_bytes_per_s=alone, two_processes_bytes_per_s=both)
    assert min(both) > 0


@pytest.mark.parametrize("mps", [False, True])
def test_a_process_killed_inside_a_kernel_leaves_the_others_memory_unchanged(
    gpu: Gpu, bench: Bench, *, mps: bool
) -> None:
    is_served = shutil.which("nvidia-cuda-mps-control") is not None and "CUDA_MPS_PIPE_DIRECTORY" in os.environ
    if mps != is_served:
        pytest.skip("MPS serves this session" if is_served else "no MPS server serves this session")
    nvml = Nvml.start()
    with bench.trainer("spin", 2) as victim:
        answer(victim)
        start_s = time.perf_counter()
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        ended_s = time.perf_counter() - start_s
        listed = _until_unlisted(nvml, gpu, victim.pid) if isinstance(nvml, Nvml) else None
        report("kill inside a kernel", mps=mps, ended_s=ended_s, unlisted_after_s=listed)
    with bench.trainer("round_trip", 4) as survivor:
        assert answer(survivor) == {"same": True, "moved": False}


def _until_unlisted(nvml: Nvml, gpu: Gpu, pid: int) -> float:
    start_s = time.perf_counter()
    while any(process.pid == pid for process in nvml.read(gpu.uuid).processes or ()):
        assert time.perf_counter() - start_s < 60
    return time.perf_counter() - start_s


def test_training_from_our_allocator_ends_with_the_same_bits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    rows_of: dict[str, list[dict[str, float]]] = {}
    for allocator in ("native", "own", "native", "own"):
        with bench.trainer("train", 8, allocator=allocator) as trainer:
            rows_of.setdefault(allocator, []).append(answer(trainer))
    report("allocator", **{name: [row["step_ms"] for row in rows] for name, rows in rows_of.items()})
    assert len({row["bits"] for rows in rows_of.values() for row in rows}) == 1


def test_planned_steps_keep_their_peaks_and_bits_and_are_measured_beside_torchs_methods(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    granted = 14
    with bench.trainer("planned", granted, method="planned", grant_bytes=granted * bench.region_bytes) as trainer:
        rows = answer(trainer)["rows"]
    for row in rows:
        report("planned", **row)
    for method in RIVALS:
        with bench.trainer("planned", 1, method=method) as trainer:
            report("rival", **answer(trainer))
    ran = [row for row in rows if "infeasible" not in row]
    assert len({row["bits"] for row in ran}) == 1
    assert [row["share"] for row in ran if row["peak_bytes"] > 1.01 * row["planned_peak_bytes"]] == []


def test_iterations_recorded_as_a_graph_end_with_the_bits_of_unrecorded_iterations(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with bench.trainer("recorded", 8) as trainer:
        without, recorded = answer(trainer)["rows"]
    report("recorded", **recorded, without_ms=without["step_ms"])
    assert recorded["bits"] == without["bits"]
    assert (without["launched"], recorded["launched"] > 0) == (0, not ON_DOUBLE)


def test_the_gpu_passes_the_suite_of_every_device(gpu: Gpu) -> None:
    pytest.importorskip("hypothesis")
    suite = ("tests/device/test_device.py", "tests/device/test_arena.py")
    options = ("-p", "no:cacheprovider", "-k", "cuda")
    done = subprocess.run(
        (sys.executable, "-m", "pytest", *WITHOUT_SETTINGS, "-q", "--noconftest", *options, *suite),
        cwd=ROOT,
        # The suite's sizes are for a GPU's granularity; on a GPU the second variable has no effect.
        env=os.environ | {"TENSILE_TEST_DEVICES": "cuda", "FAKE_CUDA_GRANULARITY_KB": "2048"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{gpu.name}: {done.stdout}"
