"""The choice of the device, the reasons against another, and the memory that is taken from the device."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from indb_tensile.config import GIB, MIB, Settings
from indb_tensile.device.backend import (
    Cpu,
    Emulated,
    choose,
    fit_to_gpu,
    kind_of,
    named,
    refuse_network,
    roofline,
    speed_of,
    torch_cuda,
    uploads_ahead,
)
from indb_tensile.device.cuda import Absence, Gpu, Gpus, NoGpu
from indb_tensile.device.hardware import PROCESSOR_SPEED, emulated_kind
from indb_tensile.device.trainer_footprint import FIRST_FOOTPRINT_BYTES, FootprintFile
from indb_tensile.errors import DeviceError

A6000 = Gpu(
    ordinal=0,
    name="NVIDIA RTX A6000",
    uuid="GPU-0",
    memory_bytes=48 * GIB,
    capability=(8, 6),
    multiprocessors=84,
    clock_khz=1_800_000,
    memory_clock_khz=8_001_000,
    memory_bus_bits=384,
    copy_engines=2,
    virtual_memory=True,
    shareable=True,
    granularity_bytes=2 * MIB,
)
SECOND = replace(A6000, ordinal=1, uuid="GPU-1")
TWO = Gpus(driver_version=12080, devices=(A6000, SECOND))
NO_GPU = NoGpu(why=Absence.NO_DRIVER, reason="libcuda.so.1 is not there", hint="install a driver")


@pytest.mark.parametrize(
    ("setting", "chosen", "name"),
    [("auto", A6000, "cuda:0"), ("cuda", A6000, "cuda:0"), ("cuda:1", SECOND, "cuda:1")],
)
def test_a_gpu_is_chosen_if_driver_and_torch_support_cuda(setting: str, chosen: Gpu, name: str) -> None:
    assert choose(setting, TWO, "12.8") == chosen
    assert named(chosen) == name


@pytest.mark.parametrize(
    ("gpus", "cuda", "reason"),
    [
        (NO_GPU, "12.8", "libcuda.so.1 is not there"),
        (TWO, None, "there is NVIDIA RTX A6000, but the installed torch has no CUDA"),
        (
            replace(TWO, devices=(replace(A6000, virtual_memory=False),)),
            "12.8",
            "NVIDIA RTX A6000 cannot map its memory in regions",
        ),
    ],
)
def test_without_a_usable_gpu_auto_chooses_the_processor_and_cuda_is_refused(
    gpus: Gpus | NoGpu, cuda: str | None, reason: str
) -> None:
    chosen = choose("auto", gpus, cuda)
    assert isinstance(chosen, Cpu)
    assert (chosen.reason, named(chosen)) == (reason, "cpu")
    with pytest.raises(DeviceError) as refused:
        choose("cuda", gpus, cuda)
    assert refused.value.message == f"device (TENSILE_DEVICE) is 'cuda', and {reason}"
    assert refused.value.hint


@pytest.mark.parametrize(
    ("cuda", "built", "reason", "hint"),
    [
        (
            "13.0",
            (),
            "the driver of NVIDIA RTX A6000 supports CUDA up to 12.8, and the installed torch is built with 13.0",
            "cu126",
        ),
        (
            "12.6",
            ("sm_90", "sm_100"),
            "NVIDIA RTX A6000 has compute capability 8.6, and the installed torch has kernels for sm_90, sm_100",
            "cu126",
        ),
    ],
)
def test_a_gpu_that_this_torch_cannot_use_is_not_chosen_and_the_hint_names_the_torch_build(
    cuda: str, built: tuple[str, ...], reason: str, hint: str
) -> None:
    chosen = choose("auto", TWO, cuda, lambda: built)
    assert isinstance(chosen, Cpu)
    assert chosen.reason == reason
    assert f"--index-url https://download.pytorch.org/whl/{hint}" in chosen.hint
    assert choose("auto", TWO, "12.9", lambda: ("sm_80", "sm_90")) == A6000


def test_trainers_upload_ahead_where_uploads_are_copies_that_no_graph_contains() -> None:
    devices = ("cpu", "emulated", "emulated:1", "cuda:0")
    assert [uploads_ahead(device, cuda_graphs=True) for device in devices] == [False, True, True, False]
    assert [uploads_ahead(device, cuda_graphs=False) for device in devices] == [False, True, True, True]


def test_an_unknown_number_of_a_gpu_is_refused() -> None:
    with pytest.raises(DeviceError, match="the driver sees 2 GPUs and none of number 7"):
        choose("cuda:7", TWO, "12.8")


def test_the_emulated_device_is_chosen_on_request_even_with_a_gpu() -> None:
    assert isinstance(choose("emulated", TWO, "12.8"), Emulated)


def test_the_processor_is_chosen_on_request_even_with_a_gpu() -> None:
    assert choose("cpu", TWO, "12.8") == Cpu(reason="TENSILE_DEVICE is cpu")


def test_exchange_by_nccl_is_refused_on_a_device_that_is_no_gpu() -> None:
    nccl = Settings(rank_network="nccl")
    refuse_network(nccl, A6000)
    for chosen in (Cpu(reason="no driver was found"), Emulated(reason="")):
        refuse_network(Settings(), chosen)
    message = re.escape("rank_network (TENSILE_RANK_NETWORK) is nccl, and the device is not a GPU but cpu")
    with pytest.raises(DeviceError, match=message) as caught:
        refuse_network(nccl, Cpu(reason="no driver was found"))
    assert caught.value.detail == "It was chosen because no driver was found."


def test_the_capacity_of_a_gpu_is_its_free_memory_less_the_trainers_footprints() -> None:
    fitted = fit_to_gpu(Settings(), A6000, frozenset(), free_bytes=40 * GIB, footprint_bytes=GIB)
    assert (fitted.capacity_bytes, fitted.budget_bytes, fitted.region_bytes) == (32 * GIB, 32 * GIB, 64 * MIB)
    many_jobs = fit_to_gpu(Settings(max_jobs=16), A6000, frozenset(), free_bytes=40 * GIB, footprint_bytes=GIB)
    assert many_jobs.capacity_bytes == 24 * GIB
    unknown = fit_to_gpu(Settings(max_jobs=4), A6000, frozenset())
    assert unknown.capacity_bytes == 48 * GIB - 4 * FIRST_FOOTPRINT_BYTES


def test_a_small_gpu_runs_fewer_jobs_unless_their_number_is_set() -> None:
    fitted = fit_to_gpu(Settings(max_jobs=8), A6000, frozenset(), free_bytes=6 * GIB, footprint_bytes=GIB)
    assert (fitted.capacity_bytes, fitted.max_jobs) == (3 * GIB, 3)
    fixed = fit_to_gpu(Settings(max_jobs=5), A6000, frozenset({"max_jobs"}), free_bytes=6 * GIB, footprint_bytes=GIB)
    assert (fixed.capacity_bytes, fixed.max_jobs) == (GIB, 5)
    with pytest.raises(DeviceError, match="6 trainers need 6442450944 of them beside the jobs' memory: no region"):
        fit_to_gpu(Settings(max_jobs=6), A6000, frozenset({"max_jobs"}), free_bytes=6 * GIB, footprint_bytes=GIB)


def test_a_measured_footprint_is_stored_for_its_kind_of_device(tmp_path: Path) -> None:
    file = FootprintFile(tmp_path / "state")
    assert file.read("cuda:A") == FIRST_FOOTPRINT_BYTES
    file.keep("cuda:A", 5)
    file.keep("cuda:B", 6)
    assert [FootprintFile(tmp_path / "state").read(kind) for kind in ("cuda:A", "cuda:B")] == [5, 6]
    (tmp_path / "state" / "trainer-footprints.json").write_text("{")
    assert file.read("cuda:A") == FIRST_FOOTPRINT_BYTES


def test_requested_sizes_are_rounded_down_to_regions() -> None:
    requested = Settings(capacity_bytes=GIB + 1, budget_bytes=GIB, region_bytes=6 * MIB)
    fitted = fit_to_gpu(requested, A6000, frozenset({"capacity_bytes", "budget_bytes", "region_bytes"}))
    assert (fitted.capacity_bytes, fitted.budget_bytes) == (1020 * MIB, 1020 * MIB)
    with pytest.raises(DeviceError, match=r"region_bytes .* is 3145728: NVIDIA RTX A6000 gives memory in units of"):
        fit_to_gpu(replace(requested, region_bytes=3 * MIB), A6000, frozenset({"region_bytes"}))


def test_the_first_estimate_of_a_gpus_speed_is_its_data_sheet() -> None:
    speed = roofline(A6000)
    assert speed.flops_per_s == pytest.approx(38.7e12, rel=0.01)
    assert speed.bytes_per_s == pytest.approx(768e9, rel=0.01)


def test_an_emulated_device_keeps_its_kind_and_estimated_speed() -> None:
    assert (kind_of("emulated"), speed_of("emulated")) == (emulated_kind(1), PROCESSOR_SPEED)


def test_the_kind_of_a_processor_or_emulated_device_includes_the_number_of_threads() -> None:
    kinds = {kind_of(device, threads) for device in ("cpu", "emulated", "emulated:1") for threads in (1, 2)}
    assert len(kinds) == 4
    assert kind_of("cpu", 1).endswith(", 1 thread")
    assert kind_of("cpu", 2).endswith(", 2 threads")
    assert speed_of("cpu") == PROCESSOR_SPEED


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("cuda: Optional[str] = '12.8'\n", "12.8"),
        ("cuda = '13.0'\n", "13.0"),
        ("cuda: Optional[str] = None\n", None),
        ("__version__ = '2.13.0'\n", None),
    ],
)
def test_torchs_cuda_version_is_read_without_importing_torch(tmp_path: Path, text: str, version: str | None) -> None:
    (tmp_path / "version.py").write_text(f"from typing import Optional\n{text}")
    assert torch_cuda(tmp_path) == version
