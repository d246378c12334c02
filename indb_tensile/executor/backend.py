"""Chooses the device that a controller and its processes run on, and says what it is like.

`auto` takes a GPU where the driver sees one that maps its memory and the installed torch has CUDA; everywhere else
the device is this machine's own memory and processor, and `Cpu.reason` says why. The emulated device, for tests and
for figures that are to mean something for a GPU, is one that must be asked for. Torch's CUDA is read off its own
version file: importing torch takes seconds, and a controller never does. No GPU has been chosen by this on a real
machine yet.
"""

import ast
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from indb_tensile.config import GIB, MIB, Settings, variable
from indb_tensile.errors import DeviceError
from indb_tensile.executor.cuda import Gpu, Gpus, NoGpu, ordinal, probe
from indb_tensile.executor.hardware import PROCESSOR_SPEED, cpu_kind, emulated_kind
from indb_tensile.scheduler.latency import DeviceSpeed

EMULATED: Final = "emulated"
CPU: Final = "cpu"
GPU_REGION_BYTES: Final = 64 * MIB  # the unit of grants on a GPU: 1,280 of them on one of 80 GB
HEADROOM_BYTES: Final = 2 * GIB  # of a GPU, left to contexts, loaded kernels, and what torch takes beside its plans


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


def choose(setting: str, found: Gpus | NoGpu, torch_cuda: str | None) -> Chosen:
    """The device for the setting `device`. Raises DeviceError where a GPU is asked for and cannot be used."""
    if setting == EMULATED:
        return Emulated(reason=f"{variable('device')} is {EMULATED}")
    if setting == CPU:
        return Cpu(reason=f"{variable('device')} is {CPU}")
    chosen = _usable(ordinal(setting), found, torch_cuda)
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


def fitted(settings: Settings, gpu: Gpu, given: frozenset[str]) -> Settings:
    """The settings for a GPU: what is not `given` is what the device has, in regions that suit it.

    Raises DeviceError where the region size is not the device's.
    """
    region_bytes = settings.region_bytes if "region_bytes" in given else _regions_of(gpu)
    if region_bytes % gpu.granularity_bytes:
        raise DeviceError(
            f"region_bytes ({variable('region_bytes')}) is {region_bytes}: {gpu.name} gives memory in units of"
            f" {gpu.granularity_bytes} bytes",
            hint=f"Give a multiple of {gpu.granularity_bytes}, or leave it out for {_regions_of(gpu)}.",
        )
    capacity_bytes = settings.capacity_bytes
    if "capacity_bytes" not in given:
        capacity_bytes = max(gpu.memory_bytes // 2, gpu.memory_bytes - HEADROOM_BYTES)
    capacity_bytes -= capacity_bytes % region_bytes
    budget_bytes = min(settings.budget_bytes, capacity_bytes) if "budget_bytes" in given else capacity_bytes
    return replace(settings, region_bytes=region_bytes, capacity_bytes=capacity_bytes, budget_bytes=budget_bytes)


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


def _torch() -> Path | None:
    found = find_spec("torch")
    return None if found is None or found.origin is None else Path(found.origin).parent


def _usable(number: int, found: Gpus | NoGpu, torch_cuda: str | None) -> Gpu | Cpu:
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
            hint="Install a build of torch with CUDA: https://pytorch.org/get-started/locally",
        )
    return gpu


def _regions_of(gpu: Gpu) -> int:
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
