"""Which build of torch a GPU and its driver can run: CUDA versions, and the architectures that kernels are built for.

A driver runs programs of its CUDA major version and of older ones (NVIDIA, CUDA Compatibility: minor version
compatibility). A kernel's binary runs on devices of its major compute capability with the same or a later minor one;
one for a single architecture (`sm_90a`) on that alone; PTX (`compute_90`) is compiled by the driver for any later
device, if the driver is of the same CUDA version as the compiler or of a later one (NVIDIA, CUDA C++ Programming
Guide: Application Compatibility).
"""

import re
from dataclasses import dataclass
from typing import Final

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One of torch's builds: from which driver on, and for which devices it has kernels."""

    name: str
    driver: int  # the first major version of NVIDIA's driver that runs it
    cuda_version: int  # 13000 is 13.0
    least: Capability
    below: Capability


# The builds of torch 2.13, newest first. Drivers: NVIDIA, CUDA Compatibility, table 1 (CUDA 12.x from 525, 13.x from
# 580). Devices: torch's RELEASE.md, CUDA support matrix: cu126 has kernels for Maxwell to Hopper, cu130 for Turing
# to Blackwell. examples/setup.sh has the same table; a test compares them.
WHEELS: Final = (
    Wheel(name="cu130", driver=580, cuda_version=13000, least=(7, 5), below=(13, 0)),
    Wheel(name="cu126", driver=525, cuda_version=12060, least=(5, 0), below=(10, 0)),
)
INDEX: Final = "https://download.pytorch.org/whl"

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def runs_on(architectures: tuple[str, ...], capability: Capability, *, compiles_ptx: bool) -> bool:
    """Whether any of these (`sm_86`, `compute_90`) runs on a device of that compute capability."""
    return any(_runs(text, capability, compiles_ptx=compiles_ptx) for text in architectures)


def _runs(text: str, capability: Capability, *, compiles_ptx: bool) -> bool:
    found = _ARCHITECTURE.fullmatch(text)
    if found is None:
        return False
    kind, major, minor, special = found.groups()
    built = int(major), int(minor)
    if special:
        return built == capability
    if kind == "compute":
        return compiles_ptx and built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


def cuda_number(version: str) -> int:
    """12080 for `12.8`, as the driver numbers them."""
    major, _, minor = version.partition(".")
    return int(major) * 1000 + int(minor.partition(".")[0] or 0) * 10


def mend(driver_version: int, capability: Capability) -> str:
    """What to install for a driver that supports CUDA up to this version, and this device."""
    for wheel in WHEELS:
        if wheel.least <= capability < wheel.below and driver_version // 1000 >= wheel.cuda_version // 1000:
            return f"Install torch's build {wheel.name}: pip install torch==2.13.0 --index-url {INDEX}/{wheel.name}"
    known = [wheel for wheel in WHEELS if wheel.least <= capability < wheel.below]
    if known:
        oldest = known[-1]
        return f"Install NVIDIA's driver {oldest.driver} or newer, and torch's build {oldest.name}."
    return "No build of torch has kernels for this device: use a newer torch, or another device."
