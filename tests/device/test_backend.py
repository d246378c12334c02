"""Which device is taken, why not another, and what it is asked to give."""

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
    roofline,
    speed_of,
    torch_cuda,
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
NONE = NoGpu(why=Absence.NO_DRIVER, reason="libcuda.so.1 is not there", hint="install a driver")


@pytest.mark.parametrize(
    ("setting", "chosen", "name"),
    [("auto", A6000, "cuda:0"), ("cuda", A6000, "cuda:0"), ("cuda:1", SECOND, "cuda:1")],
)
def test_a_gpu_is_taken_where_driver_and_torch_have_cuda(setting: str, chosen: Gpu, name: str) -> None:
    assert choose(setting, TWO, "12.8") == chosen
    assert named(chosen) == name


@pytest.mark.parametrize(
    ("found", "cuda", "reason"),
    [
        (NONE, "12.8", "libcuda.so.1 is not there"),
        (TWO, None, "there is NVIDIA RTX A6000, but the installed torch has no CUDA"),
        (
            replace(TWO, devices=(replace(A6000, virtual_memory=False),)),
            "12.8",
            "NVIDIA RTX A6000 cannot map its memory in regions",
        ),
    ],
)
def test_where_it_cannot_be_used_the_device_is_the_processor_or_the_demand_refused(
    found: Gpus | NoGpu, cuda: str | None, reason: str
) -> None:
    chosen = choose("auto", found, cuda)
    assert isinstance(chosen, Cpu)
    assert (chosen.reason, named(chosen)) == (reason, "cpu")
    with pytest.raises(DeviceError) as refused:
        choose("cuda", found, cuda)
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
def test_a_gpu_that_this_torch_cannot_use_is_left_with_the_reason_and_the_build_that_fits(
    cuda: str, built: tuple[str, ...], reason: str, hint: str
) -> None:
    chosen = choose("auto", TWO, cuda, lambda: built)
    assert isinstance(chosen, Cpu)
    assert chosen.reason == reason
    assert f"--index-url https://download.pytorch.org/whl/{hint}" in chosen.hint
    assert choose("auto", TWO, "12.9", lambda: ("sm_80", "sm_90")) == A6000


def test_a_number_that_no_gpu_has_is_named() -> None:
    with pytest.raises(DeviceError, match="the driver sees 2 GPUs and none of number 7"):
        choose("cuda:7", TWO, "12.8")


def test_an_emulated_device_is_taken_where_it_is_asked_for_whatever_there_is() -> None:
    assert isinstance(choose("emulated", TWO, "12.8"), Emulated)


def test_the_processor_is_taken_where_it_is_asked_for_whatever_there_is() -> None:
    assert choose("cpu", TWO, "12.8") == Cpu(reason="TENSILE_DEVICE is cpu")


def test_a_gpu_gives_what_is_free_less_what_each_trainer_takes_beside_the_regions() -> None:
    found = fit_to_gpu(Settings(), A6000, frozenset(), free_bytes=40 * GIB, footprint_bytes=GIB)
    assert (found.capacity_bytes, found.budget_bytes, found.region_bytes) == (32 * GIB, 32 * GIB, 64 * MIB)
    many = fit_to_gpu(Settings(max_jobs=16), A6000, frozenset(), free_bytes=40 * GIB, footprint_bytes=GIB)
    assert many.capacity_bytes == 24 * GIB
    unknown = fit_to_gpu(Settings(max_jobs=4), A6000, frozenset())
    assert unknown.capacity_bytes == 48 * GIB - 4 * FIRST_FOOTPRINT_BYTES


def test_a_small_gpu_runs_fewer_jobs_unless_their_number_is_set() -> None:
    found = fit_to_gpu(Settings(max_jobs=8), A6000, frozenset(), free_bytes=6 * GIB, footprint_bytes=GIB)
    assert (found.capacity_bytes, found.max_jobs) == (3 * GIB, 3)
    asked = fit_to_gpu(Settings(max_jobs=5), A6000, frozenset({"max_jobs"}), free_bytes=6 * GIB, footprint_bytes=GIB)
    assert (asked.capacity_bytes, asked.max_jobs) == (GIB, 5)
    with pytest.raises(DeviceError, match="6 trainers need 6442450944 of them beside the jobs' memory: no region"):
        fit_to_gpu(Settings(max_jobs=6), A6000, frozenset({"max_jobs"}), free_bytes=6 * GIB, footprint_bytes=GIB)


def test_a_measured_footprint_is_kept_for_its_kind_of_device(tmp_path: Path) -> None:
    kept = FootprintFile(tmp_path / "state")
    assert kept.read("cuda:A") == FIRST_FOOTPRINT_BYTES
    kept.keep("cuda:A", 5)
    kept.keep("cuda:B", 6)
    assert [FootprintFile(tmp_path / "state").read(kind) for kind in ("cuda:A", "cuda:B")] == [5, 6]
    (tmp_path / "state" / "trainer-footprints.json").write_text("{")
    assert kept.read("cuda:A") == FIRST_FOOTPRINT_BYTES


def test_what_is_set_stays_as_far_as_regions_allow() -> None:
    asked = Settings(capacity_bytes=GIB + 1, budget_bytes=GIB, region_bytes=6 * MIB)
    found = fit_to_gpu(asked, A6000, frozenset({"capacity_bytes", "budget_bytes", "region_bytes"}))
    assert (found.capacity_bytes, found.budget_bytes) == (1020 * MIB, 1020 * MIB)
    with pytest.raises(DeviceError, match=r"region_bytes .* is 3145728: NVIDIA RTX A6000 gives memory in units of"):
        fit_to_gpu(replace(asked, region_bytes=3 * MIB), A6000, frozenset({"region_bytes"}))


def test_a_gpus_first_guess_is_its_data_sheet() -> None:
    speed = roofline(A6000)
    assert speed.flops_per_s == pytest.approx(38.7e12, rel=0.01)
    assert speed.bytes_per_s == pytest.approx(768e9, rel=0.01)


def test_an_emulated_device_keeps_its_kind_and_guess() -> None:
    assert (kind_of("emulated"), speed_of("emulated")) == (emulated_kind(), PROCESSOR_SPEED)


def test_a_processor_with_so_many_threads_is_a_kind_of_its_own() -> None:
    assert len({kind_of("emulated"), kind_of("cpu", 1), kind_of("cpu", 2)}) == 3
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
def test_torchs_cuda_is_read_without_importing_it(tmp_path: Path, text: str, version: str | None) -> None:
    (tmp_path / "version.py").write_text(f"from typing import Optional\n{text}")
    assert torch_cuda(tmp_path) == version
