"""Chooses the device that a controller and its processes run on, and says what it is like.

`auto` takes a GPU where the driver sees one that maps its memory, and the installed torch has a CUDA that this driver
runs and kernels for this GPU (wheels.py); everywhere else the device is this machine's own memory and processor, and
`Cpu.reason` says why. The emulated device, for tests and
for figures that are to mean something for a GPU, is one that must be asked for. Torch's CUDA is read off its own
version file: importing torch takes seconds, and a controller never does.
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
from indb_tensile.device.torch_wheels import cuda_number, mend, runs_on
from indb_tensile.device.trainer_footprint import FIRST_FOOTPRINT_BYTES, capacity_beside
from indb_tensile.errors import DeviceError
from indb_tensile.scheduler.timing.latency import DeviceSpeed

EMULATED: Final = "emulated"
CPU: Final = "cpu"
_IMPORT_S: Final = 120.0  # for torch to be imported, from a cold disk
GPU_REGION_BYTES: Final = 64 * MIB  # the unit of grants on a GPU: 1,280 of them on one of 80 GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """No GPU is used, but this machine's own memory and processor."""

    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    """A GPU's stand-in."""

    reason: str


Chosen = Gpu | Cpu | Emulated


def choose(
    setting: str,
    found: Gpus | NoGpu,
    torch_cuda: str | None,
    architectures: Callable[[], tuple[str, ...]] = tuple,
) -> Chosen:
    """The device for the setting `device`. Raises DeviceError where a GPU is asked for and cannot be used.

    `architectures`, asked where all else fits, are those that torch has kernels for; none are not looked at.
    """
    if setting == EMULATED:
        return Emulated(reason=f"{variable('device')} is {EMULATED}")
    if setting == CPU:
        return Cpu(reason=f"{variable('device')} is {CPU}")
    chosen = _usable(ordinal(setting), found, torch_cuda, architectures)
    if isinstance(chosen, Cpu) and setting != "auto":
        raise DeviceError(
            f"device ({variable('device')}) is {setting!r}, and {chosen.reason}",
            hint=chosen.hint or f"Set {variable('device')} to auto or {CPU}.",
        )
    return chosen


def named(chosen: Chosen) -> str:
    """The setting that chooses the same again: what the processes of a controller get."""
    match chosen:
        case Emulated():
            return EMULATED
        case Cpu():
            return CPU
        case Gpu():
            return f"cuda:{chosen.ordinal}"


def fitted(
    settings: Settings,
    gpu: Gpu,
    given: frozenset[str],
    *,
    free_bytes: int | None = None,
    footprint_bytes: int = FIRST_FOOTPRINT_BYTES,
) -> Settings:
    """The settings for a GPU: what is not `given` is what the device has free, in regions that suit it.

    `free_bytes` is what no process uses now, None where nobody tells: then all of the device. Each of `max_jobs`
    trainers needs `footprint_bytes` beside the regions. Where these would take more than half of what is free,
    `max_jobs` is lowered if it is not `given`. Raises DeviceError where the region size is not the device's, or where
    no region is left.
    """
    region_bytes = settings.region_bytes if "region_bytes" in given else region_bytes_of(gpu)
    if region_bytes % gpu.granularity_bytes:
        raise DeviceError(
            f"region_bytes ({variable('region_bytes')}) is {region_bytes}: {gpu.name} gives memory in units of"
            f" {gpu.granularity_bytes} bytes",
            hint=f"Give a multiple of {gpu.granularity_bytes}, or leave it out for {region_bytes_of(gpu)}.",
        )
    capacity_bytes = settings.capacity_bytes
    max_jobs = settings.max_jobs
    if "capacity_bytes" not in given:
        room_bytes = gpu.memory_bytes if free_bytes is None else min(free_bytes, gpu.memory_bytes)
        capacity_bytes, places = capacity_beside(room_bytes, footprint_bytes, max_jobs)
        if "max_jobs" in given:
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
    budget_bytes = min(settings.budget_bytes, capacity_bytes) if "budget_bytes" in given else capacity_bytes
    return replace(
        settings,
        region_bytes=region_bytes,
        capacity_bytes=capacity_bytes,
        budget_bytes=budget_bytes,
        max_jobs=max_jobs,
    )


def kind_of(device: str, threads: int = 1) -> str:
    """Under which name the catalog remembers operators of a device that was `named`, run on so many threads."""
    gpu = _gpu(device)
    if gpu is not None:
        return f"cuda:{gpu.name}"
    return cpu_kind(threads) if device == CPU else emulated_kind()


def speed_of(device: str) -> DeviceSpeed:
    """A first guess of its speed; it only has to rank operators until they are measured."""
    gpu = _gpu(device)
    return PROCESSOR_SPEED if gpu is None else roofline(gpu)


def roofline(gpu: Gpu) -> DeviceSpeed:
    """The device's rates from its clocks: float32 units (128 per multiprocessor since capability 8.6, 64 before)
    with two operations a cycle, and a memory bus with two transfers a cycle.
    """
    units = 128 if gpu.capability >= (8, 6) else 64
    return DeviceSpeed(
        flops_per_s=max(1, gpu.multiprocessors * units * 2 * gpu.clock_khz * 1000),
        bytes_per_s=max(1, gpu.memory_clock_khz * 1000 * 2 * gpu.memory_bus_bits // 8),
        launch_ns=5_000,
    )


def torch_cuda(torch: Path | None = None) -> str | None:
    """The CUDA version that the installed torch was built with; None without either. Does not import torch.

    `torch` is its directory, where it is not to be looked for.
    """
    directory = torch or _torch()
    try:
        text = "" if directory is None else (directory / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    for line in ast.parse(text).body:
        names = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
        value = getattr(line, "value", None)
        if any(isinstance(one, ast.Name) and one.id == "cuda" for one in names) and isinstance(value, ast.Constant):
            return value.value if isinstance(value.value, str) else None
    return None


def torch_architectures() -> tuple[str, ...]:
    """The architectures that the installed torch has kernels for (`sm_86`), as a process that imports it says.

    None where it does not say: it is then tried as it is.
    """
    ask = "import torch; print(torch._C._cuda_getArchFlags() or '')"  # get_arch_list without a look at the driver
    try:
        done = subprocess.run(
            (sys.executable, "-c", ask), capture_output=True, text=True, timeout=_IMPORT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(done.stdout.split()) if done.returncode == 0 else ()


def _torch() -> Path | None:
    found = find_spec("torch")
    return None if found is None or found.origin is None else Path(found.origin).parent


def _usable(
    number: int, found: Gpus | NoGpu, torch_cuda: str | None, architectures: Callable[[], tuple[str, ...]]
) -> Gpu | Cpu:
    if isinstance(found, NoGpu):
        return Cpu(reason=found.reason, hint=found.hint)
    gpu = next((one for one in found.devices if one.ordinal == number), None)
    if gpu is None:
        return Cpu(reason=f"the driver sees {len(found.devices)} GPUs and none of number {number}")
    if not gpu.virtual_memory:
        return Cpu(reason=f"{gpu.name} cannot map its memory in regions")
    if torch_cuda is None:
        return Cpu(
            reason=f"there is {gpu.name}, but the installed torch has no CUDA",
            hint=mend(found.driver_version, gpu.capability),
        )
    return _run_by_torch(gpu, found.driver_version, torch_cuda, architectures)


def _run_by_torch(
    gpu: Gpu, driver_version: int, torch_cuda: str, architectures: Callable[[], tuple[str, ...]]
) -> Gpu | Cpu:
    """The GPU, where its driver runs this torch's CUDA and torch has kernels for it."""
    needed = cuda_number(torch_cuda)
    hint = mend(driver_version, gpu.capability)
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
    """The size of regions that suits the GPU, where none is set."""
    return -(-GPU_REGION_BYTES // gpu.granularity_bytes) * gpu.granularity_bytes


@cache
def _gpu(device: str) -> Gpu | None:
    """What a device that was chosen once is; asked once in a process."""
    if not device.startswith("cuda"):
        return None
    found = probe()
    if isinstance(found, NoGpu):
        raise DeviceError(f"{device} is gone: {found.reason}", hint=found.hint)
    return next(one for one in found.devices if one.ordinal == ordinal(device))
