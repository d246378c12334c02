"""Chooses the device that a controller and its processes run on, and describes that device.

With `auto` the device is a GPU if three conditions hold: the driver reports a GPU that can map memory, the driver
runs the CUDA version of the installed torch, and that torch has kernels for the GPU (torch_wheels.py). Otherwise the
device is this machine's own memory and processor, and `Cpu.reason` says why. The emulated device is used only on
request, for tests and for measurements that model a GPU. The CUDA version is read from torch's version file, because
importing torch takes seconds; a controller never imports torch.
"""

import ast
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from indb_tensile.config import MIB, Settings, variable
from indb_tensile.device.cuda import Gpu, Gpus, NoGpu, ordinal, probe
from indb_tensile.device.hardware import PROCESSOR_SPEED, cpu_kind, emulated_kind
from indb_tensile.device.torch_wheels import cuda_number, installation_hint, runs_on
from indb_tensile.device.trainer_footprint import FIRST_FOOTPRINT_BYTES, capacity_beside
from indb_tensile.errors import DeviceError
from indb_tensile.scheduler.timing.latency import DeviceSpeed

EMULATED: Final = "emulated"
CPU: Final = "cpu"
_IMPORT_S: Final = 120.0  # time limit for importing torch from a cold disk
GPU_REGION_BYTES: Final = 64 * MIB  # the unit of grants on a GPU: 1,280 regions on a GPU with 80 GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The choice of this machine's own memory and processor. `reason` says why no GPU is used."""

    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    """The choice of the emulated device, which stands in for a GPU. `reason` says why."""

    reason: str


Chosen = Gpu | Cpu | Emulated


def choose(
    setting: str,
    gpus: Gpus | NoGpu,
    torch_cuda: str | None,
    architectures: Callable[[], tuple[str, ...]] = tuple,
) -> Chosen:
    """Return the device for the setting `device`. Raise DeviceError if the setting names a GPU that cannot be used.

    `architectures` returns the architectures that torch has kernels for. The function is called only after every
    other check has passed; an empty result skips the check.
    """
    if is_emulated(setting):
        return Emulated(reason=f"{variable('device')} is {EMULATED}")
    if setting == CPU:
        return Cpu(reason=f"{variable('device')} is {CPU}")
    chosen = _usable(ordinal(setting), gpus, torch_cuda, architectures)
    if isinstance(chosen, Cpu) and setting != "auto":
        raise DeviceError(
            f"device ({variable('device')}) is {setting!r}, and {chosen.reason}",
            hint=chosen.hint or f"Set {variable('device')} to auto or {CPU}.",
        )
    return chosen


def is_emulated(setting: str) -> bool:
    """Return whether the setting `device` names an emulated device: `emulated`, or `emulated:1` among several."""
    return setting.partition(":")[0] == EMULATED


def uploads_ahead(device: str, *, cuda_graphs: bool) -> bool:
    """Return whether trainers on this device upload the next batch while they train on the present one.

    In the host's memory nothing is uploaded, and an iteration that runs as a CUDA graph uploads its own batch. Steps
    that cannot run as a graph upload ahead too, but are known only later.
    """
    return is_emulated(device) or (device.startswith("cuda") and not cuda_graphs)


def named(chosen: Chosen) -> str:
    """Return the value of the setting `device` with which a controller's child processes choose this device."""
    match chosen:
        case Emulated():
            return EMULATED
        case Cpu():
            return CPU
        case Gpu():
            return f"cuda:{chosen.ordinal}"


def refuse_network(settings: Settings, chosen: Chosen) -> None:
    """Raise DeviceError if jobs cannot exchange gradients on this device as the settings say."""
    if settings.uses_nccl and not isinstance(chosen, Gpu):
        raise DeviceError(
            f"rank_network ({variable('rank_network')}) is nccl, and the device is not a GPU but {named(chosen)}",
            detail=f"It was chosen because {chosen.reason}.",
            hint="Set rank_network to host, or device to a GPU.",
        )


def fit_to_gpu(
    settings: Settings,
    gpu: Gpu,
    configured: frozenset[str],
    *,
    free_bytes: int | None = None,
    footprint_bytes: int = FIRST_FOOTPRINT_BYTES,
) -> Settings:
    """Return the settings for a GPU: each setting not named in `configured` gets a default that suits the device.

    `free_bytes` is the memory that no process uses now; None means unknown, and then all of the device's memory
    counts as free. Each of `max_jobs` trainers needs `footprint_bytes` outside the regions. If these footprints would
    take more than half of the free memory, `max_jobs` is lowered, unless it is `configured`. Raise DeviceError if the
    region size does not suit the device or if no region is left.
    """
    region_bytes = settings.region_bytes if "region_bytes" in configured else region_bytes_of(gpu)
    if region_bytes % gpu.granularity_bytes:
        raise DeviceError(
            f"region_bytes ({variable('region_bytes')}) is {region_bytes}: {gpu.name} gives memory in units of"
            f" {gpu.granularity_bytes} bytes",
            hint=f"Give a multiple of {gpu.granularity_bytes}, or leave it out for {region_bytes_of(gpu)}.",
        )
    capacity_bytes = settings.capacity_bytes
    max_jobs = settings.max_jobs
    if "capacity_bytes" not in configured:
        room_bytes = gpu.memory_bytes if free_bytes is None else min(free_bytes, gpu.memory_bytes)
        capacity_bytes, places = capacity_beside(room_bytes, footprint_bytes, max_jobs)
        if "max_jobs" in configured:
            capacity_bytes = room_bytes - max_jobs * footprint_bytes
        else:
            max_jobs = places
        if capacity_bytes < region_bytes:
            raise DeviceError(
                f"{gpu.name} has {room_bytes} bytes free, and {max_jobs} trainers need"
                f" {max_jobs * footprint_bytes} of them beside the jobs' memory:"
                f" no region of {region_bytes} bytes is left",
                hint=f"End other programs on the GPU, or set max_jobs ({variable('max_jobs')}) lower.",
            )
    capacity_bytes -= capacity_bytes % region_bytes
    budget_bytes = min(settings.budget_bytes, capacity_bytes) if "budget_bytes" in configured else capacity_bytes
    return replace(
        settings,
        region_bytes=region_bytes,
        capacity_bytes=capacity_bytes,
        budget_bytes=budget_bytes,
        max_jobs=max_jobs,
    )


def kind_of(device: str, threads: int = 1) -> str:
    """Return the name under which the catalog stores latencies of operators on this device.

    `device` is a result of `named`; `threads` is the number of threads that an operator uses.
    """
    gpu = _gpu(device)
    if gpu is not None:
        return f"cuda:{gpu.name}"
    return cpu_kind(threads) if device == CPU else emulated_kind(threads)


def speed_of(device: str) -> DeviceSpeed:
    """Return a first estimate of the device's speed. It only has to rank operators until they are measured."""
    gpu = _gpu(device)
    return PROCESSOR_SPEED if gpu is None else roofline(gpu)


def roofline(gpu: Gpu) -> DeviceSpeed:
    """Estimate the device's rates from its clocks.

    Multiprocessors have 128 float32 units since capability 8.6 and 64 before, with two operations a cycle. The memory
    bus makes two transfers a cycle.
    """
    units = 128 if gpu.capability >= (8, 6) else 64
    return DeviceSpeed(
        flops_per_s=max(1, gpu.multiprocessors * units * 2 * gpu.clock_khz * 1000),
        bytes_per_s=max(1, gpu.memory_clock_khz * 1000 * 2 * gpu.memory_bus_bits // 8),
        launch_ns=5_000,
    )


def torch_cuda(torch: Path | None = None) -> str | None:
    """Return the CUDA version that the installed torch was built with, or None without torch or CUDA.

    Does not import torch. `torch` is torch's directory; by default it is looked up.
    """
    directory = torch or _torch()
    try:
        text = "" if directory is None else (directory / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    for line in ast.parse(text).body:
        names = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
        value = getattr(line, "value", None)
        named_cuda = any(isinstance(name, ast.Name) and name.id == "cuda" for name in names)
        if named_cuda and isinstance(value, ast.Constant):
            return value.value if isinstance(value.value, str) else None
    return None


def torch_architectures() -> tuple[str, ...]:
    """Return the architectures that the installed torch has kernels for (`sm_86`).

    A child process imports torch. Returns an empty tuple if torch does not report them. Torch is then tried as it is.
    """
    ask = "import torch; print(torch._C._cuda_getArchFlags() or '')"  # unlike get_arch_list, does not ask the driver
    try:
        completed = subprocess.run(
            (sys.executable, "-c", ask), capture_output=True, text=True, timeout=_IMPORT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(completed.stdout.split()) if completed.returncode == 0 else ()


def _torch() -> Path | None:
    spec = find_spec("torch")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _usable(
    number: int, gpus: Gpus | NoGpu, torch_cuda: str | None, architectures: Callable[[], tuple[str, ...]]
) -> Gpu | Cpu:
    if isinstance(gpus, NoGpu):
        return Cpu(reason=gpus.reason, hint=gpus.hint)
    gpu = next((device for device in gpus.devices if device.ordinal == number), None)
    if gpu is None:
        return Cpu(reason=f"the driver sees {len(gpus.devices)} GPUs and none of number {number}")
    if not gpu.virtual_memory:
        return Cpu(reason=f"{gpu.name} cannot map its memory in regions")
    if torch_cuda is None:
        return Cpu(
            reason=f"there is {gpu.name}, but the installed torch has no CUDA",
            hint=installation_hint(gpus.driver_version, gpu.capability),
        )
    return _run_by_torch(gpu, gpus.driver_version, torch_cuda, architectures)


def _run_by_torch(
    gpu: Gpu, driver_version: int, torch_cuda: str, architectures: Callable[[], tuple[str, ...]]
) -> Gpu | Cpu:
    """Return the GPU if its driver runs this torch's CUDA and torch has kernels for it, else why not."""
    needed = cuda_number(torch_cuda)
    hint = installation_hint(driver_version, gpu.capability)
    if driver_version // 1000 < needed // 1000:
        supported = f"{driver_version // 1000}.{driver_version % 1000 // 10}"
        return Cpu(
            reason=f"the driver of {gpu.name} supports CUDA up to {supported}, and the installed torch is built with"
            f" {torch_cuda}",
            hint=hint,
        )
    built = architectures()
    if built and not runs_on(built, gpu.capability, compiles_ptx=driver_version >= needed):
        major, minor = gpu.capability
        return Cpu(
            reason=f"{gpu.name} has compute capability {major}.{minor}, and the installed torch has kernels for"
            f" {', '.join(built)}",
            hint=hint,
        )
    return gpu


def region_bytes_of(gpu: Gpu) -> int:
    """Return the default size of regions on the GPU."""
    return -(-GPU_REGION_BYTES // gpu.granularity_bytes) * gpu.granularity_bytes


@cache
def _gpu(device: str) -> Gpu | None:
    """Return the GPU of a device name, None for other devices. The driver is probed once per process."""
    if not device.startswith("cuda"):
        return None
    gpus = probe()
    if isinstance(gpus, NoGpu):
        raise DeviceError(f"{device} is gone: {gpus.reason}", hint=gpus.hint)
    return next(gpu for gpu in gpus.devices if gpu.ordinal == ordinal(device))
