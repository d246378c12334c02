"""Selects the build of torch that a GPU and its driver can run, by CUDA version and by architectures of kernels.

A driver runs programs of its CUDA major version and of older ones (NVIDIA, CUDA Compatibility: minor version
compatibility). A kernel's binary runs on devices of its major compute capability with the same or a later minor
version. A binary for a single architecture (`sm_90a`) runs on that one only. PTX (`compute_90`) is compiled by the
driver for any later device, if the driver's CUDA version is at least the compiler's (NVIDIA, CUDA C++ Programming
Guide: Application Compatibility).
"""

import re
from dataclasses import dataclass
from typing import Final

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One of torch's builds, with the drivers that run it and the devices that it has kernels for."""

    name: str
    driver: int  # the first major version of NVIDIA's driver that runs it
    cuda_version: int  # 13000 is 13.0
    least: Capability
    below: Capability


# The builds of torch 2.13, newest first. Drivers: NVIDIA, CUDA Compatibility, table 1 (CUDA 12.x from 525, 13.x from
# 580). Devices: torch's RELEASE.md, CUDA support matrix: cu126 has kernels for Maxwell to Hopper, cu130 for Turing to
# Blackwell. examples/setup.sh has the same table; a test compares both.
WHEELS: Final = (
    Wheel(name="cu130", driver=580, cuda_version=13000, least=(7, 5), below=(13, 0)),
    Wheel(name="cu126", driver=525, cuda_version=12060, least=(5, 0), below=(10, 0)),
)
INDEX: Final = "https://download.pytorch.org/whl"

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def runs_on(architectures: tuple[str, ...], capability: Capability, *, compiles_ptx: bool) -> bool:
    """Return whether any of these architectures (`sm_86`, `compute_90`) runs on a device of that capability."""
    return any(_architecture_runs(text, capability, compiles_ptx=compiles_ptx) for text in architectures)


def _architecture_runs(text: str, capability: Capability, *, compiles_ptx: bool) -> bool:
    match = _ARCHITECTURE.fullmatch(text)
    if match is None:
        return False
    kind, major, minor, special = match.groups()
    built = int(major), int(minor)
    if special:
        return built == capability
    if kind == "compute":
        return compiles_ptx and built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


def cuda_number(version: str) -> int:
    """Return the driver's number of a CUDA version: 12080 for `12.8`."""
    major, _, minor = version.partition(".")
    return int(major) * 1000 + int(minor.partition(".")[0] or 0) * 10


def installation_hint(driver_version: int, capability: Capability) -> str:
    """Return what to install for this device and a driver that supports CUDA up to `driver_version`."""
    for wheel in WHEELS:
        if wheel.least <= capability < wheel.below and driver_version // 1000 >= wheel.cuda_version // 1000:
            return f"Install torch's build {wheel.name}: pip install torch==2.13.0 --index-url {INDEX}/{wheel.name}"
    known = [wheel for wheel in WHEELS if wheel.least <= capability < wheel.below]
    if known:
        oldest = known[-1]
        return f"Install NVIDIA's driver {oldest.driver} or newer, and torch's build {oldest.name}."
    return "No build of torch has kernels for this device: use a newer torch, or another device."
