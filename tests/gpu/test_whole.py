"""The whole memory of a device in regions, jobs beside each other, and the networks that become graphs."""

import os
import time
from contextlib import ExitStack

import pytest

from indb_tensile.device.cuda import CudaBroker, Gpu
from indb_tensile.device.ledger import Ledger
from indb_tensile.device.nvml import NoNvml, Nvml
from tests.gpu.conftest import REGION_BYTES, Bench, answer, report, resume
from tests.gpu.place import ON_DOUBLE, PLACE

HEADROOM_BYTES = 4 << 30  # for the contexts of this test's processes
# Its kernels do not fill a large GPU.
SMALL = {"width": 512, "depth": 8, "rows": 256, "seconds": 5}
LONG = {"rows": 8192}  # long kernels, so a trainer mostly waits
if ON_DOUBLE:
    SMALL, LONG = {"width": 32, "depth": 2, "rows": 8, "seconds": 0}, {"rows": 16}
NETWORKS = ("mlp", "convolutions", "residual", "transformer", "recurrent")

pytestmark = pytest.mark.gpu


def test_the_whole_device_is_made_and_mapped_in_regions_of_64_mib(gpu: Gpu) -> None:
    nvml = Nvml.start()
    region_bytes = -(-REGION_BYTES // gpu.granularity_bytes) * gpu.granularity_bytes

    def used_bytes() -> int | None:
        return None if isinstance(nvml, NoNvml) else nvml.read(gpu.uuid).used_bytes

    before_bytes = used_bytes()
    free_bytes = gpu.memory_bytes - (before_bytes or 0)
    count = max(2, max(free_bytes // 2, free_bytes - HEADROOM_BYTES) // region_bytes)
    start_s = time.perf_counter()
    broker = CudaBroker(gpu.ordinal, region_bytes, count)
    made_s, made_bytes = time.perf_counter() - start_s, used_bytes()
    whole = Bench(Ledger.create(count * region_bytes, region_bytes, 1, 1, None), broker, region_bytes)
    with whole.trainer("map_regions", 1) as trainer:
        figures = answer(trainer)
        mapped_bytes = used_bytes()
        resume(trainer)
        assert trainer.wait(60) == 0
    report(
        "whole device",
        regions=count,
        region_bytes=region_bytes,
        made_s=made_s,
        mapped_s=figures["mapping_s"],
        used_before_bytes=before_bytes,
        used_made_bytes=made_bytes,
        used_mapped_bytes=mapped_bytes,
        nvml=nvml.reason if isinstance(nvml, NoNvml) else "",
    )
    assert figures["bytes"] == count * region_bytes


@pytest.mark.parametrize("count", [1, 2] if ON_DOUBLE else [1, 2, 4])
def test_jobs_at_once_share_the_devices_arithmetic(bench: Bench, count: int) -> None:
    rows = _paced(bench, count)
    report(
        "jobs at once",
        jobs=count,
        mps="CUDA_MPS_PIPE_DIRECTORY" in os.environ,
        steps_per_s=[row["steps_per_s"] for row in rows],
        together_steps_per_s=sum(row["steps_per_s"] for row in rows),
        of_a_processor=[row["of_a_processor"] for row in rows],
    )
    assert min(row["steps_per_s"] for row in rows) > 0


@pytest.mark.parametrize("count", [1] if ON_DOUBLE else [1, 2, 4, 8])
def test_waiting_trainers_use_little_of_the_processor(bench: Bench, count: int) -> None:
    rows = _paced(bench, count, **LONG)
    taken = [row["of_a_processor"] for row in rows]
    report("waiting trainers", trainers=count, of_a_processor=taken)
    assert ON_DOUBLE or min(taken) < 0.95, "a busy wait would use a whole processor"


def test_batches_are_gathered_in_page_locked_memory_while_the_gpu_computes(bench: Bench) -> None:
    regions = 2 if ON_DOUBLE else 14
    table = {"rows": 256, "width": 64, "hidden": 64} if ON_DOUBLE else {"rows": 8192, "width": 1024, "hidden": 4096}
    settings = {**table, "place": PLACE, "region_bytes": bench.region_bytes, "host_pool_bytes": 1 << 28}
    with bench.trainer("fed", regions, module="feed_process", **settings) as trainer:
        figures = answer(trainer)
    ways = figures.pop("ways")
    for way in ways:
        report("batches", **way, **figures)
    bits = {way["way"]: way["bits"] for way in ways}
    assert bits["one thread"] == bits["two threads"] == bits["lent"]
    (lent,) = (way for way in ways if way["way"] == "lent")
    assert lent["lent_bytes"] > 0
    assert ON_DOUBLE or lent["ahead"] > 0


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_become_graphs_or_log_the_reason(
    bench: Bench, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with bench.trainer("become_graphs", 14, module="pace_process", network=network) as trainer:
        figures = answer(trainer)
    report("graph", network=network, **figures)
    assert "error" not in figures
    assert ON_DOUBLE or figures["launched"] > 0 or figures["log_lines"]


def _paced(bench: Bench, count: int, **settings: int) -> list[dict[str, float]]:
    """Run this number of trainers at once, each with two regions. Return the figures of each."""
    with ExitStack() as stack:
        trainers = [
            stack.enter_context(bench.trainer("train_for", 2, module="pace_process", **{**SMALL, **settings}))
            for _ in range(count)
        ]
        for step in (answer, resume, answer):
            figures = [step(trainer) for trainer in trainers]
    return [row for row in figures if row is not None]
